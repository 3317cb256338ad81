"""Checks of soft labels, which are distributions over the classes.

A row that is no distribution becomes NaN, like a row with a label out of range.
"""

from typing import Any, Literal, TypeAlias

import jax.numpy as jnp

from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, Logits, SoftLabels, Weights

# Whether a function takes soft labels; "or_zeros": a row may also be 0 for every class.
TakesSoft: TypeAlias = bool | Literal["or_zeros"]

_TOLERANCE = 1e-3  # for printed digits; sums of rounded half-precision numbers may differ by more


def refuse_integers(name: str, logits: Logits, labels: Any) -> None:
    """Raise an error for integer or boolean labels that have as many axes as the logits."""
    if not (jnp.issubdtype(labels.dtype, jnp.integer) or labels.dtype == bool):
        return
    batch = logits.shape[:-1]
    if logits.ndim == 1:
        way_out = "binary logits need two classes, calib_jax.binary(logits)."
    elif logits.shape[-1] == 1:
        way_out = (
            "binary logits need two classes, calib_jax.binary(logits[..., 0]), and labels[..., 0]."
        )
    elif labels.shape == (*batch, 1):
        way_out = "drop the last axis, labels[..., 0]."
    else:
        way_out = "one-hot labels must be floating point, labels.astype(float)."
    raise TypeError(
        f"{name}: logits {logits.shape} need integer labels of shape {batch} or a distribution over"
        f" the classes for each example, but the labels {labels.shape} are {labels.dtype}:"
        f" {way_out}"
    )


def nan_unless_distributions(
    labels: SoftLabels, weights: Weights | None, allowed: TakesSoft
) -> Array:
    """Replace each row that is no distribution by NaN.

    Args:
      labels: `[*batch, classes]`.
      weights: the weight of each example; rows of weight 0 may have any labels.
      allowed: whether a row may also be 0 for every class.
    """
    rounding = 2 * float(jnp.finfo(labels.dtype).eps)
    entries = labels.astype(wide(labels.dtype))
    # One sum, because a second pass over the labels would take as long again: NaN marks negative
    # entries, and an entry above 1 beside entries of at least 0 has a sum above 1.
    sums = jnp.sum(jnp.where(entries >= -rounding, entries, jnp.nan), axis=-1)
    right = jnp.abs(sums - 1) <= max(_TOLERANCE, rounding)
    if allowed == "or_zeros":
        right |= jnp.all(entries == 0, axis=-1)
    if weights is not None:
        right |= ~(weights > 0)
    return jnp.where(right[..., None], labels, jnp.nan)
