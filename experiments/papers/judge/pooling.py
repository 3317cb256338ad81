r"""The variance between training seeds, pooled over the losses of a block.

Three seeds estimate a variance with 2 degrees of freedom. If all L losses of a block with S seeds
have the same variance, the pooled estimate

$$s^2 = \frac{1}{L (S - 1)} \sum_{l, s} (\theta_{l s} - \bar\theta_l)^2$$

has L (S - 1), if the losses are independent. Runs of one seed share initial weights and the order
of the images, which correlates them: the degrees are somewhat fewer, and a variance of a difference
of two losses is somewhat too large. Bartlett's statistic tests the assumption. Its chi-square
distribution is inexact for three seeds, so its p-value is computed from normal draws.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

DRAWS = 10_000


class Pooled(NamedTuple):
    """A pooled variance.

    Attributes:
      variance: the variance of one seed.
      losses: the number of losses over which it is pooled.
      freedom: degrees of freedom.
      homogeneity: p-value of the hypothesis that all losses have the same variance.
    """

    variance: float
    losses: int
    freedom: int
    homogeneity: float


def pooled(table: np.ndarray) -> Pooled:
    """Pool the variance between seeds of `[losses, seeds]`, one statistic of every run.

    Losses with a root that was cut at 0 are left out, unless fewer than two others remain.
    """
    # The root of a negative squared error is cut at 0, and its variance with it.
    whole = table[np.all(table != 0, axis=1)]
    table = whole if len(whole) >= 2 else table
    losses, seeds = table.shape
    if losses < 2 or seeds < 2:
        raise ValueError(
            f"a block of {losses} losses and {seeds} seeds has no pooled variance: two or more of"
            " each are needed."
        )
    variances = np.var(table, axis=1, ddof=1)
    null = _null(losses, seeds)
    reached = len(null) - int(np.searchsorted(null, bartlett(variances, seeds)))
    p = (1 + reached) / (1 + len(null))
    return Pooled(float(np.mean(variances)), losses, losses * (seeds - 1), p)


def root(value: float) -> float:
    """Return the root of a debiased squared error, 0 for a negative one."""
    return math.sqrt(max(value, 0.0))


def variance_of_square(mean: float, variance: float) -> float:
    """Return the variance of the square of a normal variable whose mean square is `mean`.

    >>> variance_of_square(9.25, 0.25)
    9.125
    """
    return 4 * max(mean - variance, 0.0) * variance + 2 * variance**2


@functools.cache
def _null(losses: int, seeds: int) -> np.ndarray:
    """Draw Bartlett's statistic of normal tables with equal variances, sorted."""
    normal = np.random.default_rng(0).normal(size=(DRAWS, losses, seeds))
    return np.sort(bartlett(np.var(normal, axis=2, ddof=1), seeds))


def bartlett(variances: np.ndarray, seeds: int) -> np.ndarray:
    """Compute Bartlett's statistic of `[..., losses]` variances, without its constant factor."""
    if np.any(variances == 0):
        return np.full(variances.shape[:-1], math.inf)
    mean = np.log(np.mean(variances, axis=-1))
    return (seeds - 1) * (mean * variances.shape[-1] - np.sum(np.log(variances), axis=-1))
