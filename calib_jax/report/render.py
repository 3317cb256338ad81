"""Write a report as text, Markdown, HTML, CSV, JSON, and the folder with all of these."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_jax.core import texts
from calib_jax.core.files import writing
from calib_jax.core.texts import csv_lines, one_line, without_nan
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats
from calib_jax.report.caveats import answers, is_alone, least_p, shortened, starred
from calib_jax.report.predictions import counted
from calib_jax.report.records import Change, Part, Results, Row, Table, base_name
from calib_jax.report.records import Rows as Rows

if TYPE_CHECKING:
    import matplotlib.figure

TERMINAL = 100  # characters of a line
_NOTES = 2  # below the tables of a terminal
_FACTS = ("predictions", "clusters", "classes", "event", "bins", "resamples", "seed")


def as_text(report: Results, *, explained: bool = False) -> str:
    """Format the answer and all tables as plain text.

    Args:
      report: the results.
      explained: whether all notes, and the explanations of the numbers, follow the tables.
    """
    blocks = ["\n".join(map(one_line, [*report.headlines, *answers(report)]))]
    blocks.append(one_line(headline(report)))
    for title, rows, note in tables(report):
        lines = [*map(one_line, _heading(title, rows)), aligned(rows, width=TERMINAL)]
        lines = [*lines, one_line(note)] if rows else [one_line(f"{title}: {note}")]
        blocks.append("\n".join(filter(None, lines)))
    notes, more = caveats.warnings(report), caveats.explanations(report)
    after = [*notes, *more] if explained else notes[:_NOTES]
    if left := len(notes) + len(more) - len(after):
        after.append(f"{counted(left, 'more note')}, and what the numbers mean: --notes.")
    return "\n\n".join([*blocks, "\n".join(map(one_line, after))])


def as_markdown(report: Results) -> str:
    """Format the answer and all tables as Markdown; notes and explanations are folded."""
    escaped = texts.in_markdown
    parts = ["  \n".join(map(escaped, [*report.headlines, *answers(report)]))]
    parts.append(escaped(headline(report)))
    for title, rows, note in tables(report):
        parts += [f"**{escaped(each)}**" for each in _heading(title, rows)]
        parts += [in_markdown(rows) if rows else "", escaped(note)]
    notes = caveats.warnings(report)
    parts += map(escaped, notes[:_NOTES])
    if folded := [*notes[_NOTES:], *caveats.explanations(report)]:
        items = "\n".join(f"- {escaped(line)}" for line in folded)
        title = "<summary>Notes, and what the numbers mean</summary>"
        parts.append(f"<details>{title}\n\n{items}\n\n</details>")
    return "\n\n".join(filter(None, parts))


def _heading(title: str, rows: Rows) -> list[str]:
    """Return the title of a table, unless the corner of the table has it."""
    return [] if rows and rows[0][0] == title.lower() else [title]


def as_model_card(report: Results) -> str:
    """Format a section of a model card: the Markdown, and the command that produced it."""
    command = report.settings.get("command")
    how = f" with {texts.in_markdown_code(command)}" if command else ""
    version = report.settings["versions"]["calib_jax"]
    return f"## Calibration\n\n{as_markdown(report)}\n\nMeasured by calib_jax {version}{how}."


def as_csv(report: Results) -> str:
    """Write one CSV line per value: table, part, metric, predictions, value and interval."""
    fields = ["table", "part", "metric", "predictions", "examples", "clusters"]
    fields += ["value", "low", "high", "p_value", "p_holm"]
    fields += ["interval", "floor", "convention", "note"]
    whole = {key: report.settings[key] for key in ("examples", "clusters")}
    lines = []
    for table, records in _records(report).items():
        for each in records:
            cells = {"table": table, **whole, **vars(each)}
            if isinstance(each, Change):
                cells["predictions"] = f"{each.before} -> {each.after}"
            cells["note"] = " ".join(texts.reasons([(each.value, each.low, each.high)]))
            lines.append(texts.in_csv(cells))
    return csv_lines(lines, fields)


def _records(report: Results) -> dict[str, Sequence[Row | Change | Part]]:
    """Return all numbers of a report, by the name of their table."""
    changes = [*report.changes, *report.pairs]
    parts = {"classes": report.classes, "groups": report.groups}
    return {"metrics": report.rows, "changes": changes, **parts}


def as_json(report: Results, *, files: Sequence[str] = ()) -> str:
    """Write the whole report, with reliability tables, fits, and the names of its files."""
    event = report.event
    everything = {
        "settings": report.settings,
        **{name: [*map(vars, records)] for name, records in _records(report).items()},
        "reliability": _lists(report.reliability),
        "event": event
        and {"class": event.place, "name": event.name, "reliability": _lists(event.reliability)},
        "headlines": report.headlines,
        "tables": [table._asdict() for table in report.tables],
        "calibrator": report.calibrator,
        **({"calibrators": report.calibrators} if len(report.calibrators) > 1 else {}),
        "notes": [*caveats.warnings(report), *caveats.explanations(report)],
        "files": list(files),
    }
    return json.dumps(without_nan(everything), indent=1, allow_nan=False)


def _lists(reliability: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Convert reliability tables to lists."""
    return {
        name: {field: np.asarray(values).tolist() for field, values in table._asdict().items()}
        for name, table in reliability.items()
    }


def save(report: Results, folder: Any) -> list[str]:
    """Save report.json, .csv, .md, .html and the figures; return the file names.

    report.json lists them, and only files that it lists are replaced by the next report.
    """
    from calib_jax.report import html_page
    from calib_jax.report.figures import pictures

    figures = pictures(report)
    names = [f"report.{ending}" for ending in ("json", "csv", "md", "html")]
    names += [f"{name}.png" for name in figures]
    _refuse_others(pathlib.Path(folder), names)
    markdown = [as_markdown(report), *(f"![{name}]({name}.png)" for name in figures)]
    texts = {
        "report.json": as_json(report, files=names),
        "report.csv": as_csv(report),
        "report.md": "\n\n".join(markdown) + "\n",
        "report.html": html_page.render(as_page(report, figures)),
    }
    return write(folder, texts, figures)


def _refuse_others(folder: pathlib.Path, names: list[str]) -> None:
    """Raise an error for a file in the way that no report of this folder lists."""
    listed = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        listed = json.loads((folder / "report.json").read_text(encoding="utf-8"))["files"]
    for name in names:
        if (folder / name).is_file() and name not in listed:
            raise ValueError(
                f"{one_line(str(folder / name))} is a file that no report wrote: give another"
                " folder, or remove it."
            )


def write(
    folder: Any, texts: Mapping[str, str], figures: Mapping[str, matplotlib.figure.Figure]
) -> list[str]:
    """Write texts by file name and figures by name as PNG, all or none; return the file names.

    The name of a figure may begin with a folder.
    """
    from calib_jax import plots

    folder = pathlib.Path(folder)
    try:
        with writing.staged(folder) as new:
            for name, text in texts.items():
                (new / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            for name, figure in figures.items():
                (new / name).parent.mkdir(exist_ok=True)
                plots.save(figure, new / f"{name}.png")
    except OSError as error:
        raise ValueError(str(error)) from error
    return [*texts, *(f"{name}.png" for name in figures)]


def as_page(report: Results, figures: Mapping[str, matplotlib.figure.Figure]) -> Any:
    """Collect the contents of the page: the tables and notes of report.md, and the figures."""
    from calib_jax.report import html_page

    settings = report.settings
    facts = {"examples (n)": settings["examples"], **{key: settings.get(key) for key in _FACTS}}
    facts |= {key: settings.get(key) for key in ("command", "versions")}
    return html_page.Page(
        title="Calibration report",
        answers=[*report.headlines, *answers(report)],
        head=headline(report),
        facts={"level of the intervals": f"{100 * settings['level']:g}%", **facts},
        sections=tables(report),
        notes=caveats.warnings(report),
        folded=caveats.explanations(report),
        figures=figures,
        metrics=[base_name(r.metric) for r in report.rows] + [p.metric for p in report.classes],
        of_answers=settings["classes"] is None,
    )


def headline(report: Results) -> str:
    """Describe the examples, the intervals and the calibrator in a sentence or two."""
    settings, fits = report.settings, report.calibrators
    what = counted(settings["examples"], "example" if settings["classes"] else "answer")
    how = ["weighted"] * settings["weighted"]
    if settings["left_out"]:
        how.append(f"{settings['left_out']:,} of weight 0 left out")
    if settings["clusters"] is not None:
        how.append(f"{counted(settings['clusters'], 'cluster')}, resampled as a whole")
    what += f" ({', '.join(how)})" if how else ""
    what += f" in {settings['classes']} classes" if settings["classes"] else ""
    kind = "basic" if settings["interval"] == "basic" else "percentiles"
    if any(row.interval == caveats.NOISE_BOUND for row in report.rows):
        kind += ", and noise bounds of binned errors"
    level, drawn = 100 * settings["level"], settings["resamples"]
    line = f"{what}; {level:g}% intervals of {drawn:,} resamples: {kind}."
    return f"{line} {calibration.sentence(report.calibrator)}" if len(fits) == 1 else line


# ------------------------------------------------------------------------------------------------
# Tables.


def tables(report: Results) -> list[Table]:
    """Return all tables of a report; a section without rows is left out."""
    changes, least = [*report.changes, *report.pairs], caveats.least_p_of_bound(report)
    heads = shortened(row.predictions for row in report.rows)
    for model, state in report.unsettled.items():
        heads[model] += f" ({state})"
    bins: dict[str, dict[str, None]] = {}
    for row in report.rows:
        bins.setdefault(row.convention, {})[base_name(row.metric)] = None
    conventions = [f"{', '.join(of)}: {each}" for each, of in bins.items() if each]
    values = [((report.label(r.metric),), heads[r.predictions], r) for r in report.rows]
    differences = [
        ((report.label(c.metric),), f"{heads[c.after]} - {heads[c.before]}", _changed(report, c))
        for c in changes
    ]
    floors = [(row, head, _floor(r, least)) for row, head, r in values if r.floor is not None]
    shown = [(row, head, with_interval(r)) for row, head, r in values]
    sections = [
        _arranged("Metrics", ["metrics"], shown, ". ".join(conventions)),
        _arranged("Differences", ["differences"], differences),
        _arranged("Noise floors", ["noise floors"], floors),
        _fits(report),
        _parts("Classes", "class", report.classes, least),
        _parts("Groups", "group", report.groups, least),
    ]
    return [*(table for table in sections if len(table.rows) > 1), *report.tables]


def _arranged(
    title: str,
    head: Sequence[str],
    cells: Iterable[tuple[tuple[str, ...], str, str]],
    note: str = "",
) -> Table:
    """Arrange (the first cells of a row, the heading of a column, a text) in a table."""
    by_row: dict[tuple[str, ...], dict[str, str]] = {}
    for row, column, text in cells:
        by_row.setdefault(row, {})[column] = text
    columns = dict.fromkeys(column for of in by_row.values() for column in of)
    rows = [[*row, *(of.get(column, "") for column in columns)] for row, of in by_row.items()]
    return Table(title, [[*head, *columns], *rows], note)


def _fits(report: Results) -> Table:
    """List how each of several calibrators was fitted, and on which examples."""
    fits = report.calibrators if len(report.calibrators) > 1 else {}
    heads, cells = shortened(fits), []
    for name, fit in fits.items():
        texts_of = {"fit": calibration.states(fit), "fitted on": calibration.source(fit)}
        if fit["name"] == "temperature":
            criterion = calibration.search(fit["criterion"])
            texts_of |= {"T": calibration.temperature(fit), "minimizes": criterion}
        cells += [((heads[name],), column, text) for column, text in texts_of.items()]
    return _arranged("Fits", ["predictions"], cells)


def _parts(title: str, corner: str, parts: Sequence[Part], least: float) -> Table:
    """List the metrics of each class or group, with a line for each model."""
    heads = shortened(part.predictions for part in parts)
    cells, several = [], len(heads) > 1
    for part in parts:
        clusters = "" if part.clusters is None else f" in {counted(part.clusters, 'cluster')}"
        row = (part.part, f"{part.examples:,}{clusters}", *[heads[part.predictions]] * several)
        cells.append((row, part.metric, _with_p(part, least)))
    return _arranged(title, [corner, "n", *["predictions"] * several], cells)


def _floor(row: Row, least: float) -> str:
    """Format the noise floor of a value and the p-value of its calibration; "" without them."""
    p_value = caveats.p_of(row.p_value, least)
    return f"{row.floor:.4f} p {p_value}" if p_value else ""


def _with_p(part: Part, least: float) -> str:
    p_holm = caveats.holm_of(part.p_value, part.p_holm, least)
    alone = is_alone(part) and part.floor is not None
    floor = f", noise floor {part.floor:.4f}" if alone else ""
    return with_interval(part) + floor + (f" p {p_holm}" if p_holm else "")


def with_interval(estimate: Any, *, sign: str = "") -> str:
    """Format a value and its interval, with a mark if the value lies outside the interval.

    Args:
      estimate: an object with value, low and high; without an interval, both are NaN.
      sign: "+" also writes the sign of positive numbers.
    """
    if is_alone(estimate):
        return f"{estimate.value:{sign}z.4f}"
    numbers = estimate.value, estimate.low, estimate.high
    value, low, high = (f"{number:{sign}z.4f}" for number in numbers)
    return f"{value}{texts.mark(*numbers)} [{low}, {high}]"


def _changed(report: Results, change: Change) -> str:
    written = with_interval(change, sign="+")
    least = least_p(change.metric, report.settings["resamples"])
    p_value = caveats.p_of(change.p_value, least)
    if not p_value:
        return written
    written += f" p {p_value}"
    if change.p_holm != change.p_value:
        written += f", Holm {caveats.holm_of(change.p_value, change.p_holm, least)}"
    return written + starred(change.p_holm)


def in_markdown(table: Rows, *, is_markup: bool = False) -> str:
    """Format a table as Markdown.

    Args:
      table: its cells.
      is_markup: whether the cells are already Markdown, such as links; otherwise plain text.
    """
    escaped = [
        [cell.replace("|", r"\|") if is_markup else texts.in_markdown_cell(cell) for cell in row]
        for row in table
    ]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines)


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
    return "\n\n".join(
        "\n".join(
            "  ".join(row[c].ljust(widths[c]) for c in columns).rstrip()
            for row in cells
            if columns is blocks[0] or any(row[c] for c in columns[1:])
        )
        for columns in blocks
    )


class Report(Results):
    """The results of `score`; prints as tables, and a notebook cell renders them."""

    def __str__(self) -> str:
        return as_text(self)

    def _repr_markdown_(self) -> str:
        return as_markdown(self)

    @property
    def answers(self) -> list[str]:
        """A sentence for each model, and one for each comparison with the first model."""
        return answers(self)

    @property
    def explanations(self) -> list[str]:
        """Explanations of the kinds of numbers in the tables, such as noise floors and p-values."""
        return caveats.explanations(self)

    def save(self, folder: Any) -> list[str]:
        """Save report.json, .csv, .md, .html and the figures; return the file names."""
        return save(self, folder)
