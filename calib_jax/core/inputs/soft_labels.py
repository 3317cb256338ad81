"""Checks of soft labels, which are distributions over the classes.

Outside `jit` a row that is no distribution raises an error. Inside `jit`, where values cannot be
read, the row becomes NaN, like a row with a label out of range.
"""

from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from calib_jax.core.inputs.arrays import concrete
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, Logits, SoftLabels, Weights

# Whether a function takes soft labels; "or_zeros": a row may also be 0 for every class.
TakesSoft: TypeAlias = bool | Literal["or_zeros"]

_TOLERANCE = 1e-3  # for printed digits; sums of rounded half-precision numbers may differ by more
_ALLOWED = "the row of an example must be a distribution, values in [0, 1] with the sum 1"


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


def distributions(
    name: str, labels: SoftLabels, weights: Weights | None, allowed: TakesSoft, naming: bool
) -> Array:
    """Validate soft labels; return them, with NaN in wrong rows if the values cannot be read.

    Args:
      name: the name of the caller, for the error message.
      labels: `[*batch, classes]`.
      weights: the weight of each example; rows of weight 0 may have any labels.
      allowed: whether a row may also be 0 for every class.
      naming: whether wrong values are reported inside `jit`, by `label_checked`.
    """
    if concrete(labels, weights) and getattr(labels, "is_fully_addressable", True):
        values = np.asarray(labels)
        counts = None if weights is None else np.asarray(weights) > 0
        wrong = ~_are_distributions(values, allowed, np)
        wrong = wrong if counts is None else wrong & counts
        if np.any(wrong):
            first = np.unravel_index(np.argmax(wrong), wrong.shape)
            raise ValueError(_message(name, values[first], first))
        return labels
    wrong = ~_are_distributions(labels, allowed, jnp)
    wrong = wrong if weights is None else wrong & (weights > 0)
    if naming:
        _name_first(name, labels, wrong)
    return jnp.where(wrong[..., None], jnp.nan, labels)


def _are_distributions(labels: Any, allowed: TakesSoft, xp: Any) -> Any:
    """Check which rows have entries in [0, 1] that sum to 1."""
    rounding = 2 * float(jnp.finfo(labels.dtype).eps)
    entries = labels.astype(wide(labels.dtype))
    # One sum, because a second pass over the labels would take as long again: NaN marks negative
    # entries, and an entry above 1 beside entries of at least 0 has a sum above 1.
    sums = xp.sum(xp.where(entries >= -rounding, entries, np.nan), axis=-1)
    right = xp.abs(sums - 1) <= max(_TOLERANCE, rounding)
    return right | xp.all(entries == 0, axis=-1) if allowed == "or_zeros" else right


def _outside(entries: Any) -> Any:
    return ~((entries >= 0) & (entries <= 1))


def _message(name: str, row: np.ndarray, index: tuple[Any, ...]) -> str:
    """Describe the first entry of a row outside [0, 1], or its sum if there is none."""
    row = row.astype(wide(row.dtype))
    place = ", ".join(str(int(number)) for number in index)
    which = {0: "the one row", 1: f"row {place}"}.get(len(index), f"row ({place})")
    outside = _outside(row)
    if np.any(outside):
        class_index = int(np.argmax(outside))
        found = f"the value {row[class_index]:g} for class {class_index}"
    else:
        found = f"the sum {np.sum(row):g}"
    way_out = "give ignored examples weight 0" if index else "binary logits need calib_jax.binary"
    return f"{name}: {which} of the soft labels has {found}: {_ALLOWED}; {way_out}."


def _name_first(name: str, labels: Array, wrong: Array) -> None:
    """Report the first wrong row inside `jit`; rows are counted over all batch axes."""
    flat = labels.reshape(-1, labels.shape[-1]).astype(jnp.float32)
    row = jnp.argmax(wrong.reshape(-1))
    outside = _outside(flat[row])
    first = jnp.argmax(outside)
    ending = f": {_ALLOWED}; give ignored examples weight 0."
    checkify.check(
        ~(jnp.any(wrong) & jnp.any(outside)),
        f"{name}: row {{row}} of the soft labels has the value {{value:g}} for class {{k}}{ending}",
        row=row,
        value=flat[row, first],
        k=first,
    )
    checkify.check(
        ~jnp.any(wrong),
        f"{name}: row {{row}} of the soft labels has the sum {{total:g}}{ending}",
        row=row,
        total=jnp.sum(flat[row]),
    )
