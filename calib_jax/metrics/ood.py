r"""Out-of-distribution detection: how well an uncertainty score separates two sets of inputs.

The labels of these metrics say where an example comes from: 1 is out of distribution, 0 is in
distribution; any other label makes the value NaN. `in_and_out` makes them. The uncertainty score
of an example is higher out of distribution:

    "entropy"           of the softmax: what Mukhoti et al. report
    "max_confidence"    minus the largest probability
    "energy"            minus the logsumexp of the logits

With `positive="out"`, the default, the examples out of distribution are detected, highest score
first. With `positive="in"` those in distribution are, lowest score first.

How well a classifier ranks its own classes is measured by `auroc` and `average_precision`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Integer

from calib_jax.core import checks
from calib_jax.core.types import Array, Scalar, Vector
from calib_jax.metrics.contract import metric, ratio
from calib_jax.metrics.curves import average_precision_of, points
from calib_jax.metrics.predictions import Predictions
from calib_jax.metrics.ranked import Ranked
from calib_jax.metrics.terms import Ranking

__all__ = ["RocCurve", "in_and_out", "ood_aupr", "ood_auroc", "ood_fpr95", "ood_roc_curve"]

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
    >>> metrics.ood_auroc(*metrics.in_and_out(inside, outside))
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
      false_positive_rate: share of the negative examples on the positive side of the threshold.
      true_positive_rate: share of the positive examples there.
      threshold: the scores, from the strictest; the first one is infinite and nothing is on its
        positive side.
    """

    false_positive_rate: Vector
    true_positive_rate: Vector
    threshold: Vector


def _is_out(positive: str) -> bool:
    checks.one_of("positive", positive, ("out", "in"))
    return positive == "out"


@metric(_scores)
def ood_roc_curve(ranked: Ranked, *, positive: str = "out") -> RocCurve:
    r"""Compute the ROC curve of separating examples out of distribution from those in it.

    It has one point per row and one more, so that its length does not depend on the values.
    Examples of equal score repeat the point where their group ends; a row of weight 0 repeats a
    neighboring point and has the threshold `inf`. A rate is NaN where there are no examples of
    its kind.

    Args:
      ranked: scores, and whether an example is out of distribution.
      positive: "out" or "in": which examples are to be detected.
      score: as in `ood_auroc`.

    References:
      Fawcett, An introduction to ROC analysis, Pattern Recognition Letters 2006.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4]]))
    >>> curve = metrics.ood_roc_curve(logits, jnp.array([0, 1, 1]), score="max_confidence")
    >>> curve.true_positive_rate
    Array([0. , 0.5, 1. , 1. ], dtype=float32)
    >>> curve.threshold
    Array([ inf, -0.6, -0.7, -0.9], dtype=float32)
    """
    out = _is_out(positive)
    wanted = ranked["positive"] if out else 1 - ranked["positive"]
    detected, alarms = points(ranked, wanted, 1 - wanted, from_top=out)
    strictest = jnp.array([jnp.inf if out else -jnp.inf], ranked.score.dtype)
    thresholds = ranked.score[::-1] if out else ranked.score
    return RocCurve(
        ratio(alarms, alarms[-1]),
        ratio(detected, detected[-1]),
        jnp.append(strictest, thresholds),
    )


@metric(_scores)
def ood_auroc(ranked: Ranked, *, positive: str = "out") -> Scalar:
    r"""Compute how often an example out of distribution scores higher than one in it.

    $$\frac{1}{n_1 n_0} \sum_{i : y_i = 1} \sum_{j : y_j = 0}
      [s_i > s_j] + \tfrac12 [s_i = s_j]$$

    It is the area under `ood_roc_curve`: 0.5 for a score that separates nothing.

    Args:
      ranked: scores, and whether an example is out of distribution.
      positive: "out" or "in". The value is the same: exchanging the two sets and reversing the
        order leaves every pair of examples ranked as it was.
      score: "entropy", "max_confidence" or "energy", each higher out of distribution.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.ood_auroc(logits, jnp.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """
    curve = ood_roc_curve.finish(ranked, positive=positive)
    return jnp.trapezoid(curve.true_positive_rate, curve.false_positive_rate)


@metric(_scores)
def ood_aupr(ranked: Ranked, *, positive: str = "out") -> Scalar:
    r"""Compute the average precision of detecting the positive examples.

    $$\sum_t (R_t - R_{t-1}) P_t$$

    over the distinct scores as thresholds, with recall R and precision P; no interpolation.
    A score that separates nothing reaches the share of positive examples.

    Args:
      ranked: scores, and whether an example is out of distribution.
      positive: "out": detect the examples out of distribution; "in": those in it, lowest scores
        first.
      score: as in `ood_auroc`.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.ood_aupr(logits, jnp.array([0, 0, 1, 1]))
    Array(0.8333, dtype=float32)
    """
    out = _is_out(positive)
    wanted = ranked["positive"] if out else 1 - ranked["positive"]
    return average_precision_of(ranked, wanted, from_top=out)


@metric(_scores)
def ood_fpr95(ranked: Ranked, *, positive: str = "out", tpr: float = 0.95) -> Scalar:
    r"""Compute the false positive rate at which 95 % of the positive examples are detected.

    $$\min_t \{\mathrm{FPR}_t : \mathrm{TPR}_t \ge 0.95\}$$

    over the scores as thresholds. With `positive="out"` it is the share of examples in
    distribution that are rejected by the strictest threshold that rejects 95 % of those out of
    distribution. With `positive="in"`, as in Liang et al., it is the share of examples out of
    distribution that are accepted where 95 % of those in it are.

    Args:
      ranked: scores, and whether an example is out of distribution.
      positive: "out" or "in": which examples are to be detected.
      tpr: the true positive rate to reach.
      score: as in `ood_auroc`.

    References:
      Liang et al., Enhancing the reliability of out-of-distribution image detection in neural
      networks, ICLR 2018.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.ood_fpr95(logits, jnp.array([0, 0, 1, 1]))
    Array(0.5, dtype=float32)
    """
    checks.between("tpr", tpr, 0, 1)
    false, true, _ = ood_roc_curve.finish(ranked, positive=positive)
    # 19 of 20 reach 0.95 even where a device's division is off by the last bit.
    reached = true >= tpr * (1 - 4 * float(jnp.finfo(true.dtype).eps))
    lowest = jnp.min(jnp.where(reached, false, jnp.inf))
    return jnp.where(jnp.isnan(true[-1] + false[-1]), jnp.nan, lowest)
