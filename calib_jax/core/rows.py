"""Weights and labels out of range, handled here for the whole library.

A weight can be a padding mask, an ignore mask of pixels, a resampling count or an importance.
A row of weight 0 is absent, even if its label is 255 or -1 or its logits are NaN:

    logits, labels, weights = present(logits, labels, weights)  # harmless values in absent rows
    total = jnp.sum(weigh(values, weights))                     # exactly 0 from absent rows

A row whose weight is negative, infinite or NaN becomes a row of NaN logits and weight 1, so that
every function that gives NaN for NaN logits gives NaN for such a weight, too. The same happens to
all rows if the weights sum to more than `LARGEST_TOTAL`.

A label out of range in a row of positive weight makes the row NaN (`valid`). It never gives the
value of a wrapped class or any other wrong finite number. `as_labels` clips labels before JAX
narrows their type, so that this holds for every label that is passed.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from calib_jax.core.types import Array, Labels, Logits, PerExample, PyTree, SoftLabels, Weights

# Products of weights and losses must not overflow either.
LARGEST_TOTAL = 1e30


@overload
def present(
    logits: Logits, labels: Labels | SoftLabels, weights: Weights
) -> tuple[Logits, Labels | SoftLabels, Weights]: ...


@overload
def present(
    logits: Logits, labels: Labels | SoftLabels, weights: Weights | None
) -> tuple[Logits, Labels | SoftLabels, Weights | None]: ...


def present(
    logits: Logits, labels: Labels | SoftLabels, weights: Weights | None
) -> tuple[Logits, Labels | SoftLabels, Weights | None]:
    """Replace labels and logits by 0 where the weight is 0, so that absent rows cause no NaN.

    Where a weight is invalid, the logits become NaN and the weight 1.
    """
    if weights is None:
        return logits, labels, None
    return _present(logits, labels, weights)


@functools.partial(jax.jit, inline=True)  # one program instead of one per operation
def _present(
    logits: Logits, labels: Labels | SoftLabels, weights: Weights
) -> tuple[Logits, Labels | SoftLabels, Weights]:
    absent = weights == 0
    usable = (weights >= 0) & (jnp.sum(weights) <= LARGEST_TOTAL)  # the sum keeps NaN and inf
    fill = jnp.where(absent & usable, 0, jnp.nan).astype(logits.dtype)
    counts = usable & ~absent
    logits = jnp.where(counts[..., None], logits, fill[..., None])
    soft = labels.ndim == logits.ndim
    labels = jnp.where(counts[..., None] if soft else counts, labels, 0)
    return logits, labels, jnp.where(usable, weights, jnp.ones_like(weights))


def thinned(
    logits: Logits, labels: Labels, weights: Weights | None, most: int = 2**15
) -> tuple[Array, Array, Array | None]:
    """Keep an even grid of the labels of every example that has more than `most`.

    An image of 1,024 x 2,048 pixels has two million labels, and statistics with one row per label
    do not need all of them.

    >>> logits = jnp.zeros((1, 1024, 2048, 1))
    >>> thinned(logits, jnp.zeros((1, 1024, 2048), int), None)[1].shape
    (1, 128, 256)
    """
    step, sizes = 1, labels.shape[1:]
    while math.prod(-(-size // step) for size in sizes) > most:
        step += 1
    if step == 1:
        return logits, labels, weights
    grid = (slice(None), *(slice((min(step, size) - 1) // 2, None, step) for size in sizes))
    return logits[grid], labels[grid], None if weights is None else weights[grid]


def padded_size(number: int) -> int:
    """Return the padded size for a number of rows, so that few programs are compiled.

    Small sets are padded up to fourfold, because compiling takes longer than computing there.

    >>> [padded_size(number) for number in (3, 257, 1024, 5000, 9000)]
    [256, 1024, 1024, 8192, 16384]
    """
    size = 256
    while size < number:
        size *= 4 if size < 4096 else 2
    return size


def of_few_shapes(function: Callable[..., PyTree], logits: Logits, labels: Labels) -> PyTree:
    """Apply a compiled function of every row on its own, with small sets padded.

    Returns:
      NumPy arrays with a leading axis of rows.
    """
    number = len(labels)
    if number <= 4096:
        padding = (0, padded_size(number) - number)
        logits = jnp.asarray(np.pad(np.asarray(logits), (padding, (0, 0))))
        labels = jnp.asarray(np.pad(np.asarray(labels), padding))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:number], function(logits, labels))


def weigh(values: PerExample, weights: Weights | None) -> PerExample:
    """Multiply values by weights; a row of weight 0 gives exactly 0 for any value.

    A negative, infinite or NaN weight gives NaN.
    """
    if weights is None:
        return values
    usable = (weights >= 0) & (weights < jnp.inf)
    return jnp.where(usable, jnp.where(weights == 0, 0, weights * values), jnp.nan)


def valid(labels: Labels, num_classes: int) -> Bool[Array, "*batch"]:
    """Check which labels are among the classes 0 ... num_classes - 1."""
    labels = widened(labels)
    return (labels >= 0) & (labels < num_classes)


def widened(labels: Labels) -> Labels:
    """Cast labels to int32 or wider, because a uint8 cannot be compared with 256 classes."""
    return labels.astype(jnp.promote_types(labels.dtype, jnp.int32))


def on_host(values: Any) -> bool:
    """Check whether values are from NumPy or Python, which JAX has not narrowed yet."""
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values))


def host_integers(values: Any) -> np.ndarray | None:
    """Convert NumPy or Python integers to a NumPy array unchanged; None for anything else.

    Python integers beyond 64 bits become an array of objects.
    """
    if not on_host(values):
        return None
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.integer):
        return array
    is_int = array.dtype == object and all(isinstance(entry, int) for entry in array.flat)
    return array if is_int else None


def as_labels(labels: Any) -> Array:
    """Convert labels to an array of int32 or wider; values that do not fit are clipped.

    JAX narrows 64-bit integers by dropping their upper half, which turns the label 2**32 + 1 into
    the label 1. A clipped label stays out of range. Narrower types are widened here, once, so that
    a product with a label cannot overflow. Values that are not integers are returned for the
    caller to reject.
    """
    given = host_integers(labels)
    array: Any = jnp.asarray(labels) if given is None else given
    if not (given is not None or jnp.issubdtype(array.dtype, jnp.integer)):
        return array
    widest = jax.dtypes.canonicalize_dtype(np.int64)
    for dtype in (np.int32, widest):
        if np.can_cast(array.dtype, dtype):
            return jnp.asarray(array, dtype)
    xp: Any = jnp if given is None else np
    info = np.iinfo(widest)
    array = xp.minimum(array, info.max)
    if array.dtype.kind != "u":
        array = xp.maximum(array, info.min)
    return jnp.asarray(array.astype(widest))
