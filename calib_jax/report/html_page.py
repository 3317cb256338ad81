"""A page with tables, notes and figures as one HTML file: sortable, escaped, without network."""

from __future__ import annotations

import dataclasses
import html
import importlib.resources
import re
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import calib_jax.metrics as metrics_package
from calib_jax.core.texts import printable
from calib_jax.report.caveats import SQUARED_ERROR
from calib_jax.report.records import Rows, Table

if TYPE_CHECKING:
    import matplotlib.figure

_MEANINGS = "What the numbers mean"
# Metrics whose docstrings define them by classes.
_OF_ANSWERS = {
    "accuracy": "the share of answers that are right.",
    "error": "the share of answers that are wrong.",
    "brier": "the mean of (confidence - correct)^2, where correct is 1 or 0; it lies in [0, 1].",
    "nll": "the mean of -log(confidence) of right and -log(1 - confidence) of wrong answers.",
}
_PIXELS = 96  # of an inch
_SMALLEST = 0.8  # share of the full size; on a narrower screen a figure scrolls


@dataclasses.dataclass(frozen=True)
class Page:
    """The contents of a page, as plain text; each renderer escapes it.

    Attributes:
      title: heading of the page.
      head: paragraphs below the title, separated by empty lines.
      facts: numbers of examples, level, bins, versions and others, by name.
      sections: tables, each with its title and optionally a note.
      notes: what is special about the numbers, one line each.
      folded: what the numbers mean, one line each, shown after a click.
      answers: sentences above the head, in larger letters.
      figures: figures by name.
      texts: preformatted texts by title.
      links: other pages by their titles, as relative paths.
      metrics: names of metrics to explain.
      of_answers: whether they are metrics of answers with one number each.
    """

    title: str
    head: str
    facts: Mapping[str, Any]
    sections: Sequence[tuple[str, Rows] | Table]
    notes: Sequence[str] = ()
    folded: Sequence[str] = ()
    answers: Sequence[str] = ()
    figures: Mapping[str, matplotlib.figure.Figure] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: Sequence[str] = ()
    of_answers: bool = False


def render(page: Page) -> str:
    """Return the page as one HTML file; equal pages give equal text."""
    from calib_jax import plots

    tables = [Table(*section) for section in page.sections]
    titled = [(title, _table(rows) + _paragraph(note)) for title, rows, note in tables]
    if page.figures:
        titled.append(("Figures", _figures(page.figures)))
    if page.notes or page.folded:
        folded = f"<details><summary>About the tables</summary>{_notes(page.folded)}</details>"
        titled.append(("Notes", _notes(page.notes) + folded * bool(page.folded)))
    titled += [(title, f"<pre>{html.escape(text)}</pre>") for title, text in page.texts.items()]
    titled.append((_MEANINGS, _meanings(page.metrics, page.of_answers)))
    entries = [f'<a href="#section-{k}">{_text(title)}</a>' for k, (title, _) in enumerate(titled)]
    parts = [
        f"<h1>{_text(page.title)}</h1>",
        *(f'<p class="answer">{_text(answer)}</p>' for answer in page.answers),
        *map(_paragraph, page.head.split("\n\n")),
        _facts(page.facts),
        _links(page.links),
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
    return printable(template.substitute(title=html.escape(page.title), dark=dark, body=body))


def _text(text: str) -> str:
    """Escape a text; words between backticks become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text.strip() else ""


def _facts(facts: Mapping[str, Any]) -> str:
    entries = "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(_fact(value))}</dd>"
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


def _links(links: Mapping[str, str]) -> str:
    entries = ", ".join(
        f'<a href="{html.escape(target)}">{html.escape(title)}</a>'
        for title, target in links.items()
    )
    return f"<p>More pages: {entries}.</p>" if links else ""


def _table(rows: Rows, *, words: bool = False) -> str:
    """Write a table whose headings sort it: of numbers, or of words, some between backticks."""
    if not rows:
        return ""
    write, kind = (_text, "words") if words else (html.escape, "numbers")
    head = "".join(
        f'<th scope="col"><button type="button">{write(cell)}</button></th>' for cell in rows[0]
    )
    lines = "\n".join(
        f'<tr><th scope="row">{write(first)}</th>'
        + "".join(f"<td>{write(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows[1:]
    )
    return (
        f'<div class="scroll" tabindex="0"><table class="{kind}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody>\n</table></div>"
    )


def _notes(lines: Sequence[str]) -> str:
    items = "\n".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<ul class="notes">\n{items}\n</ul>' if lines else ""


def _figures(figures: Mapping[str, matplotlib.figure.Figure]) -> str:
    from calib_jax import plots

    parts = []
    for number, (name, figure) in enumerate(figures.items()):
        title = name.replace("_", " ")
        svg = plots.inline_svg(figure, f"figure-{number}", description=title)
        width = _PIXELS * figure.get_size_inches()[0]
        look = f"min-width: {_SMALLEST * width:.0f}px; max-width: {1.25 * width:.0f}px"
        svg = svg.replace("<svg ", f'<svg style="{look}" ', 1)
        parts.append(
            f'<figure>\n<div tabindex="0">{svg}</div>\n'
            f"<figcaption>{html.escape(title)}</figcaption>\n</figure>"
        )
    return '<div class="figures">\n' + "\n".join(parts) + "\n</div>"


def _meanings(metrics: Sequence[str], of_answers: bool) -> str:
    """Explain the metrics by their documentation."""
    lines = {name: definition(name, of_answers) for name in metrics}
    rows = [[name, line] for name, line in lines.items() if line]
    return _table([["metric", "definition"], *rows], words=True) if rows else ""


def definition(name: str, of_answers: bool = False) -> str:
    """Return what a metric computes, from its docstring; empty for user metrics.

    Args:
      name: the name of the metric.
      of_answers: whether it is computed from answers, which have no classes.
    """
    if name == SQUARED_ERROR:
        return (
            "the debiased mean square of the gaps between stated probability and frequency;"
            " a negative estimate is shown as 0."
        )
    if of_answers and name in _OF_ANSWERS:
        return _OF_ANSWERS[name]
    metric = metrics_package.catalogue().get(name)
    return (metric.__doc__ or "").partition("\n")[0].removeprefix("Compute ") if metric else ""
