"""Values that no number can be computed from: counted while tracing, refused outside `jit`.

Shapes and dtypes are checked while a function is traced (`checks`); values are only known when
it has run. So a function that is called from outside counts what is wrong in the same pass, and
then says so in one sentence.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Real

from calib_jax.core.numerics import at_least_float32
from calib_jax.core.rows import valid
from calib_jax.core.types import Array, Labels, Logits, Weights


class Trouble(NamedTuple):
    """How many rows cannot be measured, and why."""

    not_finite: Real[Array, ""]
    wrong_label: Real[Array, ""]
    a_wrong_label: Real[Array, ""]
    wrong_weight: Real[Array, ""]
    weight: Real[Array, ""]


def finite_rows(logits: Logits) -> Bool[Array, "*batch"]:
    """Mark rows whose logits all are finite; by a sum, which is faster than `all` on a CPU."""
    return jnp.isfinite(jnp.sum(0 * at_least_float32(logits), axis=-1))


def trouble_in(logits: Logits, labels: Labels, weights: Weights | None) -> Trouble:
    """Count what cannot be measured; rows of weight 0 may hold anything."""

    def counting(wrong: Bool[Array, " rows"]) -> Bool[Array, " rows"]:
        return wrong if weights is None else wrong & (weights != 0)

    wrong = counting(~valid(labels, logits.shape[-1]))
    return Trouble(
        not_finite=jnp.sum(counting(~finite_rows(logits))),
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


def known(*arrays: Any) -> bool:
    """Tell whether all arrays have values, which is not so while tracing."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)
