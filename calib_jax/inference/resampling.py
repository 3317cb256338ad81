r"""How often each example occurs in each resample of a bootstrap, and the statistics of resamples.

Drawing n indices and gathering is slow. Drawing n independent Poisson(1) counts, by inverse CDF
from 16 random bits each, is fast; their total varies, but the metrics divide by it. For resamples
of exactly n examples, the counts are Poisson with a mean slightly below 1, and the few missing
examples are drawn one by one. Independent Poisson counts of equal mean are multinomial given their
total, and they remain so when uniform draws are added.

The 64 random bits of a key and a row are the counts of the row in four resamples. So the draws do
not depend on how many resamples are drawn at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32
from jaxtyping import Float, Int, Integer, UInt8, UInt32

from calib_jax.core.binning import bin_index, class_sums, uniform_edges
from calib_jax.core.numerics import is_true_class, weigh
from calib_jax.core.statistics import Rows, Sums
from calib_jax.core.types import Array, Labels, Vector
from calib_jax.inference.evaluation import padded_size
from calib_jax.inference.p_values import host_generator
from calib_jax.metrics import terms as contract
from calib_jax.metrics.terms import ClassGaps, Columns, Kept, Terms

PER_KEY = 4  # resamples
_FEW_COLUMNS = 256  # so few columns are faster than sums over single entries
_FEW_ENTRIES = 2**16  # summing these for 1,000 resamples is faster than compiling
_FACTORIALS = np.array([math.factorial(count) for count in range(8)])
_ENTRIES = 2**20  # multiplicities drawn at a time, whose random bits stay in the cache of a CPU


# One program for all functions that draw: it takes a second to compile.
@functools.partial(jax.jit, static_argnames="size")
def _multiplicities(
    seed: UInt32[Array, "2"],
    numbers: Integer[Array, " keys"],
    size: int,
    number: Any,
    thresholds: Integer[Array, " 8"],
    classes: Labels | None,
) -> UInt8[Array, "resamples rows"]:
    """Draw four resamples for each of the numbers; see `drawn` for the other arguments."""
    words = functools.partial(_words, seed, numbers)
    if classes is None:
        counts = _of_all(words, size, number, thresholds)
    else:
        counts = _within_classes(words, classes)
    return counts.reshape(-1, size).astype(jnp.uint8)


def drawn(
    key: Array, first: int, num_keys: int, size: int, number: int, classes: Any = None
) -> list[UInt8[Array, "resamples rows"]]:
    """Draw the multiplicities of some numbers from the first on, in parts that fit into a cache.

    Args:
      key: PRNG key.
      first: the number of the first resample, divided by four.
      num_keys: the number of resamples, divided by four.
      size: number of rows.
      number: the first rows, which are drawn; the others are padding. It is an argument of the
        compiled program, so that sets of several sizes share a program, and the draws of the first
        rows are the same as without padding.
      classes: if given, every class keeps its number of examples; padding is a separate class.

    Returns:
      Equal parts, so that they share a program; the last one may hold some more resamples.
    """
    seed = host_generator(key).integers(2**32, size=2, dtype=np.uint32)
    num_parts = -(-PER_KEY * num_keys * size // _ENTRIES)
    part = np.arange(-(-num_keys // num_parts))
    of_set = size, number, _thresholds(number), classes
    starts = range(first, first + num_keys, len(part))
    return [_multiplicities(seed, start + part, *of_set) for start in starts]


def resamples_on_host(
    key: Array, size: int, num_resamples: int
) -> list[UInt8[np.ndarray, "resamples rows"]]:
    """Draw the multiplicities of all resamples in chunks."""
    parts = drawn(key, 0, -(-num_resamples // PER_KEY), padded_size(size), size)
    most = num_resamples - np.arange(0, num_resamples, len(parts[0]))
    return [np.asarray(part)[:number, :size] for part, number in zip(parts, most, strict=True)]


def _of_all(words_of: Callable[..., Array], size: int, number: Any, thresholds: Array) -> Array:
    """Draw Poisson counts, exact to 1.5e-5, and add uniform draws up to the number of rows."""
    expected = size * _mean(size)
    most_missing = size - max(0, math.floor(expected - 6 * math.sqrt(expected)))
    rows, of_draws = (jnp.arange(end, dtype=jnp.uint32) for end in (size, 2 * most_missing))
    words = words_of(jnp.concatenate([rows, ~of_draws]))  # draws are counted down from the last
    halves = jnp.concatenate([words[..., :size] >> 16, words[..., :size] & 0xFFFF], axis=1)
    reached = [(halves >= threshold).astype(jnp.int32) for threshold in thresholds]
    counts = jnp.where(rows < number, functools.reduce(jnp.add, reached), 0)

    def filled(counts: Int[Array, " rows"], bits: UInt32[Array, " draws"]) -> Int[Array, " rows"]:
        missing = number - jnp.sum(counts, dtype=counts.dtype)
        is_missing = jnp.arange(most_missing, dtype=counts.dtype) < missing
        return counts.at[_below(number, bits)].add(is_missing.astype(counts.dtype))

    return jax.vmap(jax.vmap(filled))(counts, _four(words[..., size:]))


def _within_classes(words_of: Callable[..., Array], classes: Labels) -> Array:
    """Replace each example by a random example of its class."""
    by_class = jnp.argsort(classes)
    ordered = classes[by_class]
    first = jnp.searchsorted(ordered, ordered, side="left")
    size = jnp.searchsorted(ordered, ordered, side="right") - first

    def draw(bits: UInt32[Array, " rows"]) -> Int[Array, " rows"]:
        index = by_class[first + _below(size, bits)]
        return jnp.zeros(index.shape, jnp.int32).at[index].add(1)

    words = words_of(jnp.arange(2 * len(classes), dtype=jnp.uint32))
    return jax.vmap(jax.vmap(draw))(_four(words))


def _words(seed: Array, numbers: Array, counters: Array) -> UInt32[Array, "keys two counters"]:
    """Draw two words of 32 random bits for each number and each counter.

    One call for all, since every call of this function takes time to compile.
    """
    of_numbers = numbers[:, None].astype(jnp.uint32)
    pairs = jnp.stack(jnp.broadcast_arrays(of_numbers, counters))
    return jnp.moveaxis(threefry_2x32(seed, pairs), 0, 1)


def _four(words: UInt32[Array, "keys two counters"]) -> UInt32[Array, "keys four draws"]:
    """Give two of the words of each draw to two resamples each."""
    pairs = words.reshape(len(words), 2, -1, 2)
    return jnp.moveaxis(pairs, -1, 2).reshape(len(words), PER_KEY, -1)


def _mean(number: int) -> float:
    """Return the mean of a Poisson count: six standard deviations of the total below 1.

    So the total exceeds the number of rows once in 1e9 resamples.
    """
    return max(0.0, 1 - 6 / number**0.5)


def _thresholds(number: int) -> UInt32[np.ndarray, " 8"]:
    """Return the inverse CDF of a Poisson count at 16 bits: count k from the first k values on."""
    chances = math.exp(-_mean(number)) * _mean(number) ** np.arange(8) / _FACTORIALS
    return np.round(np.cumsum(chances) * 2**16).astype(np.uint32)


def _below(bound: Any, bits: UInt32[Array, " draws"]) -> Int[Array, " draws"]:
    """Compute floor(bits * bound / 2**32), a uniform integer, without a slow division.

    It multiplies 16-bit halves, because 64-bit integers may be disabled.
    """
    high, low = bits >> 16, bits & 0xFFFF
    bound = jnp.asarray(bound, jnp.uint32)
    above, below = bound >> 16, bound & 0xFFFF
    middle = ((high * below) & 0xFFFF) + ((low * above) & 0xFFFF) + ((low * below) >> 16)
    product = high * above + ((high * below) >> 16) + ((low * above) >> 16) + (middle >> 16)
    return product.astype(jnp.int32)


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
