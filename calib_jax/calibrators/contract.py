"""What calibrators share: rows made ready, probabilities given back as logits, the catalogue.

A calibrator is a module with two pure functions,

    params = fit(logits, labels, weights=None, *, options)        params: arrays, by name
    apply(params, logits) -> logits

Both work under `jit` and, for many models at once, under `vmap`. Outside `jit`, `fit` refuses
values it cannot learn from. `params.converged` says whether the fit can be believed: it is False
where there is no finite optimum (one class only, classes perfectly separated), and the
parameters are finite there as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import checks, refusal
from calib_jax.core.numerics import at_least_float32, is_true_class
from calib_jax.core.rows import present, valid
from calib_jax.core.types import Array, Labels, Logits, PerClass, Vector, Weights

# What calibrators that answer probabilities give at least to every class, so that the NLL of
# fresh data stays finite; the rest is scaled down to make room.
FLOOR = 1e-6


class Calibrator(Protocol):
    """A module with `fit` and `apply`."""

    def fit(self, logits: Any, labels: Any, weights: Any = None) -> Any:
        """Learn parameters from examples the model was not trained on."""
        ...

    def apply(self, params: Any, logits: Any) -> Logits:
        """Calibrate logits."""
        ...


class Data(NamedTuple):
    """Examples in rows, ready to be learned from.

    Attributes:
      logits: `[rows, classes]`, float32 or better; 0 in absent rows.
      labels: `[rows]`; 0 in absent rows.
      weights: `[rows]`, with sum 1; NaN where a label is out of range.
    """

    logits: Float[Array, "rows classes"]
    labels: Labels
    weights: Vector


def data_of(name: str, logits: Any, labels: Any, weights: Weights | None) -> Data:
    """Make examples ready, or say what is wrong with them."""
    logits, labels = checks.batch_of(name, logits, labels, soft_labels=False)
    weights = checks.weights_for(logits, weights)
    if labels.size == 0:
        raise ValueError(f"{name}: there are no examples, the labels have shape {labels.shape}.")
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    weights = None if weights is None else weights.reshape(-1)
    if refusal.known(logits, labels, weights):
        refusal.refuse(name, refusal.trouble_in(logits, labels, weights), logits.shape)
    logits, labels = present(logits, labels, weights)
    rows = at_least_float32(logits)
    weight = jnp.ones(labels.shape, rows.dtype) if weights is None else weights.astype(rows.dtype)
    weight = jnp.where(valid(labels, rows.shape[-1]), weight, jnp.nan)
    return Data(rows, labels, weight / jnp.sum(weight))


def one_versus_rest(data: Data) -> Float[Array, "rows classes"]:
    """Give 1 in the column of each row's class, else 0."""
    return is_true_class(data.labels, data.logits.shape[-1]).astype(data.logits.dtype)


def as_log_probabilities(p: PerClass, floor: float = FLOOR) -> Logits:
    """Renormalise, lift every class to the floor, and take the logarithm.

    Where all of a row is 0 the row becomes uniform.
    """
    num_classes = p.shape[-1]
    total = jnp.sum(p, axis=-1, keepdims=True)
    p = jnp.where(total > 0, p / jnp.where(total > 0, total, 1), 1 / num_classes)
    return jnp.log(floor + (1 - num_classes * floor) * p)


def checked_logits(logits: Any) -> Logits:
    """Make logits a floating-point array `[*batch, classes]`."""
    logits = jnp.asarray(logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"logits must be floating point, got {logits.dtype}.")
    return at_least_float32(logits)


def same_classes(num_classes: int, logits: jax.Array) -> None:
    """Refuse parameters that were fitted for another number of classes."""
    if num_classes != logits.shape[-1]:
        raise ValueError(
            f"the calibrator was fitted for {num_classes} classes, the logits have"
            f" {logits.shape[-1]}."
        )
