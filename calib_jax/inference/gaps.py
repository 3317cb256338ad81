r"""Gaps of the bins of the top label, with variances and draws of their noise.

The gap of a bin is linear in the share of every example in it, for bins of equal width (one share
of 1 per example) and of equal mass (an example at a boundary is split) alike. Bins are chosen from
the probabilities alone, so draws of the labels leave them unchanged. All arrays are float64. Where
examples depend on each other, draws flip the signs of the clusters' sums, which also give every
variance.

*Draws of a calibrated model.* If the model is calibrated and its examples are independent, the hits
$a_i$ are independent Bernoulli($c_i$) given all confidences, and the labels are Categorical($p_i$).
A statistic of the data is then one more draw of the same statistic, so its rank among R draws gives
an exact p-value for any number of examples and any bins:

$$p = \frac{1 + \#\{T^*_r \ge T\}}{R + 1}$$

A thousand draws of the labels of 50,000 examples are 5e7 random labels. So `hit_draws` and
`class_gaps.py` combine a few draws of blocks of rows: the examples are divided at random into
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

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Integer
from numpy.random import Generator

from calib_jax.core import binning, checks
from calib_jax.inference import p_values
from calib_jax.inference.evaluation import Evaluation, in_order
from calib_jax.inference.p_values import Clusters, Column, Indices, Matrix
from calib_jax.metrics.bins import confidence_bins
from calib_jax.metrics.contract import AnyMetric

_RARE = 10.0  # variance of a bin's hits below which their distribution is not nearly symmetric

Blocks = Callable[[], Iterable[tuple[Matrix, Matrix]]]


class BinGaps(NamedTuple):
    """The sum of confidence minus hit over the examples of every bin, divided by n.

    Attributes:
      num_rows: n, the number of all examples.
      gap: the measured gaps.
      share: the share of the examples in each bin.
      of_null: the variance of each gap of a calibrated model with independent examples.
      variance: the variance of each gap, the larger of the empirical variance and the variance of
        a calibrated model.
      moment: mean square of the terms of each gap, divided by n; the larger of the same two values.
      moment_of: computes this mean square, and the largest term, of a sum of gaps with the given
        factors and, in clusters, the given signs; for independent examples, with any signs.
      design: the design factor of each gap, the factor by which dependence within clusters
        increases its moment.
      null: draws of the gaps of a calibrated model.
      ranked: draws among which the rank of the data gives the p-value.
      noise: draws of the noise of this model's gaps.
      num_classes: the classes over which a metric is averaged; 1 for a metric of the top label.
    """

    num_rows: int
    gap: Column
    share: Column
    of_null: Column
    variance: Column
    moment: Column
    moment_of: Callable[[Column, Column], tuple[float, float]]
    design: Column | float = 1.0
    null: Matrix = np.zeros((0, 0))
    ranked: Matrix = np.zeros((0, 0))
    noise: Matrix = np.zeros((0, 0))
    num_classes: int = 1


def bins_of(metric: AnyMetric) -> tuple[Any, ...]:
    """Return the key of a metric's bins; metrics with equal keys share bins and draws."""
    options = metric.defaults() | dict(metric.options)
    return (metric.prepare, *map(options.get, ("num_bins", "edges", "excluded_class")))


def bin_numbers(values: Column, num_bins: int, edges: str = "right") -> np.ndarray:
    """Compute `BINNING_RULES[edges]` on the host, without a program for each length."""
    if edges == "ceil":
        return np.clip(np.ceil(num_bins * values - 1).astype(np.int64), 0, num_bins - 1)
    inner = np.linspace(0, 1, num_bins + 1, dtype=np.float32)[1:-1]
    values = values.astype(np.float32, copy=False)
    return np.searchsorted(inner, values, side="left" if edges == "right" else "right")


def memberships(metric: AnyMetric, evaluation: Evaluation) -> Matrix:
    """Divide the examples into the bins of a metric of the top label."""
    prepare, num_bins, edges, excluded = bins_of(metric)
    confidence = evaluation.top_label(excluded).confidence
    checks.num_bins(num_bins)
    if prepare is confidence_bins:
        checks.one_of("edges", edges, binning.BINNING_RULES)
        numbers = bin_numbers(confidence, num_bins, edges)
        return (numbers[:, None] == np.arange(num_bins)[None]).astype(np.float64)
    # Bins of n / B examples; equal confidences are divided alike.
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    end = np.cumsum(sizes)
    boundaries = len(confidence) * np.arange(num_bins + 1) / num_bins
    low = np.maximum((end - sizes)[:, None], boundaries[None, :-1])
    high = np.minimum(end[:, None], boundaries[None, 1:])
    return (np.maximum(high - low, 0) / sizes[:, None])[group]


def sums_of_units(
    members: Matrix, residual: Column, cluster: Clusters | None
) -> tuple[Matrix, Matrix]:
    """Sum residuals and examples over each cluster in every bin; None: each example is a unit."""
    sums = members * residual[:, None]
    if cluster is None:
        return sums, members
    return p_values.sums_of(cluster, sums), p_values.sums_of(cluster, members)


def gaps_of(
    metrics: Sequence[AnyMetric], evaluation: Evaluation, key: jax.Array, num_resamples: int
) -> Iterator[BinGaps]:
    """Compute the gaps of the bins of metrics of one top label, from the same draws of hits."""
    confidence, hit = evaluation.top_label(bins_of(metrics[0])[-1])
    order, num_rows = in_order(confidence, hit), len(hit)
    confidence, hit = confidence[order], hit[order]
    designs = [memberships(metric, evaluation)[order] for metric in metrics]
    if evaluation.cluster is None:
        draws = hit_draws(key, confidence, hit, np.hstack(designs), num_resamples)
        cuts = np.cumsum([members.shape[1] for members in designs])[:-1]
        of_each = (np.split(hits, cuts, axis=1) for hits in draws)
        for members, *several in zip(designs, *of_each, strict=True):
            gaps, covariance = _without_draws(confidence, hit, members)
            null, ranked = ((confidence @ members - hits) / num_rows for hits in several)
            generator = p_values.host_generator(key, 1)
            noise = _normal(generator, covariance, gaps.variance, num_resamples)
            yield gaps._replace(null=null, ranked=ranked, noise=noise)
        return
    cluster, step = evaluation.cluster[order], p_values.CLUSTERS_AT_A_TIME
    for members in designs:
        gaps, covariance = _without_draws(confidence, hit, members)
        units, counts = sums_of_units(members, confidence - hit, cluster)
        starts = range(0, len(units), step)
        blocks = [(units[at : at + step], counts[at : at + step]) for at in starts]
        gaps = in_clusters(gaps, blocks.copy, p_values.host_generator(key), num_resamples)
        # A calibrated model has only some hits or some misses in a rare bin. Most data sets then
        # have no such outcome, and a gap that sign flips almost never reach: draw the outcomes.
        rare = np.flatnonzero(np.diag(covariance) * num_rows**2 < _RARE)
        rows = np.flatnonzero(np.any(members[:, rare] > 0, axis=1))
        if len(rows):
            design, of_rows = members[np.ix_(rows, rare)], confidence[rows]
            generator = p_values.host_generator(key, 1)
            chunks = hits_in_chunks(generator, of_rows, num_resamples, cluster[rows])
            hits = np.concatenate([chunk @ design for chunk in chunks])
            gaps.null[:, rare] = (of_rows @ design - hits) / num_rows
        yield gaps


def _without_draws(confidence: Column, hit: Column, members: Matrix) -> tuple[BinGaps, Matrix]:
    """Compute the gaps of independent examples, without draws, and their covariance."""
    num_rows, squared = len(hit), np.square(members)
    spread, residual = confidence * (1 - confidence), confidence - hit
    gap, count = residual @ members, np.sum(members, axis=0)
    mean = gap / np.where(count > 0, count, 1)
    covariance = members.T @ (members * spread[:, None])
    of_null, square_sum = np.diag(covariance), np.square(residual) @ squared
    empirical = square_sum - 2 * mean * (residual @ squared)
    empirical += np.square(mean) * np.sum(squared, axis=0)

    def moment_of(factors: Column, _: Column) -> tuple[float, float]:
        load = members @ factors
        terms = np.square(load) @ np.stack([np.square(residual), spread], axis=1)
        return float(np.max(terms)) / num_rows**2, float(np.max(load))

    sums = gap, count, of_null, empirical, square_sum
    return of_sums(sums, moment_of, num_rows), covariance / num_rows**2


def of_sums(
    sums: tuple[Column, ...], moment_of: Any, num_rows: int, num_classes: int = 1
) -> BinGaps:
    """Build gaps from sums over all examples.

    Args:
      sums: of residuals and of examples, and the sums of squares of a calibrated model, of the
        residuals minus their means, and of the residuals.
      moment_of: as in `BinGaps`.
      num_rows: number of examples.
      num_classes: as in `BinGaps`.
    """
    gap, share = (part / num_rows for part in sums[:2])
    of_null, empirical, square_sum = (part / num_rows**2 for part in sums[2:])
    moments = np.maximum(of_null, empirical), np.maximum(of_null, square_sum), moment_of
    return BinGaps(num_rows, gap, share, of_null, *moments, num_classes=num_classes)


def _normal(generator: Generator, covariance: Matrix, variance: Column, number: int) -> Matrix:
    """Draw normal noise with the correlations of a covariance and other variances."""
    deviation = np.sqrt(np.diag(covariance))
    factor = np.sqrt(variance) / np.where(deviation > 0, deviation, 1)
    alone = np.where(deviation > 0, 0, variance)  # bins without any noise in a calibrated model
    values, vectors = np.linalg.eigh(covariance * np.outer(factor, factor) + np.diag(alone))
    root = vectors * np.sqrt(np.maximum(values, 0))
    return generator.standard_normal((number, len(values))) @ root.T


def with_variance(draws: Matrix, variance: Column, wanted: Column, generator: Generator) -> Matrix:
    """Scale draws to other variances, which keeps the correlations between cells."""
    scaled = draws * np.sqrt(wanted / np.where(variance > 0, variance, np.inf))
    silent = np.flatnonzero((variance == 0) & (wanted > 0))  # cells without any noise in the draws
    if len(silent):
        noise = generator.standard_normal((len(draws), len(silent)))
        scaled[:, silent] = noise * np.sqrt(wanted[silent])
    return scaled


def in_clusters(gaps: BinGaps, blocks: Blocks, generator: Generator, num_resamples: int) -> BinGaps:
    """Add draws of clusters to gaps of independent examples, and replace their moments.

    Args:
      gaps: the gaps, without draws.
      blocks: yields the sums of residuals and the numbers of examples of clusters, per cell.
      generator: draws the signs.
      num_resamples: number of draws.
    """
    n, mean = gaps.num_rows, gaps.gap / np.where(gaps.share > 0, gaps.share, 1)
    null = np.zeros((num_resamples, len(mean)))
    noise, variance, square_sum = np.zeros_like(null), np.zeros_like(mean), np.zeros_like(mean)
    for sums, counts in blocks():
        xi = p_values.signs(generator, num_resamples, len(sums))
        centered = sums - counts * mean
        null += xi @ sums / n
        noise += xi @ centered / n
        variance += np.sum(np.square(centered), axis=0) / n**2
        square_sum += np.sum(np.square(sums), axis=0) / n**2
    wanted = np.maximum(gaps.of_null, variance)
    moment = np.maximum(gaps.of_null, square_sum)

    def moment_of(factors: Column, slopes: Column) -> tuple[float, float]:
        independent, largest = gaps.moment_of(factors, slopes)
        loads = factors * slopes
        clustered = sum(float(np.sum(np.square(sums @ loads))) for sums, _ in blocks()) / n**2
        larger = float(np.maximum(independent, clustered))
        return larger, largest * float(np.maximum(1, _ratio(clustered, independent)))

    return gaps._replace(
        variance=wanted,
        moment=moment,
        moment_of=moment_of,
        design=np.maximum(1, _ratio(moment, gaps.moment)),
        null=null,
        ranked=null,
        noise=with_variance(noise, variance, wanted, generator),
    )


def _ratio(numerator: Any, denominator: Any) -> Any:
    """Divide, with 1 for 0 / 0."""
    empty = np.equal(denominator, 0)
    return np.where(empty, 1, numerator / np.where(empty, 1, denominator))


# --------------------------------------------------------------------------------------------
# Draws of hits.

_ENTRIES = 2**22  # random numbers drawn at a time
# Statistics of equal data differ by the rounding of float32 sums, and ties must count.
SLACK = 1e-6
_OUTCOMES = 2**22  # drawn at least, if so many are requested
_VERSIONS = 63  # of a block at least
_BLOCKS = 256


def p_of_draws(value: float, draws: Column) -> float:
    """Compute the share of draws that are at least the value, the value itself included."""
    return float((1 + np.sum(draws >= value - SLACK)) / (1 + len(draws)))


def hits_in_chunks(
    generator: Generator, confidence: Column, num_resamples: int, cluster: Clusters | None = None
) -> Iterator[Bool[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time.

    With clusters, the examples of a cluster share one random number: their hits depend on each
    other as strongly as their confidences allow.
    """
    step = max(1, min(num_resamples, _ENTRIES // len(confidence)))
    _, member = np.unique(() if cluster is None else cluster, return_inverse=True)
    for start in range(0, num_resamples, step):
        count = min(step, num_resamples - start)
        if cluster is None:
            yield _hits(generator, confidence, count)
        else:
            uniform = generator.random((count, np.max(member) + 1))
            yield uniform[:, member] < confidence


def _hits(generator: Generator, confidence: Column, number: int) -> Bool[np.ndarray, "draws rows"]:
    """Draw hits by 16 random bits each, and a further number on ties with the confidence's bits.

    Confidences next to 1 therefore keep their few errors.
    """
    steps = confidence * 2.0**16
    whole = np.minimum(np.floor(steps), 2**16 - 1)
    rest, whole = steps - whole, whole.astype(np.uint16)
    bits = generator.integers(0, 2**16, (number, len(confidence)), np.uint16)
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
        return csr_array((ones, columns.ravel(), ends), shape)


def planned(generator: Generator, num_rows: int, num_resamples: int) -> _Plan:
    """Divide the rows into blocks, and choose the version of every block in each draw."""
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
    key: jax.Array, confidence: Column, hit: Column, design: Matrix, num_resamples: int
) -> Draws:
    """Draw hits from the confidences, and sum every column of the design over them."""
    generator = p_values.host_generator(key)
    plan = planned(generator, len(confidence), num_resamples)
    design = design.astype(np.float32)
    tables = []
    for rows in plan.blocks:
        drawn = _hits(generator, confidence[rows], plan.num_versions)
        versions = np.concatenate([hit[None, rows], drawn]).astype(np.float32)
        tables.append(versions @ design[rows])
    return plan.sums(np.concatenate(tables).astype(np.float64), slice(None))
