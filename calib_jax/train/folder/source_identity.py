"""The identity of a source of examples: checksums that other examples do not have.

A checksum of the labels, and weighted sums of the inputs: a mean is the same for a mirrored image
and for words in another order.

Of a source that is not in memory only 8 examples are read. A source that returns different inputs
at every reading has no sums.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core.examples import Examples, InMemory, Source, labels_of, read

_CHUNK = 1 << 20  # labels converted at once
_MOST_MEANS, _MOST_SUMS, _MOST_READ = 1000, 100, 8
_NUM_SUMS = 3
_FLOAT_STEPS = 10_000  # sums of floats are rounded to this fraction of their typical size
# JPEG decoders differ by less than one level in the mean of an image, and by a few levels in a
# pixel. Sums of pixels are divided by the root mean square of a sum of independent errors of one
# level; the sums of another image differ by many times that amount.
_TOLERANCE = {"input_means": 1, "input_sums": 16, "float_sums": 16}
_DARK = 64  # inputs with smaller integers are not photographs; their sums are not divided


class SourceIdentity(NamedTuple):
    """The identity of a source.

    Attributes:
      examples: the number of examples.
      labels: the CRC of the labels; None if the source would have to read them.
      input_means: the rounded mean input of up to 1,000 examples; None unless the inputs are
        integers, such as the pixels of a user's images.
      input_sums: three weighted sums of the inputs of up to 100 examples, concatenated.
      float_sums: the size and three weighted sums of the inputs that are floats; see
        `_sums_of_floats`.
      read_labels: the CRC of the labels of a few examples, where `labels` is None.
      weights: the CRC of the weights of labels in memory, 0 if all are 1; None elsewhere.
    """

    examples: int
    labels: int | None
    input_means: list[int] | None
    input_sums: list[int] | None
    float_sums: list[int] | None = None
    read_labels: int | None = None
    weights: int | None = None


def of_source(source: Source) -> SourceIdentity:
    """Compute the identity of a source; of a source on disk only a few examples are read."""
    labels = labels_of(source)
    means: Examples | None
    sums: Examples | None
    weights = None
    if isinstance(source, InMemory):
        means, sums = _sample(source, _MOST_MEANS), _sample(source, _MOST_SUMS)
        unweighted = source.weights is None or bool(np.all(source.weights == 1))
        weights = 0 if unweighted else _crc(np.asarray(source.weights), "<f4")
    else:
        means = sums = _read_sample(source)
    integers, floats = _inputs(means, "biu"), _inputs(sums, "f")
    integer_sums = _inputs(sums, "biu")
    return SourceIdentity(
        len(source),
        None if labels is None else _crc(labels),
        None if integers is None else np.rint(integers.mean(axis=1)).astype(int).tolist(),
        None if integer_sums is None else _weighted_sums(integer_sums),
        None if floats is None else _sums_of_floats(floats),
        None if sums is None or labels is not None else _crc(np.asarray(sums.labels)),
        weights,
    )


def _sample(source: Source, most: int) -> Examples:
    """Read examples at equal distances."""
    few = min(len(source), most)
    return read(source, np.arange(few) * len(source) // max(few, 1))


def _read_sample(source: Source) -> Examples | None:
    """Read a few examples twice; None if the inputs differ, as random crops do."""
    first, again = _sample(source, _MOST_READ), _sample(source, _MOST_READ)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True)
    return first if all(np.array_equal(a, b, equal_nan=_is_float(a)) for a, b in pairs) else None


def _is_float(array: Any) -> bool:
    return np.asarray(array).dtype.kind == "f"


def _crc(values: np.ndarray, kind: str = "<i4") -> int:
    """Compute the CRC of labels or weights, which does not depend on their type."""
    flat, crc = values.reshape(-1), 0
    for start in range(0, len(flat), _CHUNK):
        crc = zlib.crc32(flat[start : start + _CHUNK].astype(kind).tobytes(), crc)
    return crc


def _inputs(examples: Examples | None, kinds: str) -> np.ndarray | None:
    """Concatenate the inputs of some kinds of dtypes, `[examples, inputs]`; None if there are none.

    Args:
      examples: the sample; None if there is none.
      kinds: the kinds of dtypes, as in `np.dtype.kind`.
    """
    if examples is None:
        return None
    arrays: Sequence[np.ndarray] = [np.asarray(leaf) for leaf in jax.tree.leaves(examples.inputs)]
    chosen = [array for array in arrays if array.dtype.kind in kinds]
    if not chosen:
        return None
    return np.concatenate(
        [array.reshape(len(array), math.prod(array.shape[1:])) for array in chosen], axis=1
    )


def _weighted_sums(inputs: np.ndarray) -> list[int]:
    """Compute sums of the inputs of each example with fixed pseudo-random integer weights.

    Every position has its own weights, so the same values in another order give other sums. Sums of
    pixels are scaled as described at `_TOLERANCE`.
    """
    weights = _weights(inputs.shape[1])
    # Integer matrix products are slow; float64 products are exact up to 2^53.
    sums = np.concatenate(
        [rows.astype(np.float64) @ weights for rows in np.array_split(inputs, len(inputs) // 8 + 1)]
    )
    if _are_pixels(inputs):
        sums /= math.sqrt(max(np.square(weights).sum() / _NUM_SUMS, 1.0))
    return [int(value) for value in np.rint(sums).reshape(-1)]


def _weights(count: int) -> np.ndarray:
    # NumPy never changes the stream of RandomState, nor the stream for an explicit dtype.
    return np.random.RandomState(0).randint(-99, 100, (count, _NUM_SUMS), dtype=np.int64)


def _sums_of_floats(inputs: np.ndarray) -> list[int]:
    """Compute the size of each example, and weighted sums of its inputs in units of the size.

    The size is the root mean square of the inputs, in logarithm. A sum is divided by the root mean
    square of a sum of independent inputs of this size, so rounding errors of the inputs are far
    below one step. Values that are not finite count as 0.
    """
    rows = np.where(np.isfinite(inputs), inputs, 0).astype(np.float64)
    sizes = np.sqrt(np.square(rows).mean(axis=1, keepdims=True)) if rows.size else rows[:, :1]
    weights = _weights(inputs.shape[1])
    scale = sizes * math.sqrt(max(np.square(weights).sum() / _NUM_SUMS, 1.0))
    empty = sizes == 0
    sums = np.divide(rows @ weights, scale, where=~empty, out=np.zeros((len(rows), _NUM_SUMS)))
    logarithms = np.log2(sizes, where=~empty, out=np.zeros_like(sizes))
    values = np.concatenate([logarithms, sums], axis=1)
    return [int(value) for value in np.rint(values * _FLOAT_STEPS).reshape(-1)]


def _are_pixels(inputs: np.ndarray) -> bool:
    return inputs.dtype == np.uint8 and bool(inputs.size) and bool(inputs.max() >= _DARK)


def difference(before: SourceIdentity, now: SourceIdentity) -> str:
    """Name what differs: examples, labels, weights or inputs; skip what one of them lacks."""
    if before.examples != now.examples:
        return "examples"
    labels = (before.labels, now.labels), (before.read_labels, now.read_labels)
    if any(None not in pair and pair[0] != pair[1] for pair in labels):
        return "labels"
    if None not in (before.weights, now.weights) and before.weights != now.weights:
        return "weights"
    inputs = ((getattr(before, name), getattr(now, name), _TOLERANCE[name]) for name in _TOLERANCE)
    return "inputs" if any(_differ(*pair) for pair in inputs) else ""


def _differ(numbers: list[int] | None, new_numbers: list[int] | None, tolerance: int) -> bool:
    if numbers is None or new_numbers is None or len(numbers) != len(new_numbers):
        return False
    return bool(np.any(np.abs(np.subtract(numbers, new_numbers)) > tolerance))
