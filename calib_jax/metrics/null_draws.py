r"""Draws of a calibrated model's outcomes, with its probabilities held fixed.

If the model is calibrated and its examples are independent, the hits $a_i$ are independent
Bernoulli($c_i$) given all confidences, and the labels are Categorical($p_i$). A statistic of the
data is then one more draw of the same statistic, so its rank among R draws gives an exact p-value
for any number of examples and any bins:

$$p = \frac{1 + \#\{T^*_r \ge T\}}{R + 1}$$

References:
  Bröcker and Smith, Increasing the reliability of reliability diagrams, 2007.
  Vaicenavicius et al., Evaluating model calibration in classification, AISTATS 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core.binning import bin_index, uniform_edges
from calib_jax.core.types import Array

_ENTRIES = 2**22  # random numbers drawn at a time
# Statistics of equal data differ by the rounding of float32 sums, and ties must count.
_SLACK = 1e-6


def p_of_draws(value: float, draws: Float[np.ndarray, " draws"]) -> float:
    """Compute the share of draws that are at least the value, the value itself included."""
    return float((1 + np.sum(draws >= value - _SLACK)) / (1 + len(draws)))


def hit_sums(
    key: Array,
    confidence: Float[np.ndarray, " rows"],
    design: Float[np.ndarray, "rows columns"],
    num_draws: int,
) -> Float[np.ndarray, "draws columns"]:
    """Draw hits from the confidences, and sum every column of the design over them."""
    chunk = _chunk(len(confidence), num_draws)
    columns = jnp.asarray(design, jnp.float32)
    sums = _hit_sums(key, jnp.asarray(confidence), columns, -(-num_draws // chunk), chunk)
    return np.asarray(sums, np.float64).reshape(-1, design.shape[1])[:num_draws]


def hits_in_chunks(
    key: Array, confidence: Float[np.ndarray, " rows"], num_draws: int
) -> Iterator[Float[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time."""
    chunk = _chunk(len(confidence), num_draws)
    confidences = jnp.asarray(confidence)
    for number, start in enumerate(range(0, num_draws, chunk)):
        hits = _hits(jax.random.fold_in(key, number), confidences, chunk)
        yield np.asarray(hits)[: num_draws - start].astype(np.float64)


@functools.partial(jax.jit, static_argnums=2)
def _hits(key: Array, confidence: Array, chunk: int) -> Array:
    return jax.random.bernoulli(key, confidence[None], (chunk, len(confidence)))


def class_counts(
    key: Array, p: Float[Array, "rows classes"], num_bins: int, num_draws: int
) -> Float[np.ndarray, "draws cells"]:
    """Draw labels from the probabilities; count them per class and bin of its probability."""
    chunk = _chunk(4 * len(p), num_draws)
    counts = _class_counts(key, p, num_bins, -(-num_draws // chunk), chunk)
    return np.asarray(counts).reshape(-1, p.shape[1] * num_bins)[:num_draws]


def _chunk(num_rows: int, num_draws: int) -> int:
    return max(1, min(num_draws, _ENTRIES // num_rows))


@functools.partial(jax.jit, static_argnums=(3, 4))
def _hit_sums(key: Array, confidence: Array, design: Array, num_chunks: int, chunk: int) -> Array:
    def of_chunk(_: None, key: Array) -> tuple[None, Array]:
        hits = jax.random.bernoulli(key, confidence[None], (chunk, len(confidence)))
        hits = hits.astype(design.dtype)
        return None, jnp.matmul(hits, design, precision=jax.lax.Precision.HIGHEST)

    return jax.lax.scan(of_chunk, None, jax.random.split(key, num_chunks))[1]


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _class_counts(key: Array, p: Any, num_bins: int, num_chunks: int, chunk: int) -> Array:
    num_rows, num_classes = p.shape
    # The last class takes what rounding leaves of the total.
    below = jnp.cumsum(p, axis=1)[:, :-1]
    draw = jax.vmap(
        functools.partial(jnp.searchsorted, side="right", method="scan_unrolled"), (0, 0)
    )

    def of_chunk(_: None, key: Array) -> tuple[None, Array]:
        classes = draw(below, jax.random.uniform(key, (num_rows, chunk), p.dtype))
        bins = bin_index(jnp.take_along_axis(p, classes, axis=1), uniform_edges(num_bins))
        cell = classes * num_bins + bins
        offset = num_classes * num_bins * jnp.arange(chunk)[None]
        ones = jnp.ones(cell.size, jnp.float32)
        cells = chunk * num_classes * num_bins
        counts = jax.ops.segment_sum(ones, (cell + offset).reshape(-1), cells)
        return None, counts.reshape(chunk, -1)

    return jax.lax.scan(of_chunk, None, jax.random.split(key, num_chunks))[1]
