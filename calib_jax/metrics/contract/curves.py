r"""Running sums over ranked examples, from which ROC, risk-coverage and KS curves are computed.

A curve is linear within a group of equal scores, so it depends neither on the order of the rows
nor on whether an example is given k times or once with weight k.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from calib_jax.core.types import Scalar, Vector
from calib_jax.metrics.contract.metric import ratio
from calib_jax.metrics.contract.ranked import Ranked


def points(ranked: Ranked, *columns: Any, from_top: bool) -> tuple[Vector, ...]:
    """Compute running sums of weight x column up to the end of each row's group of equal scores.

    Args:
      ranked: the sorted rows.
      columns: `[rows]`, or a number.
      from_top: whether to start at the highest score instead of the lowest.

    Returns:
      For each column the sums `[rows + 1]`, starting with 0. All rows of a group have the same
      sum, and rows of weight 0 add nothing.
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


def area_under_roc(ranked: Ranked, positive: Vector) -> Scalar:
    """Compute the share of (positive, negative) pairs in which the positive scores higher.

    Ties count 1/2. NaN without positives or without negatives.
    """
    detected, alarms = points(ranked, positive, 1 - positive, from_top=True)
    return area_under(detected, alarms, detected[-1])


def area_under(height: Vector, width: Vector, total: Scalar) -> Scalar:
    """Compute the area under height / total over width / width[-1], by trapezoids.

    Running sums are subtracted before they are divided. Otherwise a compiler fuses the division
    with the subtraction, and rows of equal score have steps of rounding errors instead of 0.
    """
    steps = ratio(jnp.diff(width), width[-1])
    return jnp.sum(steps * ratio(height[1:] + height[:-1], total)) / 2


def average_precision_of(ranked: Ranked, positive: Vector, *, from_top: bool = True) -> Scalar:
    """Compute the mean over positives of the precision at the end of their group of equal scores.

    NaN without positives.
    """
    detected, seen = points(ranked, positive, 1, from_top=from_top)
    precision = detected / jnp.where(seen > 0, seen, 1)
    return ratio(jnp.sum(jnp.diff(detected) * precision[1:]), detected[-1])
