"""Score predictions of one model or several: metrics, intervals, calibration, comparison."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import itertools
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax import calibrators, inference
from calib_jax.core import checks
from calib_jax.core.arrays import as_array, as_numbers
from calib_jax.core.checks import options_of
from calib_jax.core.values import is_stated
from calib_jax.inference import Evaluation
from calib_jax.metrics import Metric, Stated
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats, questions
from calib_jax.report.caveats import GIVEN, OTHER, SQUARED_ERROR, base_name
from calib_jax.report.predictions import Predictions, notes_on, on_grid, same_kind
from calib_jax.report.results import Change, Event, Part, Report, Row

INTERVALS = ("valid", "percentile", "basic")
_ALWAYS = ("accuracy", "nll", "brier", "ece", "adaptive_ece")
DEFAULT_METRICS = (*_ALWAYS, "classwise_ece", "signed_gap", "aurc")
# Without `classwise_ece` and `mce`: answers have no classes, and few of them share a bin.
ANSWER_METRICS = (*_ALWAYS, "signed_gap", "confidence_auroc", "aurc")
# Of rows with options of their own, which are no classes.
OPTION_METRICS = (*_ALWAYS, "signed_gap", "aurc")
# Metrics of the top label that differ for the event "class 1" of two classes.
OF_EVENT = (
    *("ece", "adaptive_ece", "mce", "adaptive_mce", "average_calibration_error", "signed_gap"),
    *("ks_error", "ecce"),
    *("smooth_ece", "overconfidence", "underconfidence", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)
PER_CLASS = ("per_class_recall", "per_class_precision", "per_class_ece")
OF_TWO_SETS = "ood_"  # begins the names of metrics of two data sets

Metrics: TypeAlias = dict[str, Metric[..., Any]]
Models: TypeAlias = dict[str, Evaluation]
_Record = TypeVar("_Record", Row, Change)


@dataclasses.dataclass
class Scoring:
    """The predictions to score, with the options of a report; all tables are computed from it.

    Attributes:
      records: the predictions of each model, as given.
      held_out: the other examples of each model that its calibrator is fitted on.
      interval: key, number of resamples, level and method of the intervals.
      num_bins: number of bins of every metric that has bins.
      models: each model, followed by its columns after calibration.
      fits: the description of the fit of each column after calibration.
      class_names: a name for each class.
      notes: what was changed before scoring.
      headlines: what a reader has to see before any number.
      metrics: the metrics of the rows.
      event: the event of two classes.
      of_event: the models, read as the probability of the event.
      masks: the examples of each group.
    """

    records: dict[str, Predictions]
    held_out: dict[str, Predictions]
    interval: dict[str, Any]
    num_bins: int
    models: Models = dataclasses.field(default_factory=dict)
    fits: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    class_names: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    headlines: list[str] = dataclasses.field(default_factory=list)
    metrics: Metrics = dataclasses.field(default_factory=dict)
    event: Event | None = None
    of_event: Models = dataclasses.field(default_factory=dict)
    masks: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def first(self) -> Predictions:
        """The first model, as given."""
        return next(iter(self.records.values()))

    @property
    def given(self) -> Models:
        """The models before calibration; a score has none."""
        return {name: one for name, one in self.models.items() if name in self.records}

    @property
    def unsettled(self) -> set[str]:
        """The columns after a fit that did not converge; they have no p-value."""
        return {column for column, fit in self.fits.items() if calibration.unsettled(fit)}

    @property
    def readings(self) -> list[tuple[str, Metrics, Models]]:
        """The end of the metrics' names, the metrics and the models: of the event, and as given."""
        given = [("", self.metrics, self.models)]
        several = {label: m for label, m in self.metrics.items() if m.name in OF_EVENT}
        if self.event is None or not several:
            return given
        return [(self.event.of(""), several, self.of_event), *given]

    def estimates(self, several: Metrics, model: str, one: Evaluation) -> dict[str, dict[str, Any]]:
        """Return the numbers of a `Row` or a `Part` of each metric.

        A column after a fit without an optimum has no p-value.
        """
        found = inference.estimates(several, one, **self.interval)
        return {
            label: caveats.shown(*each[:3], each.interval)._asdict()
            | {"floor": each.floor, "p_value": None if model in self.unsettled else each.p_value}
            | {"convention": convention_of(several[label])}
            for label, each in found.items()
        }

    def in_order(self, records: Iterable[_Record]) -> list[_Record]:
        """Sort rows or differences by their metric."""
        places = {label: place for place, label in enumerate(self.metrics)}
        return sorted(records, key=lambda each: places.get(base_name(each.metric), len(places)))


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
    metrics: Sequence[str | Metric[..., Any]] | Mapping[str, Metric[..., Any]] | None = None,
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
    floor: float | None = None,
    all_pairs: bool = False,
    positive: str | int | None = None,
    per: str | None = None,
    threshold_for: str | None = None,
    predict_losses: bool = False,
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
        of one cluster may depend on each other. Intervals need 10 clusters or more.
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
      floor: smaller probabilities are raised to this value, so that the NLL is finite; by default
        half a step of probabilities that are rounded to .1, .01, .001 or .0001, and a step / (K -
        1) of more than three classes K; else 1e-38.
      all_pairs: whether to compare every pair of models, not only the others with the first.
      positive: the class of two, by its name or number, whose probability is the event that the
        report reads first; by default the second class.
      per: the name of the column of `groups`, or "group" if it is one, each of which gets a
        temperature of its own, drawn towards the common one (`temperature.fit_by_group`).
      threshold_for: "accuracy:0.95", "error:0.05" or, of the event, "precision:0.9": adds the
        threshold above which predictions keep this, with a guarantee.
      predict_losses: whether to add the predicted calibration of networks trained with other
        losses; the logits are those of a network trained with cross-entropy.

    >>> from calib_jax import report
    >>> random = np.random.default_rng(0)
    >>> z = random.normal(size=(500, 3))
    >>> logits, labels = 3 * z, (z + random.gumbel(size=z.shape)).argmax(axis=1)
    >>> scored = report.score(logits, labels, metrics=["accuracy", "ece"], num_resamples=200)
    >>> scored.value("ece") > 0.1
    True
    """
    others: dict[str, Any] = {} if compare is None else {compare_name: compare}
    others = {**compare} if isinstance(compare, Mapping) else others
    calibration.check_distinct([name, *others])
    columns = calibration.requested(calibrate, criterion, per, fit_on=fit_on, cross_fit=cross_fit)
    checks.one_of("method", method, INTERVALS)
    checks.seed(seed)
    checks.num_bins(num_bins)
    if hasattr(groups, "columns"):  # a table of pandas
        groups = dict(groups.items())
    kind = "probabilities" if probabilities else "logits"
    record = functools.partial(_record, {"kind": kind, "least": floor})
    beside = labels, weights, groups, clusters, tuple(class_names or ())
    first = record(logits, *beside)
    # A score has no column before its calibrator.
    called = calibrate if first.kind == "score" and calibrate and name == GIVEN else name
    records = {called: first} | {model: record(each, *beside) for model, each in others.items()}
    given = fit_on if isinstance(fit_on, Mapping) else {name: fit_on}
    held_out = {
        called if model == name else model: record(each)
        for model, each in given.items()
        if each is not None
    }
    # This is `jax.random.key(seed)`, which would compile two programs.
    key = jax.random.wrap_key_data(jax.device_put(np.array([0, seed], "u4")), impl="threefry2x32")
    how: Any = {"key": key, "num_resamples": num_resamples, "level": level, "method": method}
    scoring = Scoring(records, held_out, how, num_bins)
    of_classes = {"costs": costs is not None, "abstain_cost": abstain_cost is not None}
    of_classes |= {"per_class": per_class, "predict_losses": predict_losses}
    has_classes = first.of_classes and first.ordinal is None
    if not has_classes and any(of_classes.values()):
        wrong = ", ".join(option for option, is_given in of_classes.items() if is_given)
        raise ValueError(f"score: {wrong} needs predictions of the same classes: leave it out.")
    folds = functools.partial(calibration.folds_of, cross_fit=cross_fit, seed=seed)
    _evaluate(scoring, calibrate, columns, per, folds)
    own = DEFAULT_METRICS if has_classes else OPTION_METRICS if first.of_classes else ANSWER_METRICS
    several = chosen_metrics(own if metrics is None else metrics, num_bins)
    scoring.metrics = _of_rows(several, costs, abstain_cost)
    _add_event(scoring, positive)
    one = next(iter(scoring.models.values()))
    curve = metrics_package.reliability.with_options(num_bins=num_bins, level=level)
    plain = {k: m for k, m in scoring.metrics.items() if m.name not in inference.BY_SQUARED_ERROR}
    labels_of_rows, plain[curve.name] = [*plain], curve
    # One program computes the values of all tables.
    values = {model: each.values(plain) for model, each in scoring.models.items()}
    of_one = next(iter(values.values()))
    if more := [label for label in labels_of_rows if np.ndim(of_one[label])]:
        raise TypeError(f"score: {more[0]} is more than one number: see inference.estimates.")
    infinite = [model for model in scoring.given if np.isinf(values[model].get("nll", 0))]
    if infinite and metrics is None and not first.of_classes:
        del scoring.metrics["nll"]
        why = f"some answers are wrong at confidence 1 or right at 0 ({', '.join(infinite)})"
        scoring.notes.append(f"NLL is left out: it is infinite, because {why}.")
    # First, because differences resample all metrics that intervals resample, and more.
    changes, errors = _differences(scoring, [*records][1:] if all_pairs else [])
    rows = _rows(scoring) + errors
    if scoring.event is not None:
        for model, each in scoring.of_event.items():
            scoring.event.reliability[model] = each.values(curve)[curve.name]
    scoring.masks = _masks(first.groups, one.labels)
    groups_of_models = questions.of_groups(scoring.models, scoring.masks)
    parts = _groups(scoring, scoring.metrics, groups_of_models) + _ordinal(scoring)
    classes = _classes(scoring) if per_class else []
    scoring.notes += _on_bootstrap(scoring, [*rows, *classes])
    settings = {
        "examples": int(np.sum(one.present)),
        "left_out": int(np.sum(~one.present)),
        "clusters": _num_clusters(one),
        "classes": int(one.logits.shape[-1]) if has_classes else None,
        "options": None if first.ordinal is None else int(one.logits.shape[-1]),
        "event": scoring.event and scoring.event.name,
        "weighted": first.weights is not None,
        **{"level": level, "interval": method, "resamples": num_resamples, "seed": seed},
        "bins": num_bins,
        "versions": versions(),
    }
    return Report(
        settings,
        *(rows, changes, classes, parts),
        {model: of[curve.name] for model, of in values.items()},
        *(scoring.fits, scoring.notes, scoring.event),
        list(dict.fromkeys(filter(None, scoring.headlines))),
        questions.answered(scoring, threshold_for, predict_losses),
    )


def _record(
    how: dict[str, Any], values: Any, labels: Any = None, weights: Any = None, *columns: Any
) -> Predictions:
    """Make a record of arrays, or of a Stated or a Scored, which hold their labels.

    Args:
      how: `kind` and `least` of the record.
      values: the predictions; of a fit also (logits, labels) or (logits, labels, weights).
      labels: `[*batch]`, or None.
      weights: `[*batch]`, or None.
      *columns: the groups, the clusters and the names of the classes.
    """
    if isinstance(values, Predictions):
        return values._replace(least=how["least"])
    if type(values) in (tuple, list) and labels is None:
        values, labels, weights = (*values, None)[:3]
    weights = None if weights is None else as_numbers("score", "weights", weights)
    if isinstance(values, Stated | calibrators.Scored):
        if labels is not None:
            raise TypeError(f"score: a {type(values).__name__} holds its labels: leave out labels.")
        kind = "confidence" if isinstance(values, Stated) else "score"
        numbers = as_numbers("score", kind, getattr(values, kind))
        return Predictions(numbers, values.correct, weights, *columns[:2])._replace(kind=kind)
    if labels is None:
        raise TypeError("score: logits need labels; fit_on is (logits, labels[, weights]).")
    arrays = as_numbers("score", "logits", values), as_numbers("score", "labels", labels), weights
    return Predictions(*arrays, *columns)._replace(**how)


def _evaluate(
    scoring: Scoring, calibrate: str | None, columns: Mapping[str, str], per: str | None, folds: Any
) -> None:
    """Validate the models and calibrate them; add evaluations, fits, class names and notes.

    Args:
      scoring: the models.
      calibrate: the calibrator, or None.
      columns: the columns of a calibrated model, with their criteria.
      per: the column of groups that have a temperature each, or None.
      folds: the function that draws the fold of each row, from their number and clusters.
    """
    records, first = scoring.records, scoring.first
    of_scores = first.kind == "score"
    if of_scores and not columns:
        raise ValueError(
            "a score is no probability: give calibrate=isotonic (or another), cross_fit=5."
        )
    columns_of = calibration.columns_of([*records], columns, scoring.held_out, of_scores)
    notes, headlines = (collections.defaultdict[str, list[str]](list) for _ in range(2))
    for model, record in records.items():
        same_kind(record, first)
        values, labels = record.values(), record.labels if record.of_classes else None
        weights, ids = record.weights, record.clusters
        if not of_scores:
            one = _evaluation(values, labels, weights, ids, record.file or "score")
            scoring.models[model] = one
            # Not those of the evaluation: scaling weights a second time changes their last bit.
            weights, ids = None if weights is None else jnp.ravel(weights), one.clusters
            values, labels = (one.logits, one.labels) if record.of_classes else (values, None)
        if record.of_classes:
            names = _distinct(record.class_names, values.shape[-1])
            scoring.class_names = scoring.class_names or names
            headlines[on_grid(record)].append(model)
            for note in notes_on(record, values):
                notes[note].append(model)
        if other := scoring.held_out.get(model):
            scoring.headlines.append(calibration.on_shared(record, other))
        varies = any(each and each.ordinal is not None for each in (record, other))
        by_class = {*calibrators.catalogue()} - {"temperature", "ensemble_temperature"}
        if varies and model in columns_of and str(calibrate).partition(":")[0] in by_class:
            raise ValueError(f"score: {calibrate} needs the same classes in all rows.")
        padded = str(calibrate).partition(":")[0] in calibration.PADDED
        examples = other and calibration.evidence(record, other, values, padded)
        by_group = None if per is None else (_group(record, per), _group(other or record, per))
        for column, by in columns_of.get(model, {}).items():
            fit_on = examples or folds(np.size(record.labels), clusters=ids)
            is_plain = record.of_classes and weights is None and padded
            rows = one.rows if is_plain else (values, labels, weights)
            predicted, fit = calibration.calibrated(str(calibrate), by, rows, fit_on, by_group)
            fit["predictions"] = column if of_scores else model
            if other and other.file:
                fit["file"] = other.file
            if record.of_classes:
                predicted = jax.device_put(np.asarray(predicted)[: len(values)])
                of_fit = (other, examples[0]) if other and examples else (record, values)
                if decided := calibration.decided_by_zeros(*of_fit):
                    fit["decided_by"] = decided
                    scoring.headlines.append(f"{column}: {decided}")
            scoring.fits[column] = fit
            scoring.models[column] = _evaluation(predicted, labels, weights, ids)
    scoring.headlines = [*_once(headlines, records), *scoring.headlines]
    scoring.notes += _once(notes, records)


def _once(sentences: Mapping[str, Sequence[str]], models: Collection[str]) -> list[str]:
    """Write each sentence once, after the models of which it holds if there are several models."""
    alone = len(models) == 1
    return [line if alone else f"{', '.join(of)}: {line}" for line, of in sentences.items() if line]


def _evaluation(
    values: Any, labels: Any, weights: Any, clusters: Any, name: str = "score"
) -> Evaluation:
    return Evaluation(values, labels, weights, clusters=clusters, padded=True, name=name)


def _group(given: Predictions, per: str) -> np.ndarray:
    """Return the group of each row by the name of the column."""
    groups = given.groups if isinstance(given.groups, Mapping) else {per: given.groups}
    if groups.get(per) is None:
        raise ValueError(f"per={per}: there is no such column of groups in all predictions.")
    return np.array([*map(str, np.ravel(groups[per]).tolist())])


def _distinct(class_names: Sequence[str], num_classes: int) -> list[str]:
    """Name every class; append the class number to names that several classes share.

    >>> _distinct(["crane", "dog", "crane"], 3)
    ['crane (0)', 'dog', 'crane (2)']
    """
    if not class_names:
        return [str(k) for k in range(num_classes)]
    if len(class_names) != num_classes:
        raise ValueError(f"{num_classes} classes need as many class_names, got {len(class_names)}.")
    times = collections.Counter(class_names)
    return [f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(class_names)]


def _add_event(scoring: Scoring, positive: Any) -> None:
    """Add the event of two classes, and the models read as its probability.

    Args:
      scoring: the models.
      positive: the class of two whose probability is the event, by name or number, or None.
    """
    names, predictions = scoring.class_names, [each.logits for each in scoring.models.values()]
    is_binary = all(not is_stated(each) and each.shape[-1] == 2 for each in predictions)
    if not is_binary or scoring.first.ordinal is not None:
        if positive is not None:
            raise ValueError(f"score: positive is for two classes: leave out {positive!r}.")
        return
    numbers = {"0": 0, "1": 1} | {name: k for k, name in enumerate(names)}
    place = 1 if positive is None else numbers.get(str(positive), -1)
    if place < 0:
        raise ValueError(f"score: positive must be one of {', '.join(names)}, got {positive!r}.")
    is_number = names[place] == str(place)
    scoring.event = Event(place, f"class {place}" if is_number else names[place], {})
    scoring.of_event = {model: _of_class(each, place) for model, each in scoring.models.items()}


def _of_class(one: Evaluation, place: int) -> Evaluation:
    """Read the probability of a class of two as the confidence that this class is true."""
    column = jax.device_put(np.asarray(_probability(one.rows[0], place))[: len(one.labels)])
    is_true = (np.asarray(one.labels) == place).astype(np.int32)
    return _evaluation(column, is_true, one.weights, one.clusters)


@functools.partial(jax.jit, static_argnums=1)
def _probability(logits: Any, place: int) -> Any:
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return jax.nn.softmax(logits)[:, place : place + 1]


def _differences(scoring: Scoring, others: Sequence[str]) -> tuple[list[Change], list[Row]]:
    """Compare all models with the first, and those of `others` with each other.

    Holm's method adjusts the p-values of a metric for all these comparisons. The interval of a
    difference of ECEs and the test of compare_calibration concern different quantities, so the
    test has rows of its own: the debiased squared errors.

    Args:
      scoring: the models.
      others: models that are compared with each other.

    Returns:
      the differences, and the squared errors of the models.
    """
    first, *rest = scoring.models
    pairs = [(first, model) for model in rest] + list(itertools.combinations(others, 2))
    level, num_bins = scoring.interval["level"], scoring.num_bins
    binned = f"{num_bins} bins of equal width, (lo, hi]"
    changes, errors = list[Change](), dict[tuple[str, str], Row]()
    for end, several, models in scoring.readings:
        tested = {metric.name for metric in several.values()} & {*inference.BY_SQUARED_ERROR}
        weighted = not all(each.counts for each in models.values())  # by more than counts
        for pair in pairs:
            a, b = (models[of] for of in pair)
            found = inference.compare_metrics(several, a, b, num_bins=num_bins, **scoring.interval)
            if tested and not weighted:
                compared = inference.compare_calibration(a, b, num_bins=num_bins, level=level)
                numbers = *compared[:3], "normal", compared.p_value
                found = found | {SQUARED_ERROR: inference.MetricDifference(*numbers)}
                for of, error in zip(pair, compared[4:], strict=True):
                    row = max(error.value, 0.0), error.low, error.high, of, binned, "normal"
                    errors[end, of] = Row(SQUARED_ERROR + end, *row)
            changes += [_change(scoring, label + end, pair, each) for label, each in found.items()]
    changes = _adjusted(scoring.in_order(changes), operator.attrgetter("metric"))
    return changes, [*errors.values()]


def _adjusted(records: list[Any], column: Callable[[Any], Hashable]) -> list[Any]:
    """Add the p-values that Holm's method adjusts within each column."""
    p_values = caveats.adjusted(map(column, records), [each.p_value for each in records])
    return [dataclasses.replace(each, p_holm=p) for each, p in zip(records, p_values, strict=True)]


def _change(scoring: Scoring, metric: str, pair: tuple[str, str], found: Any) -> Change:
    value, low, high = map(float, found[:3])
    untested = base_name(metric) in inference.BY_SQUARED_ERROR or scoring.unsettled & {*pair}
    p_value = None if found.p_value is None or untested else float(found.p_value)
    return Change(metric, value, low, high, *pair, p_value, interval=found.interval)


def _rows(scoring: Scoring) -> list[Row]:
    """Estimate the metrics of all models in all readings."""
    return scoring.in_order(
        Row(label + end, predictions=model, **numbers)
        for end, several, models in scoring.readings
        for model, one in models.items()
        for label, numbers in scoring.estimates(several, model, one).items()
    )


def _classes(scoring: Scoring) -> list[Part]:
    """Estimate recall, precision and calibration error of every class."""
    if len({each.logits.shape[-1] for each in scoring.models.values()}) > 1:
        raise ValueError("per_class needs models of the same classes: leave out per_class.")
    several, how, parts = chosen_metrics(PER_CLASS, scoring.num_bins), scoring.interval, []
    for model, one in scoring.models.items():
        estimates = inference.estimates(several, one, **how)
        tests = []
        if how["method"] == "valid" and one.counts:
            num_rows, num_classes = one.logits.shape
            # Draws of every class are kept: 20 for each of 8,000 classes would fill 20 GB.
            most = min(2 * 10**8 // num_rows, 2 * 10**7 // num_classes)
            draws = max(how["num_resamples"], min(20 * num_classes, most))
            options = {"num_bins": scoring.num_bins, "num_resamples": draws}
            tests = inference.class_errors(one, key=how["key"], **options)
        for k, class_name in enumerate(scoring.class_names):
            rows = one.present & (np.asarray(one.labels) == k)
            of: dict[str, Any] = {"part": class_name, "examples": int(rows.sum())}
            of |= {"clusters": _num_clusters(one, rows), "predictions": model}
            for name, (values, lows, highs, kind, *_) in estimates.items():
                numbers = caveats.shown(values[k], lows[k], highs[k], kind)._asdict()
                if tests and name == "per_class_ece":
                    # Resampling adds noise, so no bootstrap interval of this error is valid.
                    numbers |= {"low": np.nan, "high": np.nan, "interval": caveats.NO_INTERVAL}
                    numbers |= {"floor": tests[k].floor}
                    if model not in scoring.unsettled:
                        numbers |= {"p_value": tests[k].p_value, "p_holm": tests[k].p_holm}
                numbers["convention"] = convention_of(several[name])
                parts.append(Part(name, **of, **numbers))
    return parts


def _masks(groups: Any, labels: Any) -> dict[str, np.ndarray]:
    """Return the examples of every group; a column of floats beside others has no groups."""
    several = groups if isinstance(groups, Mapping) else {"": groups}
    masks = {}
    for name, column in several.items() if groups is not None else ():
        values = np.ravel(as_array(column))
        if values.shape != labels.shape:
            what = f"{name or 'groups'} must have shape {labels.shape}"
            raise ValueError(f"score: {what}, one for each example, got {values.shape}.")
        if name and values.dtype.kind == "f":
            continue
        words = np.array([*map(str, values.tolist()), None], object)[:-1]
        values = values if values.dtype.kind in "biuU" else words
        for value in sorted({*values.tolist()}):
            masks[f"{name}={value}" if name else str(value)] = values == value
    return masks


def _groups(scoring: Scoring, several: Metrics, groups: Iterable[questions.OfGroup]) -> list[Part]:
    """Estimate the metrics in every group."""
    parts = []
    for group, model, part in groups:
        of: dict[str, Any] = {"part": group, "examples": int(np.sum(part.present))}
        of |= {"clusters": _num_clusters(part), "predictions": model}
        parts += [
            Part(label, **of, **numbers)
            for label, numbers in scoring.estimates(several, model, part).items()
        ]
    return _adjusted(parts, operator.attrgetter("metric", "predictions"))


def _ordinal(scoring: Scoring) -> list[Part]:
    """Estimate the ranked probability score of the rows whose options have an order."""
    given, name, found = scoring.first, "ranked_probability_score", list[questions.OfGroup]()
    if given.ordinal is None:
        return []
    sizes = np.sum(~np.isnan(np.asarray(given.logits)), axis=-1) * given.ordinal
    several = sorted({*sizes.tolist()} - {0})
    ending = ", options={}" * (len(several) > 1)
    masks = {"ordinal=yes" + ending.format(size): sizes == size for size in several}
    for group, model, part in questions.of_groups(scoring.models, masks):
        logits = np.asarray(part.logits)[:, : sizes[masks[group]][0]]  # of K in 1 / (K - 1)
        narrow = _evaluation(logits, part.labels, part.weights, part.clusters)
        found.append((group, model, narrow))
    return _groups(scoring, {name: metrics_package.named(name)}, found)


def _on_bootstrap(scoring: Scoring, numbers: Sequence[Row]) -> list[str]:
    """Warn of bootstrap intervals of metrics that depend on few examples, or that noise raises."""
    resampled = [each.metric for each in numbers if each.interval in ("percentile", "basic")]
    metrics = scoring.metrics | {name: metrics_package.named(name) for name in PER_CLASS}
    raised = [name for name in resampled if metrics[base_name(name)].biased]
    # The name of the event, as in tables.
    old, new = (event.of(""), f" ({event.name})") if (event := scoring.event) else ("", "")
    notes = caveats.note(caveats.BOOTSTRAPPED, (name.replace(old, new) for name in raised))
    counts: dict[str, int] = {}
    # They leave out classes without examples. Answers and options have no classes.
    if scoring.class_names and {*resampled} & {*caveats.BY_CLASS}:
        one = next(iter(scoring.models.values()))
        sizes = collections.Counter(np.asarray(one.labels)[one.present].tolist())
        counts = {f"class {scoring.class_names[k]}": sizes[k] for k in sorted(sizes)}
    for model, one in scoring.models.items():
        logits = np.asarray(one.logits)
        predicted = 1 if is_stated(logits) else np.argmax(logits, axis=-1)
        right = np.equal(predicted, one.labels)[one.present]
        counts[f"wrong predictions of {model}"] = int(np.sum(~right))
        counts[f"right predictions of {model}"] = int(np.sum(right))
    then = "examples ({}): the bootstrap intervals of metrics that count them are too narrow."
    return notes + caveats.fewer(counts, caveats.ENOUGH_EXAMPLES, then) * bool(resampled)


def convention_of(metric: Metric[..., Any]) -> str:
    """Describe the binning of a metric, which is needed to compare its values with others."""
    options = metric.defaults() | dict(metric.options)
    if "num_bins" not in options:
        return ""
    # The terms of equal-mass metrics have no `num_bins`, because they bin after sorting all rows.
    of_mass = "num_bins" not in options_of(metric.prepare)
    text = f"{options['num_bins']} bins of equal {'mass' if of_mass else 'width'}"
    if "edges" in options or "zero_counts" in options:
        edges = options.get("edges", "right")
        text += ", (lo, hi]" if edges == "right" else f", edges {edges}"
    return text


def chosen_metrics(
    metrics: Sequence[str | Metric[..., Any]] | Mapping[str, Metric[..., Any]], num_bins: int
) -> Metrics:
    """Return metrics by name, and set `num_bins` for metrics given by name with this option."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str):
        raise TypeError(f"metrics must be a list of names, got the string {metrics!r}.")
    chosen: Metrics = {}
    for each in metrics:
        metric = each if isinstance(each, Metric) else metrics_package.named(each)
        if isinstance(each, str) and "num_bins" in metric.defaults():
            metric = metric.with_options(num_bins=num_bins)
        name = each if isinstance(each, str) else each.name
        if chosen.setdefault(name, metric) != metric:
            raise ValueError(f"score: two metrics are called {name}: give a mapping from names.")
    return chosen


def _of_rows(several: Metrics, costs: Any, abstain_cost: float | None) -> Metrics:
    """Check that each metric is of one set, and add the costs of decisions, if any."""
    if outer := [each.name for each in several.values() if each.name.startswith(OF_TWO_SETS)]:
        raise TypeError(f"score: {outer[0]} compares two sets: see report.out_of_distribution.")
    if taken := [name for name in several if base_name(name) != name or name == SQUARED_ERROR]:
        raise ValueError(f"score: {taken[0]} is a name that reports add: give another name.")
    if costs is None and abstain_cost is None:
        return several
    given = None if costs is None else np.asarray(as_array(costs))
    options: dict[str, Any] = {"abstain_cost": abstain_cost, "costs": given}
    names = ("expected_cost", "stated_cost")
    return {**several, **{name: metrics_package.named(name, **options) for name in names}}


def _num_clusters(one: Evaluation, rows: np.ndarray | None = None) -> int | None:
    """Count the clusters of the present rows, or of some of them; return None without clusters."""
    if one.clusters is None:
        return None
    return len(np.unique(one.clusters[one.present if rows is None else rows]))


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a report."""
    packages = importlib.import_module("calib_jax"), jax, jaxlib, np
    return {package.__name__: package.__version__ for package in packages}
