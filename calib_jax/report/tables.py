"""Write a report as text, Markdown, CSV or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from calib_jax.core import texts
from calib_jax.core.texts import csv_lines, without_nan
from calib_jax.report import calibration, caveats
from calib_jax.report.answers import answers, shortened
from calib_jax.report.caveats import NO_INTERVAL, least_p, least_p_of_bound, starred
from calib_jax.report.reading.prediction_tables import counted
from calib_jax.report.records import Change, Part, Results, Row, base_name

Table = list[list[str]]  # the first row is the header
MODELS_IN_ONE_TABLE = 3
TERMINAL = 100  # characters of a line
_FOLDED = "What the numbers mean: --notes, or the report's `explanations`."


@runtime_checkable
class Estimated(Protocol):
    """A value and its interval."""

    @property
    def value(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


def as_text(report: Results, *, explained: bool = False) -> str:
    """Format the answer and all tables as plain text.

    Args:
      report: the results.
      explained: whether the explanations of the numbers follow the tables.
    """
    answer = "\n".join(map(texts.one_line, [*report.headlines, *answers(report)]))
    tables = [aligned(table, width=TERMINAL) for _, table in titled(report)]
    after = [*warnings(report), *(explanations(report) if explained else [])]
    if not explained and explanations(report):
        after.append(_FOLDED)
    lines = map(texts.one_line, [headline(report), *after])
    return "\n\n".join([answer, next(lines), *tables, *lines])


def as_markdown(report: Results) -> str:
    """Format the answer and all tables as Markdown; the explanations of the numbers are folded."""
    answer = "  \n".join(map(texts.in_markdown, [*report.headlines, *answers(report)]))
    lines = map(texts.in_markdown, [headline(report), *warnings(report)])
    tables = [in_markdown(table) for _, table in titled(report)]
    parts = [answer, next(lines), *tables, *lines]
    if folded := explanations(report):
        items = "\n".join(f"- {texts.in_markdown(line)}" for line in folded)
        title = "<summary>What the numbers mean</summary>"
        parts.append(f"<details>{title}\n\n{items}\n\n</details>")
    return "\n\n".join(parts)


def as_model_card(report: Results) -> str:
    """Format a section of a model card: tables, notes, and the command that produced them."""
    command = report.settings.get("command")
    how = f" with {texts.in_markdown_code(command)}" if command else ""
    parts = [
        "## Calibration",
        "  \n".join(map(texts.in_markdown, [*report.headlines, *answers(report)])),
        texts.in_markdown(headline(report)),
        *(in_markdown(table) for _, table in titled(report)),
        "\n".join(f"- {texts.in_markdown(note)}" for note in notes(report)),
        f"Measured by calib_jax {report.settings['versions']['calib_jax']}{how}.",
    ]
    return "\n\n".join(filter(None, parts))


def as_csv(report: Results) -> str:
    """Write one CSV line per value: table, part, metric, predictions, value and interval."""
    fields = ["table", "part", "metric", "predictions", "examples", "clusters"]
    fields += ["value", "low", "high", "p_value", "p_holm"]
    fields += ["interval", "floor", "convention", "note"]
    rows: list[dict[str, Any]] = []

    def add(table: str, estimate: Estimated, **entries: Any) -> None:
        cells = vars(estimate) | entries
        notes = texts.reasons([_triple(estimate)])
        models = [cells["predictions"]]
        if isinstance(estimate, Change):
            models = [estimate.before, estimate.after]
        state = {name: of for name, of in report.unsettled.items() if name in models}
        notes += caveats.unsettled(state)
        if isinstance(estimate, Change):
            untested = estimate.p_value is None and not state
            has_test = any(
                base_name(each.metric) == caveats.SQUARED_ERROR for each in report.changes
            )
            notes += caveats.no_p([estimate.metric] * untested, counted=has_test)
            notes += caveats.no_interval([(estimate.metric, estimate.interval)])
        elif isinstance(estimate, Row | Part):
            notes += caveats.constant([estimate.metric] * _is_constant(estimate))
        rows.append({"table": table, "note": " ".join(notes), **cells})

    whole = {key: report.settings[key] for key in ("examples", "clusters")}
    for row in report.rows:
        add("metrics", row, **whole)
    for change in (*report.changes, *report.pairs):
        add("changes", change, predictions=f"{change.before} -> {change.after}", **whole)
    for name, parts in (("classes", report.classes), ("groups", report.groups)):
        for part in parts:
            add(name, part)
    return csv_lines(map(texts.in_csv, rows), fields)


def as_json(report: Results, *, files: Sequence[str] = ()) -> str:
    """Write the whole report, with reliability tables, fits, and the names of its files."""
    everything = {
        "settings": report.settings,
        "metrics": [vars(row) for row in report.rows],
        "changes": [vars(change) for change in (*report.changes, *report.pairs)],
        "classes": [vars(part) for part in report.classes],
        "groups": [vars(part) for part in report.groups],
        "reliability": _lists(report.reliability),
        "event": report.event
        and {
            "class": report.event.place,
            "name": report.event.name,
            "reliability": _lists(report.event.reliability),
        },
        "headlines": report.headlines,
        "calibrator": report.calibrator,
        **({"calibrators": report.calibrators} if len(report.calibrators) > 1 else {}),
        "notes": notes(report),
        "files": list(files),
    }
    return json.dumps(without_nan(everything), indent=1, allow_nan=False)


def _lists(reliability: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Convert reliability tables to lists."""
    return {
        name: {field: np.asarray(values).tolist() for field, values in table._asdict().items()}
        for name, table in reliability.items()
    }


def headline(report: Results) -> str:
    """Describe the examples, the intervals and the calibrator in a sentence or two."""
    settings = report.settings
    how = ["weighted"] * settings["weighted"]
    if settings["left_out"]:
        how.append(f"{settings['left_out']:,} of weight 0 left out")
    weighted = f" ({', '.join(how)})" if how else ""
    # Answers have no classes.
    answers, parts = settings["classes"] is None, []
    if settings["clusters"] is not None:
        parts.append(f"{counted(settings['clusters'], 'cluster')}; whole clusters are resampled")
    if not answers:
        parts.append(f"{settings['classes']} classes")
    within = f" in {'. '.join(parts)}" if parts else ""
    what = counted(settings["examples"], "answer" if answers else "example")
    line = (
        f"{what}{weighted}{within};"
        f" {100 * settings['level']:g}% {_kind(report)} of {settings['resamples']:,} resamples."
    )
    if len(report.calibrators) > 1:
        sources = list(dict.fromkeys(map(calibration.source, report.calibrators.values())))
        what = "The temperatures" if report.calibrator["name"] == "temperature" else "The fits"
        verb = "were fitted" if what == "The temperatures" else "were made"
        on = sources[0] if len(sources) == 1 else "the examples that their table names"
        line += f" {what} {verb} on {on}."
    elif report.calibrator:
        line += f" {calibration.sentence(report.calibrator)}"
    return line


def _kind(report: Results) -> str:
    kinds = {row.interval for row in report.rows if row.interval not in (NO_INTERVAL, "normal")}
    if "noise bound" not in kinds:
        return f"{next(iter(kinds), 'percentile')} intervals"
    return "intervals: noise bounds of binned calibration errors, else percentiles"


def notes(report: Results) -> list[str]:
    """List the notes needed to interpret the numbers, one line each."""
    return [*warnings(report), *explanations(report)]


def warnings(report: Results) -> list[str]:
    """List what is special about these numbers: what was changed, and what does not hold."""
    values: list[Row | Part] = [*report.rows, *report.classes, *report.groups]
    shown: list[Estimated] = [*values, *report.changes, *report.pairs]
    undefined = any(math.isnan(estimate.value) for estimate in shown)
    return [
        *report.notes,
        *caveats.few_resamples(report.settings["resamples"], report.settings["level"]),
        *_on_clusters(report),
        *caveats.unsettled(report.unsettled),
        *texts.reasons(map(_triple, shown)),
        *caveats.constant(each.metric for each in values if _is_constant(each)),
        *([caveats.NAN] if undefined else []),
    ]


def explanations(report: Results) -> list[str]:
    """List what the numbers of the tables mean."""
    parts = [*report.classes, *report.groups]
    has_floors = any(row.floor is not None for row in report.rows)
    both_readings = any(row.metric != base_name(row.metric) for row in report.rows)
    return [
        *_on_tests(report),
        *[caveats.noise_floor(report.settings["level"])] * has_floors,
        *[caveats.HOLM] * any(part.p_holm is not None for part in parts),
        *[caveats.PAIRS] * bool(report.pairs),
        *([caveats.both_readings(report.event.name)] if report.event and both_readings else []),
    ]


def _on_tests(report: Results) -> list[str]:
    """Explain the p-values of differences, and why some are missing."""
    if not report.changes:
        return []
    counted = any(base_name(change.metric) == caveats.SQUARED_ERROR for change in report.changes)
    baseline = next(iter(shortened(row.predictions for row in report.rows).values()))
    return [
        caveats.star(baseline, "comparisons"),
        *[caveats.OF_SQUARED_ERROR] * counted,
        *caveats.on_intervals((change.metric, change.interval) for change in report.changes),
        *caveats.no_p(
            (
                report.label(change.metric)
                for change in report.changes
                if change.p_value is None
                and not {change.before, change.after} & report.unsettled.keys()
            ),
            counted=counted,
        ),
    ]


def _on_clusters(report: Results) -> list[str]:
    """Warn where clusters are few, and where they are not respected."""
    whole = report.settings["clusters"]
    if whole is None:
        return []
    counts = {"all examples": whole}
    for kind, parts in (("class", report.classes), ("group", report.groups)):
        counts |= {f"{kind} {part.part}": part.clusters or 0 for part in parts}
    return [*caveats.few_clusters(counts), caveats.BANDS]


def _triple(estimate: Estimated) -> tuple[float, float, float]:
    return estimate.value, estimate.low, estimate.high


def titled(report: Results) -> list[tuple[str, Table]]:
    """Return all tables with a title each."""
    tables = _metrics(report)
    if report.pairs:
        tables.append(("Other pairs", _pairs(report)))
    if len(report.calibrators) > 1:
        of_temperature = report.calibrator["name"] == "temperature"
        tables.append(("Temperatures" if of_temperature else "Fits", _fits(report)))
    least = _least_p_of_bound(report)
    for title, head, parts in (
        ("Classes", "class", report.classes),
        ("Groups", "group", report.groups),
    ):
        if parts:
            tables.append((title, _parts(head, parts, least)))
    return tables


def _least_p_of_bound(report: Results) -> float:
    return least_p_of_bound(report.settings["resamples"], report.settings["level"])


def _fits(report: Results) -> Table:
    """List how each of several calibrators was fitted, and on which examples if they differ."""
    fits, heads = report.calibrators, shortened(report.calibrators)
    of_temperature = report.calibrator["name"] == "temperature"
    several = len(set(map(calibration.source, fits.values()))) > 1
    table = [["predictions", *["T", "minimizes"] * of_temperature, "fit"]]
    table[0] += ["fitted on"] * several
    for name, fit in fits.items():
        row = [heads[name]]
        if of_temperature:
            row += [calibration.temperature(fit), calibration.search(fit["criterion"])]
        row.append(calibration.states(fit))
        table.append([*row, *[calibration.source(fit)] * several])
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
    least, resamples = _least_p_of_bound(report), report.settings["resamples"]
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
        metrics = [row[:1] for row in values]
        tables = [("Metrics", _beside(values, bins))]
        tables.append(("Differences", _beside(metrics, differences)))
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
        counts = [f"{size:,}" for size in sizes]
        for model, head in heads.items():
            cells = [_with_p(by_cell[part.part, model, metric], least) for metric in metrics]
            table.append([part.part, *counts, *[head] * several, *cells])
    return table


def _with_p(part: Part, least: float) -> str:
    p_holm = caveats.holm_of(part.p_value, part.p_holm, least)
    floor = ""
    if is_alone(part) and part.floor is not None:
        floor = f", noise floor {part.floor:.4f}"
    return with_interval(part) + floor + (f" p {p_holm}" if p_holm else "")


def with_interval(estimate: Estimated, *, sign: str = "") -> str:
    """Format a value and its interval, with a mark if the value lies outside the interval.

    Args:
      estimate: an object with value, low and high; without an interval, both are NaN.
      sign: "+" also writes the sign of positive numbers.
    """
    numbers = _triple(estimate)
    if is_alone(estimate):
        return f"{estimate.value:{sign}z.4f}"
    value, low, high = (f"{number:{sign}z.4f}" for number in numbers)
    return f"{value}{texts.mark(*numbers)} [{low}, {high}]"


def is_alone(estimate: Estimated) -> bool:
    """Check whether a finite value has no interval."""
    return math.isfinite(estimate.value) and math.isnan(estimate.low) and math.isnan(estimate.high)


def _is_constant(estimate: Row | Part) -> bool:
    """Check whether an interval is missing because all resamples are equal.

    The calibration error of a class has a noise floor in place of an interval.
    """
    return is_alone(estimate) and estimate.floor is None


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
    cells = [list(map(texts.one_line, row)) for row in table]
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
