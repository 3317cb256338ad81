r"""Ranking metrics: how well a score separates two kinds of examples.

For a classifier, each class's probability against the other classes: the examples are ranked by
the odds $p_k / (1 - p_k)$ of a class k, or for two classes by the difference of their logits. This
is the order of $p_k$ without the ties that rounding causes near 1. Examples of equal odds form one
group.

For out-of-distribution detection, an uncertainty score of two sets of inputs. The labels of the
`ood_` metrics are 1 for out-of-distribution examples and 0 for in-distribution
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
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core import checks
from calib_jax.core.arrays import as_numbers
from calib_jax.core.types import Array, Scalar, Vector
from calib_jax.metrics import terms as curves
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.terms import Kept, Ranked, ScoredClasses, ratio


def _odds(predictions: Predictions) -> Kept:
    if predictions.num_classes == 2:
        # Class 1 is the positive class; class 0 has the reverse ranking.
        scores, first_class = predictions.logits[..., 1:] - predictions.logits[..., :1], 1
    else:
        scores, first_class = predictions.odds, 0
    scores = jnp.where(predictions.valid[..., None], scores, jnp.nan)
    return Kept({"scores": scores, "column": predictions.labels - first_class})


@functools.partial(jax.jit, static_argnames="value_of")
def _mean_over_classes(classes: ScoredClasses, value_of: Callable[..., Scalar]) -> Scalar:
    """Average over the classes whose value is not NaN."""
    # Map over the classes: the running sums of all classes at once would take several times the
    # memory of the logits.
    columns = jnp.arange(len(classes.scores), dtype=classes.column.dtype)
    values = lax.map(lambda column: value_of(*classes.ranked(column)), columns)
    defined = ~jnp.isnan(values)
    return ratio(jnp.sum(jnp.where(defined, values, 0)), jnp.sum(defined, dtype=values.dtype))


@metric(_odds, lambda ranked: _mean_over_classes(ranked, curves.area_under_roc))
def auroc(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the area under the ROC curve, one class against the rest, averaged over classes.

    $$\frac{1}{|\mathcal K|} \sum_{k \in \mathcal K} \frac{1}{n_k (n - n_k)}
      \sum_{i : y_i = k} \sum_{j : y_j \ne k} [p_{ik} > p_{jk}] + \tfrac12 [p_{ik} = p_{jk}]$$

    It is the share of pairs in which the example of class k has the higher probability of k.
    $\mathcal K$ is the set of classes with both positive and negative examples; the value is NaN
    if the set is empty. For two classes only class 1 counts. With all classes present the value is
    scikit-learn's `roc_auc_score(labels, p, multi_class="ovr", average="macro")`, and for two
    classes `roc_auc_score(labels, p[:, 1])`. Uninformative probabilities give 0.5.

    The statistic keeps the odds of every example and class; the value sorts one class at a time.

    References:
      Fawcett, An introduction to ROC analysis, Pattern Recognition Letters 2006.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.auroc(logits, jnp.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """


@metric(_odds, lambda ranked: _mean_over_classes(ranked, curves.average_precision_of))
def average_precision(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the average precision, one class against the rest, averaged over classes.

    $$\frac{1}{|\mathcal K|} \sum_{k \in \mathcal K} \sum_t (R_{kt} - R_{k,t-1}) P_{kt}$$

    with recall R and precision P of class k at the distinct values of $p_k$ as thresholds, without
    interpolation. $\mathcal K$ is the set of classes that have examples. For two classes
    only class 1 counts. With all classes present the value is scikit-learn's
    `average_precision_score(labels, p, average="macro")`, and for two classes
    `average_precision_score(labels, p[:, 1])`. Uninformative probabilities give the share of
    positive examples.

    References:
      Davis and Goadrich, The relationship between precision-recall and ROC curves, ICML 2006.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.average_precision(logits, jnp.array([0, 0, 1, 1]))
    Array(0.8333, dtype=float32)
    """


# --------------------------------------------------------------------------------------------
# Out-of-distribution detection.

_SCORES = {
    "entropy": lambda predictions: predictions.entropy,
    "max_confidence": lambda predictions: -predictions.confidence,
    "energy": lambda predictions: -predictions.log_total,
}


def in_and_out(logits_in: Any, logits_out: Any) -> tuple[Array, Array]:
    """Concatenate the logits of two data sets, with labels 0 for the first and 1 for the second.

    >>> from calib_jax import metrics
    >>> inside, outside = jnp.array([[5.0, 0.0], [0.0, 4.0]]), jnp.array([[1.0, 0.0]])
    >>> metrics.ood_auroc(*metrics.in_and_out(inside, outside))
    Array(1., dtype=float32)
    """
    given = (jnp.asarray(as_numbers("in_and_out", "logits", z)) for z in (logits_in, logits_out))
    sets = [logits.reshape(-1, logits.shape[-1]) for logits in given]
    labels = [jnp.full(len(logits), label) for label, logits in enumerate(sets)]
    return jnp.concatenate(sets), jnp.concatenate(labels)


def _scores(predictions: Predictions, *, score: str = "entropy", positive: str = "out") -> Kept:
    checks.one_of("score", score, _SCORES)
    checks.one_of("positive", positive, ("out", "in"))
    scores, labels = _SCORES[score](predictions), predictions.labels
    known = (labels == 0) | (labels == 1)
    # A NaN score has no rank, so its label carries the NaN into every sum.
    out = jnp.where(known, labels.astype(scores.dtype), jnp.nan) + 0 * scores
    if positive == "in":
        scores, out = -scores, 1 - out
    return Kept({"score": scores, "positive": out})


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


def _ood_roc_curve(ranked: Ranked, *, positive: str = "out") -> RocCurve:
    out = ranked["positive"]
    detected, alarms = curves.points(ranked, out, 1 - out, from_top=True)
    threshold = jnp.pad(ranked.score[::-1], (1, 0), constant_values=jnp.inf)
    threshold = threshold if positive == "out" else -threshold
    return RocCurve(ratio(alarms, alarms[-1]), ratio(detected, detected[-1]), threshold)


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

    Labels are 1 for out-of-distribution examples, and 0 for others (`in_and_out`). The curve has
    one more point than there are rows, so its length does not depend on the values. Examples of
    equal score repeat the point at the end of their group. A row of weight 0 repeats a neighbouring
    point and has the threshold `inf`. The true positive rate is NaN without positive examples, and
    the false positive rate without negative examples.

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


@ood_roc_curve.variant()
def ood_auroc(ranked: Ranked) -> Scalar:
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
    return curves.area_under_roc(ranked, ranked["positive"])


@ood_roc_curve.variant()
def ood_aupr(ranked: Ranked) -> Scalar:
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
    return curves.average_precision_of(ranked, ranked["positive"])


@ood_roc_curve.variant()
def ood_fpr95(ranked: Ranked) -> Scalar:
    r"""Compute the false positive rate at which 95 % of the positive examples are detected.

    $$\min_t \{\mathrm{FPR}_t : \mathrm{TPR}_t \ge 0.95\}$$

    over the scores as thresholds. With `positive="out"` it is the share of in-distribution examples
    rejected by the strictest threshold that rejects 95 % of the out-of-distribution examples. With
    `positive="in"`, as in Liang et al., it is the share of out-of-distribution examples accepted
    when 95 % of the in-distribution examples are accepted.

    Args:
      positive: "out" or "in", the examples to detect.
      score: as in `ood_auroc`.

    References:
      Liang et al., Enhancing the reliability of out-of-distribution image detection in neural
      networks, ICLR 2018.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.ood_fpr95(logits, jnp.array([0, 0, 1, 1]))
    Array(0.5, dtype=float32)
    """
    false, true, _ = _ood_roc_curve(ranked)
    # 19 of 20 must reach 0.95 even if a device's division is off by the last bit.
    reached = true >= 0.95 * (1 - 4 * float(jnp.finfo(true.dtype).eps))
    lowest = jnp.min(jnp.where(reached, false, jnp.inf))
    return jnp.where(jnp.isnan(true[-1] + false[-1]), jnp.nan, lowest)
