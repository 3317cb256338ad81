"""Text for each output format: escaped, such as names of classes and files, and rows in CSV."""

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Joiners are invisible, but words of several scripts and many emoji need them.
_JOINERS = "\u200c\u200d"
# Tags, entities, links and images.
_MARKUP = (
    (re.compile(r"&(?=#?\w+;)"), "&amp;"),
    (re.compile(r"<(?=[A-Za-z/!?])"), "&lt;"),
    (re.compile(r"\]\("), r"]\\("),
)
_BACKSLASH = re.compile(r"\\(?=[!-/:-@\[-`{-~])")  # literal before other characters
# Emphasis begins before a letter, so a star after a number is not emphasis.
_EMPHASIS = re.compile(r"(?<!\w)_(?=[^\s_])|\*(?=\w)|~(?=~)|`")
# Spreadsheets in some languages also accept the full-width signs.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def printable(text: str) -> str:
    r"""Escape control characters and characters that a terminal cannot show; keep line breaks.

    >>> printable("cat\x1b[31m\ndog")
    'cat\\x1b[31m\ndog'
    """
    shown = (c if c.isprintable() or c == "\n" or c in _JOINERS else ascii(c)[1:-1] for c in text)
    return "".join(shown)


def one_line(text: str) -> str:
    r"""Escape as `printable` does, and join lines.

    >>> one_line("cat\n\ndog")
    'cat dog'
    """
    return printable(" ".join(line for line in text.splitlines() if line))


def in_markdown_cell(text: str) -> str:
    r"""Escape plain text for a cell of a Markdown table, so that it is displayed literally.

    >>> print(in_markdown_cell("a|b *c* `d` .004*"))
    a\|b \*c* \`d\` .004*
    >>> in_markdown_cell("p < .05 of <script>alert(1)</script>\n# dog")
    'p < .05 of &lt;script>alert(1)&lt;/script> # dog'
    """
    text = _BACKSLASH.sub(lambda match: 2 * match[0], text)
    text = one_line(_EMPHASIS.sub(lambda match: "\\" + match[0], text))
    for pattern, written in _MARKUP:
        text = pattern.sub(written, text)
    return text.replace("|", r"\|")


def in_markdown_code(text: str) -> str:
    r"""Format text as code in Markdown; use an HTML element if backticks cannot hold the text.

    >>> print(in_markdown_code("score <b> `a`"))
    <code>score &lt;b> \`a\`</code>
    """
    text = one_line(text)
    if "`" in text or any(pattern.search(text) for pattern, _ in _MARKUP):
        return f"<code>{in_markdown_cell(text)}</code>"
    return f"`{text}`"


def in_csv(cells: Mapping[str, Any]) -> dict[str, Any]:
    """Escape texts, and prefix an apostrophe to formulas of spreadsheets; numbers are unchanged.

    >>> in_csv({"part": "=1+1", "value": -0.5, "note": "-0.5"})
    {'part': "'=1+1", 'value': -0.5, 'note': '-0.5'}
    """
    return {name: _cell(cell) if isinstance(cell, str) else cell for name, cell in cells.items()}


def _cell(text: str) -> str:
    is_formula = text.lstrip().startswith(_FORMULA) or text.startswith(("\t", "\r"))
    with contextlib.suppress(ValueError):
        float(text)
        is_formula = False
    return f"'{one_line(text)}" if is_formula else one_line(text)


def without_nan(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not support, by null.

    >>> without_nan({"ece": float("nan"), "ends": (0.5, float("inf"))})
    {'ece': None, 'ends': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_lines(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, header: bool = True
) -> str:
    r"""Format rows as CSV lines; values of other columns are left out, missing values are empty.

    >>> csv_lines([{"metric": "ece", "value": 0.1, "bins": 15}], ["metric", "value", "low"])
    'metric,value,low\nece,0.1,\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


MARK = "†"
REASON = (
    f"{MARK} outside its own interval: the resamples are not centered on it. Resampling adds noise,"
    " which raises calibration errors; and a few resamples can miss any value."
)


def is_outside(value: float, low: float | None, high: float | None) -> bool:
    """Check whether a value lies outside its interval by more than float32 rounding.

    The difference of two float32 averages of size 1, such as NLLs, is 0 only up to 1e-6.

    >>> is_outside(0.02, 0.03, 0.05), is_outside(0.04, 0.03, 0.05), is_outside(0.04, None, None)
    (True, False, False)
    >>> is_outside(5e-7, 0.0, 0.0)
    False
    """
    if low is None or high is None:
        return False
    slack = 1e-6 * (max(abs(low), abs(high)) + 1)
    return value < low - slack or value > high + slack  # both are False for NaN


def mark(value: float, low: float | None, high: float | None) -> str:
    """Return the mark of a value outside its interval; an empty string if the value is inside."""
    return MARK if is_outside(value, low, high) else ""


def reasons(estimates: Iterable[tuple[float, float | None, float | None]]) -> list[str]:
    """Return the reason, once, if any (value, low, high) is marked, else an empty list."""
    return [REASON] if any(is_outside(*one) for one in estimates) else []
