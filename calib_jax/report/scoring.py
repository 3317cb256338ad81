"""One call that scores a set of predictions: metrics, intervals, calibration, comparison."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

import calib_jax.metrics as metric_room
from calib_jax.core import checks
from calib_jax.core.types import Labels, Logits, Weights
from calib_jax.metrics import Metric
from calib_jax.report import calibration
from calib_jax.report.predictions import FLOOR, as_logits, notes_on

DEFAULT_METRICS = (
    *("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "mce"),
    *("signed_gap", "aurc"),
)
PER_CLASS = ("per_class_recall", "per_class_precision", "per_class_ece")
GIVEN, OTHER = "as given", "other"

Metrics: TypeAlias = Mapping[str, Metric]


@dataclasses.dataclass(frozen=True)
class Row:
    """A metric of one set of predictions, and its interval.

    Attributes:
      metric: its name.
      predictions: whose: their name, "as given" unless there is another; the calibrator's name
        after it; the name of the predictions that they are compared with.
      value: of the data itself.
      low: lower end of the interval.
      high: upper end.
      convention: bins and binning, in words; empty if it has none.
    """

    metric: str
    predictions: str
    value: float
    low: float
    high: float
    convention: str


@dataclasses.dataclass(frozen=True)
class Change:
    """What a metric changes between two sets of predictions of the same examples.

    Attributes:
      metric: its name.
      before: whose value is subtracted.
      after: whose value it is subtracted from.
      value: of the data itself.
      low: lower end of the interval.
      high: upper end.
      p_value: two-sided, of the paired bootstrap; None for a `biased` metric, of which it would
        not test calibration.
    """

    metric: str
    before: str
    after: str
    value: float
    low: float
    high: float
    p_value: float | None


@dataclasses.dataclass(frozen=True)
class Part:
    """A metric of a part of the examples: one class, or one group."""

    part: str
    examples: int
    metric: str
    predictions: str
    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything `score` found; `calib_jax.report.tables` and `pictures` show it.

    Attributes:
      settings: what was done: numbers of examples and classes, level, resamples, seed, versions.
      rows: the metrics.
      changes: paired differences, after a calibrator or to other predictions.
      classes: metrics per class, if asked for.
      groups: metrics per group, if there are groups.
      reliability: the reliability table of each set of predictions.
      calibrator: its name and parameters and what it was fitted on; empty without one.
      notes: sentences on what was made of the predictions before they were scored.
    """

    settings: dict[str, Any]
    rows: list[Row]
    changes: list[Change]
    classes: list[Part]
    groups: list[Part]
    reliability: dict[str, Any]
    calibrator: dict[str, Any]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the predictions that were scored."""
        return next(iter(self.reliability))

    def value(self, metric: str, predictions: str | None = None) -> float:
        """Look a value up; of the predictions that were scored, if no others are named."""
        predictions = self.name if predictions is None else predictions
        for row in self.rows:
            if row.metric == metric and row.predictions == predictions:
                return row.value
        raise KeyError(f"the report has no {metric!r} of predictions {predictions!r}")

    def __str__(self) -> str:
        from calib_jax.report.tables import as_text

        return as_text(self)

    def _repr_markdown_(self) -> str:
        from calib_jax.report.tables import as_markdown

        return as_markdown(self)

    def save(self, folder: Any) -> list[str]:
        """Write report.json, .csv, .md and the pictures; give the names of the files."""
        from calib_jax.report.files import save

        return save(self, folder)


def score(
    logits: Any,
    labels: Any,
    *,
    weights: Any = None,
    groups: Any = None,
    calibrate: str | None = None,
    fit_on: tuple[Any, ...] | None = None,
    cross_fit: int | None = None,
    objective: str = "nll",
    compare: Any = None,
    name: str = GIVEN,
    compare_name: str = OTHER,
    metrics: Sequence[str] | Metrics = DEFAULT_METRICS,
    num_bins: int = 15,
    per_class: bool = False,
    level: float = 0.9,
    method: str = "percentile",
    num_resamples: int = 1000,
    seed: int = 0,
    probabilities: bool = False,
    floor: float = FLOOR,
) -> Report:
    """Score predictions of any model: with intervals, calibrated or not, against others or alone.

    Args:
      logits: `[n, classes]`, or `[n]` for a binary model.
      labels: `[n]`.
      weights: `[n]`; weight 0 leaves an example out.
      groups: `[n]`, anything that names a group: a table for each is added.
      calibrate: a calibrator's name: everything is shown before and after it.
      fit_on: other logits and labels, and weights if there are any, to fit the calibrator on. It
        is never fitted on the examples that are scored.
      cross_fit: without `fit_on`: in how many folds to fit on the rest of the examples.
      objective: what a temperature is chosen by: "nll", or on the papers' grid a metric's name.
      compare: other predictions of the same examples, for a paired comparison.
      name: of the predictions, at the head of their column.
      compare_name: of the other predictions.
      metrics: names of metrics, or metrics by name.
      num_bins: of every metric that has bins.
      per_class: whether to add a table per class.
      level: nominal coverage of the intervals, a fraction.
      method: "percentile" or "basic" intervals.
      num_resamples: of the bootstrap.
      seed: of the bootstrap and of the folds.
      probabilities: whether all predictions given are probabilities.
      floor: what smaller probabilities are taken as, so that the NLL is finite.

    >>> from calib_jax import report
    >>> logits = 3 * jax.random.normal(jax.random.key(0), (500, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 3)
    >>> found = report.score(logits, labels, metrics=["accuracy", "ece"], num_resamples=200)
    >>> found.value("ece") > 0.1
    True
    """
    understood: dict[str, Any] = {"probabilities": probabilities, "floor": floor}
    given, logits = logits, as_logits(logits, weights=weights, **understood)
    logits, labels, weights = checks.flat_rows("score", logits, labels, weights)
    notes = notes_on(given, logits, labels, weights, **understood)
    several = _chosen(metrics, num_bins)
    bootstrap = {
        "key": jax.random.key(seed),
        "num_resamples": num_resamples,
    }
    names = [
        name,
        *([calibrate] if calibrate else []),
        *([compare_name] if compare is not None else []),
    ]
    if len(set(names)) < len(names):
        raise ValueError(
            f"every column needs a name of its own, got {', '.join(map(repr, names))}."
        )
    models = {name: logits}
    fitted: dict[str, Any] = {}
    if calibrate is not None:
        held_out = None
        if fit_on is not None:
            held_out = _held_out(*fit_on, **understood)
        models[calibrate], fitted = calibration.calibrated(
            calibrate, logits, labels, weights, held_out, cross_fit, objective, seed
        )
    if compare is not None:
        other = as_logits(compare, weights=weights, **understood)
        other, *_ = checks.flat_rows("score", other, labels, weights)
        models[compare_name] = other
        notes += [
            f"{compare_name}: {note}"
            for note in notes_on(compare, other, labels, weights, **understood)
        ]

    values = {k: metric_room.values_of(several, z, labels, weights) for k, z in models.items()}
    samples = {
        k: metric_room.bootstrap(several, z, labels, weights, **bootstrap)
        for k, z in models.items()
    }
    rows, changes = [], []
    for label, metric in several.items():
        for model in models:
            value = values[model][label]
            ends = metric_room.interval(samples[model][label], level, method=method, estimate=value)
            numbers = (float(value), float(ends.low), float(ends.high))
            rows.append(Row(label, model, *numbers, convention_of(metric)))
        for model in list(models)[1:]:
            one, two = ((values[m][label], samples[m][label]) for m in (name, model))
            change = metric_room.difference(one, two, level=level, method=method)
            p_value = None if metric.biased else float(change.p_value)
            effect, low, high = map(float, change[:3])
            changes.append(Change(label, name, model, effect, low, high, p_value))

    interval = {"level": level, "method": method, **bootstrap}
    return Report(
        settings={
            "examples": int(labels.size),
            "classes": int(logits.shape[-1]),
            "weighted": weights is not None,
            "level": level,
            "interval": method,
            "resamples": num_resamples,
            "seed": seed,
            "bins": num_bins,
            "versions": _versions(),
        },
        rows=rows,
        changes=changes,
        classes=_per_class(models, labels, weights, num_bins, interval) if per_class else [],
        groups=_per_group(several, models, labels, weights, groups, interval),
        reliability={
            model: metric_room.reliability(z, labels, weights, num_bins=num_bins, level=level)
            for model, z in models.items()
        },
        calibrator=fitted,
        notes=notes,
    )


def _held_out(
    logits: Any, labels: Any, weights: Any = None, **understood: Any
) -> tuple[Logits, Labels, Weights | None]:
    """Check what a calibrator is fitted on."""
    logits = as_logits(logits, weights=weights, name="fit_on", **understood)
    return checks.flat_rows("fit_on", logits, labels, weights)


def convention_of(metric: Metric) -> str:
    """Say in words how a metric bins, so that its numbers can be compared with others."""
    options = metric.defaults() | dict(metric.options)
    if "num_bins" not in options:
        return ""
    # Bins of equal mass are cut from sorted examples, after all of them are known.
    of_mass = "num_bins" in checks.options_of(metric.finish)
    said = f"{options['num_bins']} bins of equal {'mass' if of_mass else 'width'}"
    if "edges" in options or "zero_counts" in options:
        edges = options.get("edges", "right")
        said += ", (lo, hi]" if edges == "right" else f", edges {edges}"
    return said


def _chosen(metrics: Sequence[str] | Metrics, num_bins: int) -> dict[str, Metric]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str):
        raise TypeError(f"metrics must be a list of names, got the string {metrics!r}.")
    found = {name: metric_room.named(name) for name in metrics}
    return {
        name: one.with_options(num_bins=num_bins) if "num_bins" in one.defaults() else one
        for name, one in found.items()
    }


def _per_class(
    models: Mapping[str, Logits],
    labels: Labels,
    weights: Weights | None,
    num_bins: int,
    interval: Mapping[str, Any],
) -> list[Part]:
    several = _chosen(PER_CLASS, num_bins)
    present = np.asarray(labels) if weights is None else np.asarray(labels)[np.asarray(weights) > 0]
    support = np.bincount(present.reshape(-1), minlength=1)
    parts = []
    for model, logits in models.items():
        found = metric_room.estimates(several, logits, labels, weights, **interval)
        for k in range(logits.shape[-1]):
            count = int(support[k]) if k < len(support) else 0
            for name, estimate in found.items():
                numbers = (float(each[k]) for each in estimate)
                parts.append(Part(str(k), count, name, model, *numbers))
    return parts


def _per_group(
    several: Metrics,
    models: Mapping[str, Logits],
    labels: Labels,
    weights: Any,
    groups: Any,
    interval: Mapping[str, Any],
) -> list[Part]:
    if groups is None:
        return []
    groups = np.asarray(groups)
    checks.same_length(groups=groups, labels=labels)
    parts = []
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        own = None if weights is None else np.asarray(weights)[rows]
        if own is not None and not np.any(own > 0):
            continue
        for model, logits in models.items():
            found = metric_room.estimates(several, logits[rows], labels[rows], own, **interval)
            for name, estimate in found.items():
                parts.append(Part(str(group), len(rows), name, model, *map(float, estimate)))
    return parts


def _versions() -> dict[str, str]:
    found = {}
    for name in ("calib_jax", "jax", "jaxlib", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a checkout on the path
            found[name] = "not installed"
    return found
