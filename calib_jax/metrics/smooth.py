r"""Calibration error with kernel smoothing instead of bins, at an automatic bandwidth."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.scipy.fft import dct, idct

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import implicit_root
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar, Vector
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns


def _gaps_between_nodes(
    predictions: Predictions, *, num_cells: int = 1024, excluded_class: int | None = None
) -> Columns:
    """Sum the gaps between neighbouring nodes, and the share of each gap for the upper node.

    The nodes are the centres of the cells, so half a cell lies below the first node and half a
    cell above the last.
    """
    checks.at_least("num_cells", num_cells, 16)
    view = predictions.without(excluded_class)
    gap = view.confidence - view.hit
    place = view.confidence * num_cells + 0.5
    below = jnp.clip(jnp.nan_to_num(jnp.floor(place)), 0, num_cells)
    above = gap * (place - below)
    return Columns({"gap": gap, "above": above}, below.astype(jnp.int32), num_cells + 1)


def _gaps_at_nodes(sums: Sums) -> Vector:
    """Split each gap between its two nearest nodes; beyond the ends, use the end node."""
    above = jnp.asarray(sums["above"])
    below = jnp.asarray(sums["gap"]) - above
    nodes = below[1:] + above[:-1]
    return nodes.at[0].add(below[0]).at[-1].add(above[-1])


@metric(_gaps_between_nodes, biased=True)
def smooth_ece(sums: Sums, *, num_cells: int = 1024, excluded_class: int | None = None) -> Scalar:
    r"""Compute the smooth ECE: the ECE of gaps smoothed by a Gaussian as wide as the error.

    $$\mathrm{smECE}_\sigma = \int_0^1 \Bigl| \frac1n \sum_i
      K_\sigma(t, c_i) \, (c_i - [\hat y_i = y_i]) \Bigr| \, dt$$

    with the Gaussian kernel $K_\sigma$ reflected at 0 and 1. $\mathrm{smECE}_\sigma$ decreases with
    the bandwidth, and the value is the fixed point $\sigma = \mathrm{smECE}_\sigma$. A small
    error is thus measured at a fine resolution and a large one at a coarse resolution, without a
    bandwidth to choose. Unlike a binned error, it changes little when confidences change little.

    The gaps are summed on a fine grid, so that the statistic merges like sums per bin. Each gap is
    split between its two nearest nodes, which changes the value by at most about
    $(M \sigma)^{-2} / 8$ times the mean of $|c_i - [\hat y_i = y_i]|$, and usually by far less.

    Args:
      sums: gaps between neighbouring nodes of the grid.
      num_cells: M, the number of nodes.
      excluded_class: a class whose probability is set to 0 without renormalising.

    References:
      Błasiok and Nakkiran, Smooth ECE: principled reliability diagrams via kernel smoothing,
      ICLR 2024.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]))
    >>> metrics.smooth_ece(logits, jnp.array([0, 1, 1]))
    Array(0.2169, dtype=float32)
    """
    weight = jnp.sum(sums["weight"])
    nodes = ratio(_gaps_at_nodes(sums), weight)
    num_cells = nodes.shape[0]
    # A Gaussian reflected at both ends multiplies the k-th coefficient of the cosine transform by
    # exp(-(k pi sigma)^2 / 2), all reflections included. Each bandwidth takes one transform.
    cosines = dct(nodes, norm="ortho")
    decay = -0.5 * jnp.square(jnp.pi * jnp.arange(num_cells, dtype=nodes.dtype))

    def excess(sigma: Scalar) -> Scalar:
        smoothed = idct(cosines * jnp.exp(decay * jnp.square(sigma)), norm="ortho")
        return jnp.sum(jnp.abs(smoothed)) - sigma

    def halve(_: Any, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        sigma = (low + high) / 2
        larger = excess(sigma) > 0
        return jnp.where(larger, sigma, low), jnp.where(larger, high, sigma)

    zero = jnp.zeros((), nodes.dtype)
    digits = jnp.finfo(nodes.dtype).nmant + 1
    low, _ = lax.fori_loop(0, digits, halve, (zero, zero + 1))
    return implicit_root(excess, low) + 0 * jnp.sum(nodes)  # propagate NaN
