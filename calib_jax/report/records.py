"""The records of a report: one per number, and all of them together."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeAlias

from calib_jax.core.names import closest, short_repr
from calib_jax.report import calibrate

GIVEN, OTHER = "as given", "other"  # the default names of the predictions
# End the names of metrics of two classes that read the probability of a class as a confidence.
_EVENTS = (" (class 0)", " (class 1)")


def base_name(metric: str) -> str:
    """Return the name of the metric in the catalogue, for either reading of two classes.

    >>> base_name("ece (class 1)"), base_name("ece")
    ('ece', 'ece')
    """
    return metric.removesuffix(_EVENTS[0]).removesuffix(_EVENTS[1])


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
        return metric + _EVENTS[self.place]


@dataclasses.dataclass(frozen=True)
class Row:
    """A metric of one set of predictions, and its interval.

    Attributes:
      metric: name of the metric.
      predictions: name of the predictions: their own name ("as given" by default), the name of the
        calibrator after calibration, or the name of the other predictions in a comparison.
      value: point estimate.
      low: lower end of the interval; NaN if all resamples are equal.
      high: upper end of the interval; NaN if all resamples are equal.
      convention: number and kind of bins, as text; empty for a metric without bins.
      interval: kind of the interval: "percentile", "basic", "noise bound"; "none" without one.
      floor: the mean value of a calibrated model; None without a noise bound.
      p_value: the p-value of the hypothesis that the model is calibrated; None without a noise
        bound.
    """

    metric: str
    predictions: str
    value: float
    low: float
    high: float
    convention: str
    interval: str = "percentile"
    floor: float | None = None
    p_value: float | None = None


@dataclasses.dataclass(frozen=True)
class Change:
    """The difference of a metric between two sets of predictions of the same examples.

    Attributes:
      metric: name of the metric.
      before: name of the predictions whose value is subtracted.
      after: name of the predictions from whose value it is subtracted.
      value: point estimate.
      low: lower end of the interval; NaN without one.
      high: upper end of the interval; NaN without one.
      p_value: two-sided, from the paired bootstrap; for the squared calibration error, from
        `inference.compare_calibration`; None for other calibration errors, which have no valid
        test, and after a calibrator whose fit did not converge.
      p_holm: the p-value, adjusted for all comparisons of this metric in the report.
      interval: kind of the interval: "percentile" or "basic"; "noise bound", from
        `inference.compare_ece`; "normal", from `inference.compare_calibration`; "none" where no
        valid interval exists.
    """

    metric: str
    before: str
    after: str
    value: float
    low: float
    high: float
    p_value: float | None
    p_holm: float | None = None
    interval: str = "percentile"


@dataclasses.dataclass(frozen=True)
class Part:
    """A metric on a subset of the examples: one class or one group.

    Attributes:
      part: name of the class or group.
      examples: number of examples of the subset.
      metric: name of the metric.
      predictions: name of the predictions.
      value: point estimate.
      low: lower end of the interval; NaN if all resamples are equal, and beside a noise floor of
        a class.
      high: upper end of the interval; NaN where `low` is.
      clusters: number of clusters with an example of the subset; None without clusters.
      floor: the mean value of a calibrated model; None where there is no test.
      p_value: the p-value of the hypothesis that the model is calibrated there; None without a
        test.
      p_holm: the p-value corrected for the number of classes or groups.
    """

    part: str
    examples: int
    metric: str
    predictions: str
    value: float
    low: float
    high: float
    clusters: int | None = None
    floor: float | None = None
    p_value: float | None = None
    p_holm: float | None = None


Rows: TypeAlias = list[list[str]]  # the first row is the header


class Table(NamedTuple):
    """A table of a report, such as the ranks of models, as text.

    Attributes:
      title: the heading.
      rows: the cells; without any, the note alone is the answer.
      note: what the numbers mean, one or two sentences.
    """

    title: str
    rows: Rows
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Results:
    """The numbers of a report.

    Attributes:
      settings: numbers of examples, clusters and classes, level, resamples, seed, versions.
      rows: the metrics.
      changes: paired differences, to calibrated or to other predictions.
      classes: metrics per class, if requested.
      groups: metrics per group, if there are groups.
      reliability: the reliability table of each set of predictions.
      calibrators: the name, criterion, parameters and data of each fit, by the name of the
        calibrated predictions.
      notes: changes made to the predictions before scoring, as sentences.
      pairs: paired differences between models of which none is the first, if requested.
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
    pairs: list[Change] = dataclasses.field(default_factory=list)
    event: Event | None = None
    headlines: list[str] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)

    __repr__ = short_repr

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
        fits = self.calibrators.items()
        return {name: fit for name, fit in fits if fit.get("predictions") != name}

    @property
    def models(self) -> list[str]:
        """The names of the models, without their columns after a calibrator."""
        return [name for name in self.reliability if name not in self.calibrated]

    @property
    def unsettled(self) -> dict[str, str]:
        """The states of fits that are no optimum, by the name of the calibrated predictions."""
        states = {name: calibrate.unsettled(fit) for name, fit in self.calibrators.items()}
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
        measured = {row.metric: None for row in self.rows}
        if metric not in measured:
            near = ", ".join(closest(metric, measured, n=3, cutoff=0))
            raise KeyError(
                f"the report has no metric {metric!r}; the nearest of its names: {near}."
            )
        raise KeyError(
            f"the report has no {metric!r} of predictions {predictions!r}; it has that of"
            f" {', '.join(map(repr, self.reliability))}."
        )
