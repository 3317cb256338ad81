r"""Draws of a calibrated model's outcomes, with the probabilities held fixed.

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

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer

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
    num_resamples: int,
) -> Float[np.ndarray, "draws columns"]:
    """Draw hits from the confidences, and sum every column of the design over them."""
    columns = design.astype(np.float32)
    sums = [hits.astype(np.float32) @ columns for hits in _hits(key, confidence, num_resamples)]
    return np.concatenate(sums).astype(np.float64)


def joint_hit_sums(
    key: Array,
    confidence: Float[np.ndarray, " rows"],
    cluster: Integer[np.ndarray, " rows"],
    design: Float[np.ndarray, "rows columns"],
    num_resamples: int,
) -> Float[np.ndarray, "draws columns"]:
    """Draw hits and sum them as `hit_sums`; the examples of a cluster share one random number.

    The hits of a cluster depend on each other as strongly as their confidences allow.
    """
    generator = host_generator(key)
    _, member = np.unique(cluster, return_inverse=True)
    sums = np.empty((num_resamples, design.shape[1]))
    chunk = max(1, _ENTRIES // len(confidence))
    for start in range(0, num_resamples, chunk):
        at = slice(start, min(start + chunk, num_resamples))
        uniform = generator.random((at.stop - start, np.max(member) + 1))
        sums[at] = (uniform[:, member] < confidence) @ design
    return sums


def hits_in_chunks(
    key: Array, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Iterator[Float[np.ndarray, "draws rows"]]:
    """Draw hits from the confidences, some draws at a time."""
    for hits in _hits(key, confidence, num_resamples):
        yield hits.astype(np.float64)


def _hits(
    key: Array, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Iterator[Bool[np.ndarray, "draws rows"]]:
    generator = host_generator(key)
    chunk = max(1, min(num_resamples, _ENTRIES // len(confidence)))
    for start in range(0, num_resamples, chunk):
        yield draw_hits(generator, confidence, min(chunk, num_resamples - start))


def host_generator(key: Array) -> np.random.Generator:
    """Return a generator on the host, which takes an eighth of the time of `jax.random`."""
    return np.random.Generator(np.random.SFC64(np.asarray(jax.random.key_data(key))))


def draw_hits(
    generator: np.random.Generator, confidence: Float[np.ndarray, " rows"], num_resamples: int
) -> Bool[np.ndarray, "draws rows"]:
    """Draw hits by 16 random bits each, and a further number on ties with the confidence's bits.

    Confidences next to 1 therefore keep their few errors.
    """
    steps = confidence * 2.0**16
    whole = np.minimum(np.floor(steps), 2**16 - 1)
    rest, whole = steps - whole, whole.astype(np.uint16)
    bits = generator.integers(0, 2**16, (num_resamples, len(confidence)), np.uint16)
    hits: np.ndarray = bits < whole
    equal = np.nonzero(bits == whole)
    hits[equal] = generator.random(len(equal[1])) < rest[equal[1]]
    return hits
