r"""How large is the squared calibration error of the top label, without the bias of noise?

The noise of a bin's mean makes the squared gap too large on average. The mean product of two
different examples of the bin, $r_i r_j$ with $r = c - a$, has no such bias: the debiased squared
error

$$\sum_b \frac{n_b}{n} \frac{1}{n_b (n_b - 1)} \sum_{i \ne j \in b} r_i r_j
  = \frac1n \sum_{b : n_b \ge 2} \frac{S_b^2 - Q_b}{n_b - 1}, \quad
  S_b = \sum_{i \in b} r_i, \quad Q_b = \sum_{i \in b} r_i^2$$

is unbiased given the bins, up to bins with one example, which contribute 0. It can be negative.
With clusters, only products of examples of different clusters count.
`debiased_rms_calibration_error` subtracts the variance of the hits alone, as Kumar et al. do; the
two agree if the confidence is constant in every bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from calib_jax.core import checks
from calib_jax.inference.evaluation import evaluated
from calib_jax.inference.residuals import Binned, binned, moments, wilson_reach


class SquaredError(NamedTuple):
    """The debiased squared calibration error with its interval, and its root, as Python floats.

    Attributes:
      value: the debiased squared error, negative in about half of all calibrated models; NaN if no
        bin has two examples.
      low: lower end, 0 if the test of a squared error of 0 does not reject.
      high: upper end.
      root: the root of `value`, a calibration error; 0 if `value` is negative.
      root_low: the root of `low`.
      root_high: the root of `high`.
    """

    value: float
    low: float
    high: float
    root: float
    root_low: float
    root_high: float


def debiased_squared_error(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    num_bins: int = 15,
    level: float = 0.9,
    clusters: Any = None,
) -> SquaredError:
    r"""Compute the debiased squared calibration error of the top label, with its interval.

    It widens the interval of Sun et al. at both ends. Their upper end is too low where most
    examples lie in one bin and its gap is small, as for accurate networks: there nominal 90 %
    intervals covered 77 %. The squared mean gap of a bin, times the bin's share of the examples,
    contains noise of expectation $\lambda = \sigma_b^2 / n$. The largest $\lambda$ times $1 + z^2$
    is added, so that the upper end is $(|m| + z \sqrt\lambda)^2$ for a single bin of mean gap m.
    Where errors are rare, both of their ends are too close, because an observed variance of 0 is no
    certainty: for 1,000 examples of confidence .99 and accuracy .999 they covered 63 %. So the
    score interval of each bin's accuracy also bounds the gap (`residuals.wilson_reach`).

    In simulations of 200 to 10,000 examples nominal 90 % intervals covered 89 to 100 %, and for
    one confidence, 100 to 3,000 examples and error rates of .0002 to .3, exact enumerations gave
    90 to 100 %. The examples must be independent, or independent between `clusters`, and no
    calibrator may have been fitted on them.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      num_bins: number of bins of equal width.
      level: the nominal coverage of the interval, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. In
        simulations nominal 90 % intervals covered 86 to 98 % with 50 clusters of 20 examples, and
        89 to 99 % with 500; the ends are NaN with fewer than 10.

    References:
      Sun, Chaudhari, Barnett and Dobriban, A confidence interval for the expected calibration
      error, 2024.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.log(jnp.array([[0.9, 0.1]])), (100, 1))
    >>> error = inference.debiased_squared_error(logits, (jnp.arange(100) < 40).astype(int))
    >>> round(error.value, 4), round(error.root_low, 2), round(error.root_high, 2)
    (0.0876, 0.21, 0.38)
    """
    checks.level(level)
    evaluation = evaluated("debiased_squared_error", logits, labels, weights, clusters)
    return interval_of([(1.0, binned(evaluation, num_bins=num_bins))], level)


def interval_of(models: Sequence[tuple[float, Binned]], level: float) -> SquaredError:
    """Compute a weighted mean of errors with the interval of Sun et al., widened at both ends."""
    _, value, linear, degenerate, _, _, largest = moments(models)
    if math.isnan(value + linear):
        positive = max(0.0, value) if value == value else value
        return SquaredError(value, math.nan, math.nan, math.sqrt(positive), math.nan, math.nan)
    null_deviation, step = math.sqrt(degenerate), math.sqrt(linear)
    z_one, z_two = (NormalDist().inv_cdf(at) for at in (level, (1 + level) / 2))
    positive = max(0.0, value)
    if positive < z_one * null_deviation:
        low = 0.0
    elif positive >= 2 * z_two * step:
        low = positive - z_two * step
    elif positive >= 2 * z_one * step:
        low = positive / 2
    else:
        low = max(0.0, positive - z_one * step)
    reach = wilson_reach(models, z_two)
    low = min(low, max(0.0, positive - reach.below))
    # The second term is exact for a single bin, and small beside the first for many.
    high = positive + max(z_two * step + (1 + z_two**2) * largest, reach.above + largest)
    high = min(1.0, high)
    return SquaredError(value, low, high, *map(math.sqrt, (positive, low, high)))
