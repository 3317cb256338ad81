r"""Weights of errors by rank, averaged within groups of equal confidence, for areas under curves.

Ranks j = 1, 2, ... count from the most confident example. A group of equal confidence that follows
a examples and ends after b has the ranks a + 1, ..., b, and every error in it has the mean weight
of these ranks. Closed forms extend the means to fractional weights of examples. They are written
with differences, because in float32 a difference of two values of $b \log b$ keeps no digit for a
group of one example among a million.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp

from calib_jax.core.types import Scalar, Vector

RankWeight: TypeAlias = Callable[[Vector, Vector, Scalar], Vector]

# Series in 1 / x have an error below 1e-7 from this x on; smaller ranks are shifted up to it.
_SHIFT = 16


def _growth(before: Vector, width: Vector) -> Vector:
    r"""Compute $H_{a + d} - H_a$ of the harmonic numbers $H_x = \psi(x + 1) + \gamma$."""
    low = before + (_SHIFT + 0.5)
    high = low + width
    series = jnp.log1p(width / low) - width * (low + high) / (24 * jnp.square(low * high))
    shifts = (before + i for i in range(1, _SHIFT + 1))
    return series + sum(width / (at * (at + width)) for at in shifts)


def harmonic(before: Vector, width: Vector, total: Scalar) -> Vector:
    r"""Compute the mean of $H_n - H_{j - 1} = \sum_{k = j}^n 1 / k$ over the ranks of a group."""
    within = (before + width) / width * _growth(before, width) - 1
    return _growth(before, total - before) - within


def logarithmic(before: Vector, width: Vector, total: Scalar) -> Vector:
    r"""Compute the mean of $\log \frac{n + 1}{j}$ over the ranks of a group."""
    low = before + (_SHIFT + 0.5)
    high = low + width
    series = jnp.log(low) + high / width * jnp.log1p(width / low) - 1 + 1 / (24 * low * high)
    shifts = (before + i for i in range(1, _SHIFT + 1))
    return jnp.log(total + 1) - series + sum(jnp.log1p(width / at) / width for at in shifts)


def linear(before: Vector, width: Vector, total: Scalar) -> Vector:
    r"""Compute the mean of $(n + 1 - j) / n$ over the ranks of a group."""
    return (total + 0.5 - before - width / 2) / total
