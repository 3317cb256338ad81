r"""Terms prepared for repeated weighting by the bootstrap.

Each kind of terms has a `design`, whose product with the multiplicities of a resample gives the
sums; `stats`, the statistics of a chunk of resamples; and `values`, the metric of each resample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core.binning import bin_index, class_sums, uniform_edges
from calib_jax.core.numerics import is_true_class
from calib_jax.core.statistics import Rows, Sums
from calib_jax.core.types import Array, PyTree, Vector
from calib_jax.metrics.contract.ranked import Ranked, ScoredClasses, ranked_if_scored
from calib_jax.metrics.contract.terms import STATIC, ClassGaps, Columns, Kept, Terms

Finish = Callable[[Any], PyTree]
Counts = Float[Array, "resamples rows"]
Products = Float[Array, "resamples columns"]

_FEW_CELLS = 256  # so few columns of a design are faster than sums over single entries


@runtime_checkable
class Ready(Protocol):
    """Terms of weighted examples, prepared for chunks of resamples."""

    @property
    def design(self) -> Float[Array, "rows columns"]:
        """Columns to sum in each resample; there may be none."""
        ...

    def stats(self, counts: Counts, sums: Products) -> Any:
        """Compute the statistics of a chunk from multiplicities and the sums of the design."""
        ...

    def values(self, finish: Finish, stats: Any) -> PyTree:
        """Compute a metric for every resample."""
        ...


def of(terms: Terms, weights: Vector, entries: Entries) -> Ready:
    """Prepare terms; `entries` are the `large_entries` of the same terms."""
    if isinstance(terms, ClassGaps):
        return _narrow_gaps(terms, weights) if _few(terms) else _gaps(terms, weights, entries)
    if isinstance(terms, Kept) and "score" in terms.columns:
        values = {name: column for name, column in terms.columns.items() if name != "score"}
        return _Ranking(*Ranked.sort(terms.columns["score"], weights, values))
    if isinstance(terms, Kept) and "scores" in terms.columns:
        return _Ranking(ScoredClasses.of(terms.weigh(weights)).sorted_once(), order=None)
    if isinstance(terms, Kept):
        return _Kept(terms.weigh(weights))
    if isinstance(terms, Columns):
        is_flat = all(column.ndim == 1 for column in terms.values.values())
        if is_flat and len(terms.with_weight) * terms.num_cells <= _FEW_CELLS:
            return _narrow(terms, weights)
        if not is_flat and terms.cell is None:
            return _vectors(terms, weights)
    return _Reweighted(terms, weights)


def _over_sums(finish: Finish, stats: Any) -> PyTree:
    return jax.vmap(finish)(stats)


def _no_design(weights: Vector) -> Float[Array, "rows 0"]:
    return jnp.zeros((len(weights), 0), weights.dtype)


# --------------------------------------------------------------------------------------------
# Columns in few cells: the design has one column per name and cell.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Narrow:
    design: Float[Array, "rows columns"]
    names: tuple[str, ...] = dataclasses.field(metadata=STATIC)
    num_cells: int | None = dataclasses.field(metadata=STATIC)

    def stats(self, counts: Counts, sums: Products) -> Sums:
        sums = _with_infinities(sums)
        if self.num_cells is None:
            return Sums({name: sums[:, i] for i, name in enumerate(self.names)})
        cells = sums.reshape(sums.shape[0], len(self.names), self.num_cells)
        return Sums({name: cells[:, i] for i, name in enumerate(self.names)})

    values = staticmethod(_over_sums)


def _large(dtype: jnp.dtype) -> float:
    """Return a power of two that replaces infinity in a matrix product; twice this overflows."""
    return 2.0 ** (int(jnp.finfo(dtype).maxexp) - 1)


def _without_infinities(columns: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
    """Clip infinite losses: in a resample that does not draw them, 0 x inf would be NaN."""
    return jnp.clip(columns, -_large(columns.dtype), _large(columns.dtype))


def _with_infinities(sums: Products) -> Products:
    infinite = jnp.abs(sums) >= _large(sums.dtype) / 2
    return jnp.where(infinite, jnp.sign(sums) * jnp.inf, sums)


def _narrow(terms: Columns, weights: Vector) -> _Narrow:
    weighed = {name: weights * column for name, column in terms.with_weight.items()}
    columns = _without_infinities(jnp.stack(list(weighed.values()), axis=1))
    if terms.cell is None:
        return _Narrow(columns, tuple(weighed), None)
    inside = is_true_class(terms.cell, terms.num_cells)
    spread = jnp.where(inside[:, None], columns[:, :, None], 0)
    return _Narrow(spread.reshape(len(columns), -1), tuple(weighed), terms.num_cells)


# --------------------------------------------------------------------------------------------
# Vectors: the design has one column per entry.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Vectors:
    design: Float[Array, "rows columns"]
    names: tuple[str, ...] = dataclasses.field(metadata=STATIC)

    def stats(self, counts: Counts, sums: Products) -> Sums:
        weight, *parts = jnp.split(
            _with_infinities(sums), tuple(range(1, sums.shape[1], self.length)), axis=1
        )
        return Sums({"weight": weight[:, 0], **dict(zip(self.names, parts, strict=True))})

    @property
    def length(self) -> int:
        """The length of each vector."""
        return (self.design.shape[1] - 1) // len(self.names)

    values = staticmethod(_over_sums)


def _vectors(terms: Columns, weights: Vector) -> _Vectors:
    columns = [column.reshape(len(weights), -1) for column in terms.with_weight.values()]
    design = _without_infinities(weights[:, None] * jnp.concatenate(columns, axis=1))
    return _Vectors(design, tuple(name for name in terms.values if name != "weight"))


# --------------------------------------------------------------------------------------------
# Any other terms: weighted again for each resample.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Reweighted:
    terms: Any
    weights: Vector

    @property
    def design(self) -> Float[Array, "rows columns"]:
        return _no_design(self.weights)

    def stats(self, counts: Counts, sums: Products) -> Any:
        return jax.vmap(self.terms.weigh)(counts * self.weights[None])

    def values(self, finish: Finish, stats: Any) -> PyTree:
        return jax.vmap(lambda stat: finish(ranked_if_scored(stat)))(stats)


# --------------------------------------------------------------------------------------------
# ClassGaps of few classes: the design has one column per class and bin, then one per class.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _NarrowGaps:
    design: Float[Array, "rows columns"]
    num_bins: int = dataclasses.field(metadata=STATIC)

    def stats(self, counts: Counts, sums: Products) -> Sums:
        num_classes = self.design.shape[1] // (self.num_bins + 1)
        gap, weight = jnp.split(sums, (num_classes * self.num_bins,), axis=1)
        return Sums({"gap": gap.reshape(-1, num_classes, self.num_bins), "weight": weight})

    values = staticmethod(_over_sums)


def _few(terms: ClassGaps) -> bool:
    cells = terms.p.shape[-1] * terms.num_bins
    return cells <= _FEW_CELLS and cells * len(terms.p) <= 2**24  # 64 MB


def _narrow_gaps(terms: ClassGaps, weights: Vector) -> _NarrowGaps:
    inside = is_true_class(bin_index(terms.p, uniform_edges(terms.num_bins)), terms.num_bins)
    spread = jnp.where(inside, _weighed_gaps(terms, weights)[:, :, None], 0)
    of_class = jnp.where(is_true_class(terms.labels, terms.p.shape[-1]), weights[:, None], 0)
    design = jnp.concatenate([spread.reshape(len(weights), -1), of_class], axis=1)
    return _NarrowGaps(design, terms.num_bins)


def _weighed_gaps(terms: ClassGaps, weights: Vector) -> Float[Array, "rows classes"]:
    """Compute the weighted probability minus occurrence of each row and class."""
    occurs = is_true_class(terms.labels, terms.p.shape[-1])
    if not terms.zero_counts:
        occurs &= terms.p > 0
    return weights[:, None] * (terms.p - occurs.astype(terms.p.dtype))


# --------------------------------------------------------------------------------------------
# ClassGaps of many classes: most probabilities lie in the first bin, whose gap is the class's total
# minus the other bins. A matrix product computes the totals; the few entries above 1/B are summed
# one by one.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Gaps:
    design: Float[Array, "rows classes"]
    row: Integer[Array, " entries"]
    cell: Integer[Array, " entries"]
    value: Float[Array, " entries"]
    labels: Integer[Array, " rows"]
    weights: Vector
    num_bins: int = dataclasses.field(metadata=STATIC)

    def stats(self, counts: Counts, sums: Products) -> Sums:
        num_classes = self.design.shape[1]
        large = jax.vmap(
            lambda c: class_sums(self.cell, c[self.row] * self.value, num_classes * self.num_bins)
        )(counts)
        gap = large.reshape(-1, num_classes, self.num_bins)
        gap = gap.at[..., 0].set(sums - jnp.sum(gap[..., 1:], axis=-1))
        weight = jax.vmap(lambda c: class_sums(self.labels, c * self.weights, num_classes))(counts)
        return Sums({"gap": gap, "weight": weight})

    values = staticmethod(_over_sums)


_FEW_ENTRIES = 2**16  # summing these for 1,000 resamples is faster than compiling


class Entries(NamedTuple):
    """Indices of the large probabilities, padded with column K."""

    row: Integer[np.ndarray, " entries"]
    column: Integer[np.ndarray, " entries"]


def large_entries(terms: Terms) -> Entries:
    """Find the probabilities above the first bin, on the host, where their number may vary.

    The entries are padded, so that models of one shape share one compiled bootstrap whatever their
    sharpness: to the largest possible number if that is small, else to 2, 4, 8 ... entries per
    row. Most models have fewer than two.
    """
    if not isinstance(terms, ClassGaps) or _few(terms):
        return Entries(np.zeros(0, np.int32), np.zeros(0, np.int32))
    num_rows, num_classes = terms.p.shape
    row, column = np.nonzero(np.asarray(terms.p) > uniform_edges(terms.num_bins)[1])
    # A row has at most B probabilities above 1/B.
    upper_bound = num_rows * min(num_classes, terms.num_bins)
    size = upper_bound if upper_bound <= _FEW_ENTRIES else 2 * num_rows
    while size < len(row):
        size *= 2
    padding = (0, min(size, upper_bound) - len(row))
    return Entries(
        np.pad(row.astype(np.int32), padding),
        np.pad(column.astype(np.int32), padding, constant_values=num_classes),
    )


def _gaps(terms: ClassGaps, weights: Vector, entries: Entries) -> _Gaps:
    num_classes, num_bins = terms.p.shape[-1], terms.num_bins
    gap = _weighed_gaps(terms, weights)
    row, column = jnp.asarray(entries.row), jnp.asarray(entries.column)
    inside = jnp.minimum(column, num_classes - 1)
    # Column K has no cell, so `class_sums` drops the padding.
    cell = num_bins * column + bin_index(terms.p[row, inside], uniform_edges(num_bins))
    return _Gaps(gap, row, cell, gap[row, inside], terms.labels, weights, num_bins)


# --------------------------------------------------------------------------------------------
# Rows: sorted once, then reweighted for each resample.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Ranking:
    ranked: Ranked | ScoredClasses
    order: Integer[Array, " rows"] | None  # order of the rows; None if the weights are not sorted

    @property
    def design(self) -> Float[Array, "rows columns"]:
        return _no_design(self.ranked.weight)

    def stats(self, counts: Counts, sums: Products) -> Counts:
        sorted_counts = counts if self.order is None else counts[:, self.order]
        return sorted_counts * self.ranked.weight[None]

    def values(self, finish: Finish, stats: Counts) -> PyTree:
        return jax.vmap(lambda weight: finish(self.ranked.reweighed(weight)))(stats)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Kept:
    rows: Rows

    @property
    def design(self) -> Float[Array, "rows columns"]:
        return _no_design(self.rows["weight"])

    def stats(self, counts: Counts, sums: Products) -> Counts:
        return counts * self.rows["weight"][None]

    def values(self, finish: Finish, stats: Counts) -> PyTree:
        # One resample at a time, because metrics over all pairs are large enough.
        def value(weight: Vector) -> PyTree:
            return finish(Rows({**self.rows.columns, "weight": weight}))

        return jax.lax.map(value, stats)
