"""Docstrings of objects that combine two functions, such as metrics."""

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any

_ENTRY = re.compile(r"  (\w+): ")
_AFTER = re.compile(r"^(Returns:|References:|>>> )", re.MULTILINE)


def with_arguments(
    function: Callable[..., Any], source: Callable[..., Any], names: Collection[str]
) -> str:
    """Return the docstring of a function, with arguments that another function describes.

    Args:
      function: the function whose docstring is returned.
      source: the function whose docstring describes the other arguments.
      names: the names of the arguments to describe, in this order.

    >>> def terms(logits, *, num_bins):
    ...     '''Sum per bin.
    ...
    ...     Args:
    ...       num_bins: number of bins.
    ...     '''
    >>> def error(sums):
    ...     '''Compute the error.'''
    >>> print(with_arguments(error, terms, ["num_bins"]))
    Compute the error.
    <BLANKLINE>
    Args:
      num_bins: number of bins.
    """
    text = inspect.getdoc(function) or ""
    own, given = _described(text), _described(inspect.getdoc(source) or "")
    entries = [(own | given)[name] for name in names if name in own or name in given]
    text = _section(text)[0]
    if not entries:
        return text
    after = _AFTER.search(text)
    place = after.start() if after else len(text)
    head, tail = text[:place].rstrip(), text[place:]
    section = "Args:\n" + "\n".join(entries)
    return "\n\n".join(part for part in (head, section, tail) if part)


def _section(text: str) -> tuple[str, str]:
    """Split a docstring into the text outside and the text inside the section Args."""
    match = re.search(r"^Args:\n((?:  .*\n?|\n(?=  ))+)\n*", text, re.MULTILINE)
    if match is None:
        return text, ""
    return text[: match.start()] + text[match.end() :], match[1]


def _described(text: str) -> dict[str, str]:
    """Return the lines that describe each argument, by name."""
    entries: dict[str, str] = {}
    name = ""
    for line in _section(text)[1].splitlines():
        if match := _ENTRY.match(line):
            name = match[1]
            entries[name] = line
        elif name:
            entries[name] += "\n" + line.rstrip()
    return entries
