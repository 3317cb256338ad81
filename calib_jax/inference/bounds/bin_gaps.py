"""Gaps of bins, their variances, and draws of their noise, on the host in float64.

The gap of a bin is linear in the share of every example in it, for bins of equal width (one share
of 1 per example) and of equal mass (an example at a boundary is split) alike. Bins are chosen from
the probabilities alone, so draws of the labels leave them unchanged. Where examples depend on each
other, draws flip the signs of the clusters' sums, which also give every variance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core import checks
from calib_jax.core.binning import BINNING_RULES, uniform_edges
from calib_jax.core.rows import of_few_shapes
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.bounds.null_draws import class_draws, hit_draws, joint_hit_sums
from calib_jax.inference.evaluation import Evaluation, in_order
from calib_jax.inference.normal import CLUSTERS_AT_A_TIME, Clusters, Column, signs, sums_of
from calib_jax.metrics.contract.metric import Metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.fixed_bins import confidence_bins
from calib_jax.metrics.reliability import class_gaps

_ROWS_AT_A_TIME = 64  # of all classes, which then stay in the processor's cache
_MOST_CELLS = 2**22  # of clusters whose sums are in memory at a time
_RARE = 10.0  # variance of a bin's hits below which their distribution is not nearly symmetric

Cells = Float[np.ndarray, " cells"]
Draws = Float[np.ndarray, "draws cells"]
Memberships = Float[np.ndarray, "rows bins"]
SumsOfClusters = Float[np.ndarray, "clusters cells"]
Key = tuple[Any, ...]


class BinGaps(NamedTuple):
    """The sum of confidence minus hit over the examples of every bin, divided by n.

    Attributes:
      num_rows: n, the number of all examples.
      num_classes: the classes over which a metric is averaged; 1 for a metric of the top label.
      gap: the measured gaps.
      share: the share of the examples in each bin.
      variance: the variance of each gap, the larger of the empirical variance and the variance of
        a calibrated model.
      moment: mean square of the terms of each gap, divided by n; the larger of the same two values.
      design: the design factor of each gap, the factor by which dependence within clusters
        increases its moment.
      null: draws of the gaps of a calibrated model.
      ranked: draws among which the rank of the data gives the p-value, see `null_draws.py`.
      noise: draws of the noise of this model's gaps.
      moment_of: computes this mean square, and the largest term, of a sum of gaps with the given
        factors and, in clusters, the given signs; for independent examples, with any signs.
    """

    num_rows: int
    num_classes: int
    gap: Cells
    share: Cells
    variance: Cells
    moment: Cells
    design: Cells
    null: Draws
    ranked: Draws
    noise: Draws
    moment_of: Callable[[Cells, Cells], tuple[float, float]]


def bins_of(metric: Metric[..., Any]) -> Key:
    """Return the key of a metric's bins; metrics with equal keys share bins and draws."""
    options = metric.defaults() | dict(metric.options)
    return (metric.prepare, *map(options.get, ("num_bins", "edges", "excluded_class")))


def gaps_of(
    metrics: list[Metric[..., Any]], evaluation: Evaluation, *, key: Array, num_resamples: int
) -> dict[Key, BinGaps]:
    """Compute the gaps of every kind of bins; bins of the same confidences share the draws."""
    gaps: dict[Key, BinGaps] = {}
    of_top_label: dict[int | None, dict[Key, Metric[..., Any]]] = {}
    for metric in metrics:
        bins = bins_of(metric)
        if metric.prepare is not class_gaps:
            of_top_label.setdefault(bins[-1], {})[bins] = metric
        elif bins not in gaps:
            draws = {"num_resamples": num_resamples, "draws_at_a_time": num_resamples}
            gaps[bins] = next(gaps_of_classes(metric, evaluation, key=key, **draws))
    for by_bins in of_top_label.values():
        parts = _of_top_label(list(by_bins.values()), evaluation, key, num_resamples)
        gaps |= dict(zip(by_bins, parts, strict=True))
    return gaps


def _normal(key: Array, covariance: np.ndarray, num_resamples: int) -> Draws:
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return np.asarray(jax.random.normal(key, (num_resamples, len(values)))) @ root.T


def with_variance(draws: Draws, variance: Cells, wanted: Cells, key: Array) -> Draws:
    """Scale draws to other variances, which keeps the correlations between cells."""
    scaled = draws * np.sqrt(wanted / np.where(variance > 0, variance, np.inf))
    silent = np.flatnonzero((variance == 0) & (wanted > 0))  # cells without any noise in the draws
    if len(silent):
        normal = np.asarray(jax.random.normal(key, (len(draws), len(silent))))
        scaled[:, silent] = normal * np.sqrt(wanted[silent])
    return scaled


# --------------------------------------------------------------------------------------------
# Examples in clusters.


def _in_clusters(
    rows: BinGaps,
    blocks: Callable[[], Iterator[tuple[SumsOfClusters, SumsOfClusters]]],
    of_null: Cells,
    key: Array,
    num_resamples: int,
) -> BinGaps:
    """Replace the draws and moments of independent examples by draws and moments of clusters.

    Args:
      rows: the rows of independent examples, without draws.
      blocks: yields the sums of residuals and the numbers of examples of clusters, per cell.
      of_null: the variance of each gap of a calibrated model with independent examples.
      key: the key of the signs.
      num_resamples: number of draws.
    """
    key_of_signs, key_of_noise = jax.random.split(key)
    mean = rows.gap / np.where(rows.share > 0, rows.share, 1)
    null = np.zeros((num_resamples, len(mean)))
    noise, variance, square_sum = np.zeros_like(null), np.zeros_like(mean), np.zeros_like(mean)
    for number, (sums, counts) in enumerate(blocks()):
        xi = signs(jax.random.fold_in(key_of_signs, number), num_resamples, len(sums))
        centered = sums - counts * mean
        null += xi @ sums
        noise += xi @ centered
        variance += np.sum(np.square(centered), axis=0)
        square_sum += np.sum(np.square(sums), axis=0)
    n = rows.num_rows
    variance /= n**2
    wanted = np.maximum(of_null, variance)
    moment = np.maximum(of_null, square_sum / n**2)

    def moment_of(factors: Cells, slopes: Cells) -> tuple[float, float]:
        independent, largest = rows.moment_of(factors, slopes)
        loads = factors * slopes
        clustered = sum(float(np.sum(np.square(sums @ loads))) for sums, _ in blocks()) / n**2
        larger = float(np.maximum(independent, clustered))
        return larger, largest * float(np.maximum(1, _ratio(clustered, independent)))

    return rows._replace(
        variance=wanted,
        moment=moment,
        design=np.maximum(1, _ratio(moment, rows.moment)),
        null=null / n,
        ranked=null / n,
        noise=with_variance(noise / n, variance, wanted, key_of_noise),
        moment_of=moment_of,
    )


def _ratio(numerator: Any, denominator: Any) -> Any:
    """Divide, with 1 for 0 / 0."""
    empty = np.equal(denominator, 0)
    return np.where(empty, 1, numerator / np.where(empty, 1, denominator))


# --------------------------------------------------------------------------------------------
# The top label.


def members_of_cells(cell: Integer[np.ndarray, " rows"], num_bins: int) -> Memberships:
    """Put every example into the bin of its index."""
    return (cell[:, None] == np.arange(num_bins)[None]).astype(np.float64)


def members_of_equal_mass(confidence: Column, num_bins: int) -> Memberships:
    """Divide the examples into bins of n / B examples; equal confidences are divided alike."""
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    end = np.cumsum(sizes)
    boundaries = len(confidence) * np.arange(num_bins + 1) / num_bins
    low = np.maximum((end - sizes)[:, None], boundaries[None, :-1])
    high = np.minimum(end[:, None], boundaries[None, 1:])
    return (np.maximum(high - low, 0) / sizes[:, None])[group]


def _of_top_label(
    metrics: list[Metric[..., Any]], evaluation: Evaluation, key: Array, num_resamples: int
) -> list[BinGaps]:
    confidence, hit = evaluation.top_label(bins_of(metrics[0])[-1])
    order = in_order(confidence, hit)
    confidence, hit = confidence[order], hit[order]
    cluster = None if evaluation.cluster is None else evaluation.cluster[order]
    memberships = [members[order] for members in members_of_top_label(metrics, evaluation)]
    num_rows = len(hit)
    spread = confidence * (1 - confidence)
    residual = confidence - hit
    design = np.concatenate(memberships, axis=1)
    gap = residual @ design / num_rows
    covariance = design.T @ (design * spread[:, None]) / num_rows**2
    key_of_hits, key_of_noise = jax.random.split(key)
    null = ranked = np.zeros((0, design.shape[1]))
    if cluster is None:
        draws = hit_draws(key_of_hits, confidence, hit, design, num_resamples)
        null, ranked = ((confidence @ design - hits) / num_rows for hits in draws)

    squared = np.square(design)
    count, square_count = np.sum(design, axis=0), np.sum(squared, axis=0)
    mean = num_rows * gap / np.where(count > 0, count, 1)
    square_sum = np.square(residual) @ squared
    empirical = square_sum - 2 * mean * (residual @ squared) + np.square(mean) * square_count
    of_null = num_rows**2 * np.diag(covariance)
    variance = np.maximum(of_null, empirical) / num_rows**2
    moment = np.maximum(of_null, square_sum) / num_rows**2

    parts: list[BinGaps] = []
    start = 0
    for members in memberships:
        at = slice(start, start + members.shape[1])
        start = at.stop
        moment_of = functools.partial(_moment_of, members, residual, spread)
        noise = null[:, at]
        if cluster is None:  # drawn with the same key for each metric, whatever the other metrics
            of_bins = _rescaled(covariance[at, at], variance[at])
            noise = _normal(key_of_noise, of_bins, num_resamples)
        rows = (
            gap[at],
            count[at] / num_rows,
            variance[at],
            moment[at],
            np.ones(at.stop - at.start),
        )
        part = BinGaps(num_rows, 1, *rows, null[:, at], ranked[:, at], noise, moment_of)
        if cluster is not None:
            columns = np.concatenate([members * residual[:, None], members], axis=1)
            sums = np.split(sums_of(cluster, columns), 2, axis=1)
            blocks = functools.partial(_in_blocks, *sums)
            part = _in_clusters(part, blocks, of_null[at] / num_rows**2, key, num_resamples)
            key_of_outcomes = jax.random.fold_in(key_of_noise, len(parts))
            part = _with_rare_outcomes(part, members, confidence, cluster, key_of_outcomes)
        parts.append(part)
    return parts


def _with_rare_outcomes(
    gaps: BinGaps, members: Memberships, confidence: Column, cluster: Clusters, key: Array
) -> BinGaps:
    """Draw outcomes where a bin of a calibrated model has only some hits or some misses.

    Most data sets then have no such outcome, and a gap that sign flips almost never reach.
    """
    spread = confidence * (1 - confidence)
    rare = np.flatnonzero(spread @ members < _RARE)
    rows = np.flatnonzero(np.any(members[:, rare] > 0, axis=1))
    if not len(rows):
        return gaps
    design = members[np.ix_(rows, rare)]
    hits = joint_hit_sums(key, confidence[rows], cluster[rows], design, len(gaps.null))
    null = gaps.null.copy()
    null[:, rare] = (confidence[rows] @ design - hits) / gaps.num_rows
    return gaps._replace(null=null, ranked=null)


def _in_blocks(
    sums: SumsOfClusters, counts: SumsOfClusters
) -> Iterator[tuple[SumsOfClusters, SumsOfClusters]]:
    for start in range(0, len(sums), CLUSTERS_AT_A_TIME):
        at = slice(start, start + CLUSTERS_AT_A_TIME)
        yield sums[at], counts[at]


def members_of_top_label(
    metrics: list[Metric[..., Any]], evaluation: Evaluation
) -> list[Memberships]:
    """Divide the examples into the bins of every metric, in the order of the examples."""
    memberships = []
    for metric in metrics:
        prepare, num_bins, edges, excluded = bins_of(metric)
        confidence = evaluation.top_label(excluded).confidence
        checks.num_bins(num_bins)
        if prepare is confidence_bins:
            checks.one_of("edges", edges, BINNING_RULES)
            memberships.append(members_of_cells(_bin(confidence, num_bins, edges), num_bins))
        else:
            memberships.append(members_of_equal_mass(confidence, num_bins))
    return memberships


def _rescaled(covariance: np.ndarray, variance: Cells) -> np.ndarray:
    """Keep the correlations of a covariance and change its variances."""
    deviation = np.sqrt(np.diag(covariance))
    factor = np.sqrt(variance) / np.where(deviation > 0, deviation, 1)
    alone = np.where(deviation > 0, 0, variance)  # bins without any noise in a calibrated model
    return covariance * factor[:, None] * factor[None] + np.diag(alone)


def _moment_of(
    members: Memberships, residual: Column, spread: Column, factors: Cells, _: Cells
) -> tuple[float, float]:
    load = members @ factors
    squares = np.square(load)
    moment = np.maximum(np.sum(squares * np.square(residual)), np.sum(squares * spread))
    return float(moment) / len(residual) ** 2, float(np.max(load))


# --------------------------------------------------------------------------------------------
# All classes: few probabilities lie above the first bin, whose sums are totals minus other bins.


def gaps_of_classes(
    metric: Metric[..., Any],
    evaluation: Evaluation,
    *,
    key: Array,
    num_resamples: int,
    draws_at_a_time: int,
) -> Iterator[BinGaps]:
    """Compute the gaps of every class and bin, with some of the draws at a time."""
    num_bins, excluded = bins_of(metric)[1], bins_of(metric)[-1]
    logits, labels, _, cluster = evaluation.copies
    p = of_few_shapes(functools.partial(_probabilities, metric), logits, labels)
    order = in_order(np.max(p, axis=1), labels)
    classes = np.asarray(labels)[order]
    num_rows, num_classes = p.shape
    num_cells = num_classes * num_bins

    true = p[order, classes].astype(np.float64)
    cell = classes * num_bins + _bin(true, num_bins)
    occurrences, sum_of_true = (np.bincount(cell, w, num_cells) for w in (None, true))
    count, total, square, of_others = _class_sums(p, order, num_bins)
    gap = total - occurrences
    of_null = np.maximum(total - square, 0)
    square_sum = np.maximum(square - 2 * sum_of_true + occurrences, 0)
    empirical = square_sum - np.square(gap) / np.where(count > 0, count, 1)
    variance = np.maximum(of_null, empirical) / num_rows**2

    # Whatever the signs, the terms of an example add up to at most twice the others' probability.
    of_others = np.maximum(np.sum(np.square(1 - true)), of_others)

    def moment_of(factors: Cells, _: Cells) -> tuple[float, float]:
        largest = 2 * float(np.max(factors))
        return largest**2 * float(of_others) / num_rows**2, largest

    empty = np.zeros((0, num_cells))
    part = BinGaps(
        num_rows=num_rows,
        num_classes=num_classes,
        gap=gap / num_rows,
        share=count / num_rows,
        variance=variance,
        moment=np.maximum(of_null, square_sum) / num_rows**2,
        design=np.ones(num_cells),
        null=empty,
        ranked=empty,
        noise=empty,
        moment_of=moment_of,
    )
    of_null = of_null / num_rows**2
    if cluster is None:
        key_of_labels, key_of_noise = jax.random.split(key)
        chunks = class_draws(
            key_of_labels,
            p,
            order,
            classes,
            num_bins=num_bins,
            num_resamples=num_resamples,
            draws_at_a_time=draws_at_a_time,
            # The excluded class receives the part of 1 that the other probabilities lack.
            rest=-1 if excluded is None else excluded,
        )
        for number, draws in enumerate(chunks):
            for counts in draws:  # in place: these are the largest arrays
                np.subtract(total, counts, out=counts)
                np.divide(counts, num_rows, out=counts)
            key_of_chunk = jax.random.fold_in(key_of_noise, number)
            noise = with_variance(draws.fresh, of_null, variance, key_of_chunk)
            yield part._replace(null=draws.fresh, ranked=draws.ranked, noise=noise)
    else:
        blocks = functools.partial(_classes_in_blocks, p[order], classes, cluster[order], num_bins)
        for start in range(0, num_resamples, draws_at_a_time):
            size = min(draws_at_a_time, num_resamples - start)
            yield _in_clusters(part, blocks, of_null, jax.random.fold_in(key, start), size)


def _classes_in_blocks(
    p: Float[np.ndarray, "rows classes"],
    classes: Integer[np.ndarray, " rows"],
    cluster: Clusters,
    num_bins: int,
) -> Iterator[tuple[SumsOfClusters, SumsOfClusters]]:
    """Sum p - [y = k] and 1 over the rows of every cluster, class and bin of p."""
    num_cells = p.shape[1] * num_bins
    bins = _bin(p.reshape(-1), num_bins).reshape(p.shape).astype(np.int64)
    cells = np.arange(p.shape[1]) * num_bins + bins
    order = np.argsort(cluster, kind="stable")
    step = max(1, min(CLUSTERS_AT_A_TIME, _MOST_CELLS // num_cells))
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


@functools.partial(jax.jit, static_argnums=0)
def _probabilities(metric: Metric[..., Any], logits: Logits, labels: Labels) -> Array:
    return Predictions(logits, labels).without(bins_of(metric)[-1]).p


def _class_sums(
    p: Float[np.ndarray, "rows classes"], order: Integer[np.ndarray, " rows"], num_bins: int
) -> tuple[Cells, Cells, Cells, float]:
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
    cell = np.concatenate(columns) * num_bins + _bin(large, num_bins)

    def with_first(total: Any, values: np.ndarray) -> Cells:
        sums = np.bincount(cell, values, num_classes * num_bins).reshape(num_classes, num_bins)
        sums[:, 0] = np.maximum(total - np.sum(sums, axis=1), 0)
        return sums.reshape(-1)

    whole = np.full(num_classes, float(len(p)))
    count = with_first(whole, np.ones_like(large))
    return count, with_first(sums, large), with_first(squares, np.square(large)), of_others


def _bin(values: Column, num_bins: int, edges: str = "right") -> Integer[np.ndarray, " rows"]:
    """Compute `BINNING_RULES[edges]` on the host, without a program for each length."""
    if edges == "ceil":
        return np.clip(np.ceil(num_bins * values - 1).astype(np.int64), 0, num_bins - 1)
    inner = uniform_edges(num_bins)[1:-1]
    values = values.astype(np.float32, copy=False)
    return np.searchsorted(inner, values, side="left" if edges == "right" else "right")
