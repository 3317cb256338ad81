"""Score a set of predictions: metrics, intervals, calibration, comparison."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax import inference
from calib_jax.core import checks
from calib_jax.metrics import Metric
from calib_jax.report import calibration, caveats, files, scored_models, scored_tables, tables
from calib_jax.report.answers import answers
from calib_jax.report.chosen_metrics import (
    ANSWER_METRICS,
    DEFAULT_METRICS,
    PER_CLASS,
    Metrics,
    metrics_of_rows,
)
from calib_jax.report.predictions import FLOOR
from calib_jax.report.records import GIVEN, OTHER, Results, base_name

INTERVALS = ("valid", "percentile", "basic")
_RAISED = "per_class_ece"  # the only metric of classes that noise raises


class Report(Results):
    """The results of `score`; prints as tables, and a notebook cell renders them."""

    def __str__(self) -> str:
        return tables.as_text(self)

    def _repr_markdown_(self) -> str:
        return tables.as_markdown(self)

    @property
    def answers(self) -> list[str]:
        """A sentence for each model, and one for each comparison with the first model."""
        return answers(self)

    @property
    def explanations(self) -> list[str]:
        """Explanations of the kinds of numbers in the tables, such as noise floors and p-values."""
        return tables.explanations(self)

    def save(self, folder: Any) -> list[str]:
        """Save report.json, .csv, .md, .html and the figures; return the file names."""
        return files.save(self, folder)


def score(
    logits: Any,
    labels: Any = None,
    *,
    weights: Any = None,
    groups: Any = None,
    clusters: Any = None,
    calibrate: str | None = None,
    fit_on: Any = None,
    cross_fit: int | None = None,
    criterion: str | Sequence[str] = "nll",
    compare: Any = None,
    name: str = GIVEN,
    compare_name: str = OTHER,
    metrics: Sequence[str | Metric[..., Any]] | Metrics | None = None,
    num_bins: int = 15,
    costs: Any = None,
    abstain_cost: float | None = None,
    per_class: bool = False,
    class_names: Sequence[str] | None = None,
    level: float = 0.9,
    method: str = "valid",
    num_resamples: int = 1000,
    seed: int = 0,
    probabilities: bool = False,
    floor: float = FLOOR,
    all_pairs: bool = False,
    positive: str | int | None = None,
) -> Report:
    """Score predictions of any model, with intervals; optionally calibrate or compare them.

    Args:
      logits: `[n, classes]`, or `[n]` for a binary model; or a `metrics.Stated` for answers with
        stated confidences; or a `calibrators.Scored` for answers with scores that are no
        probabilities, which needs `calibrate`.
      labels: `[n]`; None for answers, which hold them.
      weights: `[n]`; weight 0 excludes an example. Whole numbers above 1 are copies for noise
        bounds and for p-values of calibration errors; percentile intervals draw whole examples.
      groups: `[n]` group names of any type, or several such columns by name; adds metrics per
        group. Columns of floats have no groups.
      clusters: `[n]` integers or strings, such as the image of a pixel or the document of a
        sentence. Whole clusters are resampled, and put into one fold by `cross_fit`, so examples
        of one cluster may depend on each other. Intervals need some 30 clusters or more.
      calibrate: a calibrator's name; metrics are reported before and after calibration.
      fit_on: held-out logits, labels and optionally weights of the same model, to fit the
        calibrator on. The calibrator is never fitted on the examples that are scored. A mapping
        from `name` and names of `compare` gives the held-out examples of each model, and
        calibrates each model by its own.
      cross_fit: without `fit_on`, the number of folds for cross-fitting.
      criterion: what a temperature minimises: "nll", a metric's name to search the papers' grid
        0.1, 0.2, ..., 10, or METRIC:STEP for another step: AdaFocal uses "adaptive_ece:0.01". A
        list of several criteria puts their temperatures side by side.
      compare: other predictions of the same examples, for a paired comparison; or a mapping from
        names to several of them.
      name: name of the predictions, used as column heading.
      compare_name: name of the other predictions, if they are not a mapping.
      metrics: metrics or their names, or a mapping from names to metrics; by default
        `DEFAULT_METRICS`, and `ANSWER_METRICS` for answers. With two classes, metrics of the top
        label have another row for the event, see `positive`.
      num_bins: number of bins of every metric that has bins.
      costs: `[classes, decisions]`, the cost of each decision for each class; adds the cost of the
        model's decisions, `metrics.expected_cost`, and the cost that the model states.
      abstain_cost: the cost of leaving an example undecided, in the same unit.
      per_class: whether to add metrics per class.
      class_names: one name per class for these metrics; without them classes have numbers.
      level: nominal coverage of the intervals, a fraction.
      method: "valid" for noise bounds of binned calibration errors and percentiles of all other
        metrics, see `inference.estimates`, and intervals of `inference.compare_ece` for
        differences of ECEs; "percentile" or "basic" for bootstrap intervals of all metrics.
      num_resamples: number of bootstrap resamples.
      seed: seed of the bootstrap and of the folds.
      probabilities: whether all given predictions are probabilities.
      floor: smaller probabilities are raised to this value, so that the NLL is finite.
      all_pairs: whether to compare every pair of models, not only the others with the first.
      positive: the class of two, by its name or number, whose probability is the event that the
        report reads first; by default the second class.

    >>> from calib_jax import report
    >>> logits = 3 * jax.random.normal(jax.random.key(0), (500, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 3)
    >>> scored = report.score(logits, labels, metrics=["accuracy", "ece"], num_resamples=200)
    >>> scored.value("ece") > 0.1
    True
    """
    checks.one_of("method", method, INTERVALS)
    checks.seed(seed)
    checks.num_bins(num_bins)
    calibration.check_request(calibrate, fit_on, cross_fit, criterion)
    others: dict[str, Any] = {}
    if compare is not None:
        others = {**compare} if isinstance(compare, Mapping) else {compare_name: compare}
    scored_models.check_distinct([name, *others])
    given = {name: logits, **others}
    if fit_on is not None and not isinstance(fit_on, Mapping):
        fit_on = {name: fit_on}
    how = scored_models.Calibration(calibrate, fit_on, cross_fit, criterion, seed)
    if answers_given := scored_models.are_answers(given, labels):
        _refuse_for_answers(
            criterion=criterion != "nll" and list(criterion) != ["nll"],
            costs=costs is not None,
            abstain_cost=abstain_cost is not None,
            per_class=per_class,
            class_names=class_names is not None,
            probabilities=probabilities,
        )
        models = scored_models.of_answers(given, weights, clusters, how)
    else:
        understood: dict[str, Any] = {"probabilities": probabilities, "floor": floor}
        models = scored_models.of_classes(
            given, labels, weights, clusters, class_names, how, **understood
        )
    if metrics is None:
        metrics = ANSWER_METRICS if answers_given else DEFAULT_METRICS
        metrics = [each for each in metrics if each != "nll" or not models.infinite_nll]
    several = metrics_of_rows(metrics, num_bins, costs, abstain_cost)
    interval: dict[str, Any] = {
        "key": jax.random.key(seed),
        "num_resamples": num_resamples,
        "level": level,
        "method": method,
    }
    evaluations, first = models.evaluations, next(iter(models.evaluations.values()))
    unsettled = {column for column, fit in models.fits.items() if calibration.unsettled(fit)}
    views, event = scored_tables.views(several, evaluations, models.class_names, positive)
    curve = metrics_package.reliability.with_options(num_bins=num_bins, level=level)
    without_bound = {k: m for k, m in several.items() if not inference.has_noise_bound(m)}
    for each in evaluations.values():  # one program computes the values of all tables
        each.values(without_bound | {curve.name: curve})
    # First, because differences resample all metrics that intervals resample, and more.
    changes, pairs, errors = scored_tables.differences(
        views, models.others if all_pairs else [], unsettled, num_bins=num_bins, **interval
    )
    rows = scored_tables.rows(views, unsettled, interval) + errors
    if event is not None:
        of_event = views[event.of("")].models
        tables_of_event = {
            model: each.values(curve)[curve.name] for model, each in of_event.items()
        }
        event.reliability.update(tables_of_event)
    by_column = scored_tables.group_columns(groups, first.labels)
    classes = []
    if per_class:
        if len({each.logits.shape[-1] for each in evaluations.values()}) > 1:
            raise ValueError("per_class needs models of the same classes: leave out per_class.")
        classes = scored_tables.classes(
            evaluations, models.class_names, unsettled, interval, num_bins
        )
    resampled = [row.metric for row in rows if row.interval in ("percentile", "basic")]
    resampled += PER_CLASS if per_class else ()
    raised = [name for name in resampled if (m := several.get(base_name(name))) and m.biased]
    raised += [part.metric for part in classes if part.metric == _RAISED and np.isfinite(part.low)]
    few = scored_tables.on_few_examples(resampled, evaluations, by_column, models.class_names)
    return Report(
        settings={
            "examples": int(np.sum(first.present)),
            "left_out": int(np.sum(~first.present)),
            "clusters": scored_tables.num_clusters_of(first),
            "classes": None if answers_given else int(first.logits.shape[-1]),
            "event": None if event is None else event.name,
            "weighted": weights is not None,
            "level": level,
            "interval": method,
            "resamples": num_resamples,
            "seed": seed,
            "bins": num_bins,
            "versions": versions(),
        },
        rows=rows,
        changes=changes,
        pairs=pairs,
        classes=classes,
        groups=scored_tables.groups(several, evaluations, by_column, unsettled, interval),
        reliability={model: each.values(curve)[curve.name] for model, each in evaluations.items()},
        calibrators=models.fits,
        notes=models.notes + few + caveats.bootstrapped(raised),
        event=event,
        headlines=[*models.headlines],
    )


def _refuse_for_answers(**given: bool) -> None:
    """Raise an error for options that need classes."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise ValueError(
            f"score: {', '.join(names)} need{'s' * (len(names) == 1)} predictions of classes, and"
            " answers have one number each: leave it out."
        )


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a report."""
    found = {}
    for name in ("calib_jax", "jax", "jaxlib", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a checkout on the path
            found[name] = "not installed"
    return found
