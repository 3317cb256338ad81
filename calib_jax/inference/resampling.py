r"""How often each example occurs in each resample of a bootstrap, and the statistics of resamples.

Drawing n indices is slow. Drawing n independent Poisson(1) counts, by inverse CDF from 16 random
bits each, is fast; their total varies, but the metrics divide by it. For resamples of exactly n
examples, the counts are Poisson with a mean slightly below 1, and the few missing examples are
drawn one by one. Independent Poisson counts of equal mean are multinomial given their total, and
they remain so when uniform draws are added.

The host draws them, which needs no compiled program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer, UInt8

from calib_jax.core.binning import bin_index, class_sums, uniform_edges
from calib_jax.core.numerics import is_true_class
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Rows, Sums
from calib_jax.core.types import Array, Vector
from calib_jax.inference.p_values import RESAMPLES, Indices, host_generator
from calib_jax.metrics import terms as contract
from calib_jax.metrics.terms import ClassGaps, Columns, Kept, Terms

PER_DRAW = 8  # resamples
_FEW_COLUMNS = 256  # so few columns are faster than sums over single entries
_FEW_ENTRIES = 2**16  # summing these for 1,000 resamples is faster than compiling
_FACTORIALS = np.array([math.factorial(count) for count in range(8)])


def resamples(
    key: Array, size: int, classes: Indices | None = None
) -> Iterator[UInt8[np.ndarray, "eight rows"]]:
    """Draw how often each row occurs in each resample of as many rows, eight resamples at a time.

    Args:
      key: PRNG key.
      size: number of rows.
      classes: if given, every class keeps its number of examples.
    """
    generator = host_generator(key, RESAMPLES)
    if classes is not None:
        yield from _within_classes(generator, classes)
    # Six standard deviations below 1: the total exceeds the size once in 1e9 resamples.
    mean = max(0.0, 1 - 6 / math.sqrt(size))
    chances = np.exp(-mean) * mean ** np.arange(8) / _FACTORIALS
    thresholds = np.round(np.cumsum(chances) * 2**16)
    count_of_bits = np.searchsorted(thresholds, np.arange(2**16), side="right").astype(np.uint8)
    first = size * np.arange(PER_DRAW)
    while True:
        bits = generator.bit_generator.random_raw(size * PER_DRAW // 4).view(np.uint16)
        counts = count_of_bits.take(bits).reshape(PER_DRAW, size)
        missing = np.maximum(0, size - np.sum(counts, axis=1, dtype=np.uint32).astype(int))
        added = generator.integers(0, size, np.sum(missing)) + np.repeat(first, missing)
        np.add.at(counts.reshape(-1), added, np.uint8(1))
        yield counts


def first_resamples(
    key: Array, size: int, num_resamples: int
) -> UInt8[np.ndarray, "resamples rows"]:
    """Draw the first of the `resamples`."""
    drawn = itertools.islice(resamples(key, size), -(-num_resamples // PER_DRAW))
    return np.concatenate([*drawn])[:num_resamples]


def _within_classes(
    generator: np.random.Generator, classes: Indices
) -> Iterator[UInt8[np.ndarray, "eight rows"]]:
    """Replace each example by a random example of its class."""
    by_class = np.argsort(classes, kind="stable")
    _, first, of_class, sizes = np.unique(
        classes[by_class], return_index=True, return_inverse=True, return_counts=True
    )
    first, sizes = first[of_class], sizes[of_class]
    while True:
        drawn = by_class[first + generator.integers(0, sizes, (PER_DRAW, len(sizes)))]
        counts = [np.bincount(rows, minlength=len(classes)) for rows in drawn]
        yield np.stack(counts).astype(np.uint8)


# --------------------------------------------------------------------------------------------
# Statistics of resamples. Most are sums over the examples: one matrix product of the multiplicities
# and the statistics of single examples computes them for many resamples. Others are computed from
# the multiplicities of each resample: ranked examples keep their order, and many classes have few
# large probabilities.


class Prepared(NamedTuple):
    """Terms of weighted examples, prepared for resamples.

    Attributes:
      columns: columns to sum in each resample; there may be none.
      stat: computes the statistic of a resample from the multiplicities and the sums.
    """

    columns: Float[Array, "rows columns"]
    stat: Callable[[Vector, Array], Any]


class Entries(NamedTuple):
    """Indices of the large probabilities, padded with column K."""

    row: Integer[np.ndarray, " entries"]
    column: Integer[np.ndarray, " entries"]


def prepared(terms: Terms, weights: Vector, entries: Entries, *, only_gaps: bool) -> Prepared:
    """Prepare terms.

    Args:
      terms: the terms of some metrics.
      weights: the weights of the examples.
      entries: the `large_entries` of the terms.
      only_gaps: whether the metrics are computed from the gaps of bins and the total weight.
    """
    none = jnp.zeros((len(weights), 0), weights.dtype)
    if isinstance(terms, ClassGaps):
        return _gaps(terms, weights, entries)
    if isinstance(terms, Columns) and _has_few_columns(terms):
        return (_gaps_of_bins if only_gaps else _sums)(terms, weights)
    if isinstance(terms, Kept) and "score" in terms.columns:
        values = {name: column for name, column in terms.columns.items() if name != "score"}
        ranked, order = contract.Ranked.sort(terms.columns["score"], weights, values)
        return Prepared(none, lambda c, _: ranked.reweighed(c[order] * ranked.weight))
    if isinstance(terms, Kept) and "scores" in terms.columns:
        classes = contract.ScoredClasses.of(terms.weigh(weights)).sorted_once()
        return Prepared(none, lambda c, _: classes.reweighed(c * classes.weight))
    if isinstance(terms, Kept):
        rows = terms.weigh(weights)
        return Prepared(none, lambda c, _: Rows(rows.columns | {"weight": c * rows["weight"]}))
    return Prepared(none, lambda c, _: contract.ranked_if_scored(terms.weigh(c * weights)))


def _sums(terms: Columns, weights: Vector) -> Prepared:
    return _linear(_statistics_of_rows(terms, weights))


def _gaps_of_bins(terms: Columns, weights: Vector) -> Prepared:
    """Prepare confidence minus hit per bin and the total weight, which are enough for the ECE.

    These are B + 1 columns in place of 3 B, so that resamples take four fifths of the time.
    """
    gap = {"confidence": terms.values["confidence"] - terms.values["hit"]}
    of_rows = _statistics_of_rows(Columns(gap, terms.cell, terms.num_cells), weights)
    linear = _linear(Sums({**of_rows.values, "weight": weights[:, None]}))

    def stat(counts: Vector, sums: Array) -> Sums:
        return Sums({**linear.stat(counts, sums).values, "hit": jnp.zeros((), sums.dtype)})

    return Prepared(linear.columns, stat)


def _has_few_columns(terms: Columns) -> bool:
    """Check whether the statistic of the examples has few columns."""
    return terms.cell is None or len(terms.with_weight) * terms.num_cells <= _FEW_COLUMNS


def _statistics_of_rows(terms: Columns, weights: Vector) -> Sums:
    """Compute the statistic of every single example, with a leading axis of examples."""

    def of_rows(column: Array) -> Array:
        each = weights.reshape(-1, *[1] * (column.ndim - 1))
        column = weigh(column, jnp.broadcast_to(each, column.shape))
        if terms.cell is None:
            return column
        inside = jax.nn.one_hot(terms.cell, terms.num_cells, dtype=bool)
        spread = jnp.where(inside, column[..., None], 0)
        return jnp.sum(spread, axis=tuple(range(1, column.ndim)))

    return Sums({name: of_rows(column) for name, column in terms.with_weight.items()})


def _linear(of_rows: Sums) -> Prepared:
    """Prepare the statistics of single examples, whose sum is the statistic of a resample."""
    leaves, structure = jax.tree.flatten(of_rows)
    columns = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    cuts = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
    # Infinite losses become a power of two, because 0 x inf would be NaN in a resample that does
    # not draw them; twice this number overflows.
    large = 2.0 ** (int(jnp.finfo(columns.dtype).maxexp) - 1)

    def stat(_: Vector, sums: Array) -> Any:
        infinite = jnp.abs(sums) >= large / 2
        parts = jnp.split(jnp.where(infinite, jnp.sign(sums) * jnp.inf, sums), cuts)
        shaped = [part.reshape(leaf.shape[1:]) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    return Prepared(jnp.clip(columns, -large, large), stat)


# --------------------------------------------------------------------------------------------
# ClassGaps of many classes: most probabilities lie in the first bin, whose gap is the class's total
# minus the other bins. A matrix product computes the totals; the few entries above 1/B are summed
# one by one.


def large_entries(terms: Terms) -> Entries:
    """Find the probabilities above the first bin, on the host, where their number may vary.

    The entries are padded, so that models of one shape share one compiled bootstrap whatever their
    sharpness: to the largest possible number if that is small, else to 2, 4, 8 ... entries per
    row. Most models have fewer than two.
    """
    if not isinstance(terms, ClassGaps) or _has_few_cells(terms):
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


def _has_few_cells(terms: ClassGaps) -> bool:
    num_rows, num_classes = terms.p.shape
    cells = num_classes * terms.num_bins
    return cells <= _FEW_COLUMNS and cells * num_rows <= 2**24  # 64 MB


def _gaps(terms: ClassGaps, weights: Vector, entries: Entries) -> Prepared:
    num_classes, num_bins = terms.p.shape[-1], terms.num_bins
    true, edges = is_true_class(terms.labels, num_classes), uniform_edges(num_bins)
    occurs = true if terms.zero_counts else true & (terms.p > 0)
    gap = weights[:, None] * (terms.p - occurs.astype(terms.p.dtype))
    if _has_few_cells(terms):
        inside = jax.nn.one_hot(bin_index(terms.p, edges), num_bins, dtype=bool)
        weight = jnp.where(true, weights[:, None], 0)
        return _linear(Sums({"gap": jnp.where(inside, gap[..., None], 0), "weight": weight}))
    row, column = jnp.asarray(entries.row), jnp.asarray(entries.column)
    inside = jnp.minimum(column, num_classes - 1)
    # Column K has no cell, so `class_sums` drops the padding.
    cell = num_bins * column + bin_index(terms.p[row, inside], edges)
    value = gap[row, inside]

    def stat(counts: Vector, sums: Array) -> Sums:
        large = class_sums(cell, counts[row] * value, num_classes * num_bins)
        of_bins = large.reshape(num_classes, num_bins)
        of_bins = of_bins.at[:, 0].set(sums - jnp.sum(of_bins[:, 1:], axis=-1))
        return Sums(
            {"gap": of_bins, "weight": class_sums(terms.labels, counts * weights, num_classes)}
        )

    return Prepared(gap, stat)
