"""The tables of a report, computed from its models: rows, differences, classes and groups."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import inference
from calib_jax.core.arrays import as_array
from calib_jax.core.types import Labels
from calib_jax.core.values import is_stated
from calib_jax.inference import Evaluation
from calib_jax.report import caveats
from calib_jax.report.caveats import SQUARED_ERROR
from calib_jax.report.chosen_metrics import (
    OF_EVENT,
    PER_CLASS,
    Metrics,
    chosen_metrics,
    convention_of,
    no_row,
)
from calib_jax.report.records import Change, Event, Part, Row, base_name

_Tested = TypeVar("_Tested", Row, Part)


class View(NamedTuple):
    """A reading of the predictions, with its metrics: as given, or as an event of two classes."""

    metrics: Metrics
    models: dict[str, Evaluation]


def views(
    several: Metrics, models: dict[str, Evaluation], class_names: Sequence[str], positive: Any
) -> tuple[dict[str, View], Event | None]:
    """Return the views of a report, by the text behind the names of their metrics, and the event.

    Args:
      several: the metrics.
      models: the models.
      class_names: the names of the classes; empty for answers.
      positive: the class of two whose probability is the event, by name or number, or None.
    """
    of_given = {"": View(several, models)}
    predictions = [each.logits for each in models.values()]
    if any(is_stated(each) or each.shape[-1] != 2 for each in predictions):
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


def _of_class(evaluation: Evaluation, place: int) -> Evaluation:
    """Read the probability of a class of two as the confidence that this class is true."""
    logits = evaluation.logits
    wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    column = jax.nn.softmax(wide)[:, place : place + 1]
    is_true = (evaluation.labels == place).astype(jnp.int32)
    rest = evaluation.weights, evaluation.clusters
    return Evaluation(column, is_true, rest[0], clusters=rest[1], name="score")


def differences(
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
        if not pairs or not _is_tested(view):
            continue
        label = SQUARED_ERROR + name
        how = {key: options[key] for key in ("num_bins", "level")}
        for pair in pairs:
            compared = inference.compare_calibration(*(view.models[of] for of in pair), **how)
            tested = inference.MetricDifference(*compared[:3], "normal", compared.p_value)
            changes.append(_change(label, pair, tested, unsettled))
            for of, error in zip(pair, compared[4:], strict=True):
                binned = f"{options['num_bins']} bins of equal width, (lo, hi]"
                numbers = max(error.value, 0.0), error.low, error.high
                errors[label, of] = Row(label, of, *numbers, binned, "normal")
    metrics = [change.metric for change in changes]
    p_holm = caveats.adjusted(metrics, [change.p_value for change in changes])
    changes = [
        dataclasses.replace(change, p_holm=p) for change, p in zip(changes, p_holm, strict=True)
    ]
    with_first = [change for change in changes if change.before == first]
    return with_first, [change for change in changes if change.before != first], [*errors.values()]


def _is_tested(view: View) -> bool:
    """Check whether the squared error belongs to the metrics of a view: weights must be counts."""
    metrics = {metric.name for metric in view.metrics.values()}
    return bool(metrics & {*inference.BY_SQUARED_ERROR}) and all(
        each.counts for each in view.models.values()
    )


def _change(metric: str, pair: tuple[str, str], found: Any, unsettled: Collection[str]) -> Change:
    value, low, high = map(float, found[:3])
    p_value = None
    is_tested = found.p_value is not None and base_name(metric) not in inference.BY_SQUARED_ERROR
    if is_tested and not set(pair) & set(unsettled):
        p_value = float(found.p_value)
    return Change(metric, *pair, value, low, high, p_value, interval=found.interval)


def _rows_of(given: Mapping[str, View]) -> Iterator[tuple[str, str]]:
    """Yield the metrics of the rows, each with the names of the views that have it.

    The event is the first reading of two classes.
    """
    for label in given[""].metrics:
        yield from ((label, name) for name in reversed([*given]) if label in given[name].metrics)


def rows(
    given: Mapping[str, View], unsettled: Collection[str], interval: Mapping[str, Any]
) -> list[Row]:
    """Estimate the metrics of all models in all views."""
    found = {
        name: {
            model: inference.estimates(view.metrics, evaluation, **interval)
            for model, evaluation in view.models.items()
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
            tested = estimate.floor, estimate.p_value
            described = convention_of(several[label]), kind
            listed.append(Row(label + name, model, value, low, high, *described, *tested))
    return _untested(listed, unsettled)


def _untested(rows: Sequence[_Tested], models: Collection[str]) -> list[_Tested]:
    """Remove the p-values of these models, whose calibrators did not converge."""
    tests = [name for name in ("p_value", "p_holm") if rows and hasattr(rows[0], name)]
    none: dict[str, Any] = dict.fromkeys(tests)
    return [dataclasses.replace(row, **none) if row.predictions in models else row for row in rows]


def classes(
    models: Mapping[str, Evaluation],
    class_names: Sequence[str],
    unsettled: Collection[str],
    interval: Mapping[str, Any],
    num_bins: int,
) -> list[Part]:
    """Estimate recall, precision and calibration error of every class."""
    several = chosen_metrics(PER_CLASS, num_bins)
    parts = []
    for model, evaluation in models.items():
        estimates = inference.estimates(several, evaluation, **interval)
        tests = _class_tests(evaluation, num_bins, interval)
        for k, class_name in enumerate(class_names):
            rows = evaluation.present & (np.asarray(evaluation.labels) == k)
            count, num_clusters = int(rows.sum()), num_clusters_of(evaluation, rows)
            for name, estimate in estimates.items():
                value, low, high = (end[k] for end in estimate[:3])
                numbers = caveats.shown(value, low, high, estimate.interval)[:3]
                tested: tuple[float | None, ...] = (None, None, None)
                if tests and name == "per_class_ece":
                    # Resampling adds noise, so no bootstrap interval of this error is valid.
                    numbers, tested = (numbers[0], np.nan, np.nan), tests[k][-3:]
                parts.append(Part(class_name, count, name, model, *numbers, num_clusters, *tested))
    return _untested(parts, unsettled)


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


def group_columns(groups: Any, labels: Labels) -> dict[str, np.ndarray]:
    """Return the columns of groups by name; a single column is unnamed."""
    if groups is None:
        return {}
    found = {}
    several = isinstance(groups, Mapping) or hasattr(groups, "columns")  # or a table of pandas
    for name, column in groups.items() if several else [("", groups)]:
        values = np.asarray(as_array(column))
        if values.shape != labels.shape:
            raise ValueError(
                f"score: {name or 'groups'} must have shape {labels.shape}, one for each example,"
                f" got {values.shape}."
            )
        if values.dtype.kind == "V":
            raise TypeError(
                f"score: {f'groups {name}'.strip()} must be numbers or text, got {values.dtype}:"
                " give a mapping with one array for each column."
            )
        single = not name and values.dtype.kind not in "biu"
        found[name] = values.astype(str) if single or values.dtype == object else values
    return found


def _groups_of(by_column: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the mask of every group; columns of floats have none."""
    for name, column in by_column.items():
        for value in [] if column.dtype.kind == "f" else np.unique(column):
            yield f"{name}={value}" if name else str(value), column == value


def groups(
    several: Metrics,
    models: Mapping[str, Evaluation],
    by_column: Mapping[str, np.ndarray],
    unsettled: Collection[str],
    interval: Mapping[str, Any],
) -> list[Part]:
    """Estimate the metrics in every group."""
    parts = []
    for group, mask in _groups_of(by_column):
        for model, evaluation in models.items():
            count = int(np.sum(evaluation.present & mask))
            if not count:
                continue
            part = evaluation.part(np.flatnonzero(mask))
            num_clusters = num_clusters_of(part)
            for name, estimate in inference.estimates(several, part, **interval).items():
                numbers = caveats.shown(*estimate[:3], estimate.interval)[:3]
                tested = (num_clusters, estimate.floor, estimate.p_value)
                parts.append(Part(group, count, name, model, *numbers, *tested))
    columns = [(part.metric, part.predictions) for part in parts]
    p_holm = caveats.adjusted(columns, [part.p_value for part in parts])
    parts = [dataclasses.replace(part, p_holm=p) for part, p in zip(parts, p_holm, strict=True)]
    return _untested(parts, unsettled)


def on_few_examples(
    shown: Sequence[str],
    models: Mapping[str, Evaluation],
    by_column: Mapping[str, np.ndarray],
    class_names: Sequence[str],
) -> list[str]:
    """Warn of metrics with a bootstrap interval that depend on very few examples, in groups too."""
    first = next(iter(models.values()))
    true = np.asarray(first.labels)
    subsets = {"": first.present}
    subsets |= {f" in group {name}": first.present & mask for name, mask in _groups_of(by_column)}
    hits = {model: _hits(each) for model, each in models.items()}
    of_classes: dict[str, int] = {}
    of_hits: dict[str, int] = {}
    for where, rows in subsets.items():
        counts = np.bincount(true[rows], minlength=len(class_names))[: len(class_names)]
        names = (f"class {name}{where}" for name in class_names)
        # A metric leaves out classes without examples.
        of_classes |= {name: n for name, n in zip(names, counts.tolist(), strict=True) if n}
        for model, hit in hits.items() if np.any(rows) else ():
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


def num_clusters_of(evaluation: Evaluation, rows: np.ndarray | None = None) -> int | None:
    """Count the clusters of the present rows, or of some of them; return None without clusters."""
    if evaluation.clusters is None:
        return None
    return len(np.unique(evaluation.clusters[evaluation.present if rows is None else rows]))
