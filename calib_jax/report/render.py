"""Write a report as text, Markdown, CSV, JSON, and the folder with all of these and its page."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_jax.core import texts
from calib_jax.core.files import writing
from calib_jax.core.texts import csv_lines, one_line, without_nan
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats
from calib_jax.report.caveats import NO_INTERVAL, is_alone, least_p, starred
from calib_jax.report.predictions import counted
from calib_jax.report.records import Change, Part, Results, Row, base_name
from calib_jax.report.sentences import answers, shortened

if TYPE_CHECKING:
    import matplotlib.figure

Table = list[list[str]]  # the first row is the header
MODELS_IN_ONE_TABLE = 3
TERMINAL = 100  # characters of a line
_NOTES = 2  # below the tables of a terminal
_FACTS = {
    "predictions": "predictions",
    "examples": "examples (n)",
    **{name: name for name in ("clusters", "classes", "event", "bins", "resamples", "seed")},
    **{name: name for name in ("command", "versions")},
}


def as_text(report: Results, *, explained: bool = False) -> str:
    """Format the answer and all tables as plain text.

    Args:
      report: the results.
      explained: whether all notes, and the explanations of the numbers, follow the tables.
    """
    head = "\n".join(map(one_line, [*report.headlines, *answers(report)]))
    blocks = [aligned(table, width=TERMINAL) for _, table in titled(report)]
    for each in report.tables:
        lines = [aligned(each.rows, width=TERMINAL), each.note] if each.rows else []
        title = each.title if each.rows else f"{each.title}: {each.note}"
        blocks.append("\n".join([one_line(title), *lines]))
    notes, more = caveats.warnings(report), caveats.explanations(report)
    after = [*notes, *more] if explained else notes[:_NOTES]
    if left := len(notes) + len(more) - len(after):
        after.append(f"{counted(left, 'more note')}, and what the numbers mean: --notes.")
    return "\n\n".join([head, one_line(headline(report)), *blocks, "\n".join(map(one_line, after))])


def as_markdown(report: Results) -> str:
    """Format the answer and all tables as Markdown; notes and explanations are folded."""
    escaped = texts.in_markdown
    parts = ["  \n".join(map(escaped, [*report.headlines, *answers(report)]))]
    parts += [escaped(headline(report)), *(in_markdown(table) for _, table in titled(report))]
    for each in report.tables:
        rows = [in_markdown(each.rows)] if each.rows else []
        parts += [f"**{escaped(each.title)}**", *rows, escaped(each.note)]
    notes = caveats.warnings(report)
    parts += [escaped(note) for note in notes[:_NOTES]]
    if folded := [*notes[_NOTES:], *caveats.explanations(report)]:
        items = "\n".join(f"- {escaped(line)}" for line in folded)
        title = "<summary>Notes, and what the numbers mean</summary>"
        parts.append(f"<details>{title}\n\n{items}\n\n</details>")
    return "\n\n".join(filter(None, parts))


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
    rows: list[dict[str, Any]] = []
    for table, records in (
        ("metrics", report.rows),
        ("changes", [*report.changes, *report.pairs]),
        ("classes", report.classes),
        ("groups", report.groups),
    ):
        for each in records:
            cells = vars(each) if isinstance(each, Part) else whole | vars(each)
            if isinstance(each, Change):
                cells["predictions"] = f"{each.before} -> {each.after}"
            note = " ".join(caveats.on_record(report, each))
            rows.append({"table": table, "note": note, **cells})
    return csv_lines(map(texts.in_csv, rows), fields)


def as_json(report: Results, *, files: Sequence[str] = ()) -> str:
    """Write the whole report, with reliability tables, fits, and the names of its files."""
    event = report.event
    everything = {
        "settings": report.settings,
        "metrics": [vars(row) for row in report.rows],
        "changes": [vars(change) for change in (*report.changes, *report.pairs)],
        "classes": [vars(part) for part in report.classes],
        "groups": [vars(part) for part in report.groups],
        "reliability": _lists(report.reliability),
        "event": event
        and {"class": event.place, "name": event.name, "reliability": _lists(event.reliability)},
        "headlines": report.headlines,
        "tables": [vars(table) for table in report.tables],
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
    facts = {name: settings[key] for key, name in _FACTS.items() if settings.get(key) is not None}
    of_tables = [(each.title, each.rows) for each in report.tables if each.rows]
    return html_page.Page(
        title="Calibration report",
        answers=[*report.headlines, *answers(report)],
        head=headline(report),
        facts={"level of the intervals": f"{100 * settings['level']:g}%", **facts},
        sections=[*titled(report), *of_tables],
        notes=[
            *(f"{each.title}: {each.note}" for each in report.tables if each.note),
            *caveats.warnings(report),
        ],
        folded=caveats.explanations(report),
        figures=figures,
        metrics=[base_name(r.metric) for r in report.rows] + [p.metric for p in report.classes],
        of_answers=settings["classes"] is None,
    )


def headline(report: Results) -> str:
    """Describe the examples, the intervals and the calibrator in a sentence or two."""
    settings = report.settings
    how = ["weighted"] * settings["weighted"]
    if settings["left_out"]:
        how.append(f"{settings['left_out']:,} of weight 0 left out")
    weighted = f" ({', '.join(how)})" if how else ""
    are_answers, parts = settings["classes"] is None, []
    if settings["clusters"] is not None:
        parts.append(f"{counted(settings['clusters'], 'cluster')}; whole clusters are resampled")
    if not are_answers:
        parts.append(f"{settings['classes']} classes")
    within = f" in {'. '.join(parts)}" if parts else ""
    kinds = {row.interval for row in report.rows if row.interval not in (NO_INTERVAL, "normal")}
    kind = f"{next(iter(kinds), 'percentile')} intervals"
    if "noise bound" in kinds:
        kind = "intervals: noise bounds of binned calibration errors, else percentiles"
    what = counted(settings["examples"], "answer" if are_answers else "example")
    line = (
        f"{what}{weighted}{within};"
        f" {100 * settings['level']:g}% {kind} of {settings['resamples']:,} resamples."
    )
    if len(report.calibrators) > 1:
        sources = list(dict.fromkeys(map(calibration.source, report.calibrators.values())))
        what = "temperatures" if report.calibrator["name"] == "temperature" else "fits"
        on = sources[0] if len(sources) == 1 else "the examples that their table names"
        line += f" The {what} were fitted on {on}."
    elif report.calibrator:
        line += f" {calibration.sentence(report.calibrator)}"
    return line


def titled(report: Results) -> list[tuple[str, Table]]:
    """Return all tables of metrics, each with a title."""
    tables = _metrics(report)
    if report.pairs:
        tables.append(("Other pairs", _pairs(report)))
    if len(report.calibrators) > 1:
        of_temperature = report.calibrator["name"] == "temperature"
        tables.append(("Temperatures" if of_temperature else "Fits", _fits(report)))
    for title, head, parts in (
        ("Classes", "class", report.classes),
        ("Groups", "group", report.groups),
    ):
        if parts:
            tables.append((title, _parts(head, parts, caveats.least_p_of_bound(report))))
    return tables


def _fits(report: Results) -> Table:
    """List how each of several calibrators was fitted, and on which examples if they differ."""
    fits, heads = report.calibrators, shortened(report.calibrators)
    of_temperature = report.calibrator["name"] == "temperature"
    several = len(set(map(calibration.source, fits.values()))) > 1
    head = ["predictions", *["T", "minimizes"] * of_temperature, "fit", *["fitted on"] * several]
    table = [head]
    for name, fit in fits.items():
        row = [heads[name]]
        if of_temperature:
            row += [calibration.temperature(fit), calibration.search(fit["criterion"])]
        table.append([*row, calibration.states(fit), *[calibration.source(fit)] * several])
    return table


def _metrics(report: Results) -> list[tuple[str, Table]]:
    """List the values and their differences, in two tables if they are too wide for one."""
    rows: dict[str, dict[str, Row]] = {}
    for row in report.rows:
        rows.setdefault(row.metric, {})[row.predictions] = row
    changes = {(change.metric, change.after): change for change in report.changes}
    heads = {
        model: _with_state(report, model, head)
        for model, head in shortened(row.predictions for row in report.rows).items()
    }
    first, *others = heads
    least, resamples = caveats.least_p_of_bound(report), report.settings["resamples"]
    values = [["metric", *heads.values()]]
    differences = [[f"{heads[model]} - {heads[first]}" for model in others]]
    bins, floors = [["bins"]], [["noise floor", *heads.values()]]
    for metric, of in rows.items():
        cells = [with_interval(of[model]) for model in heads]
        if not others and (floor := _floor(of[first], least)):
            cells = [f"{cells[0]}, noise floor {floor}"]
        values.append([report.label(metric), *cells])
        changed = {model: _changed(changes[metric, model], resamples) for model in others}
        differences.append([_with_state(report, *change) for change in changed.items()])
        bins.append([of[first].convention])
        if others and all(row.floor is not None for row in of.values()):
            floors.append([report.label(metric), *(_floor(row, least) for row in of.values())])
    if len(heads) <= MODELS_IN_ONE_TABLE:
        tables = [("Metrics", _beside(values, differences, bins))]
    else:
        tables = [("Metrics", _beside(values, bins))]
        tables.append(("Differences", _beside([row[:1] for row in values], differences)))
    return [*tables, *[("Noise floors", floors)] * (len(floors) > 1)]


def _pairs(report: Results) -> Table:
    """List the differences between models of which none is the first."""
    cells: dict[str, dict[str, str]] = {}
    for change in report.pairs:
        pair = " - ".join(shortened([change.after, change.before]).values())
        cell = _changed(change, report.settings["resamples"])
        cells.setdefault(report.label(change.metric), {})[pair] = cell
    heads = list(next(iter(cells.values())))
    return [["pairs", *heads], *([metric, *of.values()] for metric, of in cells.items())]


def _with_state(report: Results, model: str, text: str) -> str:
    """Append the state of a calibrator's fit if the fit did not converge."""
    state = report.unsettled.get(model)
    return f"{text} ({state})" if state else text


def _floor(row: Row, least: float) -> str:
    """Format the noise floor of a value and the p-value of its calibration; "" without them."""
    p_value = caveats.p_of(row.p_value, least)
    return f"{row.floor:.4f} p {p_value}" if p_value else ""


def _beside(*tables: Table) -> Table:
    return [[cell for row in rows for cell in row] for rows in zip(*tables, strict=True)]


def _parts(name: str, parts: list[Part], least: float) -> Table:
    metrics = list(dict.fromkeys(part.metric for part in parts))
    heads = shortened(part.predictions for part in parts)
    by_cell = {(part.part, part.predictions, part.metric): part for part in parts}
    clustered, several = parts[0].clusters is not None, len(heads) > 1
    table = [[name, "n", *["clusters"] * clustered, *["predictions"] * several, *metrics]]
    for part in {part.part: part for part in parts}.values():
        sizes = [part.examples] if part.clusters is None else [part.examples, part.clusters]
        for model, head in heads.items():
            found = (by_cell.get((part.part, model, metric)) for metric in metrics)
            cells = ["" if each is None else _with_p(each, least) for each in found]
            counts = [f"{size:,}" for size in sizes]
            table.append([part.part, *counts, *[head] * several, *cells])
    return table


def _with_p(part: Part, least: float) -> str:
    p_holm = caveats.holm_of(part.p_value, part.p_holm, least)
    floor = ""
    if is_alone(part) and part.floor is not None:
        floor = f", noise floor {part.floor:.4f}"
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


def _changed(change: Change, num_resamples: int) -> str:
    written = with_interval(change, sign="+")
    least = least_p(change.metric, num_resamples)
    p_value = caveats.p_of(change.p_value, least)
    if not p_value:
        return written
    written += f" p {p_value}"
    if change.p_holm != change.p_value:
        written += f", Holm {caveats.holm_of(change.p_value, change.p_holm, least)}"
    return written + starred(change.p_holm)


def in_markdown(table: Table, *, is_markup: bool = False) -> str:
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


def aligned(table: Table, width: int | None = None) -> str:
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
