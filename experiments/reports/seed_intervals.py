r"""Intervals of a mean over trained networks that predict the same test examples.

Both the seeds and the examples are random: the interval covers the mean over all seeds and all
examples. A single seed has an interval over the examples, as in `inference.estimates`.

- Regular metrics: the two-way variance of `inference.nested`; the variance
  over the examples comes from the bootstrap samples.
- Binned calibration errors: the mean of the noise bounds of the runs is valid for these runs. The
  lower end is 0 unless twice the mean of the runs' p-values is below (1 - level) / 2; twice the
  mean of p-values is a p-value under any dependence between the runs. Each half of the interval,
  divided by the normal quantile, is taken as a standard deviation over the examples. Howe's
  interval of `inference.Value` adds the variance of the mean over the seeds, which
  has S - 1 degrees of freedom for S seeds. Noise of the examples that differs between the runs is
  in both parts, which widens the interval.

References:
  Vovk and Wang, Combining p-values via averaging, Biometrika 2020.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from calib_jax import inference
from calib_jax.report import caveats

LEVEL = 0.9
TAIL = (1 - LEVEL) / 2
WITH_SEEDS = " and seeds"  # suffix of interval kinds that cover the choice of seeds


class SeedInterval(NamedTuple):
    """An interval of a mean over runs, at the level `LEVEL`.

    Attributes:
      low: the lower end; NaN without an interval, if all resamples of all runs are equal.
      high: the upper end; NaN if `low` is NaN.
      interval: the kind: "percentile" or "noise bound" for one run, over the examples alone;
        "examples and seeds" or "noise bound and seeds" for several; "none" without ends.
    """

    low: float
    high: float
    interval: str


def of_samples(
    values: Sequence[float], samples: Float[np.ndarray, "runs resamples"], *, most: float = math.inf
) -> SeedInterval:
    """Compute the interval of the mean of a regular, non-negative metric.

    Args:
      values: the values of every run.
      samples: the bootstrap samples of every run, with the same resamples for all.
      most: the largest possible value.
    """
    samples = np.asarray(samples, np.float64)
    if len(values) == 1:
        low, high = inference.interval(samples[0], LEVEL)
        return SeedInterval(*caveats.shown(values[0], low, high, "percentile")[1:])
    of_runs = [float(np.nanvar(row)) for row in samples]
    of_mean = float(np.nanvar(np.mean(samples, axis=0)))
    value = inference.nested(values, of_mean, of_runs, rows=0)
    low, high = max(0.0, value.low), min(most, value.high)
    return SeedInterval(*caveats.shown(np.mean(values), low, high, "examples" + WITH_SEEDS)[1:])


def of_bounds(bounds: Sequence[Any]) -> SeedInterval:
    """Compute the interval of the mean of a binned calibration error.

    Args:
      bounds: the bounds of every run, at the same level.
    """
    if len(bounds) == 1:
        return SeedInterval(bounds[0].low, bounds[0].high, "noise bound")
    values = [bound.value for bound in bounds]
    mean = float(np.mean(values))
    variance = float(np.var(values, ddof=1)) / len(values)
    rejects = 2 * np.mean([bound.p_value for bound in bounds]) < TAIL
    low = float(np.mean([bound.low for bound in bounds])) if rejects else 0.0
    high = float(np.mean([bound.high for bound in bounds]))
    low = max(0.0, mean - _half(mean - low, variance, len(values))) if low else 0.0
    high = min(1.0, mean + _half(high - mean, variance, len(values)))
    return SeedInterval(low, high, "noise bound" + WITH_SEEDS)


def _half(over_examples: float, variance: float, num_runs: int) -> float:
    """Widen half of an interval over the examples by the variance of the mean over the seeds."""
    of_examples = (over_examples / NormalDist().inv_cdf(1 - TAIL)) ** 2
    return inference.Value(0.0, math.sqrt(of_examples + variance), num_runs - 1, of_examples).high
