r"""Softmax of an affine map of the logits: what vector, matrix and Dirichlet scaling share.

$$\min_{W, b} -\frac1n \sum_i \log \mathrm{softmax}(W x_i + b)_{y_i}
  + \lambda\, \overline{W_{kj}^2}_{k \ne j} + \mu\, \overline{b_k^2}$$

with x the logits or the log-probabilities, and W a matrix or its diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from calib_jax.calibrators import contract, convex
from calib_jax.core.numerics import true_class
from calib_jax.core.types import Array, Logits, Number, Scalar, Vector


class Params(NamedTuple):
    """An affine map; `weight` is `[classes]` where only the diagonal is used.

    Attributes:
      weight: W.
      bias: b, with mean 0.
      converged: whether there is a minimum and it was found.
      nll_before: the mean NLL of the logits as they were.
      nll_after: the mean NLL after the map.
    """

    weight: Float[Array, "classes classes"] | Float[Array, " classes"]
    bias: Vector
    converged: Bool[Array, ""]
    nll_before: Scalar
    nll_after: Scalar


def fit(
    data: contract.Data,
    inputs: Float[Array, "rows classes"],
    *,
    diagonal: bool,
    off_diagonal: Number,
    intercept: Number,
) -> Params:
    """Fit the map to inputs of the examples, from the identity on."""
    num_classes = inputs.shape[-1]
    dtype = inputs.dtype
    # Columns of one scale make round valleys. One scale for all keeps the penalties' meaning.
    scale = jnp.sqrt(jnp.sum(data.weights[:, None] * jnp.square(inputs)) / num_classes)
    scale = jnp.where(scale > 0, scale, 1)
    scaled = inputs / scale

    def nll(rows: Logits) -> Scalar:
        losses = jax.nn.logsumexp(rows, axis=-1) - true_class(rows, data.labels)
        return jnp.sum(data.weights * losses)

    def loss(params: tuple[Array, Array]) -> Scalar:
        weight, bias = params
        penalty = intercept * jnp.mean(jnp.square(bias))
        if not diagonal and num_classes > 1:
            square = jnp.square(weight / scale) * (1 - jnp.eye(num_classes, dtype=dtype))
            penalty += off_diagonal * jnp.sum(square) / (num_classes * (num_classes - 1))
        return nll(affine(weight, bias, scaled)) + penalty

    ones = jnp.ones((num_classes,), dtype)
    identity = scale * (ones if diagonal else jnp.diag(ones))
    (weight, bias), converged = convex.minimise(loss, (identity, 0 * ones))
    # A constant added to all biases, or to a column of W, changes nothing.
    bias = bias - jnp.mean(bias)
    weight = weight / scale
    after = nll(affine(weight, bias, inputs))
    return Params(weight, bias, converged, nll(data.logits), after)


def affine(weight: Array, bias: Array, rows: Logits) -> Logits:
    """Compute W x + b."""
    if weight.ndim == bias.ndim:
        return rows * jnp.broadcast_to(weight, rows.shape) + jnp.broadcast_to(bias, rows.shape)
    mapped = jnp.matmul(rows, weight.T, precision=jax.lax.Precision.HIGHEST)
    return mapped + jnp.broadcast_to(bias, mapped.shape)
