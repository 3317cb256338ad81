r"""Running sums over ranked examples: what ROC, risk-coverage and KS curves are drawn from.

Between the ends of two neighbouring groups of equal score a curve is a straight line, so it
depends neither on the order of the rows nor on whether an example is given k times or once with
weight k.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from calib_jax.core.types import Vector
from calib_jax.metrics.ranked import Ranked


def points(ranked: Ranked, *columns: Any, from_top: bool) -> tuple[Vector, ...]:
    """Sum weight x column over the rows up to the end of each row's group of equal scores.

    Args:
      ranked: the sorted rows.
      columns: `[rows]`, or a number.
      from_top: whether to begin with the highest score, or with the lowest.

    Returns:
      For each column the sums `[rows + 1]`, the first of them 0: repeated within a group, and
      for rows without weight.
    """
    step = -1 if from_top else 1
    score, weight = ranked.score[::step], ranked.weight[::step]
    row = jnp.arange(score.shape[0])
    is_end = jnp.append(score[:-1] != score[1:], True)
    end = lax.cummin(jnp.where(is_end, row, row[-1]), reverse=True)

    def summed(column: Any) -> Vector:
        column = jnp.broadcast_to(column, ranked.score.shape)[::step]
        running = jnp.cumsum(jnp.where(weight > 0, weight * column, 0))
        return jnp.pad(running[end], (1, 0))

    return tuple(summed(column) for column in columns)
