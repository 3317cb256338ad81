r"""Terms: the contributions of each example to a metric, before weighting.

Weighting the terms gives a mergeable statistic, and the value of the statistic is the metric.
Softmax, sorting and binning belong to the terms, so a bootstrap, which only changes the weights,
computes them once.

    Columns    values of each example, summed in one of several cells     -> Sums
    ClassGaps  probability minus occurrence, per class and bin            -> Sums
    Kept       values of each example, kept, and perhaps sorted later        -> Rows
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Integer

from calib_jax.core.binning import bin_index, class_bin_totals, class_sums, uniform_edges
from calib_jax.core.numerics import true_class, valid, wide
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Rows, Sums
from calib_jax.core.types import Array, Labels, PerClass, Weights

STATIC = {"static": True}  # a field that is part of the structure, not an array


# A pytree whose leaves have leading batch axes, with `weigh(weights) -> Stat`.
Terms: TypeAlias = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Columns:
    """Values to sum together with the weight, per cell if cells are given.

    Attributes:
      values: name -> `[*batch]`; without cells also `[*batch, length]`, beside a "weight" of ones.
      cell: cell of each example, `[*batch]`; None for a single total.
      num_cells: number of cells.
    """

    values: dict[str, Array]
    cell: Integer[Array, "*batch"] | None = None
    num_cells: int = dataclasses.field(default=1, metadata=STATIC)

    @property
    def with_weight(self) -> dict[str, Array]:
        """The columns, preceded by a column of ones whose sum is the weight."""
        like = next(iter(self.values.values()))
        return {"weight": jnp.ones(like.shape, wide(like.dtype)), **self.values}

    def weigh(self, weights: Weights | None) -> Sums:
        """Sum every column in every cell."""

        def weighed(column: Array) -> Array:
            if weights is None or column.shape == weights.shape:
                return weigh(column, weights)
            return weigh(column, jnp.broadcast_to(weights[..., None], column.shape))

        columns = {name: weighed(column) for name, column in self.with_weight.items()}
        if self.cell is None:
            batch = tuple(range(columns["weight"].ndim))
            return Sums({name: jnp.sum(column, axis=batch) for name, column in columns.items()})
        return Sums({k: class_sums(self.cell, c, self.num_cells) for k, c in columns.items()})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClassGaps:
    r"""$p_k - [y = k]$, summed per class k and bin of $p_k$, for classwise calibration errors.

    Attributes:
      p: probabilities, `[*batch, classes]`.
      labels: `[*batch]`.
      num_bins: number of bins of equal width.
      zero_counts: whether a probability of exactly 0 falls into the first bin, or into none.
    """

    p: PerClass
    labels: Labels
    num_bins: int = dataclasses.field(metadata=STATIC)
    zero_counts: bool = dataclasses.field(default=True, metadata=STATIC)

    def weigh(self, weights: Weights | None) -> Sums:
        """Sum the gaps `[classes, bins]` and the weight of each class `[classes]`."""
        num_classes = self.p.shape[-1]
        p, labels = self.p.reshape(-1, num_classes), self.labels.reshape(-1)
        weights = None if weights is None else weights.reshape(-1)
        ones = jnp.ones(labels.shape, p.dtype)

        of_true = true_class(p, labels)
        cell = labels * self.num_bins + bin_index(of_true, uniform_edges(self.num_bins))
        occurs = ones if self.zero_counts else jnp.where(of_true == 0, 0, ones)
        occurrences = class_sums(cell, weigh(occurs, weights), num_classes * self.num_bins)
        # A label out of range is in no cell; it must make the gaps NaN.
        wrong = jnp.sum(weigh(jnp.where(valid(labels, num_classes), 0 * ones, jnp.nan), weights))
        gap = class_bin_totals(p, weights, self.num_bins) + wrong
        return Sums(
            {
                "gap": gap - occurrences.reshape(num_classes, self.num_bins),
                "weight": class_sums(labels, weigh(ones, weights), num_classes),
            }
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kept:
    """Values kept for every example.

    The names say what is done with them: the examples are sorted by a "score" `[*batch]`, or once
    for each column of "scores" `[*batch, columns]`, in which the positive examples are those of
    "column". Without either they stay as they are, for metrics that compare all pairs.

    Attributes:
      columns: name -> `[*batch]` or `[*batch, length]`, one of them `[*batch]`.
    """

    columns: dict[str, Array]

    def weigh(self, weights: Weights | None) -> Rows:
        """Keep the columns and the weight, with one batch axis."""
        columns = self.columns.values()
        batch = min((column.shape for column in columns), key=len)
        dtype = next(c.dtype for c in columns if jnp.issubdtype(c.dtype, jnp.floating))
        weight = weigh(jnp.ones(batch, wide(dtype)), weights)
        kept = {**self.columns, "weight": weight}
        return Rows({name: v.reshape(-1, *v.shape[len(batch) :]) for name, v in kept.items()})


def ratio(total: Any, weight: Any) -> Any:
    """Divide a total by its weight; NaN where the weight is 0."""
    weighed = weight > 0
    return jnp.where(weighed, total / jnp.where(weighed, weight, 1), jnp.nan)
