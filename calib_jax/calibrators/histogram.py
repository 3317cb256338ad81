r"""Histogram binning: a class's probability becomes its frequency in the bin it falls into.

One class against the rest, renormalised.

References:
  Zadrozny and Elkan, Obtaining calibrated probability estimates from decision trees and naive
  Bayesian classifiers, ICML 2001.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from calib_jax.calibrators import contract
from calib_jax.core import checks
from calib_jax.core.binning import bin_index, equal_mass_bins, uniform_edges
from calib_jax.core.types import Array, Logits, PerClass, Vector

__all__ = ["Params", "apply", "fit"]

BINNINGS = ("width", "mass")


class Params(NamedTuple):
    """Bins and frequencies of every class.

    Attributes:
      edges: `[classes, bins + 1]`; bins are (lo, hi].
      frequency: `[classes, bins]`; in a bin without examples its centre.
      converged: whether every class occurs, and so has frequencies above 0.
    """

    edges: Float[Array, "classes edges"]
    frequency: Float[Array, "classes bins"]
    converged: Bool[Array, ""]


def fit(
    logits: Any, labels: Any, weights: Any = None, *, num_bins: int = 15, binning: str = "width"
) -> Params:
    """Count how often each class occurs where its probability falls into each bin.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
      num_bins: how many bins.
      binning: bins of equal "width" or of equal "mass", the latter of each class's own.
    """
    checks.at_least("num_bins", num_bins, 1)
    checks.one_of("binning", binning, BINNINGS)
    data = contract.data_of("histogram", logits, labels, weights)
    p, occurs = jax.nn.softmax(data.logits), contract.one_versus_rest(data)

    def one(p: Vector, target: Vector) -> tuple[Vector, Vector]:
        edges = jnp.asarray(uniform_edges(num_bins), p.dtype)
        if binning == "mass":
            inner = equal_mass_bins(p, target, data.weights, num_bins)[1][1:-1]
            edges = jnp.concatenate([jnp.zeros(1, p.dtype), inner, jnp.ones(1, p.dtype)])
        index = bin_index(p, edges)
        count = jax.ops.segment_sum(data.weights, index, num_bins)
        hits = jax.ops.segment_sum(data.weights * target, index, num_bins)
        centre = (edges[1:] + edges[:-1]) / 2
        return edges, jnp.where(count == 0, centre, hits / jnp.where(count == 0, 1, count))

    edges, frequency = jax.vmap(one, in_axes=1)(p, occurs)
    occurring = jnp.sum(data.weights[:, None] * occurs, axis=0) > 0
    return Params(edges, frequency, jnp.all(occurring))


def apply(params: Params, logits: Any) -> Logits:
    """Look every probability's frequency up; log-probabilities."""
    return contract.as_log_probabilities(frequencies(params, logits))


def frequencies(params: Params, logits: Any) -> PerClass:
    """Look every probability's frequency up, before renormalising."""
    rows = contract.checked_logits(logits)
    contract.same_classes(params.frequency.shape[-2], rows)
    p = jax.nn.softmax(rows).reshape(-1, rows.shape[-1])

    def one(edges: Vector, frequency: Vector, p: Vector) -> Vector:
        return frequency[bin_index(p, edges)]

    found = jax.vmap(one, in_axes=(0, 0, 1), out_axes=1)(params.edges, params.frequency, p)
    return found.reshape(rows.shape)
