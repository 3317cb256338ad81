"""A page of sentences, tables, notes and figures, as text, Markdown and HTML, and its files.

Nothing here knows what a page is about. All of its texts are plain, and each format escapes them.
The HTML is one file whose tables sort and which needs no network.
"""

from __future__ import annotations

import dataclasses
import html
import importlib.resources
import math
import pathlib
import re
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import calib_jax.metrics as metrics_package
from calib_jax.core import texts
from calib_jax.core.files import writing
from calib_jax.core.texts import one_line

if TYPE_CHECKING:
    import matplotlib.figure

_escaped, _text = texts.in_markdown_cell, html.escape
TERMINAL = 100  # characters of a line
LINES = 38  # of a page in a terminal, unless everything is asked for
_NOTES = 2  # of these lines
_PIXELS = 96  # of an inch
_SMALLEST = 0.8  # share of the full size; on a narrower screen a figure scrolls
# Definitions of metrics whose docstrings are about classes, and of one that has no function.
_OF_ANSWERS = {
    "accuracy": "the share of answers that are right.",
    "error": "the share of answers that are wrong.",
    "brier": "the mean of (confidence - correct)^2, where correct is 1 or 0; it lies in [0, 1].",
    "nll": "the mean of -log(confidence) of right and -log(1 - confidence) of wrong answers.",
}
_OF_SQUARED_ERROR = (
    "the debiased mean square of the gaps between stated probability and frequency; a negative"
    " estimate is shown as 0."
)

Rows: TypeAlias = list[list[str]]  # the first row is the header


class Table(NamedTuple):
    """A table of texts.

    Attributes:
      title: the heading; it is left out where the corner of the table has it.
      rows: the cells; without any, the note is the answer.
      note: what the numbers mean, one or two sentences.
    """

    title: str
    rows: Rows
    note: str = ""

    @property
    def heading(self) -> str:
        """The title, or "" if the corner of the table has it."""
        return "" if self.rows and self.rows[0][0] == self.title.lower() else self.title


@dataclasses.dataclass(frozen=True)
class Page:
    """The contents of a page, as plain text.

    Attributes:
      title: heading of the page.
      head: paragraphs below the title, separated by empty lines.
      facts: numbers of examples, level, bins, versions and others, by name.
      sections: the tables, in the order of their importance.
      notes: what is special about the numbers, one line each.
      folded: what the numbers mean, one line each, shown after a click.
      answers: sentences above the head, in larger letters.
      figures: figures by name, which may begin with a folder.
      texts: preformatted texts by title.
      links: other pages by their titles, as relative paths.
      metrics: names of metrics to explain.
      of_answers: whether they are metrics of answers with one number each.
    """

    title: str
    head: str
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sections: Sequence[Table] = ()
    notes: Sequence[str] = ()
    folded: Sequence[str] = ()
    answers: Sequence[str] = ()
    figures: Mapping[str, matplotlib.figure.Figure] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: Sequence[str] = ()
    of_answers: bool = False


def save(folder: Any, name: str, page: Page, others: Mapping[str, str]) -> list[str]:
    """Write a page as Markdown and HTML, other texts, and the figures as PNG, all or none.

    Args:
      folder: the folder of the files.
      name: the name of the page, without an ending.
      page: the contents.
      others: further texts, by the names of their files.

    Returns:
      the names of all files.
    """
    from calib_jax import plots

    folder = pathlib.Path(folder)
    markdown = f"# {_escaped(page.title)}\n\n{as_markdown(page)}\n"
    written = {**others, f"{name}.md": markdown, f"{name}.html": as_html(page)}
    try:
        with writing.staged(folder) as new:
            for file, text in written.items():
                (new / file).write_text(text, encoding="utf-8", errors="backslashreplace")
            for file, figure in page.figures.items():
                (new / file).parent.mkdir(exist_ok=True)
                plots.save(figure, new / f"{file}.png")
    except OSError as error:
        raise ValueError(str(error)) from error
    return [*written, *(f"{figure}.png" for figure in page.figures)]


# ------------------------------------------------------------------------------------------------
# Text.


def as_text(page: Page, lines: float = math.inf, *, explained: bool = True) -> str:
    """Format a page for a terminal.

    Args:
      page: the contents.
      lines: the most lines: what does not fit is named in the last one; the first table is shown
        anyway. By default all is shown.
      explained: whether all notes follow the tables, and what the numbers mean.
    """
    above = "\n".join(map(one_line, page.answers))
    blocks = [*filter(None, [above, *map(one_line, page.head.split("\n\n"))])]
    notes = [*page.notes, *page.folded]
    shown = notes if explained else page.notes[:_NOTES]
    room = lines - sum(2 + block.count("\n") for block in blocks) - len(shown) - 2
    left_out = []
    for table in page.sections:
        parts, end = _blocks(table), [one_line(table.note)] * bool(table.note and table.rows)
        for number, block in enumerate(parts):
            size = block.count("\n") + 2 + len(end) * (number == 0)
            if size > room and (number or table is not page.sections[0]):
                left_out.append(f"more of {table.title}" if number else table.title)
                parts = parts[:number]
                break
            room -= size
        if parts:
            blocks.append("\n".join(["\n\n".join(parts), *end]))
    if hidden := len(notes) - len(shown):
        left_out = [f"{hidden} more note{'s' * (hidden > 1)}", *left_out]
    last = [f"{', '.join(left_out)}: --notes."] * bool(left_out)
    return "\n\n".join([*blocks, "\n".join(map(one_line, [*shown, *last]))]).rstrip()


def _blocks(table: Table) -> list[str]:
    """Format a table in blocks of columns that are no wider than the terminal."""
    if not table.rows:
        return [one_line(f"{table.title}: {table.note}")]
    first, *others = _aligned(table.rows, TERMINAL)
    return ["\n".join(filter(None, [one_line(table.heading), first])), *others]


def aligned(table: Rows, width: int | None = None) -> str:
    """Format a table in aligned columns.

    Args:
      table: its cells.
      width: the most characters of a line: further columns follow below, beside the first column
        again, without rows that are empty there. None writes all columns beside each other.

    >>> print(aligned([["metric", "A", "bins"], ["error", ".1", ""], ["ece", ".2", "15"]], 12))
    metric  A
    error   .1
    ece     .2
    <BLANKLINE>
    metric  bins
    ece     15
    """
    return "\n\n".join(_aligned(table, width))


def _aligned(table: Rows, width: float | None) -> list[str]:
    cells = [list(map(one_line, row)) for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    blocks = [[0]]
    for column in range(1, len(widths)):
        columns = [*blocks[-1], column]
        wide = width is not None and sum(widths[c] for c in columns) + 2 * len(columns) - 2 > width
        if wide and len(blocks[-1]) > 1:
            blocks.append([0, column])
        else:
            blocks[-1].append(column)
    return [
        "\n".join(
            "  ".join(row[c].ljust(widths[c]) for c in columns).rstrip()
            for row in cells
            if columns is blocks[0] or any(row[c] for c in columns[1:])
        )
        for columns in blocks
    ]


# ------------------------------------------------------------------------------------------------
# Markdown.


def as_markdown(page: Page) -> str:
    """Format a page as Markdown without its title; notes after the second are folded."""
    parts = ["  \n".join(map(_escaped, page.answers)), *map(_escaped, page.head.split("\n\n"))]
    for table in page.sections:
        parts.append(f"**{_escaped(table.heading)}**" if table.heading else "")
        parts += [in_markdown(table.rows) if table.rows else "", _escaped(table.note)]
    parts += map(_escaped, page.notes[:_NOTES])
    if folded := [*page.notes[_NOTES:], *page.folded]:
        items = "\n".join(f"- {_escaped(line)}" for line in folded)
        title = "<summary>Notes, and what the numbers mean</summary>"
        parts.append(f"<details>{title}\n\n{items}\n\n</details>")
    parts += [f"![{name}]({name}.png)" for name in page.figures]
    for title, target in page.links.items():
        parts.append(f"[{_escaped(title)}]({target.removesuffix('.html')}.md)")
    for title, text in page.texts.items():
        parts += [f"**{_escaped(title)}**", f"```\n{text}\n```"]
    return "\n\n".join(filter(None, parts))


def in_markdown(table: Rows) -> str:
    """Format a table as Markdown."""
    lines = ["| " + " | ".join(map(_escaped, row)) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------
# HTML.


def as_html(page: Page) -> str:
    """Format a page as one HTML file; equal pages give equal text."""
    from calib_jax import plots

    titled = [(t.title, _table(t.rows) + _paragraph(t.note)) for t in page.sections]
    titled.append(("Figures", _figures(page.figures)))
    folded = _notes(page.folded)
    folded = folded and f"<details><summary>About the tables</summary>{folded}</details>"
    titled.append(("Notes", _notes(page.notes) + folded))
    titled += [(title, f"<pre>{_text(text)}</pre>") for title, text in page.texts.items()]
    meanings = {name: definition(name, page.of_answers) for name in page.metrics}
    meanings = {name: line for name, line in meanings.items() if line}
    rows = [["metric", "definition"], *map(list, meanings.items())]
    titled.append(("What the numbers mean", _table(rows, words=True)))
    titled = [(title, content) for title, content in titled if content]
    entries = [f'<a href="#section-{k}">{_text(title)}</a>' for k, (title, _) in enumerate(titled)]
    links = [f'<a href="{_text(to)}">{_text(title)}</a>' for title, to in page.links.items()]
    parts = [
        f"<h1>{_text(page.title)}</h1>",
        *(f'<p class="answer">{_text(answer)}</p>' for answer in page.answers),
        *map(_paragraph, page.head.split("\n\n")),
        _facts(page.facts),
        f"<p>More pages: {', '.join(links)}.</p>" if links else "",
        f"<nav>{' '.join(entries)}</nav>",
    ]
    for k, (title, content) in enumerate(titled):
        parts.append(f'<section id="section-{k}">\n<h2>{_text(title)}</h2>\n{content}\n</section>')
    dark = " ".join(
        f"--c{color.lower().removeprefix('#')}: {other};"
        for color, other in plots.DARK_COLORS.items()
    )
    file = importlib.resources.files("calib_jax.report") / "html_template.html"
    template = string.Template(file.read_text(encoding="utf-8"))
    body = "\n".join(filter(None, parts))
    # `html.escape` keeps control characters.
    return texts.printable(template.substitute(title=_text(page.title), dark=dark, body=body))


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text.strip() else ""


def _facts(facts: Mapping[str, Any]) -> str:
    entries = "\n".join(
        f"<dt>{_text(name)}</dt><dd>{_text(_fact(value))}</dd>"
        for name, value in facts.items()
        if value not in (None, "", {})
    )
    return f"<dl>\n{entries}\n</dl>" if entries else ""


def _fact(value: Any) -> str:
    """Write a fact; a mapping, such as the versions, becomes a list.

    >>> _fact(12345), _fact({"jax": "0.10.2", "numpy": "2.3"})
    ('12,345', 'jax 0.10.2, numpy 2.3')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _table(rows: Rows, *, words: bool = False) -> str:
    """Write a table whose headings sort it; words between backticks become code."""
    if len(rows) < 2:
        return ""
    cells = [[_text(cell) for cell in row] for row in rows]
    if words:
        cells = [[re.sub(r"`([^`]+)`", r"<code>\1</code>", cell) for cell in row] for row in cells]
    head = "".join(
        f'<th scope="col"><button type="button">{cell}</button></th>' for cell in cells[0]
    )
    # A long name may break after an underscore, so that a narrow screen breaks no word.
    lines = "\n".join(
        f'<tr><th scope="row">{first.replace("_", "_<wbr>")}</th>'
        f"{''.join(f'<td>{cell}</td>' for cell in others)}</tr>"
        for first, *others in cells[1:]
    )
    return (
        f'<div class="scroll" tabindex="0"><table class="{"words" if words else "numbers"}">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _notes(lines: Sequence[str]) -> str:
    items = "\n".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<ul class="notes">\n{items}\n</ul>' if lines else ""


def _figures(figures: Mapping[str, matplotlib.figure.Figure]) -> str:
    from calib_jax import plots

    parts = []
    for number, (name, figure) in enumerate(figures.items()):
        title = name.rpartition("/")[2].replace("_", " ")
        svg = plots.inline_svg(figure, f"figure-{number}", description=title)
        width = _PIXELS * figure.get_size_inches()[0]
        look = f"min-width: {_SMALLEST * width:.0f}px; max-width: {1.25 * width:.0f}px"
        svg = svg.replace("<svg ", f'<svg style="{look}" ', 1)
        parts.append(
            f'<figure>\n<div tabindex="0">{svg}</div>\n<figcaption>{_text(title)}</figcaption>\n'
            "</figure>"
        )
    return '<div class="figures">\n' + "\n".join(parts) + "\n</div>" if figures else ""


def definition(name: str, of_answers: bool = False) -> str:
    """Return what a metric computes, from its docstring; empty for user metrics.

    Args:
      name: the name of the metric.
      of_answers: whether it is computed from answers, which have no classes.
    """
    if name == "squared_calibration_error":
        return _OF_SQUARED_ERROR
    if of_answers and name in _OF_ANSWERS:
        return _OF_ANSWERS[name]
    metric = metrics_package.catalogue().get(name)
    return (metric.__doc__ or "").partition("\n")[0].removeprefix("Compute ") if metric else ""
