r"""Gaps of bins, of the top label and of every class, with variances and draws of their noise.

The gap of a bin is linear in the share of every example in it, for bins of equal width (one share
of 1 per example) and of equal mass (an example at a boundary is split) alike. Bins are chosen from
the probabilities alone, so draws of the labels leave them unchanged. All arrays are float64. Where
examples depend on each other, draws flip the signs of the clusters' sums, which also give every
variance. Few probabilities lie above the first bin of a class, whose sums are totals minus other
bins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.binning import BINNING_RULES, uniform_edges
from calib_jax.core.types import Array
from calib_jax.inference import p_values
from calib_jax.inference.evaluation import Evaluation, in_order
from calib_jax.inference.p_values import Clusters, Column, Indices, Matrix
from calib_jax.metrics.bins import confidence_bins
from calib_jax.metrics.contract import AnyMetric
from calib_jax.metrics.terms import Predictions

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
      ranked: draws among which the rank of the data gives the p-value, see `p_values.py`.
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
    inner = uniform_edges(num_bins)[1:-1]
    values = values.astype(np.float32, copy=False)
    return np.searchsorted(inner, values, side="left" if edges == "right" else "right")


def memberships(metric: AnyMetric, evaluation: Evaluation) -> Matrix:
    """Divide the examples into the bins of a metric of the top label."""
    prepare, num_bins, edges, excluded = bins_of(metric)
    confidence = evaluation.top_label(excluded).confidence
    checks.num_bins(num_bins)
    if prepare is confidence_bins:
        checks.one_of("edges", edges, BINNING_RULES)
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


def gaps_of(metric: AnyMetric, evaluation: Evaluation, key: Array, num_resamples: int) -> BinGaps:
    """Compute the gaps of the bins of a metric; metrics of one key have the same draws of hits."""
    if metric.name == "classwise_ece":
        return next(gaps_of_classes(metric, evaluation, key, num_resamples, num_resamples))
    return _gaps_of_top_label(metric, evaluation, key, num_resamples)


def _gaps_of_top_label(
    metric: AnyMetric, evaluation: Evaluation, key: Array, num_resamples: int
) -> BinGaps:
    confidence, hit = evaluation.top_label(bins_of(metric)[-1])
    order = in_order(confidence, hit)
    members = memberships(metric, evaluation)[order]
    confidence, hit = confidence[order], hit[order]
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

    gaps = _of_sums(num_rows, gap, count, (of_null, empirical, square_sum), moment_of)
    key_of_hits, key_of_noise = jax.random.split(key)
    if evaluation.cluster is None:
        draws = p_values.hit_draws(key_of_hits, confidence, hit, members, num_resamples)
        null, ranked = ((confidence @ members - hits) / num_rows for hits in draws)
        noise = _normal(key_of_noise, covariance / num_rows**2, gaps.variance, num_resamples)
        return gaps._replace(null=null, ranked=ranked, noise=noise)
    cluster = evaluation.cluster[order]
    units, counts = sums_of_units(members, residual, cluster)
    step = p_values.CLUSTERS_AT_A_TIME
    starts = range(0, len(units), step)
    blocks = [(units[at : at + step], counts[at : at + step]) for at in starts]
    gaps = in_clusters(gaps, lambda: blocks, key, num_resamples)
    # A calibrated model has only some hits or some misses in a rare bin. Most data sets then have
    # no such outcome, and a gap that sign flips almost never reach: draw the outcomes.
    rare = np.flatnonzero(of_null < _RARE)
    rows = np.flatnonzero(np.any(members[:, rare] > 0, axis=1))
    if len(rows):
        design, of_rows = members[np.ix_(rows, rare)], confidence[rows]
        key_of_outcomes = jax.random.fold_in(key_of_noise, 0)
        chunks = p_values.hits_in_chunks(key_of_outcomes, of_rows, num_resamples, cluster[rows])
        hits = np.concatenate([chunk @ design for chunk in chunks])
        gaps.null[:, rare] = (of_rows @ design - hits) / num_rows
    return gaps


def _of_sums(
    n: int, gap: Column, count: Column, squares: tuple[Column, ...], moment_of: Any
) -> BinGaps:
    """Build gaps from sums over n examples.

    The sums of squares are those of a calibrated model, of the data, and of the data without their
    means.
    """
    of_null, empirical, square_sum = (part / n**2 for part in squares)
    variance, moment = np.maximum(of_null, empirical), np.maximum(of_null, square_sum)
    return BinGaps(n, gap / n, count / n, of_null, variance, moment, moment_of)


def _normal(key: Array, covariance: np.ndarray, variance: Column, num_resamples: int) -> Matrix:
    """Draw normal noise with the correlations of a covariance and other variances."""
    deviation = np.sqrt(np.diag(covariance))
    factor = np.sqrt(variance) / np.where(deviation > 0, deviation, 1)
    alone = np.where(deviation > 0, 0, variance)  # bins without any noise in a calibrated model
    values, vectors = np.linalg.eigh(covariance * np.outer(factor, factor) + np.diag(alone))
    root = vectors * np.sqrt(np.maximum(values, 0))
    return np.asarray(jax.random.normal(key, (num_resamples, len(values)))) @ root.T


def with_variance(draws: Matrix, variance: Column, wanted: Column, key: Array) -> Matrix:
    """Scale draws to other variances, which keeps the correlations between cells."""
    scaled = draws * np.sqrt(wanted / np.where(variance > 0, variance, np.inf))
    silent = np.flatnonzero((variance == 0) & (wanted > 0))  # cells without any noise in the draws
    if len(silent):
        noise = np.asarray(jax.random.normal(key, (len(draws), len(silent))))
        scaled[:, silent] = noise * np.sqrt(wanted[silent])
    return scaled


def in_clusters(gaps: BinGaps, blocks: Blocks, key: Array, num_resamples: int) -> BinGaps:
    """Add draws of clusters to gaps of independent examples, and replace their moments.

    Args:
      gaps: the gaps, without draws.
      blocks: yields the sums of residuals and the numbers of examples of clusters, per cell.
      key: the key of the signs.
      num_resamples: number of draws.
    """
    key_of_signs, key_of_noise = jax.random.split(key)
    n, mean = gaps.num_rows, gaps.gap / np.where(gaps.share > 0, gaps.share, 1)
    null = np.zeros((num_resamples, len(mean)))
    noise, variance, square_sum = np.zeros_like(null), np.zeros_like(mean), np.zeros_like(mean)
    for number, (sums, counts) in enumerate(blocks()):
        xi = p_values.signs(jax.random.fold_in(key_of_signs, number), num_resamples, len(sums))
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
        noise=with_variance(noise, variance, wanted, key_of_noise),
    )


def _ratio(numerator: Any, denominator: Any) -> Any:
    """Divide, with 1 for 0 / 0."""
    empty = np.equal(denominator, 0)
    return np.where(empty, 1, numerator / np.where(empty, 1, denominator))


_ROWS_AT_A_TIME = 64  # of all classes, which then stay in the processor's cache
_MOST_CELLS = 2**22  # of clusters whose sums are in memory at a time


def gaps_of_classes(
    metric: AnyMetric, evaluation: Evaluation, key: Array, num_resamples: int, draws_at_a_time: int
) -> Iterator[BinGaps]:
    """Compute the gaps of every class and bin, with some of the draws at a time."""
    num_bins, excluded = bins_of(metric)[1], bins_of(metric)[-1]
    labels, cluster = evaluation.copies.labels, evaluation.cluster
    p = evaluation.columns(_probabilities, excluded)
    order = in_order(np.max(p, axis=1), labels)
    classes = np.asarray(labels)[order]
    num_rows, num_classes = p.shape
    num_cells = num_classes * num_bins

    true = p[order, classes].astype(np.float64)
    cell = classes * num_bins + bin_numbers(true, num_bins)
    occurrences, sum_of_true = (np.bincount(cell, w, num_cells) for w in (None, true))
    count, total, square, of_others = _class_sums(p, order, num_bins)
    gap = total - occurrences
    of_null = np.maximum(total - square, 0)
    square_sum = np.maximum(square - 2 * sum_of_true + occurrences, 0)
    empirical = square_sum - np.square(gap) / np.where(count > 0, count, 1)
    # Whatever the signs, the terms of an example add up to at most twice the others' probability.
    of_others = float(np.maximum(np.sum(np.square(1 - true)), of_others))

    def moment_of(factors: Column, _: Column) -> tuple[float, float]:
        largest = 2 * float(np.max(factors))
        return largest**2 * of_others / num_rows**2, largest

    squares = of_null, empirical, square_sum
    gaps = _of_sums(num_rows, gap, count, squares, moment_of)._replace(num_classes=num_classes)
    if cluster is not None:
        blocks = functools.partial(_in_blocks, p[order], classes, cluster[order], num_bins)
        for start in range(0, num_resamples, draws_at_a_time):
            size = min(draws_at_a_time, num_resamples - start)
            yield in_clusters(gaps, blocks, jax.random.fold_in(key, start), size)
        return
    key_of_labels, key_of_noise = jax.random.split(key)
    # The excluded class receives the part of 1 that the other probabilities lack.
    rest, edges = -1 if excluded is None else excluded, uniform_edges(num_bins)[1:-1]
    how = (edges, num_resamples, draws_at_a_time, rest)
    chunks = p_values.class_draws(key_of_labels, p, order, classes, *how)
    for number, draws in enumerate(chunks):
        for counts in draws:  # in place: these are the largest arrays
            np.subtract(total, counts, out=counts)
            np.divide(counts, num_rows, out=counts)
        key_of_chunk = jax.random.fold_in(key_of_noise, number)
        noise = with_variance(draws.fresh, gaps.of_null, gaps.variance, key_of_chunk)
        yield gaps._replace(null=draws.fresh, ranked=draws.ranked, noise=noise)


def _probabilities(view: Predictions, excluded_class: int | None) -> Array:
    return view.without(excluded_class).p


def _in_blocks(
    p: Matrix, classes: Indices, cluster: Clusters, num_bins: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sum p - [y = k] and 1 over the rows of every cluster, class and bin of p."""
    num_cells = p.shape[1] * num_bins
    bins = bin_numbers(p.reshape(-1), num_bins).reshape(p.shape).astype(np.int64)
    cells = np.arange(p.shape[1]) * num_bins + bins
    order = np.argsort(cluster, kind="stable")
    step = max(1, min(p_values.CLUSTERS_AT_A_TIME, _MOST_CELLS // num_cells))
    num_clusters = int(np.max(cluster)) + 1
    starts = np.searchsorted(cluster[order], np.arange(0, num_clusters + step, step))
    for first, start, stop in zip(range(0, num_clusters, step), starts, starts[1:], strict=False):
        rows = order[start:stop]
        count = min(step, num_clusters - first)
        offset = (cluster[rows] - first) * num_cells
        index = (offset[:, None] + cells[rows]).reshape(-1)
        true = offset + cells[rows, classes[rows]]
        size = count * num_cells
        counts = np.bincount(index, minlength=size)
        sums = np.bincount(index, p[rows].reshape(-1), size) - np.bincount(true, minlength=size)
        yield sums.reshape(count, -1), counts.reshape(count, -1).astype(np.float64)


def _class_sums(p: Matrix, order: Indices, num_bins: int) -> tuple[Column, Column, Column, float]:
    """Sum 1, p and its square per class and bin, and p (1 - p)^2 over all classes."""
    num_classes = p.shape[1]
    edge = uniform_edges(num_bins)[1]
    sums, squares, of_others = np.zeros(num_classes), np.zeros(num_classes), 0.0
    columns, values = [], []
    for start in range(0, len(p), _ROWS_AT_A_TIME):
        rows = p[order[start : start + _ROWS_AT_A_TIME]]
        at = np.flatnonzero(rows.astype(np.float32, copy=False) > edge)
        columns.append(at % num_classes)
        rows = rows.astype(np.float64)
        values.append(rows.reshape(-1)[at])
        square = np.square(rows)
        sums += np.sum(rows, axis=0)
        squares += np.sum(square, axis=0)
        of_others += np.sum(rows) - 2 * np.sum(square) + np.vdot(square, rows)
    large = np.concatenate(values)
    cell = np.concatenate(columns) * num_bins + bin_numbers(large, num_bins)

    def with_first(total: Any, values: np.ndarray) -> Column:
        sums = np.bincount(cell, values, num_classes * num_bins).reshape(num_classes, num_bins)
        sums[:, 0] = np.maximum(total - np.sum(sums, axis=1), 0)
        return sums.reshape(-1)

    whole = np.full(num_classes, float(len(p)))
    count = with_first(whole, np.ones_like(large))
    return count, with_first(sums, large), with_first(squares, np.square(large)), of_others
