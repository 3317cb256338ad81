"""A report as text, Markdown, CSV and JSON: the same tables, four ways."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any, Protocol, runtime_checkable

import numpy as np

from calib_jax.report import calibration
from calib_jax.report.scoring import Change, Part, Report, Row

Table = list[list[str]]  # the first row is the head


@runtime_checkable
class Estimated(Protocol):
    """A value and its interval, whatever they are of."""

    @property
    def value(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


def as_text(report: Report) -> str:
    """Lay all tables out for a terminal."""
    return "\n\n".join([_headline(report), *map(aligned, _tables(report)), *_notes(report)])


def as_markdown(report: Report) -> str:
    """Write all tables as Markdown."""
    return "\n\n".join([_headline(report), *map(in_markdown, _tables(report)), *_notes(report)])


def as_csv(report: Report) -> str:
    """Write one line a number: which table, which part, whose, value and interval."""
    out = io.StringIO()
    fields = ["table", "part", "metric", "predictions", "examples", "value", "low", "high"]
    write = csv.DictWriter(out, [*fields, "p_value", "convention"], lineterminator="\n")
    write.writeheader()
    examples = report.settings["examples"]
    for row in report.rows:
        write.writerow({"table": "metrics", "examples": examples, **vars(row)})
    for change in report.changes:
        entries = vars(change) | {"predictions": f"{change.before} -> {change.after}"}
        entries = {k: v for k, v in entries.items() if k not in ("before", "after")}
        write.writerow({"table": "changes", "examples": examples, **entries})
    for name, parts in (("classes", report.classes), ("groups", report.groups)):
        for part in parts:
            write.writerow({"table": name, **vars(part)})
    return out.getvalue()


def as_json(report: Report) -> str:
    """Write everything, the reliability tables and the calibrator's parameters included."""
    everything = {
        "settings": report.settings,
        "metrics": [vars(row) for row in report.rows],
        "changes": [vars(change) for change in report.changes],
        "classes": [vars(part) for part in report.classes],
        "groups": [vars(part) for part in report.groups],
        "reliability": {
            name: {field: np.asarray(values).tolist() for field, values in table._asdict().items()}
            for name, table in report.reliability.items()
        },
        "calibrator": report.calibrator,
    }
    return json.dumps(_without_nan(everything), indent=1, allow_nan=False)


def _headline(report: Report) -> str:
    said = report.settings
    weighted = " (weighted)" if said["weighted"] else ""
    line = (
        f"{said['examples']:,} examples{weighted} in {said['classes']} classes; {said['level']:.0%}"
        f" {said['interval']} intervals of {said['resamples']:,} resamples."
    )
    if report.calibrator:
        line += f" {calibration.sentence(report.calibrator)}"
    return line


def _notes(report: Report) -> list[str]:
    if not any(row.convention for row in report.rows):
        return []
    return [
        "Errors over bins are biased upwards, resampled ones more so: the value is that of the"
        " data, and may lie below its interval."
    ]


def _tables(report: Report) -> list[Table]:
    tables = [_metrics(report)]
    for name, parts in (("class", report.classes), ("group", report.groups)):
        if parts:
            tables.append(_parts(name, parts))
    return tables


def _metrics(report: Report) -> Table:
    models = list(dict.fromkeys(row.predictions for row in report.rows))
    rows: dict[str, dict[str, Row]] = {}
    for row in report.rows:
        rows.setdefault(row.metric, {})[row.predictions] = row
    changes = {(change.metric, change.after): change for change in report.changes}
    head = ["metric", *models, *(f"{model} - {models[0]}" for model in models[1:]), "bins"]
    table = [head]
    for metric, of in rows.items():
        cells = [with_interval(of[model]) for model in models]
        cells += [_changed(changes[metric, model]) for model in models[1:]]
        table.append([metric, *cells, of[models[0]].convention])
    return table


def _parts(name: str, parts: list[Part]) -> Table:
    models = list(dict.fromkeys(part.predictions for part in parts))
    metrics = list(dict.fromkeys(part.metric for part in parts))
    found = {(part.part, part.predictions, part.metric): part for part in parts}
    examples = {part.part: part.examples for part in parts}
    several = ["predictions"] if len(models) > 1 else []
    table = [[name, "n", *several, *metrics]]
    for part, count in examples.items():
        for model in models:
            cells = [with_interval(found[part, model, metric]) for metric in metrics]
            table.append([part, f"{count:,}", *([model] if several else []), *cells])
    return table


def with_interval(row: Estimated) -> str:
    """Write a value and its interval."""
    return f"{_number(row.value)} [{_number(row.low)}, {_number(row.high)}]"


def _changed(change: Change) -> str:
    interval = f"[{_number(change.low)}, {_number(change.high)}]"
    return f"{change.value:+.4f} {interval} p = {change.p_value:.3f}"


def _number(value: float) -> str:
    return f"{value:.4f}"


def in_markdown(table: Table) -> str:
    """Write a table as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join(lines)


def aligned(table: Table) -> str:
    """Lay a table out in columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join(lines)


def _without_nan(value: Any) -> Any:
    """Replace NaN, which JSON does not have, by null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
