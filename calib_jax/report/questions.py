"""Further questions of a report: ranks, thresholds, transfer, numbers of rows, other losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax import inference, metrics
from calib_jax.core.values import is_stated
from calib_jax.inference import Evaluation
from calib_jax.metrics import Stated
from calib_jax.report.records import Event, Table

# Losses of the table "trained with another loss", from underconfident to overconfident networks.
_LOSSES = (
    *("cross_entropy", "focal", "inverse_focal", "flsd53", "dual_focal", "bsce_gra", "brier"),
    "label_smoothing",
)
_LEAST_ROWS = 200  # of a pilot, and of two sets whose temperatures are compared
_MOST_TIMES = 64  # how many times more rows are tried where no threshold holds


def threshold_request(text: str) -> tuple[str, float]:
    """Parse accuracy:0.95, error:0.05 or precision:0.9; return the kind and the largest error.

    >>> threshold_request("accuracy:0.9")[0], round(threshold_request("precision:0.9")[1], 6)
    ('accuracy', 0.1)
    """
    kind, _, number = text.partition(":")
    try:
        share = float(number)
    except ValueError:
        share = math.nan
    if kind not in ("accuracy", "error", "precision") or not 0 < share < 1:
        raise ValueError(
            f"threshold_for must be like accuracy:0.95, error:0.05 or precision:0.9, got {text!r}."
        )
    return kind, share if kind == "error" else 1 - share


def thresholds(
    models: Mapping[str, Evaluation], groups: Mapping[str, np.ndarray], request: str, level: float
) -> Table:
    """Find the threshold above which the error rate is guaranteed, of each model and group.

    Args:
      models: the predictions whose confidences were not fitted on these examples.
      groups: the examples of each group.
      request: see `threshold_request`.
      level: the probability of the guarantee.
    """
    _, risk = threshold_request(request)
    rows = [["threshold for", "predictions", "answer above", "answered", "wrong among these"]]
    for part, mask in {"all": None, **groups}.items():
        for model, whole in models.items():
            if mask is not None and not np.any(whole.present & mask):
                continue
            one = whole if mask is None else whole.part(np.flatnonzero(mask))
            found = inference.guaranteed_coverage(one, risk=risk, level=level)
            cells = ["none", "0.0 %", more_rows(one, risk, level)]
            if not math.isnan(found.threshold):
                cells = [f"{found.threshold:.4f}", f"{100 * found.coverage:.1f} %"]
                cells.append(f"{100 * found.risk:.1f} %")
            rows.append([part, model, *cells])
    return Table(
        f"Threshold for {request}",
        rows,
        f"With a probability of {100 * level:g} %, at most {100 * risk:g} % of further predictions"
        " with a confidence strictly above the threshold are wrong"
        " (inference.guaranteed_coverage); of each line alone.",
    )


def more_rows(one: Evaluation, risk: float, level: float) -> str:
    """Compute how many more examples like these would give a threshold."""
    if one.cluster is None:
        arrays = [np.asarray(each) for each in one.copies[:2]]
        times = 2
        while times <= _MOST_TIMES and len(arrays[1]) * times <= 10**6:
            logits, labels = (np.concatenate([each] * times) for each in arrays)
            found = inference.guaranteed_coverage(
                *((Stated(logits[:, 0], labels), None) if is_stated(logits) else (logits, labels)),
                risk=risk,
                level=level,
            )
            if not math.isnan(found.threshold):
                return f"{(times - 1) * len(arrays[1]):,} more rows like these would be needed"
            times *= 2
    return "no threshold holds, also with many more rows"


def ranks(models: Mapping[str, Evaluation], level: float) -> Table:
    """Order three models or more by the NLL, with ties, and the two parts of the NLL."""
    score, given = "nll", dict(models)
    try:
        found = inference.ranks(given, score=score, level=level)
    except ValueError:  # an infinite NLL
        score = "brier"
        found = inference.ranks(given, score=score, level=level)
    parts = {}
    if score == "nll" and not is_stated(next(iter(models.values())).logits):
        both = {name: metrics.named(name) for name in ("calibration_nll", "refinement_nll")}
        parts = {model: each.values(both) for model, each in models.items()}
    rows = [
        ["rank", "model", score, *(("calibration", "refinement") if parts else ()), "tied with"]
    ]
    for each in found:
        span = (
            f"{each.best_rank}"
            if each.best_rank == each.worst_rank
            else (f"{each.best_rank} to {each.worst_rank}")
        )
        cells = [f"{each.mean:.4f} [{each.low:.4f}, {each.high:.4f}]"]
        cells += [f"{float(value):.4f}" for value in parts.get(each.name, {}).values()]
        rows.append([span, each.name, *cells, ", ".join(each.tied_with)])
    return Table(
        "Ranks",
        rows,
        f"Best first, by the {score}. Tied: the paired tests of all pairs, after Holm's correction,"
        " do not tell the two apart at 5 %.",
    )


def rows_needed(models: Mapping[str, Evaluation]) -> Table | None:
    """Compute the numbers of examples that detect an ECE or a difference, or fit a temperature."""
    first, *others = models.values()
    if not first.counts or first.cluster is not None or first.present.sum() < _LEAST_ROWS:
        return None
    finite = bool(np.isfinite(np.asarray(first.logits)).all())
    how: dict[str, Any] = {
        "other": others[0] if others else None,
        "temperature": 0.05 if finite else None,
    }
    needed = inference.rows_needed(first, **how)
    asked = {
        "detect an ECE of 2 points": needed.ece,
        "tell error rates 1 point apart": needed.error_difference,
        "tell ECEs 2 points apart": needed.ece_difference,
        "fit a temperature within 5 %": needed.temperature,
    }
    found = [f"{number:,} to {what}" for what, number in asked.items() if number is not None]
    return Table("Examples needed", [], f"{', '.join(found)} (power 80 %, by these examples).")


def transfer(model: str, test: Evaluation, logits: Any, labels: Any) -> Table | None:
    """Compare the temperature of the fitted examples with that of the scored ones.

    Args:
      model: the name of the model.
      test: the scored examples.
      logits: the logits of the fitted examples.
      labels: their labels.
    """
    sets = [np.asarray(each, np.float64) for each in (logits, test.copies.logits)]
    if min(map(len, sets)) < _LEAST_ROWS or not all(np.isfinite(each).all() for each in sets):
        return None
    try:
        fitted, own = (
            inference.predict_loss(rows, np.asarray(y), "cross_entropy").cross_entropy
            for rows, y in zip(sets, (labels, test.copies.labels), strict=True)
        )
    except ValueError:  # no optimum
        return None
    after = float(metrics.nll(jnp.asarray(sets[1] / fitted.value, jnp.float32), test.copies.labels))
    best = float(test.values(metrics.named("refinement_nll"))["refinement_nll"])
    gap = math.log(fitted.value / own.value)
    noise = math.hypot(fitted.deviation / fitted.value, own.deviation / own.value)
    verdict = "the two sets differ" if abs(gap) > 1.96 * noise else "no sign that the sets differ"
    numbers = [f"{each.value:.3f} [{each.low:.3f}, {each.high:.3f}]" for each in (fitted, own)]
    return Table(
        "Does the temperature transfer?",
        [
            ["model", "T of the fitted set", "T of the scored set", "NLL after T", "best NLL"],
            [model, *numbers, f"{after:.4f}", f"{best:.4f}"],
        ],
        f"The fitted temperature costs {after - best:.3f} nats here: {verdict}.",
    )


def predicted_losses(model: str, one: Evaluation) -> Table:
    """Predict T, gap and root-CE2 of the network if it were trained with other losses."""
    rows = [["trained with", "T", "stated - right", "root CE2"]]
    for loss in _LOSSES:
        found = inference.predict_loss(one.copies.logits, one.copies.labels, loss)
        t, gap, root = found.temperature, found.gap, found.root_ce2
        rows.append(
            [
                loss,
                f"{t.value:.2f} [{t.low:.2f}, {t.high:.2f}]",
                f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}] points",
                f"{100 * root[0]:.1f} [{100 * root[1]:.1f}, {100 * root[2]:.1f}] points",
            ]
        )
    note = (
        f"If {model} was trained with cross-entropy, and over-fits as much with the other loss"
        " (inference.predict_loss)."
    )
    return Table("Trained with another loss", rows, note)


def tables(
    models: Mapping[str, Evaluation],
    every: Mapping[str, Evaluation],
    fits: Mapping[str, Any],
    *,
    event: Event | None,
    of_event: Mapping[str, Evaluation],
    evidence: Mapping[str, tuple[Any, Any]],
    groups: Mapping[str, np.ndarray],
    threshold_for: str | None,
    predict_losses: bool,
    level: float,
) -> list[Table]:
    """Answer the questions that were asked, and those that the models allow.

    Args:
      models: the models before calibration.
      every: the models and their columns after calibration.
      fits: the fit of each column after calibration.
      event: the event of two classes.
      of_event: the probabilities of the event, by the names of `every`.
      evidence: logits and labels of the fitted examples of each model.
      groups: the examples of each group.
      threshold_for: see `threshold_request`; None is not asked.
      predict_losses: whether the predictions of other losses are asked.
      level: the level of the intervals.
    """
    found: list[Table | None] = []
    if threshold_for is not None:
        precise = threshold_request(threshold_for)[0] == "precision"
        if precise and event is None:
            raise ValueError("threshold_for=precision is of an event: it needs two classes.")
        chosen = of_event if precise else every
        replaced = {fit["predictions"] for name, fit in fits.items() if fit["predictions"] != name}
        chosen = {name: each for name, each in chosen.items() if name not in replaced}
        found.append(thresholds(chosen, groups, threshold_for, level))
    if len(models) > 2 and next(iter(models.values())).counts:
        found.append(ranks(models, level))
    found += [
        transfer(model, models[model], *given)
        for model, given in evidence.items()
        if models[model].counts
    ]
    if predict_losses:
        found += [predicted_losses(model, each) for model, each in models.items()]
    found.append(rows_needed(models))
    return [table for table in found if table is not None]
