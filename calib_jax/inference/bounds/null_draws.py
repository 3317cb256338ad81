r"""Draws of a calibrated model's outcomes, with the probabilities held fixed.

If the model is calibrated and its examples are independent, the hits $a_i$ are independent
Bernoulli($c_i$) given all confidences, and the labels are Categorical($p_i$). A statistic of the
data is then one more draw of the same statistic, so its rank among R draws gives an exact p-value
for any number of examples and any bins:

$$p = \frac{1 + \#\{T^*_r \ge T\}}{R + 1}$$

A thousand draws of the labels of 50,000 examples are 5e7 random labels. So `hit_draws` and
`class_draws` combine a few draws of blocks of rows: the examples are divided at random into
blocks, each block is drawn some 80 times, and a draw of all examples takes one of these versions
of every block, at random. Every draw has the distribution of a calibrated
model's outcomes, so noise floors are unbiased. Draws share versions, which adds a part of 1/J to
the variance of their mean, for J versions.

The p-value of such draws is exact, too. The data are a further version of every block. If the
model is calibrated, all J + 1 versions have the same law, which is therefore invariant under the
group G of cyclic shifts of each block's versions. For a statistic T of the versions X and shifts
$g_r$ drawn uniformly from G,

$$p = \frac{1 + \#\{T(g_r X) \ge T(X)\}}{R + 1}$$

is at most $\alpha$ with probability at most $\alpha$: replace X by hX, with h uniform on G, which
keeps its law; $h, g_1 h, \ldots, g_R h$ are then independent and uniform given X, so the rank of
the first is uniform. The shifts must be able to pick the data, so each of these draws takes a
few blocks from the data. Evidence in one block alone, such as a single mistake of a model that is
always certain, therefore has a p-value of about 1 / (J + 1) or more.

Few examples form one block with one version per draw, so these draws are independent.

References:
  Bröcker and Smith, Increasing the reliability of reliability diagrams, 2007.
  Vaicenavicius et al., Evaluating model calibration in classification, AISTATS 2019.
  Hemerik and Goeman, Exact testing with random permutations, TEST 2018, theorem 2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer

from calib_jax.core.binning import uniform_edges
from calib_jax.core.types import Array

_ENTRIES = 2**22  # random numbers drawn at a time
# Statistics of equal data differ by the rounding of float32 sums, and ties must count.
_SLACK = 1e-6
_OUTCOMES = 2**22  # drawn at least, if so many are requested; labels of classes at a time
_VERSIONS = 63  # of a block at least
_BLOCKS = 256
_COUNTED = 2**17  # outcomes counted at a time, which stay in the processor's cache


def p_of_draws(value: float, draws: Float[np.ndarray, " draws"]) -> float:
    """Compute the share of draws that are at least the value, the value itself included."""
    return float((1 + np.sum(draws >= value - _SLACK)) / (1 + len(draws)))


def hit_sums(
    key: Array,
    confidence: Float[np.ndarray, " rows"],
    design: Float[np.ndarray, "rows columns"],
    num_resamples: int,
) -> Float[np.ndarray, "draws columns"]:
    """Draw hits from the confidences, and sum every column of the design over them."""
    columns = design.astype(np.float32)
    sums = [hits.astype(np.float32) @ columns for hits in _hits(key, confidence, num_resamples)]
    return np.concatenate(sums).astype(np.float64)


def joint_hit_sums(
    key: Array,
    confidence: Float[np.ndarray, " rows"],
    cluster: Integer[np.ndarray, " rows"],
    design: Float[np.ndarray, "rows columns"],
    num_resamples: int,
) -> Float[np.ndarray, "draws columns"]:
    """Draw hits and sum them as `hit_sums`; the examples of a cluster share one random number.

    The hits of a cluster depend on each other as strongly as their confidences allow.
    """
    generator = host_generator(key)
    _, member = np.unique(cluster, return_inverse=True)
    sums = np.empty((num_resamples, design.shape[1]))
    chunk = max(1, _ENTRIES // len(confidence))
    for start in range(0, num_resamples, chunk):
        at = slice(start, min(start + chunk, num_resamples))
        uniform = generator.random((at.stop - start, np.max(member) + 1))
        sums[at] = (uniform[:, member] < confidence) @ design
    return sums


def hits_in_chunks(
    key: Array, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Iterator[Float[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time."""
    for hits in _hits(key, confidence, num_resamples):
        yield hits.astype(np.float64)


def _hits(
    key: Array, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Iterator[Bool[np.ndarray, "draws rows"]]:
    generator = host_generator(key)
    chunk = max(1, min(num_resamples, _ENTRIES // len(confidence)))
    for start in range(0, num_resamples, chunk):
        yield draw_hits(generator, confidence, min(chunk, num_resamples - start))


def host_generator(key: Array) -> np.random.Generator:
    """Return a generator on the host, which takes an eighth of the time of `jax.random`."""
    return np.random.Generator(np.random.SFC64(np.asarray(jax.random.key_data(key))))


def draw_hits(
    generator: np.random.Generator, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Bool[np.ndarray, "draws rows"]:
    """Draw hits by 16 random bits each, and a further number on ties with the confidence's bits.

    Confidences next to 1 therefore keep their few errors.
    """
    steps = confidence * 2.0**16
    whole = np.minimum(np.floor(steps), 2**16 - 1)
    rest, whole = steps - whole, whole.astype(np.uint16)
    bits = generator.integers(0, 2**16, (num_resamples, len(confidence)), np.uint16)
    hits: np.ndarray = bits < whole
    equal = np.nonzero(bits == whole)
    hits[equal] = generator.random(len(equal[1])) < rest[equal[1]]
    return hits


# --------------------------------------------------------------------------------------------
# Draws combined from versions of blocks.


class Draws(NamedTuple):
    """Sums over the examples, for draws of a calibrated model's outcomes.

    Attributes:
      fresh: draws that do not depend on the data.
      ranked: draws among which the rank of the data is uniform if the model is calibrated.
    """

    fresh: Float[np.ndarray, "draws columns"]
    ranked: Float[np.ndarray, "draws columns"]


class _Plan(NamedTuple):
    """The blocks, and the version of every block in each draw.

    Attributes:
      rows: the examples of every block; -1 after the last example.
      num_versions: number of versions drawn of each block.
      fresh: the version of every block in each draw, among 1 to `num_versions`.
      ranked: as `fresh`, but a share of 1 / (`num_versions` + 1) is version 0, the data.
    """

    rows: Integer[np.ndarray, "blocks size"]
    num_versions: int
    fresh: Integer[np.ndarray, "draws blocks"]
    ranked: Integer[np.ndarray, "draws blocks"]


def _plan(generator: np.random.Generator, num_rows: int, num_resamples: int) -> _Plan:
    num_versions = min(num_resamples, max(_VERSIONS, _OUTCOMES // num_rows))
    if num_versions == num_resamples:
        versions = np.arange(1, num_resamples + 1)[:, None]
        return _Plan(np.arange(num_rows)[None], num_versions, versions, versions)
    size = -(-num_rows // _BLOCKS)
    num_blocks = -(-num_rows // size)
    rows = np.full(num_blocks * size, -1)
    # Blocks of neighbors would depend on the labels, by which rows of equal confidence are sorted.
    rows[:num_rows] = generator.permutation(num_rows)
    shape = (num_resamples, num_blocks)
    fresh = generator.integers(1, num_versions + 1, shape)
    of_data = generator.integers(0, num_versions + 1, shape) == 0
    return _Plan(rows.reshape(-1, size), num_versions, fresh, np.where(of_data, 0, fresh))


def hit_draws(
    key: Array,
    confidence: Float[np.ndarray, " rows"],
    hit: Float[np.ndarray, " rows"],
    design: Float[np.ndarray, "rows columns"],
    num_resamples: int,
) -> Draws:
    """Draw hits from the confidences, and sum every column of the design over them."""
    generator = host_generator(key)
    plan = _plan(generator, len(confidence), num_resamples)
    sums = Draws(*(np.zeros((num_resamples, design.shape[1])) for _ in Draws._fields))
    for block, fresh, ranked in zip(plan.rows, plan.fresh.T, plan.ranked.T, strict=True):
        rows = block[block >= 0]
        drawn = draw_hits(generator, confidence[rows], plan.num_versions)
        versions = np.concatenate([hit[None, rows], drawn]).astype(np.float32)
        table = versions @ design[rows].astype(np.float32)
        sums.fresh[:] += table[fresh]
        sums.ranked[:] += table[ranked]
    return sums


def class_draws(
    key: Array,
    p: Float[np.ndarray, "rows classes"],
    order: Integer[np.ndarray, " rows"],
    labels: Integer[np.ndarray, " rows"],
    *,
    num_bins: int,
    num_resamples: int,
    draws_at_a_time: int,
    rest: int = -1,
) -> Iterator[Draws]:
    """Draw labels from the probabilities; count them per class and bin of the class probability.

    Args:
      key: PRNG key.
      p: probabilities.
      order: the order of the rows, in which they receive their random numbers.
      labels: the labels in this order.
      num_bins: number of bins of equal width.
      num_resamples: number of draws.
      draws_at_a_time: number of draws in each result.
      rest: the class that receives 1 minus the sum of a row's probabilities.
    """
    generator = host_generator(key)
    plan = _plan(generator, len(p), num_resamples)
    num_blocks, size = plan.rows.shape
    step = max(1, _OUTCOMES // (plan.num_versions * size))
    starts = range(0, num_blocks, step)
    seed = int(generator.integers(2**63))

    # Cache one group of blocks; several groups are drawn again, with the same values.
    @functools.lru_cache(1)
    def versions_of(start: int) -> Integer[np.ndarray, "versions blocks size"]:
        generator = np.random.Generator(np.random.SFC64(np.array([seed, start])))
        rows = plan.rows[start : start + step]
        return _cells_of_versions(
            generator, p, order, labels, rows, num_bins, plan.num_versions, rest
        )

    num_cells = p.shape[1] * num_bins
    for first in range(0, num_resamples, draws_at_a_time):
        at = slice(first, min(first + draws_at_a_time, num_resamples))
        counts = Draws(*(np.zeros((at.stop - at.start, num_cells)) for _ in Draws._fields))
        for start in starts:
            blocks = slice(start, start + step)
            _count(versions_of(start), plan.fresh[at, blocks], plan.ranked[at, blocks], counts)
        yield counts


def _cells_of_versions(
    generator: np.random.Generator,
    p: Float[np.ndarray, "rows classes"],
    order: Integer[np.ndarray, " rows"],
    labels: Integer[np.ndarray, " rows"],
    rows: Integer[np.ndarray, "blocks size"],
    num_bins: int,
    num_versions: int,
    rest: int,
) -> Integer[np.ndarray, "versions blocks size"]:
    """Draw the cells of all versions of some blocks; absent rows are in a cell after the last."""
    num_classes = p.shape[1]
    inner = uniform_edges(num_bins)[1:-1]
    cells = np.full((1 + num_versions, *rows.shape), num_classes * num_bins)
    for place, block in enumerate(rows):
        block = block[block >= 0]
        of_rows = p[order[block]]
        index = np.arange(len(block))[:, None]
        chances = of_rows.astype(np.float64)
        chances[:, rest] += np.maximum(1 - np.sum(chances, axis=1), 0)
        # Search the running sums of all rows at once, each row shifted by its index. The last
        # class takes the rest of the total after rounding.
        below = np.cumsum(chances, axis=1)[:, :-1] + index
        shots = generator.random((len(block), num_versions)) + index
        drawn = np.searchsorted(np.minimum(below, index + 1).reshape(-1), shots, side="right")
        drawn = np.clip(drawn - index * (num_classes - 1), 0, num_classes - 1)
        classes = np.concatenate([labels[block, None], drawn], axis=1)
        values = np.take_along_axis(of_rows, classes, axis=1).astype(np.float32)
        bins = np.searchsorted(inner, values, side="left")  # as `bin_index` on the device
        cells[:, place, : len(block)] = (classes * num_bins + bins).T
    return cells


def _count(
    cells: Integer[np.ndarray, "versions blocks size"],
    fresh: Integer[np.ndarray, "draws blocks"],
    ranked: Integer[np.ndarray, "draws blocks"],
    counts: Draws,
) -> None:
    """Add the numbers of outcomes per cell of the versions that every draw takes."""
    _, num_blocks, size = cells.shape
    num_cells = counts.fresh.shape[1]
    step = max(1, _COUNTED // (num_blocks * size))
    for start in range(0, len(fresh), step):
        at = slice(start, min(start + step, len(fresh)))
        offset = (num_cells + 1) * np.arange(at.stop - start)

        def counted(draw: Any, version: Any, block: Any, offset: Any = offset) -> np.ndarray:
            index = cells[version, block] + offset[draw][..., None]
            totals = np.bincount(index.reshape(-1), minlength=len(offset) * (num_cells + 1))
            return totals.reshape(len(offset), -1)[:, :-1]

        every = np.arange(len(offset))[:, None]
        of_draws = counted(every, fresh[at], np.arange(num_blocks)[None])
        counts.fresh[at] += of_draws
        draw, block = np.nonzero(fresh[at] != ranked[at])
        counts.ranked[at] += of_draws
        if len(draw):
            counts.ranked[at] += counted(draw, ranked[at][draw, block], block)
            counts.ranked[at] -= counted(draw, fresh[at][draw, block], block)
