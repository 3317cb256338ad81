"""Text of others, such as names of classes and files, made harmless for each format of output."""

import re
from collections.abc import Mapping
from typing import Any

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_FORMULA = ("=", "+", "-", "@")


def printable(text: str) -> str:
    r"""Escape what is no printable character, except line breaks, for a terminal.

    >>> printable("cat\x1b[31m\ndog")
    'cat\\x1b[31m\ndog'
    """
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def one_line(text: str) -> str:
    r"""Do the same, and join lines.

    >>> one_line("cat\n\ndog")
    'cat dog'
    """
    return printable(" ".join(line for line in text.splitlines() if line))


def in_markdown(text: str) -> str:
    r"""Escape the tags of HTML in a sentence or a cell of Markdown, and join its lines.

    >>> in_markdown("p < .05 of <script>alert(1)</script>\n# dog")
    'p < .05 of &lt;script>alert(1)&lt;/script> # dog'
    """
    return _TAG.sub("&lt;", one_line(text))


def in_csv(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Put an apostrophe before texts that a spreadsheet would compute; numbers stay.

    >>> in_csv({"part": "=1+1", "value": -0.5, "note": "-0.5"})
    {'part': "'=1+1", 'value': -0.5, 'note': '-0.5'}
    """
    return {
        name: f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell
        for name, cell in cells.items()
    }


def _is_formula(text: str) -> bool:
    if not text.lstrip().startswith(_FORMULA) and not text.startswith(("\t", "\r")):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
