r"""Detecting inputs from outside the training distribution by how unsure the prediction is.

Here the labels say where an example comes from: 1 is out of distribution and counts as positive,
0 is in distribution; any other label makes the value NaN. The logits give a score that is to be
higher out of distribution:

    "entropy"           of the softmax: what Mukhoti et al. report
    "max_confidence"    minus the largest probability
    "energy"            minus the logsumexp of the logits

Released code that takes the largest probability as the score and calls the examples in
distribution positive gives the same AUROC as "max_confidence" here: to swap the classes and to
turn the score round leaves every pair of examples ranked right or wrong as it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Integer

from calib_jax.core import checks
from calib_jax.core.types import Array, Scalar, Vector
from calib_jax.metrics.contract import metric, ratio
from calib_jax.metrics.curves import points
from calib_jax.metrics.predictions import Predictions
from calib_jax.metrics.ranked import Ranked
from calib_jax.metrics.terms import Ranking

__all__ = ["RocCurve", "aupr", "auroc", "fpr95", "in_and_out", "roc_curve"]

_SCORES = {
    "entropy": lambda predictions: predictions.entropy,
    "max_confidence": lambda predictions: -predictions.confidence,
    "energy": lambda predictions: -predictions.log_total,
}


def in_and_out(
    logits_in: Any, logits_out: Any
) -> tuple[Float[Array, "rows classes"], Integer[Array, " rows"]]:
    """Join the logits of two data sets, with labels 0 for the first and 1 for the second.

    >>> from calib_jax import metrics
    >>> inside, outside = jnp.array([[5.0, 0.0], [0.0, 4.0]]), jnp.array([[1.0, 0.0]])
    >>> metrics.auroc(*metrics.in_and_out(inside, outside))
    Array(1., dtype=float32)
    """
    logits_in, logits_out = jnp.asarray(logits_in), jnp.asarray(logits_out)
    if logits_in.shape[-1:] != logits_out.shape[-1:]:
        raise ValueError(
            "in_and_out: both sets need logits [*batch, classes] of the same classes, got shapes"
            f" {logits_in.shape} and {logits_out.shape}."
        )
    sets = [logits.reshape(-1, logits.shape[-1]) for logits in (logits_in, logits_out)]
    labels = [jnp.full(len(logits), label) for label, logits in enumerate(sets)]
    return jnp.concatenate(sets), jnp.concatenate(labels)


def _scores(predictions: Predictions, *, score: str = "entropy") -> Ranking:
    checks.one_of("score", score, _SCORES)
    positive = predictions.labels == 1
    known = positive | (predictions.labels == 0)
    scores = _SCORES[score](predictions)
    # A score that is NaN has no rank: its label carries the NaN into every sum.
    out = jnp.where(known, positive.astype(scores.dtype), jnp.nan) + 0 * scores
    return Ranking(scores, {"positive": out})


class RocCurve(NamedTuple):
    """Points of a ROC curve, from the strictest threshold to the loosest.

    Attributes:
      false_positive_rate: share of the examples in distribution that score at least the
        threshold.
      true_positive_rate: share of the examples out of distribution that do.
      threshold: the scores, descending, after a first one of `inf`.
    """

    false_positive_rate: Vector
    true_positive_rate: Vector
    threshold: Vector


@metric(_scores)
def roc_curve(ranked: Ranked) -> RocCurve:
    r"""Compute the ROC curve of telling examples out of distribution from those in it.

    One point a row and one more, so that the length does not depend on the values: examples of
    equal score repeat the point where their group ends, and rows without weight, which have the
    threshold `inf`, the point (0, 0). A rate is NaN where there are no examples of its kind.

    References:
      Fawcett, An introduction to ROC analysis, Pattern Recognition Letters 2006.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4]]))
    >>> curve = metrics.roc_curve(logits, jnp.array([0, 1, 1]), score="max_confidence")
    >>> curve.true_positive_rate
    Array([0. , 0.5, 1. , 1. ], dtype=float32)
    >>> curve.threshold
    Array([ inf, -0.6, -0.7, -0.9], dtype=float32)
    """
    found, alarms = points(ranked, ranked["positive"], 1 - ranked["positive"], from_top=True)
    threshold = jnp.append(jnp.array([jnp.inf], ranked.score.dtype), ranked.score[::-1])
    return RocCurve(ratio(alarms, alarms[-1]), ratio(found, found[-1]), threshold)


@metric(_scores)
def auroc(ranked: Ranked) -> Scalar:
    r"""Compute how often an example out of distribution scores higher than one in it.

    $$\frac{1}{n_1 n_0} \sum_{i : y_i = 1} \sum_{j : y_j = 0}
      [s_i > s_j] + \tfrac12 [s_i = s_j]$$

    It is the area under `roc_curve`: 0.5 for a score that knows nothing.

    Args:
      ranked: scores, and whether an example is out of distribution.
      score: "entropy", "max_confidence" or "energy", each turned so that it is higher out of
        distribution.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.auroc(logits, jnp.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """
    curve = roc_curve.finish(ranked)
    return jnp.trapezoid(curve.true_positive_rate, curve.false_positive_rate)


@metric(_scores)
def aupr(ranked: Ranked, *, positive: str = "out") -> Scalar:
    r"""Compute the average precision: precision where each positive example is found, averaged.

    $$\sum_t (R_t - R_{t-1}) P_t$$

    over the distinct scores as thresholds, with recall R and precision P; no interpolation.
    A score that knows nothing reaches the share of positive examples.

    Args:
      ranked: scores, and whether an example is out of distribution.
      positive: "out": to find are the examples out of distribution; "in": those in it, by the
        lowest scores first.
      score: as in `auroc`.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.aupr(logits, jnp.array([0, 0, 1, 1]))
    Array(0.8333, dtype=float32)
    """
    checks.one_of("positive", positive, ("out", "in"))
    out = positive == "out"
    wanted = ranked["positive"] if out else 1 - ranked["positive"]
    found, seen = points(ranked, wanted, 1, from_top=out)
    precision = found / jnp.where(seen > 0, seen, 1)
    return ratio(jnp.sum(jnp.diff(found) * precision[1:]), found[-1])


@metric(_scores)
def fpr95(ranked: Ranked, *, tpr: float = 0.95) -> Scalar:
    r"""Compute the false positive rate at which 95 % of the true positives are found.

    $$\min_t \{\mathrm{FPR}_t : \mathrm{TPR}_t \ge 0.95\}$$

    over the scores as thresholds: the share of examples in distribution that are rejected by
    the strictest threshold that rejects 95 % of those out of distribution.

    Args:
      ranked: scores, and whether an example is out of distribution.
      tpr: the true positive rate to reach.
      score: as in `auroc`.

    References:
      Liang et al., Enhancing the reliability of out-of-distribution image detection in neural
      networks, ICLR 2018.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.fpr95(logits, jnp.array([0, 0, 1, 1]))
    Array(0.5, dtype=float32)
    """
    checks.between("tpr", tpr, 0, 1)
    false, true, _ = roc_curve.finish(ranked)
    # 19 of 20 reach 0.95 even where a device's division is off by the last bit.
    reached = true >= tpr * (1 - 4 * float(jnp.finfo(true.dtype).eps))
    lowest = jnp.min(jnp.where(reached, false, jnp.inf))
    return jnp.where(jnp.isnan(true[-1] + false[-1]), jnp.nan, lowest)
