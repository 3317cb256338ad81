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

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer

from calib_jax.core.types import Array

_ENTRIES = 2**22  # random numbers drawn at a time
# Statistics of equal data differ by the rounding of float32 sums, and ties must count.
_SLACK = 1e-6
_OUTCOMES = 2**22  # drawn at least, if so many are requested
_VERSIONS = 63  # of a block at least
_BLOCKS = 256
_DENSE = 2**23  # entries of a table up to which a dense product is faster than a sparse one


def p_of_draws(value: float, draws: Float[np.ndarray, " draws"]) -> float:
    """Compute the share of draws that are at least the value, the value itself included."""
    return float((1 + np.sum(draws >= value - _SLACK)) / (1 + len(draws)))


def host_generator(key: Array) -> np.random.Generator:
    """Return a generator on the host, which takes an eighth of the time of `jax.random`."""
    return np.random.Generator(np.random.SFC64(np.asarray(jax.random.key_data(key))))


def hits_in_chunks(
    key: Array, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Iterator[Bool[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time."""
    generator = host_generator(key)
    step = max(1, min(num_resamples, _ENTRIES // len(confidence)))
    for start in range(0, num_resamples, step):
        yield _hits(generator, confidence, min(step, num_resamples - start))


def joint_hit_sums(
    key: Array,
    confidence: Float[np.ndarray, " rows"],
    cluster: Integer[np.ndarray, " rows"],
    design: Float[np.ndarray, "rows columns"],
    num_resamples: int,
) -> Float[np.ndarray, "draws columns"]:
    """Draw hits and sum the design over them; the examples of a cluster share one random number.

    The hits of a cluster depend on each other as strongly as their confidences allow.
    """
    generator = host_generator(key)
    _, member = np.unique(cluster, return_inverse=True)
    step = max(1, _ENTRIES // len(confidence))
    sums = []
    for start in range(0, num_resamples, step):
        uniform = generator.random((min(step, num_resamples - start), np.max(member) + 1))
        sums.append((uniform[:, member] < confidence) @ design)
    return np.concatenate(sums)


def _hits(
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
      blocks: the examples of every block.
      num_versions: number of versions drawn of each block.
      fresh: the version of every block in each draw, among 1 to `num_versions`.
      ranked: as `fresh`, but a share of 1 / (`num_versions` + 1) is version 0, the data.
    """

    blocks: list[Integer[np.ndarray, " size"]]
    num_versions: int
    fresh: Integer[np.ndarray, "draws blocks"]
    ranked: Integer[np.ndarray, "draws blocks"]

    def sums(self, table: Any, at: slice) -> Draws:
        """Sum the rows `[blocks x (1 + versions), columns]` that some of the draws take."""
        fresh, ranked = (self._selection(versions[at]) for versions in self[2:])
        sums = fresh @ table, (ranked - fresh) @ table
        first, change = (
            np.asarray(part if isinstance(part, np.ndarray) else part.toarray(), np.float64)
            for part in sums
        )
        return Draws(first, first + change)

    def _selection(self, versions: Integer[np.ndarray, "draws blocks"]) -> Any:
        from scipy.sparse import csr_array

        num_draws, num_blocks = versions.shape
        columns = versions + (1 + self.num_versions) * np.arange(num_blocks)
        ends = num_blocks * np.arange(num_draws + 1)
        shape = num_draws, num_blocks * (1 + self.num_versions)
        ones = np.ones(columns.size, np.float32)
        return csr_array((ones, columns.reshape(-1), ends), shape)


def _plan(generator: np.random.Generator, num_rows: int, num_resamples: int) -> _Plan:
    num_versions = min(num_resamples, max(_VERSIONS, _OUTCOMES // num_rows))
    if num_versions == num_resamples:
        versions = np.arange(1, num_resamples + 1)[:, None]
        return _Plan([np.arange(num_rows)], num_versions, versions, versions)
    size = -(-num_rows // _BLOCKS)
    # Blocks of neighbors would depend on the labels, by which rows of equal confidence are sorted.
    rows = generator.permutation(num_rows)
    blocks = [rows[start : start + size] for start in range(0, num_rows, size)]
    shape = (num_resamples, len(blocks))
    fresh = generator.integers(1, num_versions + 1, shape)
    of_data = generator.integers(0, num_versions + 1, shape) == 0
    return _Plan(blocks, num_versions, fresh, np.where(of_data, 0, fresh))


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
    design = design.astype(np.float32)
    tables = []
    for rows in plan.blocks:
        drawn = _hits(generator, confidence[rows], plan.num_versions)
        versions = np.concatenate([hit[None, rows], drawn]).astype(np.float32)
        tables.append(versions @ design[rows])
    return plan.sums(np.concatenate(tables).astype(np.float64), slice(None))


def class_draws(
    key: Array,
    p: Float[np.ndarray, "rows classes"],
    order: Integer[np.ndarray, " rows"],
    labels: Integer[np.ndarray, " rows"],
    *,
    edges: Float[np.ndarray, " edges"],
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
      edges: the inner edges of the bins.
      num_resamples: number of draws.
      draws_at_a_time: number of draws in each result.
      rest: the class that receives 1 minus the sum of a row's probabilities.
    """
    from scipy.sparse import csr_array

    generator = host_generator(key)
    plan = _plan(generator, len(p), num_resamples)
    num_bins = len(edges) + 1
    cells, sizes = [], []
    for rows in plan.blocks:
        of_rows = p[order[rows]]
        index = np.arange(len(rows))[:, None]
        chances = of_rows.astype(np.float64)
        chances[:, rest] += np.maximum(1 - np.sum(chances, axis=1), 0)
        # Search the running sums of all rows at once, each row shifted by its index. The last
        # class takes the rest of the total after rounding.
        below = np.cumsum(chances, axis=1)[:, :-1] + index
        shots = generator.random((len(rows), plan.num_versions)) + index
        drawn = np.searchsorted(np.minimum(below, index + 1).reshape(-1), shots, side="right")
        drawn = np.clip(drawn - index * (p.shape[1] - 1), 0, p.shape[1] - 1)
        classes = np.concatenate([labels[rows, None], drawn], axis=1)
        values = np.take_along_axis(of_rows, classes, axis=1).astype(np.float32)
        bins = np.searchsorted(edges, values, side="left")  # as `bin_index` on the device
        cells.append((classes * num_bins + bins).T.astype(np.int32).reshape(-1))
        sizes += [len(rows)] * (1 + plan.num_versions)
    ends = np.append(0, np.cumsum(sizes))
    ones = np.ones(ends[-1], np.float32)
    table = csr_array((ones, np.concatenate(cells), ends), (len(sizes), p.shape[1] * num_bins))
    if len(sizes) * table.shape[1] <= _DENSE:
        table = table.toarray()
    for start in range(0, num_resamples, draws_at_a_time):
        yield plan.sums(table, slice(start, start + draws_at_a_time))
