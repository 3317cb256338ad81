r"""Rows sorted by score, with rows of equal score treated as one group.

Examples of equal confidence (a saturated softmax produces thousands) have no order. Cumulative
values, such as a risk-coverage curve, are therefore read only at the end of each group. They depend
neither on the order of the rows nor on whether an example is given k times or once with weight k.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Integer

from calib_jax.core.statistics import Rows
from calib_jax.core.types import Array, Vector


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ranked:
    """Rows in ascending order of their score.

    Attributes:
      score: `[rows]`; `inf` in rows of original weight 0, which come last.
      values: name -> `[rows]`.
      weight: `[rows]`; may be 0 anywhere.
    """

    score: Vector
    values: dict[str, Vector]
    weight: Vector

    @classmethod
    def of(cls, rows: Rows) -> Ranked:
        """Sort the rows of a statistic."""
        columns = {name: jnp.asarray(column) for name, column in rows.columns.items()}
        return cls.sort(columns.pop("score"), columns.pop("weight"), columns)[0]

    @classmethod
    def sort(
        cls, score: Vector, weight: Vector, values: dict[str, Vector]
    ) -> tuple[Ranked, Integer[Array, " rows"]]:
        """Sort by score; also return the order, where sorted row i was row `order[i]`."""
        counts = weight > 0
        score = jnp.where(counts, score, jnp.inf)
        order = jnp.argsort(score)
        values = {name: jnp.where(counts, column, 0)[order] for name, column in values.items()}
        return cls(score[order], values, jnp.where(counts, weight, 0)[order]), order

    def __getitem__(self, name: str) -> Vector:
        return self.values[name]

    def reweighed(self, weight: Vector) -> Ranked:
        """Replace the weights of the sorted rows; a weight of 0 must stay 0."""
        return dataclasses.replace(self, weight=weight)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RankedClasses:
    """Rows in ascending order of their score, for each of several columns of scores.

    Attributes:
      score: `[columns, rows]`; `inf` in rows of original weight 0, which come last.
      order: `[columns, rows]`: sorted row i of a column was row `order[column, i]`.
      column: `[rows]`: the column in which the row is a positive example.
      weight: `[rows]`; may be 0 anywhere.
    """

    score: Float[Array, "columns rows"]
    order: Integer[Array, "columns rows"]
    column: Integer[Array, " rows"]
    weight: Vector

    @classmethod
    def of(cls, rows: Rows) -> RankedClasses:
        """Sort the rows of a statistic by each column."""
        scores, column, weight = (jnp.asarray(rows[k]) for k in ("scores", "column", "weight"))
        counts = weight > 0
        score = jnp.where(counts, scores.T, jnp.inf)
        order = jnp.argsort(score, axis=1)
        score = jnp.take_along_axis(score, order, axis=1)
        return cls(score, order, column, jnp.where(counts, weight, 0))

    def reweighed(self, weight: Vector) -> RankedClasses:
        """Replace the weights of the rows; a weight of 0 must stay 0."""
        return dataclasses.replace(self, weight=weight)

    def ranked(self, index: Integer[Array, ""]) -> tuple[Ranked, Vector]:
        """Select one column: its sorted rows, and 1 where the row is a positive example."""
        score, order = self.score[index], self.order[index]
        positive = jnp.where(jnp.isnan(score), jnp.nan, self.column[order] == index)
        return Ranked(score, {}, self.weight[order]), positive


def ranked_if_scored(stat: Any) -> Any:
    """Sort scored rows; return any other statistic unchanged, rows as device arrays."""
    if not isinstance(stat, Rows):
        return stat
    if "scores" in stat.columns:
        return RankedClasses.of(stat)
    return Ranked.of(stat) if "score" in stat.columns else jax.tree.map(jnp.asarray, stat)
