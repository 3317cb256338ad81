"""Rows that count and rows that do not: the one place for weight 0 and labels out of range.

A weight is one word for padding mask, ignored pixel, resampling multiplicity and importance.
Weight 0 equals absence, also where the label is 255 or -1 and where the logits are NaN:

    logits, labels = present(logits, labels, weights)    # before: harmless values in absent rows
    total = jnp.sum(weigh(values, weights))              # after: exactly 0 from absent rows

A label out of range in a row that does count makes the row NaN (`valid`): never the value of
a wrapped class, and never a wrong finite number. `as_labels` sees to it that this holds for the
label as it was given, before JAX narrows its type.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from calib_jax.core.types import Array, Labels, Logits, PerExample, SoftLabels, Weights


def present(
    logits: Logits, labels: Labels | SoftLabels, weights: Weights | None
) -> tuple[Logits, Labels | SoftLabels]:
    """Put label 0 and logits 0 where the weight is 0, so that absent rows can do no harm."""
    if weights is None:
        return logits, labels
    counts = weights > 0
    logits = jnp.where(counts[..., None], logits, 0)
    soft = labels.ndim == logits.ndim
    return logits, jnp.where(counts[..., None] if soft else counts, labels, 0)


def weigh(values: PerExample, weights: Weights | None) -> PerExample:
    """Multiply values by weights; a row of weight 0 gives exactly 0 whatever its value."""
    if weights is None:
        return values
    return jnp.where(weights > 0, weights * values, 0)


def valid(labels: Labels, num_classes: int) -> Bool[Array, "*batch"]:
    """Tell which labels name one of the classes 0 ... num_classes - 1."""
    labels = widened(labels)
    return (labels >= 0) & (labels < num_classes)


def widened(labels: Labels) -> Labels:
    """Cast labels to int32 or wider: a uint8 cannot even be compared with 256 classes."""
    return labels.astype(jnp.promote_types(labels.dtype, jnp.int32))


def on_host(values: Any) -> bool:
    """Tell whether values are NumPy's or Python's, which JAX has not narrowed yet."""
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values))


def host_integers(values: Any) -> np.ndarray | None:
    """Read NumPy's or Python's integers as they were given; None for anything else.

    Python's integers beyond 64 bits come as an array of objects.
    """
    if not on_host(values):
        return None
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.integer):
        return array
    is_int = array.dtype == object and all(isinstance(entry, int) for entry in array.flat)
    return array if is_int else None


def as_labels(labels: Any) -> Array:
    """Make labels an array of int32 or wider; values that do not fit become the nearest that does.

    JAX narrows 64-bit integers by dropping their upper half, which makes the label 2**32 + 1 the
    label 1. The nearest int32 is as far out of range as the label itself. Narrower types are
    widened here, once, so that a product with a label cannot overflow. What is no integer is left
    to the caller to refuse.
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
