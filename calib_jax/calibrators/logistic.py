r"""Logistic regression on few columns: the sigmoids of Platt scaling and of beta calibration."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from calib_jax.calibrators import convex
from calib_jax.core.types import Array, Scalar, Vector


def fit(
    columns: Float[Array, "rows columns"],
    target: Vector,
    weights: Vector,
    used: Bool[Array, " columns"] | None = None,
) -> tuple[Float[Array, " columns_and_one"], Bool[Array, ""]]:
    r"""Minimise $-\sum_i w_i [t_i \log\sigma(u_i) + (1 - t_i) \log\sigma(-u_i)]$, u = x c + b.

    Args:
      columns: x; columns that are constant get the factor 0 where all else is.
      target: t, in [0, 1].
      weights: w, with sum 1.
      used: columns that may have a factor other than 0; all by default.

    Returns:
      The factors c and then the offset b; whether there is a minimum and it was found.
    """
    mean = jnp.sum(weights[:, None] * columns, axis=0)
    centred = columns - mean[None]
    spread = jnp.sqrt(jnp.sum(weights[:, None] * jnp.square(centred), axis=0))
    varies = spread > 1e-6 * (1 + jnp.abs(mean))
    may = varies if used is None else varies & used
    scaled = jnp.where(may[None], centred / jnp.where(varies, spread, 1)[None], 0)

    def loss(params: Array) -> Scalar:
        u = jnp.sum(scaled * params[None, :-1], axis=1) + params[-1]
        # softplus(u) - t u, for targets between 0 and 1 as well
        return jnp.sum(weights * (jax.nn.softplus(u) - target * u))

    start = jnp.zeros((columns.shape[1] + 1,), columns.dtype)
    params, converged = convex.minimise(loss, start)
    factors = jnp.where(may, params[:-1] / jnp.where(varies, spread, 1), 0)
    return jnp.append(factors, params[-1] - jnp.sum(factors * mean)), converged
