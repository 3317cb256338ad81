"""Rows that count and rows that do not: the one place for weight 0 and labels out of range.

A weight is one word for padding mask, ignored pixel, resampling multiplicity and importance.
Weight 0 equals absence, also where the label is 255 or -1 and where the logits are NaN:

    logits, labels = present(logits, labels, weights)    # before: harmless values in absent rows
    total = jnp.sum(weigh(values, weights))              # after: exactly 0 from absent rows

A label out of range in a row that does count makes the row NaN (`valid`): never the value of
a wrapped class, and never a wrong finite number.
"""

import jax.numpy as jnp
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
