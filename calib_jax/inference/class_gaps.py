r"""Gaps of bins of every class, with draws of their noise, in float64 on the host.

Few probabilities lie above the first bin of a class, whose sums are totals minus other bins.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core.binning import uniform_edges
from calib_jax.core.rows import of_few_shapes
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.bin_gaps import (
    BinGaps,
    Cells,
    bin_numbers,
    bins_of,
    in_clusters,
    with_variance,
)
from calib_jax.inference.draws import class_draws
from calib_jax.inference.evaluation import Evaluation, in_order
from calib_jax.inference.normal import CLUSTERS_AT_A_TIME, Clusters
from calib_jax.metrics.contract.metric import Metric
from calib_jax.metrics.contract.predictions import Predictions

_ROWS_AT_A_TIME = 64  # of all classes, which then stay in the processor's cache
_MOST_CELLS = 2**22  # of clusters whose sums are in memory at a time


def gaps_of_classes(
    metric: Metric[..., Any],
    evaluation: Evaluation,
    key: Array,
    num_resamples: int,
    draws_at_a_time: int,
) -> Iterator[BinGaps]:
    """Compute the gaps of every class and bin, with some of the draws at a time."""
    num_bins, excluded = bins_of(metric)[1], bins_of(metric)[-1]
    logits, labels, _, cluster = evaluation.copies
    p = of_few_shapes(functools.partial(_probabilities, excluded_class=excluded), logits, labels)
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

    def moment_of(factors: Cells, _: Cells) -> tuple[float, float]:
        largest = 2 * float(np.max(factors))
        return largest**2 * of_others / num_rows**2, largest

    gaps = BinGaps(
        num_rows=num_rows,
        gap=gap / num_rows,
        share=count / num_rows,
        of_null=of_null / num_rows**2,
        variance=np.maximum(of_null, empirical) / num_rows**2,
        moment=np.maximum(of_null, square_sum) / num_rows**2,
        moment_of=moment_of,
        num_classes=num_classes,
    )
    if cluster is not None:
        blocks = functools.partial(_in_blocks, p[order], classes, cluster[order], num_bins)
        for start in range(0, num_resamples, draws_at_a_time):
            size = min(draws_at_a_time, num_resamples - start)
            yield in_clusters(gaps, blocks, jax.random.fold_in(key, start), size)
        return
    key_of_labels, key_of_noise = jax.random.split(key)
    chunks = class_draws(
        key_of_labels,
        p,
        order,
        classes,
        edges=uniform_edges(num_bins)[1:-1],
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
        noise = with_variance(draws.fresh, gaps.of_null, gaps.variance, key_of_chunk)
        yield gaps._replace(null=draws.fresh, ranked=draws.ranked, noise=noise)


@functools.partial(jax.jit, static_argnames="excluded_class")
def _probabilities(logits: Logits, labels: Labels, *, excluded_class: int | None) -> Array:
    return Predictions(logits, labels).without(excluded_class).p


def _in_blocks(
    p: Float[np.ndarray, "rows classes"],
    classes: Integer[np.ndarray, " rows"],
    cluster: Clusters,
    num_bins: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Sum p - [y = k] and 1 over the rows of every cluster, class and bin of p."""
    num_cells = p.shape[1] * num_bins
    bins = bin_numbers(p.reshape(-1), num_bins).reshape(p.shape).astype(np.int64)
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
    cell = np.concatenate(columns) * num_bins + bin_numbers(large, num_bins)

    def with_first(total: Any, values: np.ndarray) -> Cells:
        sums = np.bincount(cell, values, num_classes * num_bins).reshape(num_classes, num_bins)
        sums[:, 0] = np.maximum(total - np.sum(sums, axis=1), 0)
        return sums.reshape(-1)

    whole = np.full(num_classes, float(len(p)))
    count = with_first(whole, np.ones_like(large))
    return count, with_first(sums, large), with_first(squares, np.square(large)), of_others
