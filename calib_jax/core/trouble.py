"""Values that nothing can be computed from: counted in one pass, refused outside `jit`.

Inside `jit` they make NaN, never a wrong finite number (see `calib_jax.core.rows`). Outside,
where values can be looked at, they are an error in one sentence that counts them.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Real

from calib_jax.core.numerics import at_least_float32
from calib_jax.core.rows import valid, weigh
from calib_jax.core.types import Array, Labels, Logits, Weights


def known(*arrays: Any) -> bool:
    """Tell whether the values can be looked at: no argument is traced."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def not_finite(logits: Logits) -> Array:
    """Mark rows with NaN or infinities by one sum, which is faster than `all` on a CPU."""
    logits = at_least_float32(logits)
    return (~jnp.isfinite(jnp.sum(0 * logits, axis=-1))).astype(logits.dtype)


class Trouble(NamedTuple):
    """How many rows cannot be measured, and why."""

    not_finite: Real[Array, ""]
    wrong_label: Real[Array, ""]
    a_wrong_label: Real[Array, ""]
    wrong_weight: Real[Array, ""]
    weight: Real[Array, ""]


def trouble_in(logits: Logits, labels: Labels, weights: Weights | None) -> Trouble:
    """Count what cannot be measured; rows of weight 0 may hold anything."""
    wrong = ~valid(labels, logits.shape[-1])
    wrong = wrong if weights is None else wrong & (weights != 0)
    return Trouble(
        not_finite=jnp.sum(weigh(not_finite(logits), weights) > 0),
        wrong_label=jnp.sum(wrong),
        a_wrong_label=labels[jnp.argmax(wrong)].astype(jnp.int32),
        wrong_weight=jnp.array(0) if weights is None else jnp.sum(~(weights >= 0)),
        weight=jnp.array(1.0) if weights is None else jnp.sum(weights),
    )


def refuse(
    name: str, trouble: Trouble, shape: tuple[int, ...], *, weightless: bool = False
) -> None:
    """Say in one sentence what is wrong with the values, if anything is.

    Args:
      name: who says so.
      trouble: what was found.
      shape: rows and classes.
      weightless: whether it is all right that no row has weight.
    """
    found = jax.tree.map(np.asarray, jax.device_get(trouble))
    num_rows, num_classes = shape
    if found.wrong_weight:
        raise ValueError(
            f"{name}: {found.wrong_weight} of {num_rows} weights are negative or NaN; use weight 0"
            " for examples that do not count."
        )
    if not (found.weight > 0 or weightless):
        raise ValueError(f"{name}: all {num_rows} weights are 0, so there is nothing to measure.")
    if found.not_finite:
        raise ValueError(
            f"{name}: {found.not_finite} of {num_rows} rows have NaN or infinite logits; give them"
            " weight 0, or find out where they come from."
        )
    if found.wrong_label:
        raise ValueError(
            f"{name}: {found.wrong_label} of {num_rows} labels are not among the {num_classes}"
            f" classes, {found.a_wrong_label} is one; give ignored examples weight 0."
        )
