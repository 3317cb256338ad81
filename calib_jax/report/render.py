"""A page of sentences, tables, notes and figures, as text, Markdown and HTML, and its files.

Nothing here knows what a page is about. All of its texts are plain, and each format escapes them.
The HTML is one file whose tables sort and which needs no network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import importlib.resources
import itertools
import json
import math
import pathlib
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import calib_jax.metrics as metrics_package
from calib_jax import inference, plots
from calib_jax.core import texts
from calib_jax.core.files import writing
from calib_jax.core.texts import one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_escaped, _text = texts.in_markdown_cell, html.escape
TERMINAL = 100  # characters of a line
LINES = 38  # of a page in a terminal, unless everything is asked for
_NOTES = 2  # of these lines

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
    """

    title: str
    head: str
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sections: Sequence[Table] = ()
    notes: Sequence[str] = ()
    folded: Sequence[str] = ()
    answers: Sequence[str] = ()
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: Sequence[str] = ()


def save(
    folder: Any,
    name: str,
    page: Page,
    others: Mapping[str, str],
    record: Mapping[str, Any] | None = None,
) -> list[str]:
    """Write a page as Markdown and HTML, other texts, and the figures as PNG, all or none.

    Args:
      folder: the folder of the files.
      name: the name of the page, without an ending.
      page: the contents.
      others: further texts, by the names of their files.
      record: what a JSON file of this name holds. It also lists all files and those of earlier
        records, which the next record may replace; any other file in the way is refused.

    Returns:
      the names of all files.
    """
    markdown = f"# {_escaped(page.title)}\n\n{as_markdown(page)}\n"
    written = {**others, f"{name}.md": markdown, f"{name}.html": as_html(page)}
    pictures = [f"{figure}.png" for figure in page.figures]
    if record is not None:
        names = [f"{name}.json", *written, *pictures]
        earlier = _refuse_others(pathlib.Path(folder), f"{name}.json", names)
        everything = texts.without_nan({**record, "files": [*dict.fromkeys(names + earlier)]})
        written = {names[0]: json.dumps(everything, indent=1, allow_nan=False), **written}
    with writing.staged(pathlib.Path(folder)) as new:
        for file, text in written.items():
            (new / file).write_text(text, encoding="utf-8", errors="backslashreplace")
        for file, figure in page.figures.items():
            (new / file).parent.mkdir(exist_ok=True)
            plots.save(figure, new / f"{file}.png")
    return [*written, *pictures]


def _refuse_others(folder: pathlib.Path, record: str, names: list[str]) -> list[str]:
    """Raise an error for a file in the way that no record lists; return the files of records."""
    own: list[str] = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        listed = {*json.loads((folder / record).read_text(encoding="utf-8"))["files"]}
        own = [file.name for file in sorted(folder.glob("*")) if file.name in listed]
    for name in names:
        if (folder / name).is_file() and name not in own:
            place = one_line(str(folder / name))
            raise ValueError(f"{place} is a file that no report wrote: give another folder.")
    return own


# ------------------------------------------------------------------------------------------------
# Text.


def as_text(page: Page, lines: float = math.inf, *, explained: bool = True) -> str:
    """Format a page for a terminal.

    Args:
      page: the contents.
      lines: the most lines, of the command: what does not fit is named in the last one; the first
        table is shown anyway. By default all tables are shown.
      explained: whether all notes follow the tables, and what the numbers mean.
    """
    blocks = ["\n".join(map(one_line, page.answers)), *map(one_line, page.head.split("\n\n"))]
    notes = [*page.notes, *page.folded]
    shown = notes if explained else page.notes[:_NOTES]
    room = lines - sum(2 + block.count("\n") for block in filter(None, blocks)) - len(shown) - 1
    hidden = len(notes) - len(shown)
    left_out = {"--notes": f"{hidden} more note{'s' * (hidden > 1)}"} if hidden else {}
    for place, table in enumerate(page.sections):
        for number, block in enumerate(_blocks(table)):
            size = block.count("\n") + 2
            if table.title in left_out or (size > room and place + number > 0):
                left_out.setdefault(table.title, "more of " * (number > 0) + table.title)
            else:
                blocks.append(block)
                room -= size
    where = ": --notes." if lines < math.inf else " in the saved report."  # the command has lines
    shown = [*shown, *[", ".join(left_out.values()) + where] * bool(left_out)]
    return "\n\n".join(filter(None, [*blocks, "\n".join(map(one_line, shown))]))


def _blocks(table: Table) -> list[str]:
    """Format a table in blocks no wider than the terminal, with its note below the first one."""
    if not table.rows:
        return [one_line(f"{table.title}: {table.note}")]
    first, *others = _aligned(table.rows, TERMINAL)
    lines = one_line(table.heading), first, one_line(table.note)
    return ["\n".join(filter(None, lines)), *others]


def aligned(table: Rows, width: float = math.inf) -> str:
    """Format a table in aligned columns.

    Args:
      table: its cells.
      width: the most characters of a line: further columns follow below, beside the first column
        again, without rows that are empty there.

    >>> print(aligned([["metric", "A", "bins"], ["error", ".1", ""], ["ece", ".2", "15"]], 12))
    metric  A
    error   .1
    ece     .2
    <BLANKLINE>
    metric  bins
    ece     15
    """
    return "\n\n".join(_aligned(table, width))


def _aligned(table: Rows, width: float) -> list[str]:
    columns = [[*map(one_line, column)] for column in zip(*table, strict=True)]
    columns = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    # Each block begins with the columns that tell the rows apart, such as the group and the model.
    sizes = range(1, len(columns))
    number = next((k for k in sizes if len({*zip(*columns[:k], strict=True)}) == len(table)), 1)
    first, *rest = [*map("  ".join, zip(*columns[:number], strict=True))], *columns[number:]
    blocks: list[str] = []
    while rest or not blocks:
        ends = itertools.accumulate((2 + len(column[0]) for column in rest), initial=len(first[0]))
        number = max(1, sum(end <= width for end in ends) - 1)
        rows = zip(first, *rest[:number], strict=True)
        shown = (row for row in rows if not blocks or any(map(str.strip, row[1:])))
        blocks.append("\n".join("  ".join(row).rstrip() for row in shown))
        rest = rest[number:]
    return blocks


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
    titled = [(t.title, _table(t.rows) + _paragraph(t.note)) for t in page.sections]
    titled.append(("Figures", _figures(page.figures)))
    folded = _notes(page.folded)
    folded = folded and f"<details><summary>About the tables</summary>{folded}</details>"
    titled.append(("Notes", _notes(page.notes) + folded))
    titled += [(title, f"<pre>{_text(text)}</pre>") for title, text in page.texts.items()]
    meanings = {name: definition(name) for name in page.metrics}
    titled.append(("What the numbers mean", _list(meanings)))
    titled = [(title, content) for title, content in titled if content]
    entries = [f'<a href="#section-{k}">{_text(title)}</a>' for k, (title, _) in enumerate(titled)]
    links = [f'<a href="{_text(to)}">{_text(title)}</a>' for title, to in page.links.items()]
    parts = [
        f"<h1>{_text(page.title)}</h1>",
        *(f'<p class="answer">{_text(answer)}</p>' for answer in page.answers),
        *map(_paragraph, page.head.split("\n\n")),
        _list(page.facts),
        f"<p>More pages: {', '.join(links)}.</p>" if links else "",
        f"<nav>{' '.join(entries)}</nav>",
    ]
    for k, (title, content) in enumerate(titled):
        parts.append(f'<section id="section-{k}">\n<h2>{_text(title)}</h2>\n{content}\n</section>')
    dark = " ".join(f"--c{color[1:].lower()}: {to};" for color, to in plots.DARK_COLORS.items())
    file = importlib.resources.files("calib_jax.report") / "html_template.html"
    template = string.Template(file.read_text(encoding="utf-8"))
    body = "\n".join(filter(None, parts))
    # `html.escape` keeps control characters.
    return texts.printable(template.substitute(title=_text(page.title), dark=dark, body=body))


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text.strip() else ""


def _list(facts: Mapping[str, Any]) -> str:
    r"""Write a list of facts by name; a mapping, such as the versions, is joined.

    >>> _list({"n": 12345, "versions": {"jax": "0.10.2", "numpy": "2.3"}, "event": None})
    '<dl>\n<dt>n</dt><dd>12,345</dd>\n<dt>versions</dt><dd>jax 0.10.2, numpy 2.3</dd>\n</dl>'
    """
    entries = []
    for name, fact in facts.items():
        if isinstance(fact, Mapping):
            fact = ", ".join(f"{key} {value}" for key, value in fact.items())
        if fact not in (None, ""):
            text = _text(f"{fact:,}" if isinstance(fact, int) else str(fact))
            entries.append(f"<dt>{_breaking(name)}</dt><dd>{text}</dd>\n")
    return f"<dl>\n{''.join(entries)}</dl>" if entries else ""


def _breaking(name: str) -> str:
    """Allow a line break after each underscore of a name, for narrow screens."""
    return _text(name).replace("_", "_<wbr>")


def _table(rows: Rows) -> str:
    """Write a table whose headings sort it."""
    if len(rows) < 2:
        return ""
    head = '<th scope="col"><button type="button">{}</button></th>'.format
    heads = "".join(map(head, map(_text, rows[0])))
    lines = "\n".join(
        f'<tr><th scope="row">{_breaking(first)}</th>'
        f"{''.join(f'<td>{_text(cell)}</td>' for cell in others)}</tr>"
        for first, *others in rows[1:]
    )
    return (
        '<div class="scroll" tabindex="0"><table class="numbers">\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _notes(lines: Sequence[str]) -> str:
    items = "\n".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<ul class="notes">\n{items}\n</ul>' if lines else ""


def _figures(figures: Mapping[str, Figure]) -> str:
    parts = []
    for number, (name, figure) in enumerate(figures.items()):
        title = name.rpartition("/")[2].replace("_", " ")
        svg = plots.inline_svg(figure, f"figure-{number}", description=title)
        parts.append(
            f'<figure style="--width: {figure.get_size_inches()[0]:g}in">\n'
            f'<div tabindex="0">{svg}</div>\n<figcaption>{_text(title)}</figcaption>\n</figure>'
        )
    return '<div class="figures">\n' + "\n".join(parts) + "\n</div>" if figures else ""


def definition(name: str) -> str:
    """Return what a metric computes, from its docstring; empty for user metrics."""
    others = {"squared_calibration_error": inference.debiased_squared_error}
    metric: Any = metrics_package.catalogue().get(name) or others.get(name)
    return (metric.__doc__ or "").partition("\n")[0].removeprefix("Compute ") if metric else ""
