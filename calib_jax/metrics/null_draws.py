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
from jaxtyping import Bool, Float

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
    columns = design.astype(np.float32)
    sums = [hits.astype(np.float32) @ columns for hits in _hits(key, confidence, num_draws)]
    return np.concatenate(sums).astype(np.float64)


def hits_in_chunks(
    key: Array, confidence: Float[np.ndarray, " rows"], num_draws: int
) -> Iterator[Float[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time."""
    for hits in _hits(key, confidence, num_draws):
        yield hits.astype(np.float64)


def _hits(
    key: Array, confidence: Float[np.ndarray, " rows"], num_draws: int
) -> Iterator[Bool[np.ndarray, "draws rows"]]:
    """Draw hits on the host, whose generator takes an eighth of the time of `jax.random`.

    16 random bits decide, and a further number where they equal those of the confidence, so that
    confidences next to 1 keep their few errors.
    """
    generator = np.random.Generator(np.random.SFC64(np.asarray(jax.random.key_data(key))))
    chunk = _chunk(len(confidence), num_draws)
    steps = confidence * 2.0**16
    whole = np.minimum(np.floor(steps), 2**16 - 1)
    rest, whole = steps - whole, whole.astype(np.uint16)
    for start in range(0, num_draws, chunk):
        shape = (min(chunk, num_draws - start), len(confidence))
        bits = generator.integers(0, 2**16, shape, np.uint16)
        hits = bits < whole
        equal = np.nonzero(bits == whole)
        hits[equal] = generator.random(len(equal[1])) < rest[equal[1]]
        yield hits


def class_counts(
    key: Array, p: Float[Array, "rows classes"], num_bins: int, num_draws: int
) -> Float[np.ndarray, "draws cells"]:
    """Draw labels from the probabilities; count them per class and bin of its probability."""
    chunk = _chunk(4 * len(p), num_draws)
    counts = _class_counts(key, p, num_bins, -(-num_draws // chunk), chunk)
    return np.asarray(counts).reshape(-1, p.shape[1] * num_bins)[:num_draws]


def _chunk(num_rows: int, num_draws: int) -> int:
    return max(1, min(num_draws, _ENTRIES // num_rows))


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
