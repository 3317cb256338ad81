r"""P-values and intervals: of draws of a calibrated model, of normal estimates, and in clusters.

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

*Clusters.* If the model is calibrated, the residuals c - a of a cluster add up to 0 on average, in
every bin. Whole clusters are independent. So a test compares a statistic of the clusters' sums
$S_g$ with draws of the same statistic of $\xi_g S_g$, with independent random signs $\xi_g$: its
p-value is exact if sums of either sign are equally likely, and approximate for some 30 clusters or
more otherwise. With few clusters it rejects too rarely: the smallest p-value of G clusters is 1 /
2^(G - 1).

References:
  Bröcker and Smith, Increasing the reliability of reliability diagrams, 2007.
  Vaicenavicius et al., Evaluating model calibration in classification, AISTATS 2019.
  Hemerik and Goeman, Exact testing with random permutations, TEST 2018, theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from calib_jax.core.arrays import as_numbers
from calib_jax.core.types import Array

Column = Float[np.ndarray, " _"]  # of rows, bins or draws
Matrix = Float[np.ndarray, "_ _"]
Indices: TypeAlias = Integer[np.ndarray, " _"]
Clusters: TypeAlias = Integer[np.ndarray, " _"]  # 0, 1, 2, ..., each of them with an example

CLUSTERS_AT_A_TIME = 4096

# A normal p-value of fewer examples or clusters rejects too often: 4 of one sign give p = .046.
LEAST_UNITS = 10


class NormalTest(NamedTuple):
    """An estimate with its interval, and the p-value of the hypothesis that the truth is 0."""

    value: float
    low: float
    high: float
    p_value: float


def normal_test(
    value: float, variance: float, level: float, degrees: float = math.inf
) -> NormalTest:
    """Compute the interval and the p-value, which is 1 for a value of 0 that cannot vary.

    Args:
      value: the estimate.
      variance: the variance of the estimate.
      level: the nominal coverage of the interval.
      degrees: the degrees of freedom of the variance, for Student's t; infinite for the normal.
    """
    deviation = math.sqrt(variance)
    if math.isinf(degrees) or not deviation > 0:
        half = NormalDist().inv_cdf((1 + level) / 2) * deviation
        return NormalTest(value, value - half, value + half, p_of_z(value, deviation))
    from scipy.special import stdtr, stdtrit

    half = float(stdtrit(degrees, (1 + level) / 2)) * deviation
    p_value = 2 * float(stdtr(degrees, -abs(value) / deviation))
    return NormalTest(value, value - half, value + half, p_value)


def clipped(value: float, low: float = 0.0, high: float = math.inf) -> float:
    """Clip a number to [low, high]; NaN stays NaN, which `max(low, nan)` would turn into `low`.

    >>> clipped(-1e-17), clipped(math.nan)
    (0.0, nan)
    """
    return value if math.isnan(value) else min(high, max(low, value))


def p_of_z(value: float, deviation: float = 1.0) -> float:
    """Compute the two-sided p-value of a value with this standard deviation; NaN stays NaN."""
    if deviation == 0:
        return 1.0 if value == 0 else 0.0
    return math.erfc(abs(value) / deviation / math.sqrt(2))


def paired_test(
    differences: Column,
    cluster: Integer[np.ndarray, " rows"] | None,
    level: float,
    *,
    student: bool = False,
) -> NormalTest:
    """Test a mean difference over examples, or over examples in clusters.

    The ends and the p-value are NaN with fewer than `LEAST_UNITS` examples or clusters. With
    `student` the distribution is Student's t in place of the normal.
    """
    num_rows, value = len(differences), float(np.mean(differences))
    residuals = differences - value
    sums = residuals if cluster is None else np.bincount(cluster, residuals)
    if len(sums) < LEAST_UNITS:
        return NormalTest(value, math.nan, math.nan, math.nan)
    variance = float(np.sum(np.square(sums))) * len(sums) / (len(sums) - 1) / num_rows**2
    return normal_test(value, variance, level, len(sums) - 1 if student else math.inf)


def holm(p_values: Any) -> Float[np.ndarray, "*shape"]:
    r"""Adjust p-values for their number, by the method of Holm.

    If every adjusted p-value below 5 % is called a finding, the probability of one false finding
    or more is at most 5 %, however the tests depend on each other:

    $$\tilde p_{(k)} = \min\Bigl(1, \max_{j \le k} (m - j + 1)\, p_{(j)}\Bigr)$$

    for m p-values in ascending order. It is never weaker than Bonferroni's $m p$.

    Args:
      p_values: `[*shape]`. NaN is no test: it stays NaN and is not counted in m.

    References:
      Holm, A simple sequentially rejective multiple test procedure, 1979.

    >>> from calib_jax import inference
    >>> inference.holm([0.01, 0.04, float("nan"), 0.03])
    array([0.03, 0.06,  nan, 0.06])
    """
    if isinstance(p_values, Mapping):
        raise TypeError(
            "p_values must be an array or a list, got a dict: give [*p_values.values()]."
        )
    p = np.asarray(as_numbers("holm", "p_values", p_values), np.float64)
    tested = ~np.isnan(p)
    if np.any((p[tested] < 0) | (p[tested] > 1)):
        raise ValueError(
            f"p-values must lie in [0, 1], got {p[tested].min()} to {p[tested].max()}."
        )
    values = p[tested]
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate((len(values) - np.arange(len(values))) * values[order])
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1, steps)
    result = np.full(p.shape, np.nan)
    result[tested] = adjusted
    return result


# --------------------------------------------------------------------------------------------
# Clusters.


def sums_of(cluster: Clusters, columns: Float[np.ndarray, "rows ..."]) -> np.ndarray:
    """Sum columns over the rows of every cluster."""
    order = np.argsort(cluster, kind="stable")
    starts = np.searchsorted(cluster[order], np.arange(np.max(cluster) + 1))
    return np.add.reduceat(columns[order], starts, axis=0)


def signs(key: Array, num_resamples: int, num_clusters: int) -> Float[np.ndarray, "draws clusters"]:
    """Draw the random signs of clusters."""
    drawn = jax.random.rademacher(key, (num_resamples, num_clusters), jnp.int8)
    return np.asarray(drawn).astype(np.float64)


def flipped(
    key: Array, num_resamples: int, sums: Float[np.ndarray, "clusters cells"]
) -> Float[np.ndarray, "draws cells"]:
    """Draw totals of the clusters' sums with random signs."""
    total = np.zeros((num_resamples, sums.shape[1]))
    for number, start in enumerate(range(0, len(sums), CLUSTERS_AT_A_TIME)):
        part = sums[start : start + CLUSTERS_AT_A_TIME]
        total += signs(jax.random.fold_in(key, number), num_resamples, len(part)) @ part
    return total


def z_of(scores: Column, cluster: Clusters) -> float:
    """Divide the sum of scores of mean 0 by the root of the sum of squares of the clusters' sums.

    It is NaN with fewer clusters than `LEAST_UNITS`, and if all sums are 0.
    """
    totals = sums_of(cluster, scores)
    deviation = math.sqrt(float(np.sum(np.square(totals))))
    if len(totals) < LEAST_UNITS or deviation == 0:
        return math.nan
    return float(np.sum(totals)) / deviation


_ENTRIES = 2**22  # random numbers drawn at a time
# Statistics of equal data differ by the rounding of float32 sums, and ties must count.
SLACK = 1e-6
_OUTCOMES = 2**22  # drawn at least, if so many are requested
_VERSIONS = 63  # of a block at least
_BLOCKS = 256
_DENSE = 2**23  # entries of a table up to which a dense product is faster than a sparse one


def p_of_draws(value: float, draws: Column) -> float:
    """Compute the share of draws that are at least the value, the value itself included."""
    return float((1 + np.sum(draws >= value - SLACK)) / (1 + len(draws)))


def host_generator(key: Array) -> np.random.Generator:
    """Return a generator on the host, which takes an eighth of the time of `jax.random`."""
    return np.random.Generator(np.random.SFC64(np.asarray(jax.random.key_data(key))))


def hits_in_chunks(
    key: Array, confidence: Column, num_resamples: int, cluster: Clusters | None = None
) -> Iterator[Bool[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time.

    With clusters, the examples of a cluster share one random number: their hits depend on each
    other as strongly as their confidences allow.
    """
    generator = host_generator(key)
    step = max(1, min(num_resamples, _ENTRIES // len(confidence)))
    _, member = np.unique(() if cluster is None else cluster, return_inverse=True)
    for start in range(0, num_resamples, step):
        count = min(step, num_resamples - start)
        if cluster is None:
            yield _hits(generator, confidence, count)
        else:
            uniform = generator.random((count, np.max(member) + 1))
            yield uniform[:, member] < confidence


def _hits(
    generator: np.random.Generator, confidence: Column, num_resamples: int
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

    fresh: Matrix
    ranked: Matrix


class _Plan(NamedTuple):
    """The blocks, and the version of every block in each draw.

    Attributes:
      blocks: the examples of every block.
      num_versions: number of versions drawn of each block.
      fresh: the version of every block in each draw, among 1 to `num_versions`.
      ranked: as `fresh`, but a share of 1 / (`num_versions` + 1) is version 0, the data.
    """

    blocks: list[Indices]
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
    key: Array, confidence: Column, hit: Column, design: Matrix, num_resamples: int
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
    p: Matrix,
    order: Indices,
    labels: Indices,
    edges: Column,
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
