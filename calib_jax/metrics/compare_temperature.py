r"""Do two models need different temperatures?

The temperature T minimises the NLL of logits z / T: at $\beta = 1 / T$ the mean of $g_i =
\mathrm{E}_{p_i} z - z_{i y}$ is 0. With $h_i = \operatorname{Var}_{p_i} z$, an example changes
log T by $T g_i / \sum_j h_j$ to first order, so the difference of two models' log T on the same
examples is asymptotically normal, with the variance of the difference of these terms.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.core.types import Labels, Logits
from calib_jax.metrics.calibration_tests import temperature_terms
from calib_jax.metrics.counted import Column, counted_in_clusters
from calib_jax.metrics.normal import paired_test

__all__ = ["TemperatureDifference", "compare_temperature"]

_WIDEST = 20 * math.log(2)  # larger |log T| count as an infinite temperature, or 0


class TemperatureDifference(NamedTuple):
    """The change of log T from model a to model b, T being the temperature of least NLL.

    Attributes:
      value: log T of b minus log T of a.
      low: lower end of its interval.
      high: upper end of its interval.
      p_value: two-sided, of equal temperatures; asymptotic. It and the ends are NaN with fewer
        than 10 examples or clusters.
      temperature_a: above 1 if a is overconfident, as a whole.
      temperature_b: the same of b.
    """

    value: float
    low: float
    high: float
    p_value: float
    temperature_a: float
    temperature_b: float


def compare_temperature(
    logits_a: Any,
    logits_b: Any,
    labels: Any,
    weights: Any = None,
    *,
    level: float = 0.9,
    clusters: Any = None,
) -> TemperatureDifference:
    """Compare the temperatures that two models need on the same examples.

    It is the strongest comparison of over- and underconfidence, and blind to errors that no
    temperature changes. A model that needs T = 1.3 and one that needs T = 1 / 1.3 differ here,
    although their calibration errors may be equal. No calibrator may have been fitted on these
    examples.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      level: the nominal coverage of the interval, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. Use some 30 or
        more.

    Returns:
      All numbers are NaN if a model has no temperature of least NLL: if it is always right, worse
      than guessing, or has equal logits for all classes.

    >>> import jax
    >>> from calib_jax import metrics
    >>> logits = jax.random.normal(jax.random.key(0), (500, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits)
    >>> change = metrics.compare_temperature(logits, 2 * logits, labels)
    >>> round(change.value, 3)  # log 2
    0.693
    """
    checks.level(level)
    parts = []
    for logits in (logits_a, logits_b):
        rows, labels_, cluster = counted_in_clusters(
            "compare_temperature", logits, labels, weights, clusters
        )
        parts.append(_fit(rows, labels_))
    (log_a, influence_a), (log_b, influence_b) = parts
    if math.isnan(log_a + log_b):
        return TemperatureDifference(*4 * (math.nan,), math.exp(log_a), math.exp(log_b))
    # The terms have mean 0: shifted by the difference, their mean is the difference.
    test = paired_test(influence_b - influence_a + (log_b - log_a), cluster, level)
    return TemperatureDifference(*test, math.exp(log_a), math.exp(log_b))


def _fit(logits: Logits, labels: Labels) -> tuple[float, Column]:
    """Fit log T by safeguarded Newton steps; return it, or NaN, and its influences."""
    low, high = -_WIDEST, _WIDEST  # of log beta, for a monotone score
    log_beta = 0.0
    for _ in range(100):
        slope, spread = _at(log_beta, logits, labels)
        total, curvature = float(np.sum(slope)), float(np.sum(spread))
        if total > 0:
            high = log_beta
        else:
            low = log_beta
        step = total / (curvature + total) if curvature + total > 0 else math.nan
        proposal = log_beta - step
        if not low < proposal < high:
            proposal = (low + high) / 2
        converged = abs(proposal - log_beta) < 1e-7
        log_beta = proposal
        if converged:
            break
    if abs(log_beta) > _WIDEST - 1e-3:
        return math.nan, np.zeros(len(labels))
    slope, spread = _at(log_beta, logits, labels)
    return -log_beta, len(labels) * slope / float(np.sum(spread))


def _at(log_beta: float, logits: Logits, labels: Labels) -> tuple[Column, Column]:
    """Compute the score of each NLL of logits beta z by log beta, and its variance."""
    score, variance, _ = temperature_terms(np.float32(math.exp(log_beta)) * logits, labels)
    return np.asarray(score, np.float64), np.asarray(variance, np.float64)
