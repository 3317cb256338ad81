"""The models of a report: predictions or answers, validated, and calibrated where asked."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import calib_jax.metrics as metrics_package
from calib_jax import calibrators
from calib_jax.core import values
from calib_jax.core.arrays import as_array
from calib_jax.core.values import refuse_labels
from calib_jax.inference import Evaluation
from calib_jax.metrics import Stated
from calib_jax.report import calibration
from calib_jax.report.predictions import as_logits, notes_on
from calib_jax.report.records import GIVEN

_ANSWERS = (Stated, calibrators.Scored)


class Models(NamedTuple):
    """The models of a report.

    Attributes:
      evaluations: each model by name, followed by its columns after calibration. The others are
        compared with the first.
      others: the names of the models that `compare` gives.
      fits: the description of the fit of each column after calibration.
      class_names: a name for each class; empty for answers.
      notes: changes made to the predictions, and warnings, as sentences.
      infinite_nll: whether the NLL of answers is infinite.
      headlines: what a reader has to see before any number, as sentences.
    """

    evaluations: dict[str, Evaluation]
    others: list[str]
    fits: dict[str, dict[str, Any]]
    class_names: list[str]
    notes: list[str]
    infinite_nll: bool = False
    headlines: Sequence[str] = ()


class Calibration(NamedTuple):
    """How the models are calibrated: arguments of `score`, with the held-out examples by model."""

    calibrate: str | None
    fit_on: Mapping[str, Any] | None
    cross_fit: int | None
    criterion: str | Sequence[str]
    seed: int


def are_answers(models: Mapping[str, Any], labels: Any) -> bool:
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


def of_answers(models: Mapping[str, Any], weights: Any, clusters: Any, how: Calibration) -> Models:
    """Validate answers, turn scores into confidences, and calibrate confidences."""
    weights = as_array(weights)
    _check_weights(weights)
    batch = np.shape(next(iter(models.values())).correct)
    ids = None if clusters is None else values.cluster_ids(clusters, batch)
    answers = {model: _flat_answers(model, each) for model, each in models.items()}
    weights = None if weights is None else jnp.asarray(weights).reshape(-1)
    held_out = {model: _answers_held_out(each) for model, each in (how.fit_on or {}).items()}
    notes: list[str] = []
    if isinstance(next(iter(answers.values())), calibrators.Scored):
        _check_calibrator_of_scores(answers, how)
        notes = _on_folds(answers, weights) if how.cross_fit else []
        called = {GIVEN: str(how.calibrate)}  # a score has no column before its calibrator
        answers, held_out = (
            {called.get(model, model): each for model, each in of.items()}
            for of in (answers, held_out)
        )
        # The column of a model after its calibrator replaces the model.
        columns = {model: {model: calibration.EXACT} for model in answers}
    else:
        columns = _columns(list(answers), how)
    shared = [
        calibration.on_shared((answers[model], None, weights), held_out[model], "answer")
        for model in columns
        if model in held_out
    ]
    predictions, fits = _calibrated(answers, None, weights, ids, columns, held_out, how)
    certain = _on_certain({model: predictions[model] for model in answers}, weights)
    evaluations, on_weights = _evaluated(predictions, None, weights, ids)
    notes = certain + notes + on_weights
    headlines = [line for line in shared if line]
    return Models(evaluations, list(answers)[1:], fits, [], notes, bool(certain), headlines)


def of_classes(
    models: Mapping[str, Any],
    labels: Any,
    weights: Any,
    clusters: Any,
    class_names: Sequence[str] | None,
    how: Calibration,
    **understood: Any,
) -> Models:
    """Validate predictions of classes, and calibrate them.

    Args:
      models: the predictions by model, as given.
      labels: see `score`, as `weights`, `clusters` and `class_names`.
      how: how the predictions are calibrated.
      **understood: how predictions are read, see `as_logits`.
    """
    first, *others = models
    given = {model: as_array(each) for model, each in models.items()}
    labels, weights = as_array(labels), as_array(weights)
    _check_weights(weights)
    ids = None if clusters is None else values.cluster_ids(clusters, np.shape(labels))
    logits = as_logits(given[first], weights=weights, **understood)
    logits, labels, weights = values.flat_rows("score", logits, labels, weights)
    _check_labels(np.asarray(labels), weights, logits.shape[-1])
    called = _distinct(class_names, logits.shape[-1])
    columns = _columns(list(models), how)
    notes = notes_on(given[first], logits, labels, weights, **understood)
    read = {first: logits}
    for model in others:
        other = as_logits(given[model], weights=weights, **understood)
        read[model], *_ = values.flat_rows("score", other, labels, weights)
        num_classes = read[model].shape[-1]
        _check_classes(model, num_classes, np.asarray(labels), weights)
        if num_classes != logits.shape[-1]:
            notes.append(
                f"{model} has {num_classes} classes, and {first} has {logits.shape[-1]}: values of"
                " each class, and averages over classes, are not comparable."
            )
        of_other = notes_on(given[model], read[model], labels, weights, **understood)
        notes += [f"{model}: {note}" for note in of_other]
    held_out, shared = {}, []
    for model, examples in (how.fit_on or {}).items():
        rows, *rest = map(as_array, examples)
        held_out[model] = calibration.held_out(
            rows, *rest, num_classes=read[model].shape[-1], **understood
        )
        fitted_on = (rows, *held_out[model][1:])
        shared.append(calibration.on_shared((given[model], labels, weights), fitted_on))
    predictions, fits = _calibrated(read, labels, weights, ids, columns, held_out, how)
    evaluations, on_weights = _evaluated(predictions, labels, weights, ids)
    headlines = [line for line in shared if line]
    return Models(evaluations, others, fits, called, notes + on_weights, headlines=headlines)


def _check_calibrator_of_scores(models: Mapping[str, Any], how: Calibration) -> None:
    """Raise an error if the score of some model has no calibrator."""
    if how.calibrate is None:
        raise ValueError(
            "score: a score is no probability: give calibrate, such as isotonic or platt, with"
            " cross_fit=5 or fit_on."
        )
    if missing := [model for model in models if how.fit_on and model not in how.fit_on]:
        raise ValueError(f"score: fit_on is missing for {', '.join(missing)}: give one per model.")


def _columns(models: Sequence[str], how: Calibration) -> dict[str, dict[str, str]]:
    """Name the columns of each model that is calibrated, with the criterion of each column."""
    if how.calibrate is None:
        return {}
    criteria = calibration.columns(how.calibrate, how.criterion)
    calibrated = list(models if how.fit_on is None else how.fit_on)
    if strange := [model for model in calibrated if model not in models]:
        raise ValueError(
            f"score: fit_on has {', '.join(map(repr, strange))}, and the predictions are called"
            f" {', '.join(map(repr, models))}: use these names."
        )
    alone = calibrated == [models[0]]
    columns = {
        model: {f"{name}{'' if alone else f' of {model}'}": by for name, by in criteria.items()}
        for model in calibrated
    }
    check_distinct([*models, *(column for each in columns.values() for column in each)])
    return columns


def check_distinct(names: Sequence[str]) -> None:
    """Raise an error if two columns of the report would have one name."""
    if len(set(names)) < len(names):
        raise ValueError(
            f"name, compare_name and calibrate must differ, got {', '.join(map(repr, names))}."
        )


def _calibrated(
    models: Mapping[str, Any],
    labels: Any,
    weights: Any,
    clusters: Any,
    columns: Mapping[str, Mapping[str, str]],
    held_out: Mapping[str, calibration.Evidence],
    how: Calibration,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Put the calibrated columns of each model after the model; return these and their fits."""
    predictions, fits = {}, {}
    for model, given in models.items():
        predictions[model] = given
        for column, criterion in columns.get(model, {}).items():
            fitted_on = held_out.get(model), how.cross_fit, criterion, how.seed, clusters
            predictions[column], fit = calibration.calibrated(
                str(how.calibrate), given, labels, weights, *fitted_on
            )
            fits[column] = fit | {"predictions": model}
    return predictions, fits


def _evaluated(
    predictions: Mapping[str, Any], labels: Any, weights: Any, clusters: Any
) -> tuple[dict[str, Evaluation], list[str]]:
    """Evaluate all predictions; return a note, too, on weights that count as copies."""
    evaluations = {
        model: Evaluation(each, labels, weights, clusters=clusters, name="score")
        for model, each in predictions.items()
    }
    if weights is None or not next(iter(evaluations.values())).counts or np.max(weights) <= 1:
        return evaluations, []
    return evaluations, [
        "Some weights are larger than 1. Noise bounds take them for copies; percentile"
        " intervals draw whole examples with their weights, and are wider. If they are copies,"
        " repeat the examples."
    ]


def _flat_answers(name: str, answers: Any) -> Any:
    """Validate answers, and store them along one axis."""
    values, correct = answers.columns(f"score: {name}")
    return type(answers)(values.reshape(-1), correct.reshape(-1))


def _answers_held_out(examples: Any) -> calibration.Evidence:
    """Return held-out answers, None for the labels, which answers hold, and weights."""
    answers, *rest = examples if isinstance(examples, tuple | list) else (examples,)
    if not isinstance(answers, _ANSWERS) or (rest and rest[0] is not None):
        raise TypeError(
            "score: fit_on must be answers, too, a Stated or a Scored; with weights it is (answers,"
            " None, weights)."
        )
    weights = as_array(rest[1]) if len(rest) > 1 else None
    return _flat_answers("fit_on", answers), None, weights


def _on_certain(models: Mapping[str, Stated], weights: Any) -> list[str]:
    """Report answers that are wrong at confidence 1, or right at 0: their NLL is infinite."""
    notes = []
    for model, stated in models.items():
        confidence, correct = np.asarray(stated.confidence), np.asarray(stated.correct)
        weight = np.ones(correct.shape) if weights is None else np.asarray(weights)
        impossible = np.where(correct == 1, confidence, 1 - confidence) == 0
        impossible &= weight > 0
        if number := int(np.sum(impossible)):
            note = "" if len(models) == 1 else f"{model}: "
            note += f"{number:,} of {len(correct):,} answers are wrong at confidence 1 or right"
            note += " at 0, so NLL is infinite."
            others = np.where(impossible, 0, weight)
            if np.any(others > 0):
                without = metrics_package.nll(stated, weights=jnp.asarray(others, jnp.float32))
                note += f" Without these answers it is {float(without):.4f}."
            notes.append(f"{note} By default such an NLL is left out.")
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


def _check_classes(name: str, num_classes: int, labels: np.ndarray, weights: Any) -> None:
    """Raise an error for other predictions without the class of some label."""
    present = labels if weights is None else labels[np.asarray(weights) > 0]
    if num_classes <= (largest := int(np.max(present, initial=0))):
        raise ValueError(
            f"score: {name} has {num_classes} classes, and there is the label"
            f" {largest}: compare predictions of the same classes."
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
