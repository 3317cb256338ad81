r"""Terms: the contributions of each example to a metric, before weighting.

Weighting the terms gives a mergeable statistic, and the value of the statistic is the metric.
Softmax, sorting and binning belong to the terms, so a bootstrap, which only changes the weights,
computes them once.

    Columns       values of each example, summed in one of several cells     -> Sums
    Vectors       vectors of each example, summed                            -> Sums
    ClassGaps     probability minus occurrence, per class and bin            -> Sums
    Ranking       values of each example, kept, and later sorted by a score  -> Rows
    ClassRanking  scores of each class, kept, and later sorted by class      -> Rows
    Unreduced          values of each example, kept unchanged                     -> Rows
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Integer

from calib_jax.core.binning import bin_index, class_bin_totals, class_sums, uniform_edges
from calib_jax.core.numerics import true_class, valid, wide
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Rows, Stat, Sums
from calib_jax.core.types import Array, Labels, PerClass, PerExample, Weights

STATIC = {"static": True}  # a field that is part of the structure, not an array


@runtime_checkable
class Terms(Protocol):
    """Contributions of examples; a pytree whose leaves have leading batch axes."""

    def weigh(self, weights: Weights | None) -> Stat:
        """Compute the weighted statistic, which merges with statistics of the same kind."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Columns:
    """Values to sum together with the weight, per cell if cells are given.

    Attributes:
      values: name -> `[*batch]`.
      cell: cell of each example, `[*batch]`; None for a single total.
      num_cells: number of cells.
    """

    values: dict[str, PerExample]
    cell: Integer[Array, "*batch"] | None = None
    num_cells: int = dataclasses.field(default=1, metadata=STATIC)

    @property
    def with_weight(self) -> dict[str, PerExample]:
        """The columns, preceded by a column of ones whose sum is the weight."""
        like = next(iter(self.values.values()))
        return {"weight": jnp.ones(like.shape, wide(like.dtype)), **self.values}

    def weigh(self, weights: Weights | None) -> Sums:
        """Sum every column in every cell."""
        weighed = {name: weigh(column, weights) for name, column in self.with_weight.items()}
        if self.cell is None:
            return Sums({name: jnp.sum(column) for name, column in weighed.items()})
        return Sums({name: class_sums(self.cell, c, self.num_cells) for name, c in weighed.items()})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Vectors:
    """Vectors to sum over the examples, together with the weight.

    Attributes:
      values: name -> `[*batch, length]`, the same length for all.
    """

    values: dict[str, Float[Array, "*batch length"]]

    @property
    def with_weight(self) -> dict[str, Array]:
        """The vectors, preceded by ones whose sum is the weight."""
        like = next(iter(self.values.values()))
        return {"weight": jnp.ones(like.shape[:-1], wide(like.dtype)), **self.values}

    def weigh(self, weights: Weights | None) -> Sums:
        """Sum the weight and every vector."""

        def total(values: Array) -> Array:
            if weights is not None:
                each = weights if values.ndim == weights.ndim else weights[..., None]
                values = weigh(values, jnp.broadcast_to(each, values.shape))
            return jnp.sum(values, axis=tuple(range(batch)))

        batch = next(iter(self.values.values())).ndim - 1
        return Sums({name: total(values) for name, values in self.with_weight.items()})


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
class Ranking:
    """Values kept for every example, to be sorted by a score.

    Attributes:
      score: ranks the examples, `[*batch]`.
      values: name -> `[*batch]`.
    """

    score: PerExample
    values: dict[str, PerExample]

    def weigh(self, weights: Weights | None) -> Rows:
        """Keep score, values and weight as flat columns."""
        ones = jnp.ones(self.score.shape, self.score.dtype)
        columns = {**self.values, "score": self.score, "weight": weigh(ones, weights)}
        return Rows({name: column.reshape(-1) for name, column in columns.items()})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClassRanking:
    """A score of every example for each class, to be sorted class by class.

    Attributes:
      scores: `[*batch, columns]`; a NaN makes the value of its class NaN.
      labels: `[*batch]`.
      first_class: the class of column 0.
    """

    scores: Float[Array, "*batch columns"]
    labels: Labels
    first_class: int = dataclasses.field(default=0, metadata=STATIC)

    def weigh(self, weights: Weights | None) -> Rows:
        """Keep the scores, the column of the true class, and the weight."""
        weight = weigh(jnp.ones(self.labels.shape, self.scores.dtype), weights)
        return Rows(
            {
                "scores": self.scores.reshape(-1, self.scores.shape[-1]),
                "column": (self.labels - self.first_class).reshape(-1),
                "weight": weight.reshape(-1),
            }
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unreduced:
    """Values kept for every example, for metrics that compare all pairs.

    Attributes:
      values: name -> `[*batch]` or `[*batch, classes]`.
      labels: `[*batch]`.
    """

    values: dict[str, Array]
    labels: Labels

    def weigh(self, weights: Weights | None) -> Rows:
        """Keep values, labels and weight, with one batch axis."""
        batch = self.labels.ndim
        dtype = wide(next(iter(self.values.values())).dtype)
        weight = weigh(jnp.ones(self.labels.shape, dtype), weights)
        columns = {**self.values, "label": self.labels, "weight": weight}
        return Rows({k: v.reshape(-1, *v.shape[batch:]) for k, v in columns.items()})


def ratio(total: Any, weight: Any) -> Any:
    """Divide a total by its weight; NaN where the weight is 0."""
    weighed = weight > 0
    return jnp.where(weighed, total / jnp.where(weighed, weight, 1), jnp.nan)
