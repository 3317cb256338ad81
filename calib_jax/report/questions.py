"""Further questions of a report: ranks, thresholds, transfer, numbers of rows, other losses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from calib_jax import inference, metrics
from calib_jax.core.values import is_stated
from calib_jax.inference import Evaluation
from calib_jax.metrics import Stated
from calib_jax.report.columns import number
from calib_jax.report.render import Table

if TYPE_CHECKING:
    from calib_jax.report.score import Scoring

# Losses of the table "trained with another loss", from underconfident to overconfident networks.
_LOSSES = (
    *("cross_entropy", "focal", "inverse_focal", "flsd53", "dual_focal", "bsce_gra", "brier"),
    "label_smoothing",
)
# A group, a model, and the examples of the group.
OfGroup: TypeAlias = tuple[str, str, Evaluation]
_LEAST_ROWS = 200  # of a pilot, and of two sets whose temperatures are compared
_TIMES = (2, 4, 8, 16, 32, 64)  # as many rows are tried where no threshold holds


def of_groups(models: Mapping[str, Evaluation], masks: Mapping[str, Any]) -> Iterator[OfGroup]:
    """Yield each group, each model, and the examples of the group, if there are any."""
    for group, mask in masks.items():
        for model, one in models.items():
            if np.any(one.present & mask):
                yield group, model, one.part(np.flatnonzero(mask))


def threshold_request(text: str) -> tuple[str, float]:
    """Parse accuracy:0.95, error:5% or precision:0.9; return the kind and the largest error.

    >>> threshold_request("accuracy:0.9")[0], round(threshold_request("precision:0.9")[1], 6)
    ('accuracy', 0.1)
    """
    kind, _, share_text = text.partition(":")
    share = number(share_text)
    if kind not in ("accuracy", "error", "precision") or not 0 < share < 1:
        raise ValueError(f"threshold_for must be like accuracy:0.95 or error:0.05, got {text!r}.")
    return kind, share if kind == "error" else 1 - share


def thresholds(scoring: Scoring, request: str) -> Table:
    """Find the threshold above which the error rate is guaranteed, of each model and group."""
    kind, risk = threshold_request(request)
    level = scoring.interval["level"]
    models = scoring.of_event if kind == "precision" else scoring.models
    if not models:
        raise ValueError("threshold_for=precision is of an event: it needs two classes.")
    replaced = {fit["predictions"] for fit in scoring.fits.values()} - scoring.fits.keys()
    rows = [["threshold for", "predictions", "answer above", "answered", "wrong among these"]]
    models = {model: one for model, one in models.items() if model not in replaced}
    whole = [("all", model, one) for model, one in models.items()]
    for part, model, one in itertools.chain(whole, of_groups(models, scoring.masks)):
        found = inference.guaranteed_coverage(one, risk=risk, level=level)
        shares = (f"{100 * share:.1f} %" for share in (found.coverage, found.risk))
        cells = [f"{found.threshold:.7g}", *shares]  # 0.99996 would be 1.0000
        if math.isnan(found.threshold):
            cells = ["none", "0.0 %", more_rows(one, risk, level)]
        rows.append([part, model, *cells])
    note = f"At most {100 * risk:g} % of further predictions with a confidence above the threshold"
    note += f" are wrong, with a probability of {100 * level:g} % for each line."
    return Table(f"Threshold for {request}", rows, note)


def more_rows(one: Evaluation, risk: float, level: float) -> str:
    """Compute how many more examples like these would give a threshold."""
    confidence, hit = one.top_label()  # copies of the logits would take too much memory
    ids = np.arange(len(hit)) if one.cluster is None else one.cluster
    tried = [times for times in _TIMES if len(hit) * times <= 10**6]
    for times in tried:
        rows = Stated(np.tile(confidence, times), np.tile(hit.astype(int), times))
        clusters = np.concatenate([ids + k * len(ids) for k in range(times)])
        found = inference.guaranteed_coverage(rows, risk=risk, level=level, clusters=clusters)
        if not math.isnan(found.threshold):
            return f"{(times - 1) * len(hit):,} more rows like these would be needed"
    return "no threshold holds" + ", also with many more rows" * bool(tried)


def ranks(scoring: Scoring) -> Table | None:
    """Order three models or more by the NLL, with ties, and the two parts of the NLL."""
    models, level = scoring.given, scoring.interval["level"]
    if len(models) < 3 or not (first := next(iter(models.values()))).counts:
        return None
    nll = metrics.named("nll")
    is_finite = all(np.isfinite(one.values(nll)["nll"]) for one in models.values())
    score = "nll" if is_finite else "brier"
    parts = ["calibration", "refinement"] * (is_finite and not is_stated(first.logits))
    several = {part: metrics.named(f"{part}_nll") for part in parts}
    rows = [["rank", "model", score, *parts, "tied with"]]
    for each in inference.ranks(models, score=score, level=level):
        worst = f" to {each.worst_rank}" if each.worst_rank != each.best_rank else ""
        values = models[each.name].values(several).values() if parts else ()
        cells = [_ends(each.mean, each.low, each.high), *(f"{float(v):.4f}" for v in values)]
        rows.append([f"{each.best_rank}{worst}", each.name, *cells, ", ".join(each.tied_with)])
    note = "Tied: the paired tests of all pairs, after Holm's correction, find no difference."
    return Table("Ranks", rows, note)


def transfer(scoring: Scoring) -> Table | None:
    """Compare the temperature of the fitted examples with that of the scored ones."""
    rows = [["model", "T of the fitted set", "T of the scored set", "NLL after T", "best NLL"]]
    notes = list[str]()
    for model, given in scoring.held_out.items():
        # Intervals of both temperatures take the examples as independent.
        plain = given.of_classes and given.weights is None and given.clusters is None
        if plain and scoring.given[model].counts and scoring.given[model].cluster is None:
            logits, labels, *_ = scoring.models[model].copies
            fitted = np.asarray(given.values()).reshape(np.size(given.labels), -1)
            sets = (fitted, np.ravel(given.labels)), (np.asarray(logits), np.asarray(labels))
            for *cells, verdict in _transferred(scoring.interval["level"], *sets):
                rows.append([model, *cells])
                notes.append(f"{model}: the fitted temperature costs {verdict}.")
    return Table("Does the temperature transfer?", rows, " ".join(notes)) if notes else None


def _transferred(level: float, *sets: tuple[np.ndarray, np.ndarray]) -> list[list[str]]:
    """Return both temperatures, the NLL after the fitted one, the best NLL, and the verdict."""
    if any(len(z) < _LEAST_ROWS or not np.isfinite(z).all() for z, _ in sets):
        return []
    try:
        fitted, own = (inference.predict_loss(z, y, "cross_entropy").cross_entropy for z, y in sets)
    except ValueError:  # no optimum
        return []
    logits, labels = sets[1]
    scaled = ((logits / np.float64(t.value)).astype(np.float32) for t in (fitted, own))
    after, best = (float(metrics.nll(z, labels)) for z in scaled)
    gap = math.log(fitted.value / own.value)
    noise = math.hypot(fitted.deviation / fitted.value, own.deviation / own.value)
    verdict = "the two sets differ" if abs(gap) > 1.96 * noise else "no sign that the sets differ"
    verdict = f"{after - best:z.3f} nats here: {verdict}"
    temperatures = [_ends(each.value, *each.interval(level), ".3f") for each in (fitted, own)]
    return [[*temperatures, f"{after:.4f}", f"{best:.4f}", verdict]]


def predicted_losses(scoring: Scoring) -> Table:
    """Predict T, gap and root-CE2 of each network if it were trained with other losses."""
    level = scoring.interval["level"]
    rows = [["model", "trained with", "T", "stated - right", "root CE2"]]
    for model, one in scoring.given.items():
        for loss in _LOSSES:
            found = inference.predict_loss(one.copies.logits, one.copies.labels, loss)
            t, gap, ce2 = ((each.value, *each.interval(level)) for each in found[2:])
            cells = [_points(*gap, how="+.1f"), _points(*(math.sqrt(max(end, 0)) for end in ce2))]
            rows.append([model, loss, _ends(*t, ".2f"), *cells])
    note = "Of a network of cross-entropy that over-fits as much with the other loss."
    if any(one.cluster is not None for one in scoring.given.values()):
        note += " The intervals ignore the clusters, and are too narrow if their rows are alike."
    return Table("Trained with another loss", rows, note)


def rows_needed(scoring: Scoring) -> Table | None:
    """Compute the numbers of examples that detect an ECE or a difference, or fit a temperature."""
    models = [each for each in scoring.given.values() if each.present.sum() >= _LEAST_ROWS]
    if not models or not models[0].counts or models[0].cluster is not None:
        return None
    needed = inference.rows_needed(models[0], other=models[1] if models[1:] else None)
    asked = (
        *("detect an ECE of 2 points", "tell error rates 1 point apart"),
        *("tell ECEs 2 points apart", "fit a temperature within 5 %"),
    )
    found = [f"{n:,} to {what}" for n, what in zip(needed, asked, strict=True) if n is not None]
    return Table("Examples needed", [], f"{', '.join(found)} (power 80 %, by these examples).")


def _ends(value: float, low: float, high: float, how: str = ".4f") -> str:
    """Format a value and its interval."""
    return f"{value:{how}} [{low:{how}}, {high:{how}}]"


def _points(value: float, low: float, high: float, *, how: str = ".1f") -> str:
    return f"{_ends(100 * value, 100 * low, 100 * high, how)} points"


def answered(scoring: Scoring, threshold_for: str | None, predict_losses: bool) -> list[Table]:
    """Answer the questions that were asked, and those that the models allow.

    Args:
      scoring: the models.
      threshold_for: the request of a threshold, or None.
      predict_losses: whether the calibration after other losses is predicted.
    """
    tables = [
        thresholds(scoring, threshold_for) if threshold_for is not None else None,
        ranks(scoring),
        transfer(scoring),
        predicted_losses(scoring) if predict_losses else None,
        rows_needed(scoring),
    ]
    return [table for table in tables if table is not None]
