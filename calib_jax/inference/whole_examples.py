"""Whole examples for tests of calibration: an integer weight k becomes k copies of its row.

A test draws the correctness of every example, so it needs examples that can be counted. An
importance weight of 2.5 is no number of examples, and such weights raise an error here. Rows are
sorted, so that the order of the examples changes no digit of a test. The sums of the tests are
computed on the host in float64.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core.inputs import checks, invalid_values
from calib_jax.core.rows import of_few_shapes
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.metrics.contract.predictions import Predictions

_MOST_ENTRIES = 2**28  # copied logits of 1 GB

Column = Float[np.ndarray, " rows"]


def counted(name: str, logits: Any, labels: Any, weights: Any = None) -> tuple[Logits, Labels]:
    """Validate the examples and repeat every row as often as its weight, which must be an integer.

    Args:
      name: the name of the caller, for error messages.
      logits: `[*batch, classes]`.
      labels: `[*batch]`, integers.
      weights: `[*batch]`, counts 0, 1, 2, ...; None for 1 each.
    """
    return counted_in_clusters(name, logits, labels, weights, None)[:2]


def counted_in_clusters(
    name: str, logits: Any, labels: Any, weights: Any, clusters: Any
) -> tuple[Logits, Labels, Integer[np.ndarray, " rows"] | None]:
    """Validate examples and their clusters, and number the clusters 0, 1, 2, ... in their order.

    The numbers are None without clusters, and if every cluster has one example: such examples are
    independent. The k copies of a row of weight k are in one cluster.

    Args:
      name: the name of the caller, for error messages.
      logits: `[*batch, classes]`.
      labels: `[*batch]`, integers.
      weights: `[*batch]`, counts 0, 1, 2, ...; None for 1 each.
      clusters: `[*batch]`, integers or strings; None for independent examples.
    """
    ids = None if clusters is None else checks.cluster_ids(clusters, np.shape(labels))
    logits, labels, rows = counted_rows(name, logits, labels, weights)
    if ids is None:
        return logits, labels, None
    names, cluster = np.unique(ids[rows], return_inverse=True)
    return logits, labels, None if len(names) == len(cluster) else cluster


def counted_rows(name: str, logits: Any, labels: Any, weights: Any) -> tuple[Logits, Labels, Any]:
    """Apply `counted`, and also return the row from which each example was copied."""
    logits, labels, weights = checks.flat_rows(name, logits, labels, weights)
    if not invalid_values.known(logits, labels, weights):
        raise TypeError(f"{name} reads the values of its inputs: call it outside jit.")
    invalid_values.refuse(
        name, jax.jit(invalid_values.count_invalid_values)(logits, labels, weights), logits.shape
    )
    if weights is None:
        return logits, labels, np.arange(len(labels))
    counts = np.asarray(weights)
    fractions = np.sum(counts != np.round(counts))
    if fractions:
        raise ValueError(
            f"{name}: {fractions} of {counts.size} weights are not integers, but a test counts"
            " examples.\nUse weight 0 for absent examples and k for k copies."
        )
    if np.sum(counts, dtype=np.float64) * logits.shape[-1] > _MOST_ENTRIES:
        raise ValueError(
            f"{name}: the weights count {np.sum(counts, dtype=np.float64):,.0f} examples, too many"
            ' to copy.\nDivide them by a common factor, or use method="percentile", which takes'
            " weights of any kind."
        )
    rows = np.repeat(np.arange(counts.size), counts.astype(np.int64))
    # On the host, since a gather is compiled again for every number of rows.
    logits, labels = (jnp.asarray(np.asarray(values)[rows]) for values in (logits, labels))
    return logits, labels, rows


def are_counts(weights: Any) -> bool:
    """Check whether weights are None or integers."""
    return weights is None or bool(np.all(np.asarray(weights) == np.round(np.asarray(weights))))


def top_labels(logits: Logits, labels: Labels) -> tuple[Column, Column]:
    """Compute the confidence and the hit of every example, in the order of the rows."""
    confidence, hit = of_few_shapes(_top_labels, logits, labels)
    return confidence.astype(np.float64), hit.astype(np.float64)


def in_order(confidence: Column, labels: Any) -> np.ndarray:
    """Return the indices that sort the rows by confidence, then by label."""
    return np.lexsort((np.asarray(labels), confidence))


def hit_variance(confidence: Column) -> float:
    r"""Compute $\sum c (1 - c)$, the variance of the number of hits of a calibrated model."""
    return float(np.sum(confidence * (1 - confidence)))


@jax.jit
def _top_labels(logits: Logits, labels: Labels) -> tuple[Array, Array]:
    view = Predictions(logits, labels)
    return view.confidence, view.hit
