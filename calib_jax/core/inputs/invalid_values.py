"""Checks for invalid values: one pass counts them, and outside `jit` they raise an error.

Inside `jit` invalid values give NaN, never a wrong finite number (see `calib_jax.core.rows`).
Outside `jit`, where values can be read, they raise an error that counts them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Real

from calib_jax.core import numerics
from calib_jax.core.rows import LARGEST_TOTAL, as_labels, valid
from calib_jax.core.types import Array, Labels, Logits, Weights


def known(*arrays: Any) -> bool:
    """Check whether the values can be read, that is, no argument is traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def not_finite(logits: Any) -> Bool[Array, "*batch"]:
    """Mark rows with NaN or +inf, and rows in which every class is -inf.

    A logit of -inf is a class of probability 0. One sum, which is faster than `all` on a CPU,
    detects whether any logit is not finite; only then are impossible classes counted. Where a
    softmax is computed anyway, its total detects the same rows at no cost:
    `~jnp.isfinite(sum(exp(z - max z)))`. The maximum alone does not, because XLA drops NaN from
    it on a CPU for 64 classes and more.
    """
    logits = numerics.at_least_float32(jnp.asarray(logits))
    odd = ~jnp.isfinite(jnp.sum(0 * logits, axis=-1))

    def unless_impossible() -> Bool[Array, "*batch"]:
        impossible = jnp.sum(jnp.where(logits == -jnp.inf, 1, 0 * logits), axis=-1)
        return ~(impossible < logits.shape[-1])

    return lax.cond(jnp.any(odd), unless_impossible, lambda: odd)


class InvalidValues(NamedTuple):
    """The number of invalid rows by cause, and the total weight."""

    not_finite: Real[Array, ""]
    wrong_label: Real[Array, ""]
    a_wrong_label: Real[Array, ""]
    wrong_weight: Real[Array, ""]
    weight: Real[Array, ""]


def count_invalid_values(logits: Logits, labels: Labels, weights: Weights | None) -> InvalidValues:
    """Count the rows with invalid values; rows of weight 0 may hold anything."""
    labels = as_labels(labels)
    counts = True if weights is None else weights != 0
    wrong = ~valid(labels, logits.shape[-1]) & counts
    return InvalidValues(
        not_finite=jnp.sum(not_finite(logits) & counts),
        wrong_label=jnp.sum(wrong),
        a_wrong_label=labels[jnp.argmax(wrong)],
        wrong_weight=jnp.array(0)
        if weights is None
        else jnp.sum(~((weights >= 0) & (weights < jnp.inf))),
        weight=jnp.array(1.0) if weights is None else jnp.sum(weights),
    )


def refuse(
    name: str, invalid: InvalidValues, shape: tuple[int, ...], *, weightless: bool = False
) -> None:
    """Raise an error of one sentence if any values are invalid.

    Args:
      name: the name of the caller, for the error message.
      invalid: the counts.
      shape: the numbers of rows and classes.
      weightless: whether all weights may be 0.
    """
    counts = jax.tree.map(np.asarray, jax.device_get(invalid))
    num_rows, num_classes = shape
    if counts.wrong_weight:
        raise ValueError(
            f"{name}: {counts.wrong_weight} of {num_rows} weights are negative, infinite or NaN;"
            " use weight 0 for examples that do not count."
        )
    if counts.weight > LARGEST_TOTAL:
        raise ValueError(
            f"{name}: the weights sum to {counts.weight:.3g}, and sums of float32 end soon after:"
            " divide them all by the largest."
        )
    if not (counts.weight > 0 or weightless):
        raise ValueError(f"{name}: all {num_rows} weights are 0, so there is nothing to measure.")
    if counts.not_finite:
        raise ValueError(
            f"{name}: {counts.not_finite} of {num_rows} rows have NaN or infinite logits (-inf"
            " beside finite ones is fine); give them weight 0, or find their cause."
        )
    if counts.wrong_label:
        raise ValueError(
            _wrong_labels(name, counts.wrong_label, num_rows, num_classes, counts.a_wrong_label)
        )


def refuse_labels(name: str, labels: np.ndarray, weights: Weights | None, num_classes: int) -> None:
    """Raise an error for labels out of range; rows of weight 0 may have any label."""
    wrong = (labels < 0) | (labels >= num_classes)
    wrong = wrong if weights is None else wrong & (np.asarray(weights) != 0)
    if np.any(wrong):
        # Report a label beyond 32 bits, if there is one: no other check can report it.
        offending = labels[wrong]
        worst = max((int(offending.max()), int(offending.min())), key=abs)
        raise ValueError(_wrong_labels(name, int(np.sum(wrong)), labels.size, num_classes, worst))


def _wrong_labels(name: str, count: Any, num_rows: int, num_classes: int, one: Any) -> str:
    return (
        f"{name}: {count} of {num_rows} labels are not among the {num_classes} classes, {one} is"
        " one; give ignored examples weight 0."
    )
