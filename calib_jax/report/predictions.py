"""Anybody's predictions as logits: one column, probabilities, several models' average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.binary import binary
from calib_jax.core.lookalikes import refuse_probabilities, refuse_probability_column
from calib_jax.core.types import Array, Logits

# What a probability of 0 is taken for, so that its logarithm is finite.
SMALLEST = float(np.finfo(np.float32).tiny)


def as_logits(
    predictions: Any, *, probabilities: bool = False, weights: Any = None, name: str = "score"
) -> Logits:
    """Make predictions logits `[*batch, classes]`.

    Args:
      predictions: `[n, classes]`; `[n]` or `[n, 1]` for a binary model.
      probabilities: whether they are probabilities: log p then, with 0 taken for 1e-38. Logits
        and probabilities cannot be told apart by their type, so what looks like probabilities
        is refused unless this says so: rows that all sum to 1, or one column within [0, 1].
      weights: of each example; one of weight 0 is neither for nor against that.
      name: who refuses.
    """
    predictions = jnp.asarray(predictions)
    if not jnp.issubdtype(predictions.dtype, jnp.floating):
        raise TypeError(f"predictions must be floating point, got {predictions.dtype}.")
    if predictions.ndim == 0 or predictions.size == 0:
        raise ValueError(f"there are no predictions, their shape is {predictions.shape}.")
    one_column = predictions.ndim == 1 or predictions.shape[-1] == 1
    column = predictions.reshape(-1) if one_column else predictions
    if probabilities:
        return _log(jnp.stack([1 - column, column], axis=-1) if one_column else column)
    refuse = refuse_probability_column if one_column else refuse_probabilities
    refuse(name, column, weights)
    return binary(column) if one_column else predictions


def average(models: Sequence[Logits]) -> Logits:
    r"""Average the probabilities of several models, $\log \frac1M \sum_m p_m$."""
    shapes = {logits.shape for logits in models}
    if len(shapes) != 1:
        sizes = ", ".join(str(logits.shape) for logits in models)
        raise ValueError(f"an average needs predictions of one shape, got {sizes}.")
    log_p = jax.nn.log_softmax(jnp.stack([jnp.asarray(z, jnp.float32) for z in models]))
    return jax.nn.logsumexp(log_p, axis=0) - jnp.log(len(models))


def _sums_to_one(rows: Array) -> bool:
    return bool(jnp.all(rows >= 0) & jnp.all(jnp.abs(jnp.sum(rows, axis=-1) - 1) < 1e-3))


def _log(p: Array) -> Logits:
    if not _sums_to_one(p):
        worst = p[jnp.argmax(jnp.abs(jnp.sum(p, axis=-1) - 1) + 2 * jnp.any(p < 0, axis=-1))]
        raise ValueError(
            "probabilities must not be negative and must sum to 1 in every row, got"
            f" {np.array2string(np.asarray(worst), precision=4, threshold=6)}."
        )
    return jnp.log(jnp.maximum(p.astype(jnp.float32), SMALLEST))
