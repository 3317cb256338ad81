"""The results of `score`: a record for each number, their tables, and the files of a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from calib_jax.core import texts
from calib_jax.core.checks import nearest, short_repr
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats, render
from calib_jax.report.caveats import EVENTS, base_name, p_of, shortened, with_interval
from calib_jax.report.predictions import counted
from calib_jax.report.render import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FACTS = ("predictions", "event", "bins", "seed", "command", "versions")
_CSV = (
    *("table", "part", "metric", "predictions", "examples", "clusters"),
    *("value", "low", "high", "p_value", "p_holm", "interval", "floor", "convention", "note"),
)


@dataclasses.dataclass(frozen=True)
class Event:
    """The event of two classes: one of the classes is true.

    Attributes:
      place: the number of the class, 0 or 1.
      name: the name of the class.
      reliability: the reliability table of the probability of the class, by predictions.
    """

    place: int
    name: str
    reliability: dict[str, Any]

    def of(self, metric: str) -> str:
        """Return the name of a metric that reads the probability of the class as a confidence."""
        return metric + EVENTS[self.place]


@dataclasses.dataclass(frozen=True)
class Number:
    """A value of a metric, and its interval.

    Attributes:
      metric: name of the metric.
      value: point estimate.
      low: lower end of the interval; NaN without one, such as if all resamples are equal.
      high: upper end of the interval; NaN without one.
    """

    metric: str
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Row(Number):
    """A metric of one set of predictions.

    Attributes:
      predictions: name of the predictions: their own name ("as given" by default), the name of the
        calibrator after calibration, or the name of the other predictions in a comparison.
      convention: number and kind of bins, as text; empty for a metric without bins.
      interval: kind of the interval: "percentile", "basic", "noise bound", "Clopper-Pearson" or
        "normal"; "none" without one.
      floor: the mean value of a calibrated model; None without a noise bound.
      p_value: the p-value of the hypothesis that the model is calibrated; None without a noise
        bound.
    """

    predictions: str
    convention: str = ""
    interval: str = "percentile"
    floor: float | None = None
    p_value: float | None = None


@dataclasses.dataclass(frozen=True)
class Change(Number):
    """The difference of a metric between two sets of predictions of the same examples.

    Attributes:
      before: name of the predictions whose value is subtracted.
      after: name of the predictions from whose value it is subtracted.
      p_value: two-sided, from the paired bootstrap; for the squared calibration error, from
        `inference.compare_calibration`; None for other calibration errors, which have no valid
        test, and after a calibrator whose fit did not converge.
      p_holm: the p-value, adjusted for all comparisons of this metric in the report.
      interval: kind of the interval: "percentile" or "basic"; "noise bound", from
        `inference.compare_ece`; "normal", from `inference.compare_calibration`; "none" where no
        valid interval exists.
    """

    before: str
    after: str
    p_value: float | None
    p_holm: float | None = None
    interval: str = "percentile"


@dataclasses.dataclass(frozen=True)
class Part(Row):
    """A metric on a subset of the examples: one class or one group.

    An error of a class has a noise floor in place of an interval.

    Attributes:
      part: name of the class or group.
      examples: number of examples of the subset.
      clusters: number of clusters with an example of the subset; None without clusters.
      p_holm: the p-value corrected for the number of classes or groups.
    """

    part: str = ""
    examples: int = 0
    clusters: int | None = None
    p_holm: float | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of `score`; prints as tables, and a notebook cell renders them.

    Attributes:
      settings: numbers of examples, clusters and classes, level, resamples, seed, versions.
      rows: the metrics.
      changes: paired differences, of calibrated and of other predictions.
      classes: metrics per class, if requested.
      groups: metrics per group, if there are groups.
      reliability: the reliability table of each set of predictions.
      calibrators: the name, criterion, parameters and data of each fit, by the name of the
        calibrated predictions.
      notes: changes made to the predictions before scoring, as sentences.
      event: the event of two classes; None for other predictions.
      headlines: what a reader has to see before any number, as sentences.
      tables: answers to further questions, such as ranks and thresholds.
    """

    settings: dict[str, Any]
    rows: list[Row]
    changes: list[Change]
    classes: list[Part]
    groups: list[Part]
    reliability: dict[str, Any]
    calibrators: dict[str, dict[str, Any]]
    notes: list[str] = dataclasses.field(default_factory=list)
    event: Event | None = None
    headlines: list[str] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)

    __repr__ = short_repr

    def __str__(self) -> str:
        return render.as_text(page(self), explained=False)

    def _repr_markdown_(self) -> str:
        return render.as_markdown(page(self))

    answers = property(caveats.answers)
    explanations = property(caveats.explanations)

    def label(self, metric: str) -> str:
        """Return the name of a metric in tables: the reading of two classes follows it."""
        if self.event is None:
            return metric
        if metric != base_name(metric):
            return f"{base_name(metric)} ({self.event.name})"
        both = any(row.metric == self.event.of(metric) for row in self.rows)
        return f"{metric} (top label)" if both else metric

    @property
    def calibrator(self) -> dict[str, Any]:
        """The first fit; empty without a calibrator."""
        return next(iter(self.calibrators.values()), {})

    @property
    def calibrated(self) -> dict[str, dict[str, Any]]:
        """The fits that add predictions to a model; a fit to scores is the model itself."""
        return {k: fit for k, fit in self.calibrators.items() if fit.get("predictions") != k}

    @property
    def models(self) -> list[str]:
        """The names of the models, without their columns after a calibrator."""
        return [name for name in self.reliability if name not in self.calibrated]

    @property
    def unsettled(self) -> dict[str, str]:
        """The states of fits that are no optimum, by the name of the calibrated predictions."""
        states = {name: calibration.unsettled(fit) for name, fit in self.calibrators.items()}
        return {name: state for name, state in states.items() if state}

    @property
    def name(self) -> str:
        """The name of the predictions that were scored."""
        return next(iter(self.reliability))

    def row(self, metric: str, predictions: str) -> Row | None:
        """Return the row of a metric; None without one."""
        found = (r for r in self.rows if (r.metric, r.predictions) == (metric, predictions))
        return next(found, None)

    def value(self, metric: str, predictions: str | None = None) -> float:
        """Return the value of a metric; by default for the predictions that were scored."""
        predictions = self.name if predictions is None else predictions
        if row := self.row(metric, predictions):
            return row.value
        known, names = {row.metric for row in self.rows}, ", ".join(map(repr, self.reliability))
        missing = f"{metric!r} of predictions {predictions!r}; it has predictions {names}"
        raise KeyError(f"the report has no {missing}{nearest(metric, known)}")

    def save(self, folder: Any) -> list[str]:
        """Save report.json, .csv, .md, .html and the figures; return the file names."""
        from calib_jax.report.figures import pictures

        contents, others = page(self, pictures(self)), {"report.csv": as_csv(self)}
        return render.save(folder, "report", contents, others, as_record(self))


# ------------------------------------------------------------------------------------------------
# Formats.


def as_model_card(report: Report) -> str:
    """Format a section of a model card: the Markdown, and the command that produced it."""
    command = report.settings.get("command")
    how = f" with {texts.in_markdown_code(command)}" if command else ""
    version = report.settings["versions"]["calib_jax"]
    return f"## Calibration\n\n{report._repr_markdown_()}\n\nMeasured by calib_jax {version}{how}."


def as_csv(report: Report) -> str:
    """Write one CSV line per value: table, part, metric, predictions, value and interval."""
    whole = {key: report.settings[key] for key in ("examples", "clusters")}
    lines = []
    for table, records in _records(report).items():
        for each in records:
            cells = {"table": table, **whole, **vars(each)}
            if isinstance(each, Change):
                cells["predictions"] = f"{each.before} -> {each.after}"
            cells["note"] = " ".join(texts.reasons([(each.value, each.low, each.high)]))
            lines.append(texts.in_csv(cells))
    return texts.csv_lines(lines, _CSV)


def _records(report: Report) -> dict[str, Sequence[Row | Change]]:
    """Return all numbers of a report, by the name of their table."""
    parts = {"classes": report.classes, "groups": report.groups}
    return {"metrics": report.rows, "changes": report.changes, **parts}


def as_record(report: Report) -> dict[str, Any]:
    """Collect the whole report, with reliability tables and fits."""
    event = report.event
    return {
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
    }


def _lists(reliability: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Convert reliability tables to lists."""
    return {
        name: {field: np.asarray(values).tolist() for field, values in table._asdict().items()}
        for name, table in reliability.items()
    }


def page(report: Report, figures: Mapping[str, Figure] | None = None) -> render.Page:
    """Collect the answer, the tables, the notes and the figures."""
    return render.Page(
        title="Calibration report",
        answers=[*report.headlines, *caveats.answers(report)],
        head=headline(report),
        facts={key: report.settings.get(key) for key in _FACTS},
        sections=tables(report),
        notes=caveats.warnings(report),
        folded=caveats.explanations(report),
        figures=figures or {},
        metrics=[base_name(r.metric) for r in report.rows] + [p.metric for p in report.classes],
    )


def headline(report: Report) -> str:
    """Describe the examples, the intervals and the calibrator in a sentence or two."""
    settings, fits = report.settings, report.calibrators
    how = ["weighted"] * settings["weighted"]
    if settings["left_out"]:
        how.append(f"{settings['left_out']:,} of weight 0 left out")
    if settings["clusters"] is not None:
        how.append(f"{counted(settings['clusters'], 'cluster')}, resampled as a whole")
    classes, options = settings["classes"], settings.get("options")
    what = counted(settings["examples"], "example" if classes or options else "answer")
    what += f" ({', '.join(how)})" if how else ""
    what += f" in {classes} classes" if classes else ""
    what += f" of up to {options} options" if options else ""
    level, drawn, kind = (settings[key] for key in ("level", "resamples", "interval"))
    line = f"{what}; {100 * level:g}% intervals of {drawn:,} resamples (method {kind})."
    said = [f"{name}: " * (len(fits) > 1) + calibration.sentence(fit) for name, fit in fits.items()]
    return " ".join([line, *said])


# ------------------------------------------------------------------------------------------------
# Tables.

# The first cells of the row, the heading of the column, and the text.
_Cell: TypeAlias = tuple[tuple[str, ...], str, str]


def tables(report: Report) -> list[Table]:
    """Return all tables of a report, the answers first; a table without rows is left out."""
    heads = shortened(row.predictions for row in report.rows)
    heads |= {model: f"{heads[model]} ({state})" for model, state in report.unsettled.items()}
    bins: dict[str, dict[str, None]] = {}
    for row in report.rows:
        bins.setdefault(row.convention, {})[base_name(row.metric)] = None
    conventions = ". ".join(f"{', '.join(of)}: {each}" for each, of in bins.items() if each)
    shown, floors = list[_Cell](), list[_Cell]()
    for each in report.rows:
        place = (report.label(each.metric),), heads[each.predictions]
        shown.append((*place, with_interval(each)))
        if each.floor is not None and each.p_value is not None:
            floors.append((*place, f"{each.floor:.4f} p {p_of(each.p_value)}"))
    differences = [
        ((report.label(c.metric),), f"{heads[c.after]} - {heads[c.before]}", _cell(c, "+"))
        for c in report.changes
    ]
    sections = [
        _arranged("Metrics", ["metrics"], shown, conventions),
        *report.tables,
        _parts(report, "Classes", "class", report.classes),
        _parts(report, "Groups", "group", report.groups),
        _arranged("Differences", ["differences"], differences),
        _arranged("Noise floors", ["noise floors"], floors),
    ]
    return [table for table in sections if len(table.rows) != 1]


def _arranged(title: str, head: Sequence[str], cells: Iterable[_Cell], note: str = "") -> Table:
    """Arrange cells in a table."""
    by_row: dict[tuple[str, ...], dict[str, str]] = {}
    for row, column, text in cells:
        by_row.setdefault(row, {})[column] = text
    columns = dict.fromkeys(column for of in by_row.values() for column in of)
    rows = [[*row, *(of.get(column, "") for column in columns)] for row, of in by_row.items()]
    return Table(title, [[*head, *columns], *rows], note)


def _parts(report: Report, title: str, corner: str, parts: Sequence[Part]) -> Table:
    """List the metrics of each class or group, with a line for each model."""
    heads = shortened(part.predictions for part in parts)
    cells, several = [], len(heads) > 1
    for part in parts:
        clusters = "" if part.clusters is None else f" in {counted(part.clusters, 'cluster')}"
        row = (part.part, f"{part.examples:,}{clusters}", *[heads[part.predictions]] * several)
        alone = caveats.is_alone(part) and part.floor is not None
        floor = f", noise floor {part.floor:.4f}" if alone else ""
        cells.append((row, report.label(part.metric), _cell(part, floor=floor)))
    return _arranged(title, [corner, "n", *["predictions"] * several], cells)


def _cell(number: Change | Part, sign: str = "", floor: str = "") -> str:
    """Format a value, its interval and its p-value after Holm's correction; a star for a change."""
    p_holm = number.p_holm
    tested = "" if p_holm is None else f" p {p_of(p_holm)}{caveats.starred(p_holm) * bool(sign)}"
    return with_interval(number, sign=sign) + floor + tested
