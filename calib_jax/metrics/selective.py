r"""Selective classification: answering the most confident predictions; and the cost of decisions.

Examples are answered in order of decreasing confidence. Within a group of equal confidence the
errors are spread evenly, as if the group were answered in random order. If all examples have equal
confidence, the risk at every coverage is the error rate of the whole set.

*Costs.* A matrix C has the cost $C_{y d}$ of the decision d if the class is y, in any unit. The
decision for an example has the least expected cost under its probabilities,

$$d_i = \arg\min_d \sum_k p_{i k} C_{k d},$$

or is abstention, if its fixed cost is lower. `expected_cost` is the mean cost of these decisions on
the labels, and `stated_cost` is their mean expected cost under the probabilities. For a calibrated
model the two are equal for every matrix; an overconfident model costs more than it states.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core import arrays, checks
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PerExample, Scalar, Vector
from calib_jax.metrics.bins import confidences
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.terms import Columns, Ranked, area_under, area_under_roc, points, ratio


@metric(confidences, lambda ranked: area_under_roc(ranked, ranked["hit"]))
def confidence_auroc(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the probability that a right prediction is more confident than a wrong one.

    $$P(c_i > c_j) + \tfrac12 P(c_i = c_j), \quad \hat y_i = y_i, \ \hat y_j \ne y_j$$

    This is the AUROC of failure prediction. It measures the ranking alone: it does not change if
    an increasing function is applied to all confidences, and it rewards no accuracy, which `augrc`
    does. NaN without hits or without errors.

    References:
      Hendrycks and Gimpel, A baseline for detecting misclassified and out-of-distribution
      examples in neural networks, ICLR 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> metrics.confidence_auroc(logits, jnp.array([0, 1, 1]))
    Array(0.5, dtype=float32)
    """


# --------------------------------------------------------------------------------------------
# Weights of errors by rank, averaged within groups of equal confidence. Ranks j = 1, 2, ... count
# from the most confident example. A group that follows a examples and ends after b has the ranks
# a + 1, ..., b, and every error in it has the mean weight of these ranks. The closed forms extend
# the means to fractional weights. They are written with differences, because in float32 a
# difference of two values of b log(b) keeps no digit for a group of one example among a million.

# Series in 1 / x have an error below 1e-7 from this x on; smaller ranks are shifted up to it.
_SHIFT = 16


def _growth(before: Vector, width: Vector) -> Vector:
    r"""Compute $H_{a + d} - H_a$ of the harmonic numbers $H_x = \psi(x + 1) + \gamma$."""
    low = before + (_SHIFT + 0.5)
    high = low + width
    series = jnp.log1p(width / low) - width * (low + high) / (24 * jnp.square(low * high))
    shifts = (before + i for i in range(1, _SHIFT + 1))
    return series + sum(width / (at * (at + width)) for at in shifts)


def _harmonic(before: Vector, width: Vector, total: Scalar) -> Vector:
    r"""Compute the mean of $H_n - H_{j - 1} = \sum_{k = j}^n 1 / k$ over the ranks of a group."""
    within = (before + width) / width * _growth(before, width) - 1
    return _growth(before, total - before) - within


def _logarithmic(before: Vector, width: Vector, total: Scalar) -> Vector:
    r"""Compute the mean of $\log \frac{n + 1}{j}$ over the ranks of a group."""
    low = before + (_SHIFT + 0.5)
    high = low + width
    series = jnp.log(low) + high / width * jnp.log1p(width / low) - 1 + 1 / (24 * low * high)
    shifts = (before + i for i in range(1, _SHIFT + 1))
    return jnp.log(total + 1) - series + sum(jnp.log1p(width / at) / width for at in shifts)


def _linear(before: Vector, width: Vector, total: Scalar) -> Vector:
    r"""Compute the mean of $(n + 1 - j) / n$ over the ranks of a group."""
    return (total + 0.5 - before - width / 2) / total


_ESTIMATORS = {"sample": _harmonic, "population": _logarithmic, "sele": _linear}


def _aurc(ranked: Ranked, *, estimator: str = "curve") -> Scalar:
    checks.one_of("estimator", estimator, ("curve", *_ESTIMATORS))
    answered, errors = points(ranked, 1, 1 - ranked["hit"], from_top=True)
    before, width, risen = answered[:-1], jnp.diff(answered), jnp.diff(errors)
    some_width = jnp.where(width > 0, width, 1)
    if estimator != "curve":
        weight = _ESTIMATORS[estimator](before, some_width, answered[-1])
        return ratio(jnp.sum(weight * risen), answered[-1])
    # The first segment passes through the origin, so its logarithmic term is 0.
    started = before > 0
    log_growth = jnp.where(started, jnp.log1p(width / jnp.where(started, before, 1)), 0)
    # A small weight beside a large sum has a width that rounds to 0, although the errors rise.
    slanted = risen - risen / some_width * before * log_growth
    area = jnp.sum(errors[:-1] * log_growth + jnp.where(width > 0, slanted, 0 * risen))
    return ratio(area, answered[-1])


@metric(confidences, _aurc)
def aurc(
    logits: Logits, labels: Labels = None, weights: Weights = None, *, estimator: str = "curve"
) -> Scalar:
    r"""Compute the area under the risk-coverage curve.

    $$\int_0^1 \frac{E(c)}{c} \, dc$$

    where E(c) is the weight of the errors among the share c of most confident examples, divided by
    the total weight, and is linear within groups of equal confidence. A segment from coverage a
    to b with slope s contributes $s (b - a) + (E(a) - s a) \log(b / a)$.

    Other estimators are means of the errors with a weight for their rank j from the most confident
    example, averaged within groups of equal confidence:

    $$\frac1n \sum_{i : \hat y_i \ne y_i} w(j_i)$$

    - "sample": $w(j) = \sum_{k = j}^n 1 / k$, the mean risk at the coverages 1/n, 2/n, ..., 1; the
      weights come from a series and are exact to 1e-8;
    - "population": $w(j) = \log((n + 1) / j)$, the plug-in estimate of
      $E[-\log(1 - G(c)) \, \ell]$ with the distribution G of the confidence and the loss $\ell$;
    - "sele": $w(j) = (n + 1 - j) / n$, a lower bound of "sample" without its large weights.

    "curve", "sample" and "population" differ by O(1/n). The three depend on n, so weights of
    examples are counts. torch-uncertainty applies the trapezoidal rule to the risks
    $r_1, \ldots, r_n$ whose mean is "sample": its value is
    $(n \cdot \mathrm{AURC} - (r_1 + r_n) / 2) / (n - 1)$ if no confidences are equal.

    It decreases with better accuracy and with better ranking; `excess_aurc` measures the ranking.

    Args:
      estimator: "curve", "sample", "population" or "sele".

    References:
      Geifman, Uziel and El-Yaniv, Bias-reduced uncertainty estimation for deep neural
      classifiers, ICLR 2019.
      Franc, Prusa and Voracek, Optimal strategies for reject option classifiers, JMLR 2023 (SELE).
      Zhou et al., A novel characterization of the population area under the risk coverage curve
      (AURC) and rates of finite sample estimators, 2024.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> metrics.aurc(logits, jnp.array([0, 1]))
    Array(0.1534, dtype=float32)
    >>> metrics.aurc(logits, jnp.array([0, 1]), estimator="sample")
    Array(0.25, dtype=float32)
    """


@confidence_auroc.variant()
def excess_aurc(ranked: Ranked) -> Scalar:
    r"""Compute the AURC minus the AURC of a perfect ranking with the same accuracy.

    $$\mathrm{AURC} - (e + (1 - e) \log(1 - e))$$

    with the error rate e. The second term is the AURC of ranking every hit before every error.

    References:
      Geifman, Uziel and El-Yaniv, Bias-reduced uncertainty estimation for deep neural
      classifiers, ICLR 2019.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> metrics.excess_aurc(logits, jnp.array([1, 0]))
    Array(0.6931, dtype=float32)
    """
    answered, errors = points(ranked, 1, 1 - ranked["hit"], from_top=True)
    error_rate = ratio(errors[-1], answered[-1])
    accuracy = 1 - error_rate
    some = accuracy > 0
    log_accuracy = jnp.where(some, jnp.log1p(-jnp.where(some, error_rate, 0)), 0)
    return aurc.finish(ranked) - (error_rate + accuracy * log_accuracy)


@confidence_auroc.variant()
def augrc(ranked: Ranked) -> Scalar:
    r"""Compute the area under the generalised risk-coverage curve.

    $$\int_0^1 E(c) \, dc = \frac{1}{n^2} \sum_{i : \hat y_i \ne y_i} (n - j_i + \tfrac12)$$

    with E(c) as in `aurc`, and the rank $j_i$ from the most confident example, averaged within
    groups of equal confidence. It is the risk of an error that is answered, averaged over all
    coverages: unlike `aurc` it does not weigh the errors among the most confident examples by 1/c.
    With the accuracy a it is $(1 - \mathrm{AUROC}) a (1 - a) + (1 - a)^2 / 2$, where the AUROC
    measures how well the confidence separates hits from errors.

    References:
      Traub et al., Overcoming common flaws in the evaluation of selective classification systems,
      NeurIPS 2024.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> metrics.augrc(logits, jnp.array([0, 1]))
    Array(0.125, dtype=float32)
    """
    answered, errors = points(ranked, 1, 1 - ranked["hit"], from_top=True)
    return area_under(errors, answered, answered[-1])


def _risk_at_coverage(ranked: Ranked, *, coverage: float = 0.9) -> Scalar:
    checks.above("coverage", coverage, 0)
    checks.between("coverage", coverage, 0, 1)
    answered, errors = points(ranked, 1, 1 - ranked["hit"], from_top=True)
    boundary = coverage * answered[-1]
    end = jnp.clip(jnp.searchsorted(answered, boundary, side="left"), 1, answered.shape[0] - 1)
    width = answered[end] - answered[end - 1]
    part = (boundary - answered[end - 1]) / jnp.where(width > 0, width, 1)
    wrong = errors[end - 1] + part * (errors[end] - errors[end - 1])
    # Propagate NaN even from errors beyond the boundary.
    return jnp.where(jnp.isnan(errors[-1]), jnp.nan, ratio(wrong, boundary))


@metric(confidences, _risk_at_coverage)
def risk_at_coverage(
    logits: Logits, labels: Labels = None, weights: Weights = None, *, coverage: float = 0.9
) -> Scalar:
    r"""Compute the error rate on a given share of most confident examples.

    $$E(c) / c$$

    where E(c) is the weight of the errors among the share c of most confident examples, divided by
    the total weight, as in `aurc`. The example, or the group of equal confidence, at the boundary
    is split.

    Args:
      coverage: the share c of the examples that are answered, in (0, 1].

    References:
      Geifman and El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> metrics.risk_at_coverage(logits, jnp.array([0, 1]), coverage=0.75)
    Array(0.3333, dtype=float32)
    """


def _coverage_at_risk(ranked: Ranked, *, risk: float = 0.05) -> Scalar:
    checks.between("risk", risk, 0, 1)
    answered, errors = points(ranked, 1, 1 - ranked["hit"], from_top=True)
    excess = errors - risk * answered
    # An error rate equal to the risk is allowed in spite of rounding.
    allowed = excess <= 8 * jnp.finfo(excess.dtype).eps * errors
    last = jnp.max(jnp.where(allowed, jnp.arange(allowed.shape[0]), 0))
    following = jnp.minimum(last + 1, allowed.shape[0] - 1)
    # The excess is linear within a group, so it is 0 at this share of the following group.
    increase = excess[following] - excess[last]
    part = jnp.maximum(-excess[last], 0) / jnp.where(increase > 0, increase, 1)
    covered = answered[last] + part * (answered[following] - answered[last])
    return jnp.where(jnp.isnan(errors[-1]), jnp.nan, ratio(covered, answered[-1]))


@metric(confidences, _coverage_at_risk, biased=True)
def coverage_at_risk(
    logits: Logits, labels: Labels = None, weights: Weights = None, *, risk: float = 0.05
) -> Scalar:
    r"""Compute the largest share of most confident examples whose error rate is at most a risk.

    $$\max \{c : E(c) \le r c\}$$

    with E(c) as in `aurc`; 0 if no coverage has this risk. The error rate may exceed the risk at
    smaller coverages. The example, or the group of equal confidence, at the boundary is split;
    rounded down to whole examples, the value is the `CovAtxRisk` of torch-uncertainty, which
    returns NaN instead of 0.

    The coverage is chosen on these examples, so other examples may have a higher error rate: see
    `guaranteed_coverage`. As the largest of many coverages, the value is too high on few examples,
    and the bootstrap interval is too short.

    Args:
      risk: the error rate r, from 0 to 1.

    References:
      Geifman and El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]))
    >>> metrics.coverage_at_risk(logits, jnp.array([0, 0, 0, 1]), risk=0.1)
    Array(0.8333, dtype=float32)
    """


@risk_at_coverage.variant()
def selective_accuracy(ranked: Ranked, *, coverage: float = 0.9) -> Scalar:
    r"""Compute the accuracy on a given share of most confident examples.

    $$1 - E(c) / c$$

    with the risk of `risk_at_coverage`.

    Args:
      coverage: the share c of the examples that are answered, in (0, 1].

    References:
      Geifman and El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4]]))
    >>> metrics.selective_accuracy(logits, jnp.array([0, 1]), coverage=0.75)
    Array(0.6667, dtype=float32)
    """
    return 1 - risk_at_coverage.finish(ranked, coverage=coverage)


class ConfidentSet(NamedTuple):
    """The examples whose confidence reaches a threshold.

    Attributes:
      share: the size of the set as a share of all examples.
      accuracy: the accuracy on the set; NaN if the set is empty.
    """

    share: Scalar
    accuracy: Scalar


def _confident(predictions: Predictions, *, threshold: float = 0.99) -> Columns:
    checks.between("threshold", threshold, 0, 1)
    confidence = predictions.confidence
    confident = predictions.if_valid((confidence >= threshold).astype(confidence.dtype))
    return Columns({"confident": confident, "hit": confident * predictions.hit})


def _confident_set(sums: Sums) -> ConfidentSet:
    confident = sums["confident"]
    return ConfidentSet(ratio(confident, sums["weight"]), ratio(sums["hit"], confident))


@metric(_confident, _confident_set)
def confident_set(
    logits: Logits, labels: Labels = None, weights: Weights = None, *, threshold: float = 0.99
) -> ConfidentSet:
    r"""Compute the share of examples whose confidence reaches a threshold, and their accuracy.

    $$\frac{|S|}{n}, \quad \frac{1}{|S|} \sum_{i \in S} [\hat y_i = y_i], \quad
      S = \{i : c_i \ge t\}$$

    A model can be calibrated without ever being confident; a model that is often confident and then
    right is more useful. The papers write $|S_{99}|$ for the share at t = 0.99.

    Args:
      threshold: t, the smallest confidence that counts.

    References:
      Kumar et al., Trainable calibration measures for neural networks from kernel mean
      embeddings, ICML 2018.
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.

    >>> from calib_jax import metrics
    >>> logits = jnp.array([[9.0, 0.0], [0.0, 8.0], [1.0, 0.0], [7.0, 0.0]])
    >>> metrics.confident_set(logits, jnp.array([0, 1, 0, 1]))
    ConfidentSet(share=Array(0.75, dtype=float32), accuracy=Array(0.6667, dtype=float32))
    """


class Decided(NamedTuple):
    """The decision of every example, with its cost on the label and under the probabilities.

    Attributes:
      decision: column index of the matrix; abstention has the index after the last column.
      realized: the cost of the decision for the true class.
      stated: the expected cost of the decision.
      variance: the variance of the cost, if the class is drawn from the probabilities.
    """

    decision: Array
    realized: PerExample
    stated: PerExample
    variance: PerExample


def matrix_of(costs: Any, num_classes: int) -> np.ndarray:
    """Validate a matrix of costs; None is 0 for the right class and 1 for any other."""
    if costs is None:
        return 1.0 - np.eye(num_classes)
    matrix = np.asarray(arrays.as_numbers("", "costs", costs), np.float64)
    fits = matrix.ndim == 2 and len(matrix) == num_classes and matrix.size > 0
    if not fits or not np.all(np.abs(matrix) <= np.finfo(np.float32).max):
        raise ValueError(f"costs must be finite, [{num_classes} classes, decisions], got {matrix}.")
    return matrix


def check_abstain_cost(abstain_cost: float | None) -> None:
    """Validate the cost of abstention."""
    if abstain_cost is not None and not math.isfinite(abstain_cost):
        raise ValueError(f"abstain_cost must be a finite number or None, got {abstain_cost}.")


def decided(predictions: Predictions, costs: Any, abstain_cost: float | None) -> Decided:
    """Choose the decision of least expected cost; ties go to the first, and abstention is last."""
    matrix = matrix_of(costs, predictions.num_classes)
    check_abstain_cost(abstain_cost)
    if abstain_cost is not None:
        matrix = np.concatenate([matrix, np.full((len(matrix), 1), abstain_cost)], axis=1)
    p = predictions.p
    of_class = jnp.asarray(matrix, p.dtype)
    expected = jnp.einsum("...k,kd->...d", p, of_class, precision="highest")
    # Sums in float32 round, so costs that are equal differ in their last digits, which are those of
    # the sizes of their terms. One large cost must not make the other decisions equal.
    sizes = jnp.einsum("...k,kd->...d", p, jnp.abs(of_class), precision="highest")
    best = jnp.argmin(expected, axis=-1, keepdims=True)
    least, size = (jnp.take_along_axis(each, best, axis=-1) for each in (expected, sizes))
    slack = 16 * jnp.finfo(p.dtype).eps * (sizes + size)
    costs_no_more = expected <= least + slack
    decision = jnp.argmax(costs_no_more, axis=-1).astype(jnp.int32)
    if costs is None:  # the top label, unless abstention costs less
        top = predictions.predicted
        is_best = jnp.take_along_axis(costs_no_more, top[..., None], axis=-1)
        decision = jnp.where(is_best[..., 0], top, decision)
    of_decision = of_class.T[decision]  # [*batch, classes]
    stated = predictions.if_valid(jnp.min(expected, axis=-1))
    realized = jnp.sum(jnp.where(predictions.is_true, of_decision, 0), axis=-1)
    spread = jnp.square(of_decision - stated[..., None])
    return Decided(decision, predictions.if_valid(realized), stated, jnp.sum(p * spread, axis=-1))


def _costs(
    predictions: Predictions, *, costs: Any = None, abstain_cost: float | None = None
) -> Columns:
    made = decided(predictions, costs, abstain_cost)
    return Columns({"realized": made.realized, "stated": made.stated})


@metric(_costs, lambda sums: ratio(sums["realized"], sums["weight"]))
def expected_cost(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    costs: Any = None,
    abstain_cost: float | None = None,
) -> Scalar:
    r"""Compute the mean cost of the decisions that the probabilities recommend.

    $$\frac1n \sum_i C_{y_i d_i}$$

    with the decision $d_i$ of least expected cost. Compare it before and after calibration: a
    calibrator that keeps the ranking of the classes changes no accuracy, but does change decisions.

    Args:
      costs: `[classes, decisions]`, as an array or a tuple of rows; 0 for the right class and 1 for
        any other by default, so that the cost is the error rate.
      abstain_cost: the cost of leaving an example to somebody else; None to always decide.

    References:
      Elkan, The foundations of cost-sensitive learning, IJCAI 2001.

    The forecast is 80 % rain on each of 30 days, and 18 of the days are rainy. A bet of 1 on rain
    wins or loses 1. The stated gain per day is 0.6, and the realized gain is 0.2:

    >>> from calib_jax import metrics
    >>> logits = np.tile(np.log([[0.2, 0.8]]), (30, 1))
    >>> rain = (np.arange(30) < 18).astype(int)
    >>> bet = ((0, 1), (0, -1))  # rows: dry, rain; columns: no bet, bet
    >>> metrics.stated_cost(logits, rain, costs=bet)
    Array(-0.6, dtype=float32)
    >>> metrics.expected_cost(logits, rain, costs=bet)
    Array(-0.2, dtype=float32)
    """


@expected_cost.variant()
def stated_cost(sums: Sums) -> Scalar:
    r"""Compute the mean expected cost of the decisions that the probabilities recommend.

    $$\frac1n \sum_i \min_d \sum_k p_{i k} C_{k d}$$

    A calibrated model has the same `expected_cost`, up to noise; see `decision_calibration`.

    Args:
      costs: see `expected_cost`.
      abstain_cost: see `expected_cost`.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.3, 0.7]]))
    >>> metrics.stated_cost(logits, jnp.array([0, 1]), abstain_cost=0.25)
    Array(0.175, dtype=float32)
    """
    return ratio(sums["stated"], sums["weight"])
