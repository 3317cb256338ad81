"""Score predictions of one model or several: metrics, intervals, calibration, comparison."""

from __future__ import annotations

import collections
import dataclasses
import importlib.metadata
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax import calibrators, inference
from calib_jax.core import checks
from calib_jax.core.arrays import as_array, as_numbers
from calib_jax.core.values import is_stated
from calib_jax.inference import Evaluation
from calib_jax.metrics import Metric, Stated
from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats, questions
from calib_jax.report.caveats import SQUARED_ERROR
from calib_jax.report.chosen_metrics import (
    ANSWER_METRICS,
    DEFAULT_METRICS,
    OF_EVENT,
    OPTION_METRICS,
    PER_CLASS,
    Metrics,
    chosen_metrics,
    convention_of,
    metrics_of_rows,
    no_row,
)
from calib_jax.report.predictions import Predictions, grid_of, notes_on
from calib_jax.report.records import GIVEN, OTHER, Change, Event, Part, Row, base_name
from calib_jax.report.render import Report

INTERVALS = ("valid", "percentile", "basic")


class View(NamedTuple):
    """A reading of the predictions, with its metrics: as given, or as an event of two classes."""

    metrics: Metrics
    models: dict[str, Evaluation]


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
      floor: smaller probabilities are raised to this value, so that the NLL is finite; by default
        half a step of probabilities that are rounded to .1, .01, .001 or .0001, else 1e-38.
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
    >>> logits = 3 * jax.random.normal(jax.random.key(0), (500, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 3)
    >>> scored = report.score(logits, labels, metrics=["accuracy", "ece"], num_resamples=200)
    >>> scored.value("ece") > 0.1
    True
    """
    others: dict[str, Any] = {}
    if compare is not None:
        others = {**compare} if isinstance(compare, Mapping) else {compare_name: compare}
    calibration.check_distinct([name, *others])
    calibration.check_request(calibrate, fit_on, cross_fit, criterion)
    fit_on = fit_on if fit_on is None or isinstance(fit_on, Mapping) else {name: fit_on}
    kind = "probabilities" if probabilities else "logits"
    called = tuple(class_names or ())
    models = {
        model: _record(kind, values, labels, weights, groups, clusters, called)
        for model, values in {name: logits, **others}.items()
    }
    held_out = {
        model: _record(kind, *(each if type(each) in (tuple, list) else (each,)))
        for model, each in (fit_on or {}).items()
    }
    headlines = [
        calibration.on_shared(models[model], each, each.file or "fit_on")
        for model, each in held_out.items()
        if model in models
    ]
    checks.one_of("method", method, INTERVALS)
    checks.seed(seed)
    checks.num_bins(num_bins)
    if models[name].kind == "score" and calibrate and name == GIVEN:
        # A score has no column before its calibrator.
        models, held_out = (
            {str(calibrate) if model == name else model: each for model, each in of.items()}
            for of in (models, held_out)
        )
    first = next(iter(models.values()))
    if len({each.kind if not each.of_classes else "logits" for each in models.values()}) > 1:
        raise TypeError("score: answers are compared with answers of the same kind, all Stated.")
    of_classes: dict[str, Any] = {"costs": costs, "abstain_cost": abstain_cost}
    of_classes |= {"per_class": per_class or None, "predict_losses": predict_losses or None}
    if not first.of_classes and (wrong := [k for k, v in of_classes.items() if v is not None]):
        raise ValueError(f"score: {', '.join(wrong)} needs predictions of classes: leave it out.")
    how = (calibrate, cross_fit, criterion, seed, per)
    evaluations, fits, names, notes, more = _evaluated(models, held_out, how, floor)
    if metrics is None:
        metrics = DEFAULT_METRICS if first.ordinal is None else OPTION_METRICS
        if not first.of_classes:
            infinite = any(note.endswith("NLL is left out.") for note in notes)
            metrics = [each for each in ANSWER_METRICS if each != "nll" or not infinite]
    several = metrics_of_rows(metrics, num_bins, costs, abstain_cost)
    interval: dict[str, Any] = {
        "key": jax.random.key(seed),
        "num_resamples": num_resamples,
        "level": level,
        "method": method,
    }
    unsettled = {column for column, fit in fits.items() if calibration.unsettled(fit)}
    one = next(iter(evaluations.values()))
    views, event = _views(several, evaluations, names, positive, first.ordinal is None)
    curve = metrics_package.reliability.with_options(num_bins=num_bins, level=level)
    plain = {k: m for k, m in several.items() if m.name not in inference.BY_SQUARED_ERROR}
    for each in evaluations.values():  # one program computes the values of all tables
        each.values(plain | {curve.name: curve})
    # First, because differences resample all metrics that intervals resample, and more.
    compared = list(models)[1:] if all_pairs else []
    changes, pairs, errors = _differences(views, compared, unsettled, num_bins=num_bins, **interval)
    rows = _rows(views, unsettled, interval) + errors
    if event is not None:
        of_event = views[event.of("")].models
        event.reliability.update(
            {m: each.values(curve)[curve.name] for m, each in of_event.items()}
        )
    by_column = _group_columns(groups, one.labels)
    parts = _groups(several, evaluations, by_column, unsettled, interval)
    if first.ordinal is not None and np.any(first.ordinal):
        parts += _ordinal(evaluations, first.ordinal, unsettled, interval)
    classes = []
    if per_class:
        if len({each.logits.shape[-1] for each in evaluations.values()}) > 1:
            raise ValueError("per_class needs models of the same classes: leave out per_class.")
        classes = _classes(evaluations, names, unsettled, interval, num_bins)
    resampled = [row.metric for row in rows if row.interval in ("percentile", "basic")]
    resampled += PER_CLASS if per_class else ()
    raised = [name for name in resampled if (m := several.get(base_name(name))) and m.biased]
    raised += ["per_class_ece"] * any(
        part.metric == "per_class_ece" and np.isfinite(part.low) for part in classes
    )
    few = _on_few_examples(resampled, evaluations, names)
    answered = questions.tables(
        {name: evaluations[name] for name in models},
        evaluations,
        fits,
        event=event,
        of_event=views[event.of("")].models if event else {},
        evidence={
            model: (np.asarray(fit.values(floor)).reshape(-1, one.logits.shape[-1]), fit.labels)
            for model, fit in held_out.items()
            if fit.of_classes and fit.weights is None
        },
        groups=dict(_groups_of(by_column)),
        threshold_for=threshold_for,
        predict_losses=predict_losses,
        level=level,
    )
    return Report(
        settings={
            "examples": int(np.sum(one.present)),
            "left_out": int(np.sum(~one.present)),
            "clusters": num_clusters_of(one),
            "classes": int(one.logits.shape[-1]) if first.of_classes else None,
            "event": None if event is None else event.name,
            "weighted": first.weights is not None,
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
        groups=parts,
        reliability={model: each.values(curve)[curve.name] for model, each in evaluations.items()},
        calibrators=fits,
        notes=notes + few + caveats.bootstrapped(raised),
        event=event,
        headlines=[line for line in dict.fromkeys([*headlines, *more]) if line],
        tables=answered,
    )


def _record(
    kind: str,
    values: Any,
    labels: Any = None,
    weights: Any = None,
    groups: Any = None,
    clusters: Any = None,
    class_names: tuple[str, ...] = (),
) -> Predictions:
    """Make a record of arrays, or of a Stated or a Scored, which hold their labels."""
    if isinstance(values, Predictions):
        return values
    weights = None if weights is None else as_numbers("score", "weights", weights)
    if isinstance(values, Stated | calibrators.Scored):
        if labels is not None:
            raise TypeError(f"score: a {type(values).__name__} holds its labels: leave out labels.")
        numbers = values.confidence if isinstance(values, Stated) else values.score
        kind = "confidence" if isinstance(values, Stated) else "score"
        return Predictions(numbers, values.correct, weights, groups, clusters, kind=kind)
    if labels is None:
        raise TypeError("score: logits need labels, or give a metrics.Stated.")
    arrays = as_array(values), as_array(labels), weights
    return Predictions(*arrays, groups, clusters, class_names, kind=kind)


def _evaluated(
    models: Mapping[str, Predictions],
    fit_on: Mapping[str, Predictions],
    how: tuple[str | None, int | None, Any, int, str | None],
    floor: float | None,
) -> tuple[dict[str, Evaluation], dict[str, Any], list[str], list[str], list[str]]:
    """Validate the models and calibrate them.

    Returns:
      each model by name, followed by its columns after calibration; the description of the fit of
      each column; a name for each class; and notes and headlines.
    """
    calibrate, cross_fit, criterion, seed, per = how
    first, notes, headlines = next(iter(models.values())), list[str](), list[str]()
    of_scores, class_names = first.kind == "score", list[str]()
    if of_scores and calibrate is None:
        raise ValueError(
            "score: a score is no probability: give calibrate, such as isotonic or platt, with"
            " cross_fit=5 or fit_on."
        )
    columns = calibration.columns_of(list(models), calibrate, fit_on, criterion, of_scores)
    evaluations: dict[str, Evaluation] = {}
    fits: dict[str, dict[str, Any]] = {}
    for model, record in models.items():
        values, labels = record.values(floor), record.labels if record.of_classes else None
        weights, ids = record.weights, record.clusters
        prefix = "" if record is first and (record.of_classes or len(models) == 1) else f"{model}: "
        if not of_scores:
            one = Evaluation(values, labels, weights, clusters=ids, name=record.file or "score")
            evaluations[model] = one
            weights, ids = one.weights, one.clusters
            values, labels = (one.logits, one.labels) if record.of_classes else (values, None)
        if record.of_classes:
            used = record.floor(floor)
            headlines += _on_grid(prefix, record, floor, used)
            notes += [prefix + note for note in notes_on(record, values, used)]
            class_names = class_names or _distinct(record.class_names, values.shape[-1])
            if values.shape[-1] != len(class_names):
                notes.append(f"{model} has {values.shape[-1]} classes: do not compare averages.")
        examples = None
        if other := fit_on.get(model):
            examples = calibration.evidence(other, floor, record.kind, values)
        by_group = None
        if per is not None:
            by_group = (_group(record, per), _group(other or record, per))
        for column, by in columns.get(model, {}).items():
            predicted, fit = calibration.calibrated(
                str(calibrate),
                values,
                labels,
                weights,
                examples,
                cross_fit,
                by,
                seed,
                ids,
                by_group,
            )
            fits[column] = fit | {"predictions": column if of_scores else model}
            fits[column] |= {"file": other.file} if other and other.file else {}
            if record.of_classes:
                of_fit = (other, examples[0]) if other and examples else (record, values)
                decided = calibration.decided_by_zeros(*of_fit, of_fit[0].floor(floor))
                fits[column] |= {"decided_by": decided} if decided else {}
                headlines += [f"{column}: {decided}"] if decided else []
            evaluations[column] = _evaluation(predicted, labels, weights, ids)
    certain = {model: evaluations[model] for model in models} if not first.of_classes else {}
    notes = _on_certain(certain) + notes
    one = next(iter(evaluations.values()))
    if one.weights is not None and one.counts and np.max(one.weights) > 1:
        notes.append("Some weights are larger than 1: noise bounds take them for copies.")
    return evaluations, fits, class_names, notes, [line for line in headlines if line]


def _evaluation(values: Any, labels: Any, weights: Any, clusters: Any) -> Evaluation:
    return Evaluation(values, labels, weights, clusters=clusters, name="score")


def _group(given: Predictions, per: str) -> np.ndarray:
    """Return the group of each row by the name of the column."""
    groups = given.groups if isinstance(given.groups, Mapping) else {"group": given.groups}
    if groups.get(per) is None:
        raise ValueError(f"per={per}: there is no such column of groups in all predictions.")
    return np.array([*map(str, np.ravel(groups[per]).tolist())])


def _on_grid(prefix: str, given: Predictions, floor: float | None, used: Any) -> list[str]:
    """Return a headline if probabilities are rounded, with the value that replaces 0."""
    step = grid_of(given.present) if given.kind == "probabilities" else None
    if step is None:
        return []
    zeros = int(np.sum(given.present == 0))
    read = f"; {zeros:,} of them are 0, read as {used:.3g}" if zeros else ""
    why = " (half a step; --floor sets another value)" if zeros and floor is None else ""
    if zeros and floor is not None and floor < step / 2:
        why = f", below half a step: --floor={step / 2:g} is what rounding allows"
    return [f"{prefix}The probabilities are rounded to {step:g}{read}{why}."]


def _on_certain(models: Mapping[str, Evaluation]) -> list[str]:
    """Report answers that are wrong at confidence 1, or right at 0: their NLL is infinite."""
    notes = []
    for model, one in models.items():
        confidence, correct = np.asarray(one.logits)[:, 0], np.asarray(one.labels)
        impossible = (np.where(correct == 1, confidence, 1 - confidence) == 0) & one.present
        if number := int(np.sum(impossible)):
            note = f"{number:,} of {len(correct):,} answers are wrong at confidence 1 or right at 0"
            note = f"{model}: {note}" if len(models) > 1 else note
            others = np.where(impossible, 0, 1 if one.weights is None else one.weights)
            if np.any(others > 0):
                stated, kept = Stated(confidence, correct), jnp.asarray(others, jnp.float32)
                note += ", so NLL is infinite. Without these it is"
                note += f" {float(metrics_package.nll(stated, weights=kept)):.4f}"
            notes.append(f"{note}. By default such an NLL is left out.")
    return notes


def _distinct(class_names: Sequence[str], num_classes: int) -> list[str]:
    """Name every class; append the class number to names that several classes share.

    >>> _distinct(["crane", "dog", "crane"], 3)
    ['crane (0)', 'dog', 'crane (2)']
    """
    if not class_names:
        return [str(k) for k in range(num_classes)]
    if len(class_names) != num_classes:
        raise ValueError(
            f"score: {num_classes} classes need as many class_names, got {len(class_names)}."
        )
    times = collections.Counter(class_names)
    return [f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(class_names)]


def _views(
    several: Metrics,
    models: dict[str, Evaluation],
    class_names: Sequence[str],
    positive: Any,
    of_classes: bool,
) -> tuple[dict[str, View], Event | None]:
    """Return the views of a report, by the text behind the names of their metrics, and the event.

    Args:
      several: the metrics.
      models: the models.
      class_names: the names of the classes; empty for answers.
      positive: the class of two whose probability is the event, by name or number, or None.
      of_classes: whether the columns are classes, the same in every row.
    """
    of_given = {"": View(several, models)}
    predictions = [each.logits for each in models.values()]
    if not of_classes or any(is_stated(each) or each.shape[-1] != 2 for each in predictions):
        if positive is not None:
            raise ValueError(f"score: positive is for two classes: leave out {positive!r}.")
        return of_given, None
    numbers = {"0": 0, "1": 1} | {name: k for k, name in enumerate(class_names)}
    place = 1 if positive is None else numbers.get(str(positive), -1)
    if place < 0:
        raise ValueError(
            f"score: positive must be one of {', '.join(class_names)}, got {positive!r}."
        )
    named = class_names[place]
    event = Event(place, f"class {named}" if named == str(place) else named, {})
    chosen = {label: metric for label, metric in several.items() if metric.name in OF_EVENT}
    of_class = {model: _of_class(each, place) for model, each in models.items()}
    return of_given | {event.of(""): View(chosen, of_class)}, event


def _of_class(one: Evaluation, place: int) -> Evaluation:
    """Read the probability of a class of two as the confidence that this class is true."""
    logits = one.logits.astype(jnp.promote_types(one.logits.dtype, jnp.float32))
    column = jax.nn.softmax(logits)[:, place : place + 1]
    is_true = (one.labels == place).astype(jnp.int32)
    return _evaluation(column, is_true, one.weights, one.clusters)


def _rows_of(given: Mapping[str, View]) -> Iterator[tuple[str, str]]:
    """Yield the metrics of the rows, each with the names of the views that have it.

    The event is the first reading of two classes.
    """
    for label in given[""].metrics:
        yield from ((label, name) for name in reversed([*given]) if label in given[name].metrics)


def _differences(
    given: Mapping[str, View], others: Sequence[str], unsettled: Collection[str], **options: Any
) -> tuple[list[Change], list[Change], list[Row]]:
    """Compare all models with the first, and those of `others` with each other.

    Holm's method adjusts the p-values of a metric for all these comparisons. The interval of a
    difference of ECEs and the test of compare_calibration concern different quantities, so the
    test has rows of its own: the debiased squared errors.

    Args:
      given: the views of the report.
      others: models that are compared with each other.
      unsettled: models without p-values.
      **options: see `inference.compare_metrics`.

    Returns:
      the differences from the first model, those of other pairs, and the squared errors.
    """
    first, *rest = given[""].models
    pairs = [(first, model) for model in rest] + list(itertools.combinations(others, 2))
    found = {
        name: [
            inference.compare_metrics(view.metrics, *(view.models[of] for of in pair), **options)
            for pair in pairs
        ]
        for name, view in given.items()
        if view.metrics
    }
    changes = [
        _change(label + name, pair, differing[label], unsettled)
        for label, name in _rows_of(given)
        for pair, differing in zip(pairs, found[name], strict=True)
    ]
    errors: dict[tuple[str, str], Row] = {}
    for name, view in reversed([*given.items()]):
        tested = {metric.name for metric in view.metrics.values()} & {*inference.BY_SQUARED_ERROR}
        if not pairs or not tested or not all(each.counts for each in view.models.values()):
            continue  # weights must be counts
        label = SQUARED_ERROR + name
        how = {key: options[key] for key in ("num_bins", "level")}
        for pair in pairs:
            compared = inference.compare_calibration(*(view.models[of] for of in pair), **how)
            difference = inference.MetricDifference(*compared[:3], "normal", compared.p_value)
            changes.append(_change(label, pair, difference, unsettled))
            for of, error in zip(pair, compared[4:], strict=True):
                binned = f"{options['num_bins']} bins of equal width, (lo, hi]"
                numbers = max(error.value, 0.0), error.low, error.high
                errors[label, of] = Row(label, of, *numbers, binned, "normal")
    changes = _adjusted(changes, [change.metric for change in changes])
    with_first = [change for change in changes if change.before == first]
    return with_first, [change for change in changes if change.before != first], [*errors.values()]


def _adjusted(records: list[Any], columns: Sequence[Any]) -> list[Any]:
    """Add the p-values that Holm's method adjusts within each column."""
    p_holm = caveats.adjusted(columns, [record.p_value for record in records])
    return [
        dataclasses.replace(record, p_holm=p) for record, p in zip(records, p_holm, strict=True)
    ]


def _change(metric: str, pair: tuple[str, str], found: Any, unsettled: Collection[str]) -> Change:
    value, low, high = map(float, found[:3])
    p_value = None
    is_tested = found.p_value is not None and base_name(metric) not in inference.BY_SQUARED_ERROR
    if is_tested and not set(pair) & set(unsettled):
        p_value = float(found.p_value)
    return Change(metric, *pair, value, low, high, p_value, interval=found.interval)


def _rows(
    given: Mapping[str, View], unsettled: Collection[str], interval: Mapping[str, Any]
) -> list[Row]:
    """Estimate the metrics of all models in all views."""
    found = {
        name: {
            model: inference.estimates(view.metrics, each, **interval)
            for model, each in view.models.items()
        }
        for name, view in given.items()
        if view.metrics
    }
    several = given[""].metrics
    for label, estimate in next(iter(found[""].values())).items():
        if not hasattr(estimate.value, "shape") or estimate.value.shape:
            raise no_row(label)
    listed = []
    for label, name in _rows_of(given):
        for model, by_label in found[name].items():
            estimate = by_label[label]
            value, low, high, kind = caveats.shown(*estimate[:3], estimate.interval)
            tested = estimate.floor, None if model in unsettled else estimate.p_value
            described = convention_of(several[label]), kind
            listed.append(Row(label + name, model, value, low, high, *described, *tested))
    return listed


def _classes(
    models: Mapping[str, Evaluation],
    class_names: Sequence[str],
    unsettled: Collection[str],
    interval: Mapping[str, Any],
    num_bins: int,
) -> list[Part]:
    """Estimate recall, precision and calibration error of every class."""
    several = chosen_metrics(PER_CLASS, num_bins)
    parts = []
    for model, one in models.items():
        estimates = inference.estimates(several, one, **interval)
        tests = []
        if interval["method"] == "valid" and one.counts:
            num_rows, num_classes = one.logits.shape
            draws = max(interval["num_resamples"], min(20 * num_classes, 2 * 10**8 // num_rows))
            how = {"key": interval["key"], "num_bins": num_bins, "num_resamples": draws}
            tests = inference.class_errors(one, **how)
        for k, class_name in enumerate(class_names):
            rows = one.present & (np.asarray(one.labels) == k)
            sizes = int(rows.sum()), num_clusters_of(one, rows)
            for name, estimate in estimates.items():
                value, low, high = (end[k] for end in estimate[:3])
                numbers = caveats.shown(value, low, high, estimate.interval)[:3]
                tested: tuple[float | None, ...] = (None, None, None)
                if tests and name == "per_class_ece":
                    # Resampling adds noise, so no bootstrap interval of this error is valid.
                    numbers, tested = (numbers[0], np.nan, np.nan), tests[k][-3:]
                    tested = tested if model not in unsettled else (tested[0], None, None)
                parts.append(Part(class_name, sizes[0], name, model, *numbers, sizes[1], *tested))
    return parts


def _group_columns(groups: Any, labels: Any) -> dict[str, np.ndarray]:
    """Return the columns of groups by name; a single column is unnamed."""
    several = isinstance(groups, Mapping) or hasattr(groups, "columns")  # or a table of pandas
    found = {}
    for name, column in groups.items() if several else [("", groups)] * (groups is not None):
        values = np.asarray(as_array(column))
        if values.shape != labels.shape or values.dtype.kind == "V":
            raise (TypeError if values.dtype.kind == "V" else ValueError)(
                f"score: {name or 'groups'} must have shape {labels.shape}, one number or text for"
                f" each example, got {values.shape} of {values.dtype}."
            )
        if values.dtype.kind not in "biufU" or (not name and values.dtype.kind == "f"):
            values = np.array([*map(str, values.tolist()), None], object)[:-1]
        found[name] = values
    return found


def _groups_of(by_column: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the mask of every group; columns of floats have none."""
    for name, column in by_column.items():
        values = [] if column.dtype.kind == "f" else sorted({*column.tolist()})
        for value in values:
            yield f"{name}={value}" if name else str(value), column == value


def _groups(
    several: Metrics,
    models: Mapping[str, Evaluation],
    by_column: Mapping[str, np.ndarray],
    unsettled: Collection[str],
    interval: Mapping[str, Any],
) -> list[Part]:
    """Estimate the metrics in every group."""
    parts = []
    for group, mask in _groups_of(by_column):
        for model, one in models.items():
            count = int(np.sum(one.present & mask))
            if not count:
                continue
            part = one.part(np.flatnonzero(mask))
            num_clusters = num_clusters_of(part)
            for name, estimate in inference.estimates(several, part, **interval).items():
                numbers = caveats.shown(*estimate[:3], estimate.interval)[:3]
                tested = (num_clusters, estimate.floor, estimate.p_value)
                parts.append(Part(group, count, name, model, *numbers, *tested))
    parts = _adjusted(parts, [(part.metric, part.predictions) for part in parts])
    none: dict[str, Any] = {"p_value": None, "p_holm": None}
    return [
        dataclasses.replace(part, **none) if part.predictions in unsettled else part
        for part in parts
    ]


def _ordinal(
    models: Mapping[str, Evaluation],
    ordinal: np.ndarray,
    unsettled: Collection[str],
    interval: Mapping[str, Any],
) -> list[Part]:
    """Estimate the ranked probability score of the rows whose options have an order."""
    rows, parts = np.flatnonzero(ordinal), {}
    for model, one in models.items():
        logits = np.asarray(one.logits)[rows]
        most = int(np.max(np.sum(logits > -np.inf, axis=1)))  # of K in 1 / (K - 1)
        rest = (
            None if each is None else np.asarray(each)[rows]
            for each in (one.labels, one.weights, one.clusters)
        )
        parts[model] = _evaluation(logits[:, :most], *rest)
    several = {"ranked_probability_score": metrics_package.named("ranked_probability_score")}
    return _groups(several, parts, {"ordinal": np.full(len(rows), "yes")}, unsettled, interval)


def _on_few_examples(
    shown: Sequence[str], models: Mapping[str, Evaluation], class_names: Sequence[str]
) -> list[str]:
    """Warn of metrics with a bootstrap interval that depend on very few examples."""
    one = next(iter(models.values()))
    counts = np.bincount(np.asarray(one.labels)[one.present], minlength=len(class_names))
    # A metric leaves out classes without examples.
    of_classes = {f"class {k}": int(n) for k, n in zip(class_names, counts, strict=False) if n}
    of_hits: dict[str, int] = {}
    for model, each in models.items():
        logits, labels = np.asarray(each.logits), np.asarray(each.labels)
        predicted = np.ones_like(labels) if is_stated(logits) else np.argmax(logits, axis=-1)
        hit = np.equal(predicted, labels)[each.present]
        of_hits[f"wrong predictions of {model}"] = int(np.sum(~hit))
        of_hits[f"right predictions of {model}"] = int(np.sum(hit))
    return [
        *caveats.few_examples(of_classes, [name for name in shown if name in caveats.BY_CLASS]),
        *caveats.few_examples(of_hits, [name for name in shown if name in caveats.BY_CORRECTNESS]),
    ]


def num_clusters_of(one: Evaluation, rows: np.ndarray | None = None) -> int | None:
    """Count the clusters of the present rows, or of some of them; return None without clusters."""
    if one.clusters is None:
        return None
    return len(np.unique(one.clusters[one.present if rows is None else rows]))


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a report."""
    found = {}
    for name in ("calib_jax", "jax", "jaxlib", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a checkout on the path
            found[name] = "not installed"
    return found
