r"""Examples that depend on each other within clusters: sums of clusters with random signs.

If the model is calibrated, the residuals c - a of a cluster add up to 0 on average, in every bin.
Whole clusters are independent. So a test compares a statistic of the clusters' sums $S_g$ with
draws of the same statistic of $\xi_g S_g$, with independent random signs $\xi_g$: its p-value is
exact if sums of either sign are equally likely, and approximate for some 30 clusters or more
otherwise. With few clusters it rejects too rarely: the smallest p-value of G clusters is
1 / 2^(G - 1).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core.types import Array
from calib_jax.inference.normal import LEAST_UNITS, Column

Clusters: TypeAlias = Integer[np.ndarray, " rows"]  # 0, 1, 2, ..., each of them with an example

CLUSTERS_AT_A_TIME = 4096


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
