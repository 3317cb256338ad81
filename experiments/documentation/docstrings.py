"""Docstrings as Markdown: sections become lists, doctests become blocks of code."""

import inspect
import re
from collections.abc import Callable

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|References):$")
_ENTRY = re.compile(r"^(\*{0,2}\w[\w., *]*?): (.*)$")
_TITLES = {"Args": "Arguments"}


def as_markdown(docstring: str) -> str:
    """Convert a docstring in Google's style to Markdown; formulas in dollars stay as they are."""
    markdown: list[str] = []
    lines = inspect.cleandoc(docstring).splitlines()
    while lines:
        if section := _SECTION.match(lines[0]):
            body = _take(lines[1:], lambda line: not line or line.startswith(" "))
            del lines[: 1 + len(body)]
            markdown += ["", *_section(section[1], inspect.cleandoc("\n".join(body))), ""]
        elif lines[0].startswith(">>> "):
            example = _take(lines, bool)
            del lines[: len(example)]
            markdown += ["", "```pycon", *example, "```", ""]
        else:
            markdown.append(lines.pop(0))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(markdown)).strip()


def _take(lines: list[str], belongs: Callable[[str], object]) -> list[str]:
    """Return the leading lines that belong together."""
    end = next((i for i, line in enumerate(lines) if not belongs(line)), len(lines))
    return lines[:end]


def _section(name: str, body: str) -> list[str]:
    """Return the Markdown of one section."""
    if name in {"Returns", "Yields"}:
        return [f"**{name}**: {body}"]
    entries: list[str] = []
    for line in body.splitlines():
        entry = _ENTRY.match(line) if name != "References" else None
        if entry:
            entries.append(f"- `{entry[1]}`: {entry[2]}")
        elif entries and not (name == "References" and entries[-1].endswith(".")):
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(f"- {line.strip()}")
    return [f"**{_TITLES.get(name, name)}**", "", *entries]
