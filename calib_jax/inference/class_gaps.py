"""Gaps of every class and bin, with variances and draws of their noise.

Few probabilities lie above the first bin of a class, whose sums are totals minus other bins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from calib_jax.core.binning import uniform_edges
from calib_jax.core.types import Array
from calib_jax.inference import gaps as of_bins
from calib_jax.inference import p_values
from calib_jax.inference.evaluation import Evaluation, in_order
from calib_jax.inference.p_values import Clusters, Column, Indices, Matrix
from calib_jax.metrics.contract import AnyMetric, Predictions

_DENSE = 2**24  # entries of a table up to which a dense product is faster than a sparse one
_ROWS_AT_A_TIME = 64  # of all classes, which then stay in the processor's cache
_MOST_CELLS = 2**22  # of clusters whose sums are in memory at a time


def gaps_of_classes(
    metric: AnyMetric, evaluation: Evaluation, key: Array, num_resamples: int, draws_at_a_time: int
) -> Iterator[of_bins.BinGaps]:
    """Compute the gaps of every class and bin, with some of the draws at a time."""
    num_bins, excluded = of_bins.bins_of(metric)[1], of_bins.bins_of(metric)[-1]
    labels, cluster = evaluation.copies.labels, evaluation.cluster
    p = evaluation.columns(_probabilities, excluded)
    order = in_order(np.max(p, axis=1), labels)
    classes = np.asarray(labels)[order]
    num_rows, num_classes = p.shape
    num_cells = num_classes * num_bins

    true = p[order, classes].astype(np.float64)
    cell = classes * num_bins + of_bins.bin_numbers(true, num_bins)
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

    sums = gap, count, of_null, empirical, square_sum
    gaps = of_bins.of_sums(sums, moment_of, num_rows, num_classes)
    if cluster is not None:
        blocks = functools.partial(_in_blocks, p[order], classes, cluster[order], num_bins)
        generator = p_values.host_generator(key)
        for start in range(0, num_resamples, draws_at_a_time):
            size = min(draws_at_a_time, num_resamples - start)
            yield of_bins.in_clusters(gaps, blocks, generator, size)
        return
    # The excluded class receives the part of 1 that the other probabilities lack.
    rest, edges = -1 if excluded is None else excluded, uniform_edges(num_bins)[1:-1]
    how = (edges, num_resamples, draws_at_a_time, rest)
    chunks = class_draws(key, p, order, classes, *how)
    generator = p_values.host_generator(key, 1)
    for draws in chunks:
        for counts in draws:  # in place: these are the largest arrays
            np.subtract(total, counts, out=counts)
            np.divide(counts, num_rows, out=counts)
        noise = of_bins.with_variance(draws.fresh, gaps.of_null, gaps.variance, generator)
        yield gaps._replace(null=draws.fresh, ranked=draws.ranked, noise=noise)


def _probabilities(view: Predictions, excluded_class: int | None) -> Array:
    return view.without(excluded_class).p


def _in_blocks(
    p: Matrix, classes: Indices, cluster: Clusters, num_bins: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sum p - [y = k] and 1 over the rows of every cluster, class and bin of p."""
    num_cells = p.shape[1] * num_bins
    bins = of_bins.bin_numbers(p.ravel(), num_bins).reshape(p.shape).astype(np.int64)
    cells = np.arange(p.shape[1]) * num_bins + bins
    order = np.argsort(cluster, kind="stable")
    step = max(1, min(p_values.CLUSTERS_AT_A_TIME, _MOST_CELLS // num_cells))
    num_clusters = int(np.max(cluster)) + 1
    starts = np.searchsorted(cluster[order], np.arange(0, num_clusters + step, step))
    for first, start, stop in zip(range(0, num_clusters, step), starts, starts[1:], strict=False):
        rows = order[start:stop]
        count = min(step, num_clusters - first)
        offset = (cluster[rows] - first) * num_cells
        index = (offset[:, None] + cells[rows]).ravel()
        true = offset + cells[rows, classes[rows]]
        size = count * num_cells
        counts = np.bincount(index, minlength=size)
        sums = np.bincount(index, p[rows].ravel(), size) - np.bincount(true, minlength=size)
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
        values.append(rows.ravel()[at])
        square = np.square(rows)
        sums += np.sum(rows, axis=0)
        squares += np.sum(square, axis=0)
        of_others += np.sum(rows) - 2 * np.sum(square) + np.vdot(square, rows)
    large = np.concatenate(values)
    cell = np.concatenate(columns) * num_bins + of_bins.bin_numbers(large, num_bins)

    def with_first(total: Any, values: np.ndarray) -> Column:
        sums = np.bincount(cell, values, num_classes * num_bins).reshape(num_classes, num_bins)
        sums = sums.astype(float)  # without any entry, NumPy returns integers
        sums[:, 0] = np.maximum(total - np.sum(sums, axis=1), 0)
        return sums.ravel()

    whole = np.full(num_classes, float(len(p)))
    count = with_first(whole, np.ones_like(large))
    return count, with_first(sums, large), with_first(squares, np.square(large)), of_others


def class_draws(
    key: Array,
    p: Matrix,
    order: Indices,
    labels: Indices,
    edges: Column,
    num_resamples: int,
    draws_at_a_time: int,
    rest: int = -1,
) -> Iterator[of_bins.Draws]:
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

    generator = p_values.host_generator(key)
    plan = of_bins.planned(generator, len(p), num_resamples)
    num_bins = len(edges) + 1

    def cells_of(classes: np.ndarray, p: np.ndarray) -> np.ndarray:
        bins = np.searchsorted(edges, p.astype(np.float32), side="left")  # as `bin_index`
        return (classes * num_bins + bins).astype(np.int32)

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
        drawn = np.searchsorted(np.minimum(below, index + 1).ravel(), shots, side="right")
        drawn = np.clip(drawn - index * (p.shape[1] - 1), 0, p.shape[1] - 1)
        classes = np.concatenate([labels[rows, None], drawn], axis=1)
        if p.shape[1] < plan.num_versions:  # few classes: find the cell of each of them once
            of_draws = np.take_along_axis(cells_of(np.arange(p.shape[1]), of_rows), classes, axis=1)
        else:
            of_draws = cells_of(classes, np.take_along_axis(of_rows, classes, axis=1))
        cells.append(of_draws.T.ravel())
        sizes += [len(rows)] * (1 + plan.num_versions)
    ends = np.append(0, np.cumsum(sizes))
    ones = np.ones(ends[-1], np.float32)
    table = csr_array((ones, np.concatenate(cells), ends), (len(sizes), p.shape[1] * num_bins))
    if len(sizes) * table.shape[1] <= _DENSE:
        table = table.toarray()
    for start in range(0, num_resamples, draws_at_a_time):
        yield plan.sums(table, slice(start, start + draws_at_a_time))
