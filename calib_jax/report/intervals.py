"""The rule that equal resamples have no interval, for every table of estimates."""

import math
from typing import NamedTuple

from calib_jax.report.paired_tests import NO_INTERVAL, NOISE_BOUND


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
