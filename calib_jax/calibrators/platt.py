r"""Platt scaling: a sigmoid of an affine map of each class's log-odds.

For two classes $\sigma(a (z_1 - z_0) + b)$, answered as the logits [0, a (z_1 - z_0) + b]. For
more, one class against the rest: $\sigma(a_k s_k + b_k)$ with $s_k = \log p_k - \log(1 - p_k)$,
renormalised.

References:
  Platt, Probabilistic outputs for support vector machines, 1999.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from calib_jax.calibrators import contract, logistic
from calib_jax.core.binary import binary
from calib_jax.core.numerics import log_probabilities
from calib_jax.core.types import Logits, PerClass, Vector

__all__ = ["Params", "apply", "fit"]


class Params(NamedTuple):
    """One sigmoid a class; a single one for two classes.

    Attributes:
      slope: a.
      offset: b.
      converged: of each sigmoid, whether there is a minimum and it was found.
    """

    slope: Vector
    offset: Vector
    converged: Bool[Vector, " sigmoids"]


def fit(logits: Any, labels: Any, weights: Any = None, *, smooth: bool = False) -> Params:
    """Find the sigmoids of least NLL.

    Args:
      logits: `[*batch, classes]`, two classes or more.
      labels: `[*batch]`.
      weights: `[*batch]`.
      smooth: whether to aim at $(n_1 + 1) / (n_1 + 2)$ and $1 / (n_0 + 2)$ instead of 1 and 0, as
        Platt did, which also gives separable classes a minimum. Weights then count as copies.
    """
    data = contract.data_of("platt", logits, labels, weights)
    occurs = contract.one_versus_rest(data)
    scores, occurs = (_log_odds(data.logits), occurs) if occurs.shape[-1] > 2 else (
        _difference(data.logits), occurs[:, 1:]
    )  # fmt: skip
    if smooth:
        given = jnp.ones(data.labels.shape) if weights is None else jnp.asarray(weights)
        count = jnp.sum(jnp.maximum(given.reshape(-1), 0)).astype(scores.dtype)
        ones = count * jnp.sum(data.weights[:, None] * occurs, axis=0)
        high, low = (ones + 1) / (ones + 2), 1 / (count - ones + 2)
        occurs = jnp.where(occurs > 0, high[None], low[None])

    def one(score: Vector, target: Vector) -> tuple[Vector, Bool[Vector, ""]]:
        return logistic.fit(score[:, None], target, data.weights)

    params, converged = jax.vmap(one, in_axes=1)(scores, occurs)
    return Params(params[:, 0], params[:, 1], converged)


def apply(params: Params, logits: Any) -> Logits:
    """Compute calibrated logits; log-probabilities where there are more than two classes."""
    rows = contract.checked_logits(logits)
    if params.slope.shape[-1] == 1:
        contract.same_classes(2, rows)
        return binary(params.slope[0] * _difference(rows)[..., 0] + params.offset[0])
    contract.same_classes(params.slope.shape[-1], rows)
    scores = _log_odds(rows)
    slope, offset = (jnp.broadcast_to(each, scores.shape) for each in params[:2])
    return contract.as_log_probabilities(jax.nn.sigmoid(slope * scores + offset))


def _difference(rows: Logits) -> PerClass:
    if rows.shape[-1] < 2:
        raise ValueError("Platt scaling needs two classes or more; binary(score) makes two of one.")
    return rows[..., 1:2] - rows[..., 0:1]


def _log_odds(rows: Logits) -> PerClass:
    log_p, log_rest = log_probabilities(rows)
    return log_p - log_rest
