r"""Beta calibration: $\sigma(a \log p - b \log(1 - p) + c)$ with a, b at least 0.

One class against the rest, renormalised. It holds the identity (a = b = 1, c = 0) and, unlike
Platt scaling, is made for probabilities that are skewed towards one end.

References:
  Kull et al., Beta calibration: a well-founded and easily implemented improvement on logistic
  calibration for binary classifiers, AISTATS 2017.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from calib_jax.calibrators import contract, logistic
from calib_jax.core.numerics import log_probabilities
from calib_jax.core.types import Array, Logits, Scalar, Vector

__all__ = ["Params", "apply", "fit"]


class Params(NamedTuple):
    """One curve a class.

    Attributes:
      a: the power of p.
      b: the power of 1 - p.
      c: the offset.
      converged: of each curve, whether there is a minimum and it was found.
    """

    a: Vector
    b: Vector
    c: Vector
    converged: Bool[Array, " classes"]


def fit(logits: Any, labels: Any, weights: Any = None) -> Params:
    """Find the curves of least NLL; a factor that would be negative is 0, and the rest refitted.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
    """
    data = contract.data_of("beta", logits, labels, weights)
    log_p, log_rest = log_probabilities(data.logits)

    def one(log_p: Vector, log_rest: Vector, target: Vector) -> tuple[Array, Scalar]:
        columns = jnp.stack([log_p, -log_rest], axis=1)
        used = jnp.ones((2,), bool)
        params, converged = logistic.fit(columns, target, data.weights, used)
        for _ in range(2):  # without the most negative factor; then without the other, if need be
            negative = params[:2] < 0
            used &= ~(negative & (params[:2] == jnp.min(params[:2])))
            params, converged = logistic.fit(columns, target, data.weights, used)
        return params, converged

    occurs = contract.one_versus_rest(data)
    params, converged = jax.vmap(one, in_axes=1)(log_p, log_rest, occurs)
    return Params(params[:, 0], params[:, 1], params[:, 2], converged)


def apply(params: Params, logits: Any) -> Logits:
    """Compute calibrated log-probabilities."""
    rows = contract.checked_logits(logits)
    contract.same_classes(params.a.shape[-1], rows)
    log_p, log_rest = log_probabilities(rows)
    a, b, c = (jnp.broadcast_to(each, rows.shape) for each in params[:3])
    return contract.as_log_probabilities(probability(a, b, c, log_p, log_rest))


def probability(
    a: Array, b: Array, c: Array, log_p: Array, log_rest: Array
) -> Float[Array, "*shape"]:
    """Compute the curves, before renormalising."""
    return jax.nn.sigmoid(a * log_p - b * log_rest + c)
