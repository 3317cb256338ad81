r"""Do decisions cost what the model states, and which threshold costs least?

    inference.decision_calibration(logits, labels)           for every decision: stated, realized, p
    inference.best_threshold(logits, labels, key=key, abstain_cost=0.1)     with an interval

The bootstrap of the threshold of least cost is not valid, because the minimum of a sum of steps
does not converge at the rate of a mean. The interval here contains every threshold whose cost is
not larger than the least one by more than noise explains: if t has the least true cost, then for
all s

$$\hat c(t) - \hat c(s) \le (\hat c - c)(t) - (\hat c - c)(s),$$

so t is left out only if $\max_s \hat c(t) - \hat c(s)$ exceeds the quantile of the maximum of the
right side. Its noise is drawn by flipping the signs of the centered costs of the examples.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.draws import host_generator
from calib_jax.inference.evaluation import evaluated, of_classes
from calib_jax.inference.normal import LEAST_UNITS, flipped, normal_test, sums_of
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.costs import Decided, check_abstain_cost, decided, matrix_of

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
      low: lower end of the interval of the threshold.
      high: upper end of the interval of the threshold.
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
        independent. Use some 30 or more; intervals and p-values are NaN below 10.

    Returns:
      One `DecisionCost` per decision with examples; correct p-values for the number of decisions.
      p is NaN where the sum of the variances of the costs under the probabilities is below the
      squared range of the decision's costs: for errors, where a calibrated model expects less than
      about one.

    References:
      Zhao et al., Calibrating predictions to decisions, NeurIPS 2021.

    The forecast is 80 % rain on each of 30 days, and 18 of the days are rainy:

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.log(jnp.array([[0.2, 0.8]])), (30, 1))
    >>> rain = (jnp.arange(30) < 18).astype(int)
    >>> forecast = inference.decision_calibration(logits, rain)[1]
    >>> round(forecast.stated, 3), round(forecast.realized, 3), round(forecast.p_value, 3)
    (0.2, 0.4, 0.006)
    """
    checks.level(level)
    evaluation = evaluated("decision_calibration", logits, labels, weights, clusters)
    of_classes("decision_calibration", evaluation)
    logits, labels, _, cluster = evaluation.copies
    matrix = matrix_of(costs, logits.shape[-1])
    columns = _decided(logits, labels, tuple(map(tuple, matrix.tolist())), abstain_cost)
    decision, realized, stated, variance = (np.asarray(column) for column in columns)
    by_decision = {}
    for each in np.unique(decision):
        chosen = decision == each
        if each == matrix.shape[1]:
            continue  # abstention
        gap = realized[chosen].astype(np.float64) - stated[chosen]
        of_null = float(np.sum(variance[chosen], dtype=np.float64))
        # With fewer dear outcomes expected than about one, their mean is far from normal.
        enough = of_null >= np.ptp(matrix[:, each]) ** 2 > 0
        num = len(gap)
        if cluster is None:
            # The interval needs the spread of this model, the test the spread of a calibrated one.
            spread = float(np.maximum(of_null, np.sum(np.square(gap - np.mean(gap)))))
        else:
            _, ids = np.unique(cluster[chosen], return_inverse=True)
            num_clusters = int(np.max(ids)) + 1
            totals = sums_of(ids, (gap - np.mean(gap))[:, None])
            spread = of_null = (
                float(np.sum(np.square(totals))) if num_clusters >= LEAST_UNITS else np.nan
            )
        difference = float(np.mean(gap))
        interval = normal_test(difference, spread / num**2, level)
        p_value = normal_test(difference, of_null / num**2, level).p_value if enough else np.nan
        stated_mean, realized_mean = (
            float(np.mean(part[chosen], dtype=np.float64)) for part in (stated, realized)
        )
        by_decision[int(each)] = DecisionCost(
            num, stated_mean, realized_mean, difference, interval.low, interval.high, p_value
        )
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
    >>> import jax.numpy as jnp
    >>> sure, unsure = jnp.array([3.0, 0.0]), jnp.array([0.5, 0.0])
    >>> logits = jnp.concatenate([jnp.tile(sure, (300, 1)), jnp.tile(unsure, (100, 1))])
    >>> labels = (jnp.arange(400) >= 350).astype(int)  # half of the unsure ones are wrong
    >>> best = inference.best_threshold(logits, labels, key=jax.random.key(0), abstain_cost=0.1)
    >>> round(best.threshold, 2), round(best.cost, 3)
    (0.62, 0.025)
    """
    checks.random_key(key)
    checks.level(level)
    checks.whole("num_resamples", num_resamples)
    check_abstain_cost(abstain_cost)
    evaluation = evaluated("best_threshold", logits, labels, weights, clusters)
    of_classes("best_threshold", evaluation)
    logits, labels, _, cluster = evaluation.copies
    num_classes = logits.shape[-1]
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
    score, predicted = (
        np.asarray(part) for part in _scores(logits, labels, abstain_cost is not None)
    )
    true = np.asarray(labels)
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
    noise = costs_of - mean
    if cluster is None or np.max(np.bincount(cluster)) == 1:
        # The sum of the random signs of the examples of a kind.
        signs = 2 * host_generator(key).binomial(counts, 0.5, (num_resamples, len(counts))) - counts
        draws = signs @ noise / len(score)
    else:
        shape = np.max(cluster) + 1, len(counts)
        cell = cluster * len(counts) + kind.reshape(-1)
        noise = np.bincount(cell, minlength=np.prod(shape)).reshape(shape) @ noise
        if len(noise) < LEAST_UNITS:
            return BestThreshold(float(thresholds[best]), np.nan, np.nan, float(mean[best]))
        # Sorted by a projection, so that the draws do not depend on the order of the examples.
        noise = noise[np.argsort(noise @ np.cos(np.arange(len(thresholds))), kind="stable")]
        draws = flipped(key, num_resamples, noise) / len(score)
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


@functools.partial(jax.jit, static_argnums=(2, 3))
def _decided(logits: Logits, labels: Labels, costs: Any, abstain_cost: float | None) -> Decided:
    return decided(Predictions(logits, labels), costs, abstain_cost)


@functools.partial(jax.jit, static_argnums=2)
def _scores(logits: Logits, labels: Labels, confidence: bool) -> tuple[Array, Array]:
    view = Predictions(logits, labels)
    return view.confidence if confidence else view.p[..., 1], view.predicted
