r"""Decisions: what they cost, which threshold costs least, and which error rate is guaranteed.

    inference.decision_calibration(logits, labels)           for every decision: stated, realized, p
    inference.best_threshold(logits, labels, key=key, abstain_cost=0.1)     with an interval
    inference.guaranteed_coverage(logits, labels, risk=0.05)                with a guarantee

*The threshold of least cost.* The bootstrap of the threshold of least cost is not valid, because
the minimum of a sum of steps does not converge at the rate of a mean. The interval here contains
every threshold whose cost is not larger than the least one by more than noise explains: if t has
the least true cost, then for all s

$$\hat c(t) - \hat c(s) \le (\hat c - c)(t) - (\hat c - c)(s),$$

so t is left out only if $\max_s \hat c(t) - \hat c(s)$ exceeds the quantile of the maximum of the
right side. Its noise is drawn by flipping the signs of the centered costs of the examples.

*A guaranteed error rate.* `coverage_at_risk` chooses a threshold on the examples on which it
measures the errors, so the error rate of other examples is higher than the risk about half of the
time. Here the threshold $\theta$ is chosen so that, with a probability of at least `level` over the
examples,

$$P(\hat y \ne y \mid c > \theta) \le r .$$

The candidates are a grid of thresholds that does not depend on the examples. Given the number m of
examples above a fixed threshold, their errors are Binomial(m, R), so R > r is rejected at the error
$\alpha$ if $P(\mathrm{Bin}(m, r) \le \text{errors}) \le \alpha$, the test of Clopper and Pearson.
The thresholds are tested in a fixed order, from the highest down. Above the highest ones are too
few examples to reject anything, so the order begins at the thresholds above which an eighth, a
quarter, a half and all of the examples lie, with the shares .2, .2, .5 and .1 of 1 - level. A
rejection passes its share on to the next threshold, and a threshold that is not rejected loses it
(Wiens and Dmitrienko). The starts depend on the confidences alone. In 400 simulated sets of eight
kinds at most 5 % of the thresholds broke the guarantee of 90 %.

In clusters, let $e_g$ of the $m_g$ answered examples of cluster g be wrong, and let M be the size
of the largest cluster. Then $L_g = (e_g + r (M - m_g)) / M$ lies in [0, 1] and has a mean above r
exactly if R > r, so the p-value is the bound of Hoeffding and Bentkus for the mean of the clusters
with an answer.

Geifman and El-Yaniv search the threshold by bisection at $(1 - \text{level}) / \lceil \log_2 n
\rceil$. Which thresholds a bisection visits depends on the errors, which their union bound does not
cover; a fixed order needs no such bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.core.types import Array
from calib_jax.inference import p_values
from calib_jax.inference.evaluation import evaluated
from calib_jax.metrics.contract import Predictions
from calib_jax.metrics.selective import check_abstain_cost, decided, matrix_of

_MOST_THRESHOLDS = 200


class DecisionCost(NamedTuple):
    """The stated and the realized cost of the examples with one decision, as Python floats.

    Attributes:
      examples: number of examples with this decision.
      stated: mean expected cost of these examples.
      realized: mean cost of these examples on the labels.
      difference: realized minus stated; positive if the decisions cost more than stated.
      low: lower end of the interval of the difference.
      high: upper end of the interval of the difference.
      p_value: two-sided, of the hypothesis that the model is calibrated; asymptotic, and NaN if the
        difference cannot vary.
    """

    examples: int
    stated: float
    realized: float
    difference: float
    low: float
    high: float
    p_value: float


class BestThreshold(NamedTuple):
    """The threshold of least cost, as Python floats.

    Attributes:
      threshold: answer, or take decision 1, where the score is greater.
      low: lower end of the interval of the threshold; NaN with fewer than 10 examples or clusters.
      high: upper end of the interval of the threshold; NaN as `low`.
      cost: the mean cost at the threshold, on the examples on which the threshold was chosen.
    """

    threshold: float
    low: float
    high: float
    cost: float


def decision_calibration(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    costs: Any = None,
    abstain_cost: float | None = None,
    level: float = 0.9,
    clusters: Any = None,
) -> dict[int, DecisionCost]:
    """Compare stated and realized costs for every decision that the model recommends.

    With the default costs the decision is the top label: the stated cost is 1 minus the mean
    confidence of the examples with this label, the realized cost their error rate.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      costs: `[classes, decisions]`, see `expected_cost`.
      abstain_cost: see `expected_cost`; abstention costs as much as stated, and is left out.
      level: the nominal coverage of the intervals, a fraction.
      clusters: `[*batch]`, the cluster of each example; examples of different clusters are
        independent. Use some 30 or more.

    Returns:
      One `DecisionCost` per decision with examples; the ends and the p-value are NaN if it has
      fewer than 10 examples or clusters. Use `holm` to correct the p-values for the
      number of decisions. A p-value is NaN where a calibrated model expects too few costly outcomes
      for a normal test: where the variances of the costs, under the probabilities, add up to less
      than the squared range of the decision's costs. With the default costs, this is less than
      about one error.

    References:
      Zhao et al., Calibrating predictions to decisions, NeurIPS 2021.

    The forecast is 80 % rain on each of 30 days, and 18 of the days are rainy:

    >>> import numpy as np
    >>> from calib_jax import inference
    >>> logits = np.tile(np.log([[0.2, 0.8]]), (30, 1))
    >>> rain = (np.arange(30) < 18).astype(int)
    >>> forecast = inference.decision_calibration(logits, rain)[1]
    >>> round(forecast.stated, 3), round(forecast.realized, 3), round(forecast.p_value, 3)
    (0.2, 0.4, 0.006)
    """
    checks.level(level)
    evaluation = evaluated("decision_calibration", logits, labels, weights, clusters)
    evaluation.refuse_stated("decision_calibration")
    cluster, matrix = evaluation.cluster, matrix_of(costs, evaluation.logits.shape[-1])
    options = tuple(map(tuple, matrix.tolist())), abstain_cost
    decision, *columns = evaluation.columns(decided, *options)
    realized, stated, variance = (column.astype(np.float64) for column in columns)
    by_decision = {}
    for each in np.unique(decision[decision < matrix.shape[1]]):  # no abstention
        chosen = decision == each
        gap = (realized - stated)[chosen]
        num, difference = len(gap), float(np.mean(gap))
        of_null = float(np.sum(variance[chosen])) if num >= p_values.LEAST_UNITS else math.nan
        # With fewer dear outcomes expected than about one, their mean is far from normal.
        enough = of_null >= np.ptp(matrix[:, each]) ** 2 > 0
        if cluster is None:
            # The interval needs the spread of this model, the test the spread of a calibrated one.
            spread = float(np.maximum(of_null, np.sum(np.square(gap - difference))))
            interval = p_values.normal_test(difference, spread / num**2, level)
            test = p_values.normal_test(difference, of_null / num**2, level)
        else:
            interval = test = p_values.paired_test(gap, cluster[chosen], level, student=True)
        p_value = test.p_value if enough else np.nan
        means = float(np.mean(stated[chosen])), float(np.mean(realized[chosen]))
        by_decision[int(each)] = DecisionCost(num, *means, *interval[:3], p_value)
    return by_decision


@checks.needs_key
def best_threshold(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    costs: Any = None,
    abstain_cost: float | None = None,
    level: float = 0.9,
    num_resamples: int = 1000,
    clusters: Any = None,
) -> BestThreshold:
    """Find the threshold of least cost, with an interval of the thresholds that may be the best.

    With `abstain_cost` it is a threshold of the confidence: predictions above it are answered with
    the top label, the others cost `abstain_cost`. Without, it is a threshold of the probability of
    class 1 of two classes, above which decision 1 is taken instead of decision 0.

    The cost is measured on the examples on which the threshold was chosen, so the cost on other
    examples is higher on average. Where costs hardly depend on the threshold, the interval is wide.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the draws.
      costs: `[classes, classes]`, `[y, d]` for answering d; 0 and 1 by default.
      abstain_cost: the cost of an example that is not answered.
      level: the nominal coverage of the interval, a fraction.
      num_resamples: number of draws of the noise.
      clusters: `[*batch]`, the cluster of each example, as in `decision_calibration`.

    >>> from calib_jax import inference
    >>> import jax
    >>> import jax.numpy as jnp
    >>> sure, unsure = jnp.array([3.0, 0.0]), jnp.array([0.5, 0.0])
    >>> logits = jnp.concatenate([jnp.tile(sure, (300, 1)), jnp.tile(unsure, (100, 1))])
    >>> labels = (jnp.arange(400) >= 350).astype(int)  # half of the unsure ones are wrong
    >>> best = inference.best_threshold(logits, labels, key=jax.random.key(0), abstain_cost=0.1)
    >>> round(best.threshold, 2), round(best.cost, 3)
    (0.62, 0.025)
    """
    check_abstain_cost(abstain_cost)
    evaluation = evaluated("best_threshold", logits, labels, weights, clusters)
    evaluation.refuse_stated("best_threshold")
    true, cluster = np.asarray(evaluation.copies.labels), evaluation.cluster
    num_classes = evaluation.logits.shape[-1]
    matrix = matrix_of(costs, num_classes)
    if matrix.shape[1] != num_classes:
        raise ValueError(
            f"best_threshold needs one decision for each of the {num_classes} classes, got costs of"
            f" the shape {matrix.shape}."
        )
    if abstain_cost is None and num_classes != 2:
        raise ValueError(
            f"best_threshold needs two classes, got {num_classes}."
            " Give abstain_cost for a threshold of the confidence."
        )
    score, predicted = evaluation.columns(_scores, abstain_cost is not None)
    if abstain_cost is None:
        above, below = matrix[true, 1], matrix[true, 0]
    else:
        above, below = matrix[true, predicted], np.full(len(true), float(abstain_cost))
    thresholds = _thresholds(score)
    passed = np.searchsorted(thresholds, score)  # the thresholds below each score
    rows = np.stack([passed, above, below], axis=1)
    kinds, kind, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    costs_of = np.where(kinds[:, :1] > np.arange(len(thresholds)), kinds[:, 1:2], kinds[:, 2:])
    mean = counts @ costs_of / len(score)
    best = int(np.argmin(mean))
    if evaluation.num_units < p_values.LEAST_UNITS:
        return BestThreshold(float(thresholds[best]), np.nan, np.nan, float(mean[best]))
    noise, random = costs_of - mean, p_values.host_generator(key)
    if cluster is None:
        # The sum of the random signs of the examples of a kind.
        signs = 2 * random.binomial(counts, 0.5, (num_resamples, len(counts))) - counts
        draws = signs @ noise / len(score)
    else:
        shape = np.max(cluster) + 1, len(counts)
        cell = cluster * len(counts) + kind.ravel()
        noise = np.bincount(cell, minlength=np.prod(shape)).reshape(shape) @ noise
        # Sorted by a projection, so that the draws do not depend on the order of the examples.
        noise = noise[np.argsort(noise @ np.cos(np.arange(len(thresholds))), kind="stable")]
        draws = p_values.flipped(random, num_resamples, noise) / len(score)
    largest = draws - np.min(draws, axis=1, keepdims=True)
    kept = np.flatnonzero(mean - np.min(mean) <= np.quantile(largest, level, axis=0) + 1e-12)
    # The cost is constant up to the next threshold.
    last = min(int(kept[-1]) + 1, len(thresholds) - 1)
    ends = float(thresholds[kept[0]]), float(thresholds[last])
    return BestThreshold(float(thresholds[best]), *ends, float(mean[best]))


def _thresholds(score: np.ndarray) -> np.ndarray:
    """Return 0, scores or their quantiles, and the largest score, above which there are none."""
    levels = np.unique(score)
    if len(levels) > _MOST_THRESHOLDS:
        at = np.linspace(0, len(score) - 1, _MOST_THRESHOLDS).astype(int)
        levels = np.unique(np.sort(score)[at])
    return np.append(np.zeros(1, levels.dtype), levels)


def _scores(view: Predictions, confidence: bool) -> tuple[Array, Array]:
    return view.confidence if confidence else view.p[..., 1], view.predicted


# Thresholds in log-odds. Float32 rounds a confidence with log-odds above 16.6 to 1.
_HIGHEST, _STEPS_PER_UNIT = 16, 64
_STARTS = {1 / 8: 0.2, 1 / 4: 0.2, 1 / 2: 0.5, 1.0: 0.1}  # share of the examples -> of 1 - level


class GuaranteedCoverage(NamedTuple):
    """A threshold of the confidence with a guaranteed error rate, as Python floats.

    Attributes:
      threshold: answer the predictions whose confidence is strictly greater (>); 0 answers all, and
        NaN, which no confidence exceeds, none.
      coverage: the share of these examples strictly above the threshold; 0 for none.
      risk: the error rate of the examples above the threshold; NaN if there are none.
    """

    threshold: float
    coverage: float
    risk: float


def guaranteed_coverage(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    risk: float = 0.05,
    level: float = 0.9,
    clusters: Any = None,
) -> GuaranteedCoverage:
    """Choose the lowest threshold so that predictions with `confidence > threshold` err rarely.

    The examples, or the clusters, must be independent, from the distribution of the predictions to
    be answered, and no training or calibrator may have used them. If no threshold can be guaranteed
    the threshold is NaN.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      risk: the largest allowed error rate, from 0 to 1.
      level: the probability of the guarantee, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings, such as the
        question of several samples. Some hundred are needed before anything can be guaranteed.

    References:
      Geifman and El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017.
      Angelopoulos et al., Learn then test: calibrating predictive algorithms to achieve risk
      control, 2021.
      Wiens and Dmitrienko, The fallback procedure for evaluating a single family of hypotheses,
      2005.
      Bates et al., Distribution-free, risk-controlling prediction sets, JACM 2021.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> sure, unsure = jnp.array([4.0, 0.0]), jnp.array([0.5, 0.0])
    >>> logits = jnp.concatenate([jnp.tile(sure, (300, 1)), jnp.tile(unsure, (100, 1))])
    >>> labels = (jnp.arange(400) >= 350).astype(int)  # half of the unsure ones are wrong
    >>> answered = inference.guaranteed_coverage(logits, labels, risk=0.05)
    >>> round(answered.threshold, 2), answered.coverage, answered.risk
    (0.62, 0.75, 0.0)
    """
    checks.level(level)
    checks.between("risk", risk, 0, 1)
    evaluation = evaluated("guaranteed_coverage", logits, labels, weights, clusters)
    confidence, hit = evaluation.top_label()
    order = np.argsort(-confidence, kind="stable")
    errors = np.append(0, np.cumsum(1 - hit[order])).astype(int)
    thresholds = _grid(evaluation.logits.shape[-1])
    answered = _above(confidence, thresholds)
    if evaluation.cluster is None:
        of_thresholds = _tails(errors[answered], answered, risk)
    else:
        largest = np.full(np.max(evaluation.cluster) + 1, -np.inf)
        np.maximum.at(largest, evaluation.cluster, confidence)
        size = int(np.max(np.bincount(evaluation.cluster)))
        clusters_answered = _above(largest, thresholds)
        of_thresholds = _bounds(errors[answered], answered, clusters_answered, size, risk)
    chosen = _last_rejected(answered / len(hit), of_thresholds, 1 - level)
    if chosen is None:
        return GuaranteedCoverage(math.nan, 0.0, math.nan)
    num = int(answered[chosen])
    return GuaranteedCoverage(float(thresholds[chosen]), num / len(hit), int(errors[num]) / num)


def _grid(num_classes: int) -> np.ndarray:
    """Return thresholds in descending order, 0 last."""
    # No confidence is smaller than 1 / K, but a stated one.
    lowest = -math.log(num_classes - 1) if num_classes > 1 else -_HIGHEST
    number = math.ceil((_HIGHEST - lowest) * _STEPS_PER_UNIT)
    log_odds = _HIGHEST - np.arange(number) / _STEPS_PER_UNIT
    thresholds = np.append(1 / (1 + np.exp(-log_odds)), 0.0)
    # Rounded like confidences, so that a comparison in float32 selects the same examples.
    return thresholds.astype(np.float32).astype(np.float64)


def _above(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Count the values that are strictly greater than each threshold."""
    return np.searchsorted(np.sort(-values), -thresholds, side="left")


def _tails(errors: np.ndarray, answered: np.ndarray, risk: float) -> np.ndarray:
    """Compute the probability of at most so many errors, a tail of the binomial distribution."""
    from scipy.special import betaincc  # exact for 10^8 examples too, unlike `bdtr`

    right = answered - errors
    return np.where(right > 0, betaincc(errors + 1, np.maximum(right, 1), risk), 1.0)


def _bounds(
    errors: np.ndarray, answered: np.ndarray, clusters: np.ndarray, size: int, risk: float
) -> np.ndarray:
    """Compute the p-values of clusters by the bound of Hoeffding and Bentkus."""
    from scipy.special import rel_entr

    total = (errors + risk * (size * clusters - answered)) / size
    mean = np.minimum(total / np.maximum(clusters, 1), risk)
    gain = rel_entr(mean, risk) + rel_entr(1 - mean, 1 - risk)
    bentkus = math.e * _tails(np.ceil(total - 1e-9).astype(int), clusters, risk)
    of_thresholds = np.minimum(1, np.minimum(np.exp(-clusters * gain), bentkus))
    return np.where(clusters > 0, of_thresholds, 1.0)


def _last_rejected(share: np.ndarray, of_thresholds: np.ndarray, error: float) -> int | None:
    """Test in order with the errors of the starts; return the index of the last rejection.

    Args:
      share: the share of the examples above each threshold.
      of_thresholds: the p-value of each threshold.
      error: the probability of a wrong rejection.
    """
    given = np.zeros(len(share))
    for start, part in _STARTS.items():
        given[np.argmax(share >= start) if start < 1 else -1] += part * error
    available, chosen = 0.0, None
    for place, (part, p_value) in enumerate(zip(given, of_thresholds, strict=True)):
        available += part
        if available > 0 and p_value <= available:
            chosen = place
        else:
            available = 0.0
    return chosen
