r"""Terms: the contributions of each example to a metric, before weighting.

Weighting the terms gives a mergeable statistic, and the value of the statistic is the metric.
Softmax, sorting and binning belong to the terms, so a bootstrap, which only changes the weights,
computes them once.

    Columns    values of each example, summed in one of several cells     -> Sums
    ClassGaps  probability minus occurrence, per class and bin            -> Sums
    Kept       values of each example, kept, and perhaps sorted later        -> Rows

*Rows sorted by score*, with rows of equal score treated as one group. Examples of equal confidence
(a saturated softmax produces thousands) have no order. Cumulative values, such as a risk-coverage
curve, are therefore read only at the end of each group. They depend neither on the order of the
rows nor on whether an example is given k times or once with weight k.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float, Integer

from calib_jax.core.binning import bin_index, cell_sums, class_sums, uniform_edges
from calib_jax.core.numerics import true_class, valid, weigh, wide
from calib_jax.core.statistics import Rows, Sums
from calib_jax.core.types import Array, Labels, PerClass, Scalar, Vector, Weights

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
        columns = {name: weigh(column, weights) for name, column in self.with_weight.items()}
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
        gap = _class_bin_totals(p, weights, self.num_bins) + wrong
        return Sums(
            {
                "gap": gap - occurrences.reshape(num_classes, self.num_bins),
                "weight": class_sums(labels, weigh(ones, weights), num_classes),
            }
        )


def bin_of_equal_width(values: Float[Array, "*shape"], num_bins: int) -> Integer[Array, "*shape"]:
    """Compute `bin_index` of uniform edges; by one product, where its rounding moves no edge."""
    edges, factor = uniform_edges(num_bins), np.float32(num_bins)
    near = [edges[1:-1], *(np.nextafter(edges[1:-1], end) for end in np.array([-1, 2], np.float32))]
    if np.any(np.ceil(np.stack(near) * factor) - 1 != np.searchsorted(edges[1:-1], near)):
        return bin_index(values, edges)
    index = jnp.ceil(values.astype(jnp.float32) * factor).astype(jnp.int32)
    return jnp.clip(index - 1, 0, num_bins - 1)


def _class_bin_totals(p: PerClass, weight: Weights | None, num_bins: int) -> Array:
    r"""Sum every class's probability over its bins of equal width.

    A row has fewer than B probabilities above 1/B, however many classes there are. With many
    classes, the total per class is one vectorised sum and only the few entries above 1/B are
    binned one by one; the first bin receives the remainder of the total.
    """
    num_classes, edges, weighed = p.shape[1], uniform_edges(num_bins), weigh(p, weight)
    cells = num_classes * num_bins
    if num_classes <= 256:
        cell = bin_of_equal_width(p, num_bins)
        cell += num_bins * lax.broadcasted_iota(cell.dtype, p.shape, 1)
        return cell_sums(cell, weighed, cells, in_range=True).reshape(num_classes, num_bins)

    # Split the classes into groups, so that finding the next largest entry reads only the maxima of
    # the groups and one group, not all classes.
    width, row = 16, jnp.arange(len(p))
    groups = jnp.pad(p, ((0, 0), (0, -num_classes % width)), constant_values=-jnp.inf)
    groups = groups.reshape(len(p), -1, width)

    def any_left(state: tuple[Array, Array, Array]) -> Array:
        return jnp.any(jnp.max(state[1], axis=-1) > edges[1])

    def add_largest(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        groups, largest, totals = state
        which, value = jnp.argmax(largest, axis=-1).astype(jnp.int32), jnp.max(largest, axis=-1)
        group = groups[row, which]
        place = jnp.argmax(group, axis=-1).astype(jnp.int32)
        value = jnp.where(value > edges[1], value, 0)
        cell = num_bins * jnp.minimum(width * which + place, num_classes - 1)
        totals = totals.at[cell + bin_index(value, edges)].add(weigh(value, weight))
        group = jnp.where(jnp.arange(width)[None] == place[:, None], -jnp.inf, group)
        groups = groups.at[row, which].set(group, unique_indices=True, indices_are_sorted=True)
        is_here = jnp.arange(largest.shape[-1])[None] == which[:, None]
        largest = jnp.where(is_here, jnp.max(group, axis=-1, keepdims=True), largest)
        return groups, largest, totals

    start = groups, jnp.max(groups, axis=-1), jnp.zeros_like(p, shape=(cells,))
    large = lax.while_loop(any_left, add_largest, start)[2].reshape(num_classes, num_bins)
    total = jnp.sum(weighed, axis=0)
    return large.at[:, 0].set(total - jnp.sum(large[:, 1:], axis=1))


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
        columns = dict(rows.columns)
        narrow = all(column.dtype == jnp.float32 for column in columns.values())
        score, weight = columns.pop("score"), columns.pop("weight")
        if len(columns) > 1 or not narrow:
            return cls.sort(score, weight, columns)[0]
        ((name, column),) = columns.items()
        score, column, weight = _sorted_rows(score, column, weight)
        return cls(score, {name: column}, weight)

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


# --------------------------------------------------------------------------------------------
# One sort of one number per row, which is several times faster than a sort of indices.

_Columns = tuple[Vector, Vector, Vector]  # score, value, weight
_ABSENT = np.uint32(2**32 - 1)


@jax.custom_jvp
def _sorted_rows(score: Vector, value: Vector, weight: Vector) -> _Columns:
    """Sort float32 rows by score; present rows of one weight and values 0 or 1 need one key."""
    present = weight > 0
    plain = (score >= 0) & ((value == 0) | (value == 1)) & (weight == jnp.max(weight))
    return lax.cond(jnp.all(plain | ~present), _by_key, _by_order, score, value, weight)


@_sorted_rows.defjvp
def _sorted_rows_jvp(primals: _Columns, tangents: _Columns) -> tuple[_Columns, _Columns]:
    return jax.jvp(_by_order, primals, tangents)  # a key of bits has no derivative


def _by_order(score: Vector, value: Vector, weight: Vector) -> _Columns:
    ranked, _ = Ranked.sort(score, weight, {"": value})
    return ranked.score, ranked[""], ranked.weight


def _by_key(score: Vector, value: Vector, weight: Vector) -> _Columns:
    """Sort by the bits of the score, which increase with scores from 0 on.

    The sign bit of such a score is 0, so a shift by one bit makes room for the value.
    """
    bits = lax.bitcast_convert_type(score, jnp.uint32) << 1
    key = lax.sort(jnp.where(weight > 0, bits | value.astype(jnp.uint32), _ABSENT))
    absent = key == _ABSENT
    return (
        jnp.where(absent, jnp.inf, lax.bitcast_convert_type(key >> 1, jnp.float32)),
        jnp.where(absent, 0, (key & 1).astype(jnp.float32)),
        jnp.where(absent, 0, jnp.max(weight)),
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScoredClasses:
    """Rows with a score for each of several columns, to be ranked one column at a time.

    Attributes:
      scores: `[columns, rows]`.
      column: `[rows]`: the column in which the row is a positive example.
      weight: `[rows]`; may be 0 anywhere.
      order: `[columns, rows]`, if the scores are sorted: score i of a column is that of row
        `order[column, i]`, and `inf` for rows of original weight 0, which come last.
    """

    scores: Float[Array, "columns rows"]
    column: Integer[Array, " rows"]
    weight: Vector
    order: Integer[Array, "columns rows"] | None = None

    @classmethod
    def of(cls, rows: Rows) -> ScoredClasses:
        """Take the rows of a statistic."""
        return cls(rows["scores"].T, rows["column"], rows["weight"])

    def ranked(self, index: Integer[Array, ""]) -> tuple[Ranked, Vector]:
        """Select one column: its sorted rows, and 1 where the row is a positive example."""
        score = self.scores[index]
        order = slice(None) if self.order is None else self.order[index]
        positive = (self.column[order] == index).astype(score.dtype)
        # A NaN score has no rank, so its label carries the NaN into every sum.
        positive = jnp.where(jnp.isnan(score), jnp.nan, positive)
        if self.order is not None:
            return Ranked(score, {}, self.weight[order]), positive
        ranked = Ranked.of(Rows({"score": score, "positive": positive, "weight": self.weight}))
        return ranked, ranked["positive"]

    def sorted_once(self) -> ScoredClasses:
        """Sort by every column, for rows whose weights change."""
        counts = self.weight > 0
        score = jnp.where(counts, self.scores, jnp.inf)
        order = jnp.argsort(score, axis=1)
        score = jnp.take_along_axis(score, order, axis=1)
        return ScoredClasses(score, self.column, jnp.where(counts, self.weight, 0), order)

    def reweighed(self, weight: Vector) -> ScoredClasses:
        """Replace the weights of the rows; a weight of 0 must stay 0."""
        return dataclasses.replace(self, weight=weight)


def ranked_if_scored(stat: Any) -> Any:
    """Sort scored rows; return any other statistic unchanged, rows as device arrays."""
    if not isinstance(stat, Rows):
        return stat
    stat = jax.tree.map(jnp.asarray, stat)
    if not len(stat["weight"]):  # no row is like one row of weight 0
        stat = jax.tree.map(lambda column: jnp.zeros((1, *column.shape[1:]), column.dtype), stat)
    if "scores" in stat.columns:
        return ScoredClasses.of(stat)
    return Ranked.of(stat) if "score" in stat.columns else stat


# --------------------------------------------------------------------------------------------
# Running sums over ranked examples, from which ROC, risk-coverage and KS curves are computed. A
# curve is linear within a group of equal scores.


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


def average_precision_of(ranked: Ranked, positive: Vector) -> Scalar:
    """Compute the mean over positives of the precision at the end of their group of equal scores.

    NaN without positives.
    """
    detected, seen = points(ranked, positive, 1, from_top=True)
    precision = detected / jnp.where(seen > 0, seen, 1)
    return ratio(jnp.sum(jnp.diff(detected) * precision[1:]), detected[-1])
