"""Score a set of predictions: metrics, intervals, calibration, comparison."""

from __future__ import annotations

import collections
import dataclasses
import importlib.metadata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax import calibrators, inference
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import as_array, unmasked
from calib_jax.core.inputs.invalid_values import probabilities_checked, refuse_labels
from calib_jax.core.inputs.stated import is_stated
from calib_jax.core.types import Labels, Logits
from calib_jax.inference import Evaluation
from calib_jax.metrics import Metric, Stated
from calib_jax.report import calibration, caveats, files, intervals, tables
from calib_jax.report.answers import answers
from calib_jax.report.predictions import FLOOR, as_logits, notes_on
from calib_jax.report.records import EVENT, GIVEN, OTHER, Change, Part, Results, Row, Worst

DEFAULT_METRICS = (
    *("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "signed_gap", "aurc"),
)
# Without `classwise_ece` and `mce`: answers have no classes, and few of them share a bin.
ANSWER_METRICS = (
    *("accuracy", "nll", "brier", "ece", "adaptive_ece", "signed_gap", "confidence_auroc", "aurc"),
)
# Metrics of the top label that differ for the event "class 1" of two classes.
OF_EVENT = (
    *("ece", "adaptive_ece", "mce", "adaptive_mce", "ace", "signed_gap", "ks_error", "ecce"),
    *("smooth_ece", "overconfidence", "underconfidence", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)
PER_CLASS = ("per_class_recall", "per_class_precision", "per_class_ece")
# Metrics of more than one number, which are no row of a report.
SEVERAL_NUMBERS = (
    *PER_CLASS,
    *("per_class_iou", "reliability", "adaptive_reliability", "classwise_reliability"),
    *("brier_decomposition", "by_correctness", "confident_set", "confusion_counts"),
)
# Metrics of two data sets, see `out_of_distribution`.
OF_TWO_SETS = ("ood_auroc", "ood_aupr", "ood_fpr95", "ood_roc_curve")
INTERVALS = ("valid", "percentile", "basic")

Metrics: TypeAlias = Mapping[str, Metric[..., Any]]
_ANSWERS = (Stated, calibrators.Scored)
_Tested = TypeVar("_Tested", Row, Part)


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


@probabilities_checked()  # `as_logits` checks all rows of the input; groups and folds are parts
def score(
    logits: Any,
    labels: Any = None,
    *,
    weights: Any = None,
    groups: Any = None,
    clusters: Any = None,
    calibrate: str | None = None,
    fit_on: tuple[Any, ...] | Mapping[str, tuple[Any, ...]] | None = None,
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
        group, and a search for groups, also of two columns, that are over- or underconfident (see
        `inference.worst_groups`). Columns of floats only take part in the search.
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
        label have a second row for the event "class 1".
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
    of_answers = _are_answers({name: logits, **others}, labels)
    understood: dict[str, Any] = {"probabilities": probabilities, "floor": floor}
    evidence: dict[str, tuple[Any, ...]] = {}
    if fit_on is not None:
        by_model = fit_on if isinstance(fit_on, Mapping) else {name: fit_on}
        evidence = {model: _evidence(of, of_answers) for model, of in by_model.items()}
    fits: dict[str, dict[str, Any]] = {}
    weights = as_array(weights)
    _check_weights(weights)
    if of_answers:
        _refuse_for_answers(
            criterion=criterion != "nll" and list(criterion) != ["nll"],
            costs=costs is not None,
            abstain_cost=abstain_cost is not None,
            per_class=per_class,
            class_names=class_names is not None,
            probabilities=probabilities,
        )
        models_of = {
            model: _flat_answers(model, each) for model, each in {name: logits, **others}.items()
        }
        batch = np.shape(logits.correct)
        ids = None if clusters is None else checks.cluster_ids(clusters, batch)
        weights = None if weights is None else jnp.asarray(weights).reshape(-1)
        pooled: list[str] = []
        if isinstance(logits, calibrators.Scored):
            pooled = _on_folds(models_of, weights) if cross_fit else []
            name = calibrate if name == GIVEN and calibrate is not None else name
            evidence = {name if model == GIVEN else model: of for model, of in evidence.items()}
            models_of = dict(zip([name, *others], models_of.values(), strict=True))
            models_of, fits = calibration.of_scores(
                models_of, weights, calibrate, evidence, cross_fit, seed, ids
            )
            calibrate, fit_on, evidence = None, None, {}
        given = logits = models_of[name]
        others = {model: each for model, each in models_of.items() if model != name}
        labels, called = None, []
        notes = _on_certain(models_of, weights) + pooled
    else:
        logits, labels = as_array(logits), as_array(labels)
        others = {model: as_array(each) for model, each in others.items()}
        given, batch = logits, np.shape(labels)
        logits = as_logits(logits, weights=weights, **understood)
        logits, labels, weights = checks.flat_rows("score", logits, labels, weights)
        _check_labels(np.asarray(labels), weights, logits.shape[-1])
        ids = None if clusters is None else checks.cluster_ids(clusters, batch)
        called = _distinct(class_names, logits.shape[-1])
        notes = notes_on(given, logits, labels, weights, **understood)
    evaluation = Evaluation(logits, labels, weights, clusters=ids, name="score")
    if weights is not None and evaluation.counts and np.max(weights) > 1:
        notes.append(
            "Some weights are larger than 1. Noise bounds take them for copies; percentile"
            " intervals draw whole examples with their weights, and are wider. If they are copies,"
            " repeat the examples."
        )
    if metrics is None:
        metrics = ANSWER_METRICS if of_answers else DEFAULT_METRICS
        if of_answers and notes:
            metrics = [metric for metric in metrics if metric != "nll"]
    several = chosen_metrics(metrics, num_bins)
    for label, metric in several.items():
        _check_row(label, metric.name)
    if costs is not None or abstain_cost is not None:
        options = {"costs": None if costs is None else np.asarray(unmasked("costs", costs))}
        for cost in ("expected_cost", "stated_cost"):
            several[cost] = metrics_package.named(cost, abstain_cost=abstain_cost, **options)
    interval: dict[str, Any] = {
        "key": jax.random.key(seed),
        "num_resamples": num_resamples,
        "level": level,
        "method": method,
    }
    binned: dict[str, Any] = {"num_bins": num_bins, **interval}
    columns = calibration.columns(calibrate, criterion) if calibrate else {}
    calibrated = list(evidence) if fit_on is not None else [name]
    _check_fitted(calibrated, [name, *others])
    alone = calibrated == [name]
    names_of_fits = {
        model: {
            column if alone else f"{column} of {model}": each for column, each in columns.items()
        }
        for model in calibrated
    }
    names = [name, *others, *(column for fit in names_of_fits.values() for column in fit)]
    if len(set(names)) < len(names):
        raise ValueError(
            f"name, compare_name and calibrate must differ, got {', '.join(map(repr, names))}."
        )
    models: dict[str, Evaluation] = {}

    def evaluated(logits: Logits | Stated) -> Evaluation:
        return Evaluation(logits, labels, weights, clusters=ids, name="score")

    def add(model: str, given: Any, logits: Any) -> None:
        """Add a model, and the same model after its calibrators."""
        models[model] = evaluation if model == name else evaluated(logits)
        if calibrate is None or model not in calibrated:
            return
        held_out = None
        if model in evidence:
            if of_answers:
                held_out = evidence[model]
                calibration.refuse_same((given, None, weights), held_out)
            else:
                held_out = calibration.held_out(
                    *evidence[model], num_classes=logits.shape[-1], **understood
                )
                fitted_on = (evidence[model][0], *held_out[1:])
                calibration.refuse_same((given, labels, weights), fitted_on)
        for column, each in names_of_fits[model].items():
            applied, fit = calibration.calibrated(
                calibrate, logits, labels, weights, held_out, cross_fit, each, seed, ids
            )
            models[column] = evaluated(applied)
            fits[column] = fit | {"predictions": model}

    add(name, given, logits)
    for other_name, given_other in others.items():
        if of_answers:
            add(other_name, given_other, given_other)
            continue
        other = as_logits(given_other, weights=weights, **understood)
        other, *_ = checks.flat_rows("score", other, labels, weights)
        present = slice(None) if weights is None else np.asarray(weights) > 0
        given_labels = np.asarray(labels)[present]
        if other.shape[-1] <= (largest := int(np.max(given_labels, initial=0))):
            raise ValueError(
                f"score: {other_name} has {other.shape[-1]} classes, and there is the label"
                f" {largest}: compare predictions of the same classes."
            )
        other_notes = notes_on(given_other, other, labels, weights, **understood)
        notes += [f"{other_name}: {note}" for note in other_notes]
        add(other_name, given_other, other)
    unsettled = {column for column, fit in fits.items() if calibration.unsettled(fit)}

    views = {"": (several, models)}
    event = {label: metric for label, metric in several.items() if metric.name in OF_EVENT}
    if not of_answers and event and all(each.logits.shape[-1] == 2 for each in models.values()):
        views[EVENT] = event, {model: _of_class_1(each) for model, each in models.items()}
    curve = metrics_package.reliability.with_options(num_bins=num_bins, level=level)
    without_bound = {k: m for k, m in several.items() if not inference.has_noise_bound(m)}
    for each in models.values():  # one program computes the values of all tables
        each.values(without_bound | {curve.name: curve})
    # First, because differences resample all metrics that intervals resample, and more.
    changes_of = {
        view: {
            model: inference.compare_metrics(some, each[name], each[model], **binned)
            for model in models
            if model != name
        }
        for view, (some, each) in views.items()
    }
    rest = list(others) if all_pairs else []
    pairs_of = {
        view: {
            one: {
                model: inference.compare_metrics(some, each[one], each[model], **binned)
                for model in rest[place + 1 :]
            }
            for place, one in enumerate(rest)
        }
        for view, (some, each) in views.items()
    }
    estimates = {
        view: {
            model: inference.estimates(some, of_model, **interval)
            for model, of_model in each.items()
        }
        for view, (some, each) in views.items()
    }
    _check_numbers(estimates[""][name])
    rows: list[Row] = []
    changes: list[Change] = []
    pairs: list[Change] = []
    for label, metric in several.items():
        for view in (view for view, (some, _) in views.items() if label in some):
            for model, by_name in estimates[view].items():
                numbers, kind = _shown(by_name[label])
                tested = by_name[label].floor, by_name[label].p_value
                described = (convention_of(metric), kind)
                rows.append(Row(label + view, model, *numbers, *described, *tested))
            of_metric = _changes(label, view, name, changes_of[view], unsettled)
            of_pairs = [
                each
                for one, of_one in pairs_of[view].items()
                for each in _changes(label, view, one, of_one, unsettled)
            ]
            of_metric, of_pairs = _adjusted(of_metric, of_pairs)
            changes += of_metric
            pairs += of_pairs

    by_column = _columns(groups, evaluation.labels)
    classes = _per_class(models, num_bins, interval, called) if per_class else []
    shown = [row.metric for row in rows if row.interval in ("percentile", "basic")]
    shown += PER_CLASS if per_class else ()
    notes += _on_few_examples(shown, models, by_column, called)
    return Report(
        settings={
            "examples": int(np.sum(evaluation.present)),
            "left_out": int(np.sum(~evaluation.present)),
            "clusters": _num_clusters(evaluation),
            "classes": None if of_answers else int(evaluation.logits.shape[-1]),
            "weighted": weights is not None,
            "level": level,
            "interval": method,
            "resamples": num_resamples,
            "seed": seed,
            "bins": num_bins,
            "versions": versions(),
        },
        rows=_untested(rows, unsettled),
        changes=changes,
        pairs=pairs,
        classes=_untested(classes, unsettled),
        groups=_untested(_per_group(several, models, by_column, interval), unsettled),
        reliability={model: each.values(curve)[curve.name] for model, each in models.items()},
        calibrators=fits,
        notes=notes,
        worst=_worst(
            {model: each for model, each in models.items() if model not in unsettled},
            by_column,
            interval,
        ),
    )


def _changes(
    label: str,
    view: str,
    name: str,
    by_model: Mapping[str, Mapping[str, Any]],
    unsettled: Collection[str],
) -> list[Change]:
    """List the differences of one metric of several models from another one."""
    changes = []
    for model, of_model in by_model.items():
        value, low, high = map(float, of_model[label][:3])
        p_value, kind = of_model[label].p_value, of_model[label].interval
        p_value = None if p_value is None or model in unsettled else float(p_value)
        changes.append(Change(label + view, name, model, value, low, high, p_value, interval=kind))
    return changes


def _adjusted(*parts: Sequence[Change]) -> Iterator[list[Change]]:
    """Add p-values after Holm's correction for all comparisons of all parts."""
    p_holm = iter(intervals.adjusted([each.p_value for part in parts for each in part]))
    for part in parts:
        yield [dataclasses.replace(each, p_holm=next(p_holm)) for each in part]


def _are_answers(models: Mapping[str, Any], labels: Any) -> bool:
    """Check whether the models are answers; raise an error for answers beside logits."""
    kinds = {type(each) for each in models.values() if isinstance(each, _ANSWERS)}
    if not kinds:
        if labels is None:
            raise TypeError("score: logits need labels, or give a metrics.Stated.")
        return False
    if len(kinds) > 1 or not all(isinstance(each, _ANSWERS) for each in models.values()):
        raise TypeError(
            "score: answers are compared with answers of the same kind: give a Stated for every"
            " model, or a Scored for every model."
        )
    if labels is not None:
        raise TypeError(f"score: a {kinds.pop().__name__} holds its labels: leave out labels.")
    return True


def _refuse_for_answers(**given: bool) -> None:
    """Raise an error for options that need classes."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise ValueError(
            f"score: {', '.join(names)} need{'s' * (len(names) == 1)} predictions of classes, and"
            " answers have one number each: leave it out."
        )


def _flat_answers(name: str, answers: Any) -> Any:
    """Validate answers, and store them along one axis."""
    values, correct = answers.columns(f"score: {name}")
    return type(answers)(values.reshape(-1), correct.reshape(-1))


def _evidence(examples: Sequence[Any], answers: bool) -> tuple[Any, ...]:
    """Return held-out logits, labels and weights; answers hold their labels."""
    if not answers:
        return tuple(map(as_array, examples))
    held_out, *rest = examples if isinstance(examples, tuple | list) else (examples,)
    if not isinstance(held_out, _ANSWERS) or (rest and rest[0] is not None):
        raise TypeError(
            "score: fit_on must be answers, too, a Stated or a Scored; with weights it is (answers,"
            " None, weights)."
        )
    return _flat_answers("fit_on", held_out), None, *map(as_array, rest[1:])


def _of_class_1(evaluation: Evaluation) -> Evaluation:
    """Read the probability of class 1 of two as the confidence that class 1 is true."""
    logits = evaluation.logits
    column = jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))[:, 1:]
    rest = evaluation.weights, evaluation.clusters
    return Evaluation(column, evaluation.labels, rest[0], clusters=rest[1], name="score")


def _on_certain(models: Mapping[str, Stated], weights: Any) -> list[str]:
    """Report answers that are wrong at confidence 1, or right at 0: their NLL is infinite."""
    notes = []
    counts = None if weights is None else np.asarray(weights) > 0
    for model, stated in models.items():
        confidence, correct = np.asarray(stated.confidence), np.asarray(stated.correct)
        impossible = np.where(correct == 1, confidence, 1 - confidence) == 0
        impossible &= True if counts is None else counts
        if number := int(np.sum(impossible)):
            others = np.where(impossible, 0, 1 if weights is None else np.asarray(weights))
            without = metrics_package.nll(stated, weights=jnp.asarray(others, jnp.float32))
            start = "" if len(models) == 1 else f"{model}: "
            notes.append(
                f"{start}{number:,} of {len(correct):,} answers are wrong at confidence 1 or right"
                f" at 0, so NLL is infinite. Without these answers it is {float(without):.4f}."
                " By default such an NLL is left out."
            )
    return notes


def _on_folds(models: Mapping[str, calibrators.Scored], weights: Any) -> list[str]:
    """Report the AUROC of scores: cross-fitting maps the scores of each fold in another way."""
    areas = []
    for model, scored in models.items():
        _, rank = np.unique(np.asarray(scored.score), return_inverse=True)
        ordered = Stated(rank / (1 + np.max(rank, initial=0)), scored.correct)
        area = float(metrics_package.confidence_auroc(ordered, weights=weights))
        areas.append(f"{area:.4f}" if len(models) == 1 else f"{model} {area:.4f}")
    return [
        "Each fold has its own calibrator, so metrics of the order (confidence_auroc, aurc) of the"
        f" confidences differ from those of the scores. confidence_auroc of the scores:"
        f" {', '.join(areas)}."
    ]


def _untested(rows: Sequence[_Tested], models: Collection[str]) -> list[_Tested]:
    """Remove the p-values of these models, whose calibrators did not converge."""

    def untested(row: _Tested) -> _Tested:
        if row.predictions not in models:
            return row
        tests = ["p_value", "p_holm"] if isinstance(row, Part) else ["p_value"]
        none: dict[str, Any] = dict.fromkeys(tests)
        return dataclasses.replace(row, **none)

    return [untested(row) for row in rows]


def _check_fitted(calibrated: Sequence[str], models: Sequence[str]) -> None:
    """Raise an error for examples of fits that belong to no model."""
    strange = [model for model in calibrated if model not in models]
    if strange:
        raise ValueError(
            f"score: fit_on has {', '.join(map(repr, strange))}, and the predictions are called"
            f" {', '.join(map(repr, models))}: use these names."
        )


def _check_weights(weights: Any) -> None:
    """Raise an error for weights that are not numbers, or negative, infinite or NaN."""
    if weights is None:
        return
    given = np.asarray(weights)
    if given.dtype.kind not in "fiub" and not jnp.issubdtype(given.dtype, jnp.floating):
        raise TypeError(f"score: weights must be numbers, got {given.dtype}.")
    wrong = given[~(np.isfinite(given) & (given >= 0))]
    if wrong.size:
        raise ValueError(
            f"score: weights must be finite and not negative, and {wrong.size:,} of"
            f" {given.size:,} are not, such as {float(wrong[0]):g}; give 0 to examples that do not"
            " count."
        )


def _check_labels(labels: np.ndarray, weights: Any, num_classes: int) -> None:
    """Raise an error for labels out of range; rows of weight 0 may have any label."""
    present = labels if weights is None else labels[np.asarray(weights) > 0]
    if present.size and present.min() >= 1 and present.max() == num_classes:
        raise ValueError(
            f"score: the labels run from {present.min()} to {num_classes}, and the {num_classes}"
            " classes count from 0: subtract 1 from the labels."
        )
    refuse_labels("score", labels, weights, num_classes)


def _shown(estimate: inference.Estimate) -> tuple[tuple[float, float, float], str]:
    """Return value and ends as floats, and the kind; no ends if all resamples are equal."""
    value, low, high = map(float, estimate[:3])
    low, high, kind = intervals.shown(value, low, high, estimate.interval)
    return (value, low, high), kind


def _check_numbers(estimates: Mapping[str, inference.Estimate]) -> None:
    """Raise an error for a metric that is more than one number."""
    for name, estimate in estimates.items():
        if not hasattr(estimate.value, "shape") or estimate.value.shape:
            raise _no_row(name)


def _check_row(label: str, name: str) -> None:
    """Raise an error for a metric of the library that is no row of a report."""
    if name in SEVERAL_NUMBERS:
        raise _no_row(label)
    if name in OF_TWO_SETS:
        raise TypeError(
            f"score: {label} compares two data sets: call report.out_of_distribution, or"
            " experiments.evaluate --ood."
        )


def _no_row(name: str) -> TypeError:
    return TypeError(
        f"score: a row of the report is one number, and {name} is more: per_class adds a table of"
        " the classes, and inference.estimates takes any metric."
    )


def _distinct(class_names: Sequence[str] | None, num_classes: int) -> list[str]:
    """Name every class; append the class number to names that several classes share.

    >>> _distinct(["crane", "dog", "crane"], 3)
    ['crane (0)', 'dog', 'crane (2)']
    """
    if class_names is None:
        return [str(k) for k in range(num_classes)]
    if len(class_names) != num_classes:
        raise ValueError(
            f"score: {num_classes} classes need as many class_names, got {len(class_names)}."
        )
    times = collections.Counter(class_names)
    return [f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(class_names)]


def convention_of(metric: Metric[..., Any]) -> str:
    """Describe the binning of a metric, which is needed to compare its values with others."""
    options = metric.defaults() | dict(metric.options)
    if "num_bins" not in options:
        return ""
    # The terms of equal-mass metrics have no `num_bins`, because they bin after sorting all rows.
    of_mass = "num_bins" not in checks.options_of(metric.prepare)
    text = f"{options['num_bins']} bins of equal {'mass' if of_mass else 'width'}"
    if "edges" in options or "zero_counts" in options:
        edges = options.get("edges", "right")
        text += ", (lo, hi]" if edges == "right" else f", edges {edges}"
    return text


def chosen_metrics(
    metrics: Sequence[str | Metric[..., Any]] | Metrics, num_bins: int
) -> dict[str, Metric[..., Any]]:
    """Return metrics by name, and set `num_bins` for metrics given by name with this option."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str):
        raise TypeError(f"metrics must be a list of names, got the string {metrics!r}.")
    chosen = {}
    for metric in metrics:
        if isinstance(metric, Metric):
            chosen[metric.name] = metric
        else:
            named = metrics_package.named(metric)
            binned = "num_bins" in named.defaults()
            chosen[metric] = named.with_options(num_bins=num_bins) if binned else named
    return chosen


def _per_class(
    models: Mapping[str, Evaluation],
    num_bins: int,
    interval: Mapping[str, Any],
    class_names: Sequence[str],
) -> list[Part]:
    several = chosen_metrics(PER_CLASS, num_bins)
    parts = []
    for model, evaluation in models.items():
        estimates = inference.estimates(several, evaluation, **interval)
        tests = _class_tests(evaluation, num_bins, interval)
        for k, class_name in enumerate(class_names):
            rows = evaluation.present & (np.asarray(evaluation.labels) == k)
            count, num_clusters = int(rows.sum()), _num_clusters(evaluation, rows)
            for name, estimate in estimates.items():
                value, low, high = (end[k] for end in estimate[:3])
                numbers, _ = _shown(estimate._replace(value=value, low=low, high=high))
                part = Part(class_name, count, name, model, *numbers, num_clusters)
                if tests and name == "per_class_ece":
                    floor, p_value, p_holm = tests[k][-3:]
                    part = dataclasses.replace(part, floor=floor, p_value=p_value, p_holm=p_holm)
                parts.append(part)
    return parts


def _class_tests(
    evaluation: Evaluation, num_bins: int, interval: Mapping[str, Any]
) -> list[inference.PartError]:
    """Test the error of every class, if the weights are counts."""
    if interval["method"] != "valid" or not evaluation.counts:
        return []
    num_rows, num_classes = evaluation.logits.shape
    draws = max(interval["num_resamples"], min(20 * num_classes, 2 * 10**8 // num_rows))
    return inference.class_errors(
        evaluation, key=interval["key"], num_bins=num_bins, num_resamples=draws
    )


def _columns(groups: Any, labels: Labels) -> dict[str, np.ndarray]:
    """Return the columns of groups by name; a single column is unnamed."""
    if groups is None:
        return {}
    columns = {}
    several = isinstance(groups, Mapping) or hasattr(groups, "columns")  # or a table of pandas
    for name, column in groups.items() if several else [("", groups)]:
        values = np.asarray(unmasked(f"group {name}".strip(), column))
        checks.same_length(**{name or "groups": values, "labels": labels})
        if values.dtype.kind == "V":
            raise TypeError(
                f"score: {f'groups {name}'.strip()} must be numbers or text, got {values.dtype}:"
                " give a mapping with one array for each column."
            )
        single = not name and values.dtype.kind not in "biu"
        columns[name] = values.astype(str) if single or values.dtype == object else values
    return columns


def _groups_of(columns: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the mask of every group; columns of floats have none."""
    for name, column in columns.items():
        for value in [] if column.dtype.kind == "f" else np.unique(column):
            yield f"{name}={value}" if name else str(value), column == value


def _per_group(
    several: Metrics,
    models: Mapping[str, Evaluation],
    columns: Mapping[str, np.ndarray],
    interval: Mapping[str, Any],
) -> list[Part]:
    parts = []
    for group, mask in _groups_of(columns):
        for model, evaluation in models.items():
            count = int(np.sum(evaluation.present & mask))
            if not count:
                continue
            part = evaluation.part(np.flatnonzero(mask))
            num_clusters = _num_clusters(part)
            for name, estimate in inference.estimates(several, part, **interval).items():
                numbers, _ = _shown(estimate)
                tested = (num_clusters, estimate.floor, estimate.p_value)
                parts.append(Part(group, count, name, model, *numbers, *tested))
    tested_together: dict[tuple[str, str], list[int]] = {}
    for index, each in enumerate(parts):
        tested_together.setdefault((each.metric, each.predictions), []).append(index)
    for places in tested_together.values():
        p_holm = intervals.adjusted([parts[index].p_value for index in places])
        for index, p in zip(places, p_holm, strict=True):
            parts[index] = dataclasses.replace(parts[index], p_holm=p)
    return parts


def _worst(
    models: Mapping[str, Evaluation], columns: Mapping[str, np.ndarray], interval: Mapping[str, Any]
) -> list[Worst]:
    """Search for groups with a gap, if the weights are counts."""
    if not columns or interval["method"] != "valid":
        return []
    return [
        Worst(
            " & ".join(f"{name}={value}" if name else value for name, value in conditions.items()),
            size,
            model,
            gap,
            p_value,
            p_holm,
        )
        for model, evaluation in models.items()
        if evaluation.counts
        for conditions, size, gap, p_value, p_holm, _ in inference.worst_groups(
            evaluation, columns=columns, key=interval["key"]
        )
    ]


def _on_few_examples(
    shown: Sequence[str],
    models: Mapping[str, Evaluation],
    columns: Mapping[str, np.ndarray],
    class_names: Sequence[str],
) -> list[str]:
    """Warn of metrics with a bootstrap interval that depend on very few examples, in groups too."""
    first = next(iter(models.values()))
    true = np.asarray(first.labels)
    subsets = {"": first.present}
    subsets |= {f" in group {name}": first.present & mask for name, mask in _groups_of(columns)}
    hits = {model: _hits(each) for model, each in models.items()}
    of_classes: dict[str, int] = {}
    of_hits: dict[str, int] = {}
    for where, rows in subsets.items():
        counts = np.bincount(true[rows], minlength=len(class_names))[: len(class_names)]
        names = (f"class {name}{where}" for name in class_names)
        of_classes |= dict(zip(names, counts.tolist(), strict=True))
        for model, hit in hits.items():
            of_hits[f"wrong predictions of {model}{where}"] = int(np.sum(rows & ~hit))
            of_hits[f"right predictions of {model}{where}"] = int(np.sum(rows & hit))
    return [
        *caveats.few_examples(of_classes, [name for name in shown if name in caveats.BY_CLASS]),
        *caveats.few_examples(of_hits, [name for name in shown if name in caveats.BY_CORRECTNESS]),
    ]


def _hits(evaluation: Evaluation) -> np.ndarray:
    """Mark the rows whose prediction or answer is right."""
    labels = np.asarray(evaluation.labels)
    if is_stated(evaluation.logits):
        return labels == 1
    return np.argmax(np.asarray(evaluation.logits), axis=-1) == labels


def _num_clusters(evaluation: Evaluation, rows: np.ndarray | None = None) -> int | None:
    """Count the clusters of the present rows, or of some of them; return None without clusters."""
    if evaluation.clusters is None:
        return None
    return len(np.unique(evaluation.clusters[evaluation.present if rows is None else rows]))


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a report."""
    found = {}
    for name in ("calib_jax", "jax", "jaxlib", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a checkout on the path
            found[name] = "not installed"
    return found
