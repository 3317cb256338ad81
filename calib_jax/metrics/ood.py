r"""Out-of-distribution detection: how well an uncertainty score separates two sets of inputs.

The labels of these metrics are 1 for out-of-distribution examples and 0 for in-distribution
examples; any other label makes the value NaN. `in_and_out` builds them. The uncertainty score is
expected to be higher for out-of-distribution examples:

    "entropy"           entropy of the softmax, as in Mukhoti et al.
    "max_confidence"    negative of the largest probability
    "energy"            negative logsumexp of the logits

The energy needs the offset of each row. Log-probabilities, and any logits whose rows were
normalised, have the energy 0, so rounding errors decide their ranking. `platt` and most other
calibrators normalise the logits or subtract the maximum of each row; `temperature`, `vector` and
`matrix` keep the offsets.

With `positive="out"`, the default, the metrics detect out-of-distribution examples, highest score
first. With `positive="in"` they detect in-distribution examples, lowest score first.

`auroc` and `average_precision` measure how well a classifier ranks its own classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Integer

from calib_jax.core import checks
from calib_jax.core.arrays import as_numbers
from calib_jax.core.types import Array, Scalar, Vector
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.ranked import Ranked, area_under, average_precision_of, points
from calib_jax.metrics.contract.terms import Ranking, ratio

_SCORES = {
    "entropy": lambda predictions: predictions.entropy,
    "max_confidence": lambda predictions: -predictions.confidence,
    "energy": lambda predictions: -predictions.log_total,
}


def in_and_out(
    logits_in: Any, logits_out: Any
) -> tuple[Float[Array, "rows classes"], Integer[Array, " rows"]]:
    """Concatenate the logits of two data sets, with labels 0 for the first and 1 for the second.

    >>> from calib_jax import metrics
    >>> inside, outside = jnp.array([[5.0, 0.0], [0.0, 4.0]]), jnp.array([[1.0, 0.0]])
    >>> metrics.ood_auroc(*metrics.in_and_out(inside, outside))
    Array(1., dtype=float32)
    """
    logits_in, logits_out = (
        jnp.asarray(as_numbers("in_and_out", "logits", logits))
        for logits in (logits_in, logits_out)
    )
    if logits_in.shape[-1:] != logits_out.shape[-1:] or logits_in.shape[-1:] in ((), (0,)):
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
    # A NaN score has no rank, so its label carries the NaN into every sum.
    out = jnp.where(known, positive.astype(scores.dtype), jnp.nan) + 0 * scores
    return Ranking(scores, {"positive": out})


class RocCurve(NamedTuple):
    """Points of a ROC curve, from the strictest threshold to the loosest.

    Attributes:
      false_positive_rate: share of the negative examples on the positive side of the threshold.
      true_positive_rate: share of the positive examples on the positive side.
      threshold: thresholds, strictest first; the first is infinite and has no example on its
        positive side.
    """

    false_positive_rate: Vector
    true_positive_rate: Vector
    threshold: Vector


def _positives(ranked: Ranked, positive: str) -> tuple[Vector, bool]:
    """Mark the examples to detect; also return whether the highest scores come first."""
    checks.one_of("positive", positive, ("out", "in"))
    detects_out = positive == "out"
    return ranked["positive"] if detects_out else 1 - ranked["positive"], detects_out


def _ood_roc_curve(ranked: Ranked, *, positive: str = "out") -> RocCurve:
    is_positive, from_top = _positives(ranked, positive)
    detected, alarms = points(ranked, is_positive, 1 - is_positive, from_top=from_top)
    strictest = jnp.array([jnp.inf if from_top else -jnp.inf], ranked.score.dtype)
    thresholds = ranked.score[::-1] if from_top else ranked.score
    return RocCurve(
        ratio(alarms, alarms[-1]), ratio(detected, detected[-1]), jnp.append(strictest, thresholds)
    )


@metric(_scores, _ood_roc_curve)
def ood_roc_curve(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    positive: str = "out",
    score: str = "entropy",
) -> RocCurve:
    r"""Compute the ROC curve of separating out-of-distribution from in-distribution examples.

    The curve has one more point than there are rows, so its length does not depend on the values.
    Examples of equal score repeat the point at the end of their group. A row of weight 0 repeats a
    neighbouring point and has the threshold `inf`. The true positive rate is NaN without positive
    examples, and the false positive rate without negative examples.

    Args:
      positive: "out" or "in", the examples to detect.
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


def _ood_auroc(ranked: Ranked, *, positive: str = "out") -> Scalar:
    is_positive, from_top = _positives(ranked, positive)
    detected, alarms = points(ranked, is_positive, 1 - is_positive, from_top=from_top)
    return area_under(detected, alarms, detected[-1])


@metric(_scores, _ood_auroc)
def ood_auroc(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    positive: str = "out",
    score: str = "entropy",
) -> Scalar:
    r"""Compute how often an out-of-distribution example scores above an in-distribution one.

    $$\frac{1}{n_1 n_0} \sum_{i : y_i = 1} \sum_{j : y_j = 0}
      [s_i > s_j] + \tfrac12 [s_i = s_j]$$

    It is the area under `ood_roc_curve`; an uninformative score gives 0.5.

    Args:
      positive: "out" or "in". Both give the same value, because exchanging the two sets and
        reversing the order keeps the ranking of every pair of examples.
      score: "entropy", "max_confidence" or "energy"; each is higher out of distribution. The
        energy needs logits with the offset of each row: log-probabilities, and the output of most
        calibrators, have none.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.ood_auroc(logits, jnp.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """


def _ood_aupr(ranked: Ranked, *, positive: str = "out") -> Scalar:
    is_positive, from_top = _positives(ranked, positive)
    return average_precision_of(ranked, is_positive, from_top=from_top)


@metric(_scores, _ood_aupr)
def ood_aupr(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    positive: str = "out",
    score: str = "entropy",
) -> Scalar:
    r"""Compute the average precision of detecting the positive examples.

    $$\sum_t (R_t - R_{t-1}) P_t$$

    over the distinct scores as thresholds, with recall R and precision P, without interpolation.
    An uninformative score gives the share of positive examples.

    Args:
      positive: "out" to detect out-of-distribution examples; "in" to detect in-distribution
        examples, lowest scores first.
      score: as in `ood_auroc`.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.ood_aupr(logits, jnp.array([0, 0, 1, 1]))
    Array(0.8333, dtype=float32)
    """


def _ood_fpr95(ranked: Ranked, *, positive: str = "out", tpr: float = 0.95) -> Scalar:
    checks.between("tpr", tpr, 0, 1)
    false, true, _ = ood_roc_curve.finish(ranked, positive=positive)
    # 19 of 20 must reach 0.95 even if a device's division is off by the last bit.
    reached = true >= tpr * (1 - 4 * float(jnp.finfo(true.dtype).eps))
    lowest = jnp.min(jnp.where(reached, false, jnp.inf))
    return jnp.where(jnp.isnan(true[-1] + false[-1]), jnp.nan, lowest)


@metric(_scores, _ood_fpr95)
def ood_fpr95(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    positive: str = "out",
    tpr: float = 0.95,
    score: str = "entropy",
) -> Scalar:
    r"""Compute the false positive rate at which 95 % of the positive examples are detected.

    $$\min_t \{\mathrm{FPR}_t : \mathrm{TPR}_t \ge 0.95\}$$

    over the scores as thresholds. With `positive="out"` it is the share of in-distribution examples
    rejected by the strictest threshold that rejects 95 % of the out-of-distribution examples. With
    `positive="in"`, as in Liang et al., it is the share of out-of-distribution examples accepted
    when 95 % of the in-distribution examples are accepted.

    Args:
      positive: "out" or "in", the examples to detect.
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
