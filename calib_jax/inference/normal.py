"""Intervals and two-sided p-values of estimates with a normal distribution."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

Column = Float[np.ndarray, " rows"]

# A normal p-value of fewer examples or clusters rejects too often: 4 of one sign give p = .046.
LEAST_UNITS = 10


class NormalTest(NamedTuple):
    """An estimate with its interval, and the p-value of the hypothesis that the truth is 0."""

    value: float
    low: float
    high: float
    p_value: float


def normal_test(
    value: float, variance: float, level: float, degrees: float = math.inf
) -> NormalTest:
    """Compute the interval and the p-value, which is 1 for a value of 0 that cannot vary.

    Args:
      value: the estimate.
      variance: the variance of the estimate.
      level: the nominal coverage of the interval.
      degrees: the degrees of freedom of the variance, for Student's t; infinite for the normal.
    """
    deviation = math.sqrt(variance)
    if math.isinf(degrees) or not deviation > 0:
        half = NormalDist().inv_cdf((1 + level) / 2) * deviation
        return NormalTest(value, value - half, value + half, p_of_z(value, deviation))
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(degrees, (1 + level) / 2)) * deviation
    p_value = 2 * float(stdtr(degrees, -abs(value) / deviation))
    return NormalTest(value, value - half, value + half, p_value)


def clipped(value: float, low: float = 0.0, high: float = math.inf) -> float:
    """Clip a number to [low, high]; NaN stays NaN, which `max(low, nan)` would turn into `low`.

    >>> clipped(-1e-17), clipped(math.nan)
    (0.0, nan)
    """
    return value if math.isnan(value) else min(high, max(low, value))


def p_of_z(value: float, deviation: float = 1.0) -> float:
    """Compute the two-sided p-value of a value with this standard deviation; NaN stays NaN."""
    if deviation == 0:
        return 1.0 if value == 0 else 0.0
    return math.erfc(abs(value) / deviation / math.sqrt(2))


def paired_test(
    differences: Column, cluster: Integer[np.ndarray, " rows"] | None, level: float
) -> NormalTest:
    """Test a mean difference over examples, or over examples in clusters.

    The ends and the p-value are NaN with fewer than `LEAST_UNITS` examples or clusters.
    """
    num_rows, value = len(differences), float(np.mean(differences))
    residuals = differences - value
    sums = residuals if cluster is None else np.bincount(cluster, residuals)
    if len(sums) < LEAST_UNITS:
        return NormalTest(value, math.nan, math.nan, math.nan)
    variance = float(np.sum(np.square(sums))) * len(sums) / (len(sums) - 1) / num_rows**2
    return normal_test(value, variance, level)
