"""Intervals and p-values as tables show them: which exist, adjusted p-values, stars and bounds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calib_jax import inference
from calib_jax.report.records import base_name

NOISE_BOUND = "noise bound"
NO_INTERVAL = "none"
STAR = 0.05


class Shown(NamedTuple):
    """The interval that a table shows: both ends (NaN without an interval) and the kind."""

    low: float
    high: float
    kind: str


def shown(value: float, low: float, high: float, kind: str) -> Shown:
    """Return the interval to show; none if all resamples have the value of the estimate.

    An accuracy of 1 on 18 examples is 1 in every resample, but this does not make it certain. A
    noise bound comes from a test, and is kept.

    >>> shown(1.0, 1.0, 1.0, "percentile")
    Shown(low=nan, high=nan, kind='none')
    >>> shown(0.5, 0.4, 0.6, "percentile")
    Shown(low=0.4, high=0.6, kind='percentile')
    """
    slack = 1e-6 * abs(value)  # the rounding of float32
    if not kind.startswith(NOISE_BOUND) and max(abs(low - value), abs(high - value)) <= slack:
        return Shown(math.nan, math.nan, NO_INTERVAL)
    return Shown(low, high, kind)


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by `inference.holm`; None stays None and is not counted.

    >>> adjusted([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    given = np.array([np.nan if p is None else p for p in p_values], float)
    corrected = inference.holm(given).tolist()
    return [None if p is None else q for p, q in zip(p_values, corrected, strict=True)]


def starred(p_holm: float | None) -> str:
    """Return a star for an adjusted p-value below 5 %."""
    return "*" if p_holm is not None and p_holm < STAR else ""


def least_p(metric: str, num_resamples: int) -> float:
    """Return the smallest possible p-value of a metric's difference; 0 for an asymptotic test."""
    return 0.0 if base_name(metric) in inference.BY_SQUARED_ERROR else 2 / (num_resamples + 1)


def least_p_of_bound(num_resamples: int, level: float) -> float:
    """Return the smallest possible p-value of a noise bound, or an upper bound for few resamples.

    >>> least_p_of_bound(num_resamples=199, level=0.9)
    0.005
    """
    return min(1 / (num_resamples + 1), (1 - level) / 2)
