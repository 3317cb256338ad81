r"""Minimising smooth convex functions of a few parameters: L-BFGS with a line search.

No library of solvers is needed: optax has both. Where a loss has no minimum but falls for ever
(separable classes), the parameters are held to a ball, and the fit says that it did not converge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool

from calib_jax.core.types import Array, PyTree, Scalar

# Parameters multiply standardised columns, so a step of this size saturates any sigmoid.
RADIUS = 1e4


def minimise(
    loss: Callable[[PyTree], Scalar], start: PyTree, *, max_iterations: int = 500
) -> tuple[PyTree, Bool[Array, ""]]:
    """Minimise from a start; say whether the gradient vanishes where it ends.

    Args:
      loss: smooth and convex.
      start: parameters to begin with; what is not finite at the end becomes them again.
      max_iterations: steps at most.
    """
    # With the wide default of the line search a float32 loss stalls earlier than it must.
    solver = optax.lbfgs(memory_size=20)
    value_and_gradient = optax.value_and_grad_from_state(loss)
    dtype = jnp.result_type(*jax.tree.leaves(start))
    tolerance = float(jnp.finfo(dtype).eps) ** 0.65

    def largest(tree: PyTree) -> Scalar:
        return jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)]))

    def going(carry: Any) -> Array:
        params, _, gradient, iteration = carry
        unsettled = (largest(gradient) > tolerance) & (largest(params) < RADIUS)
        return (iteration < max_iterations) & (unsettled | (iteration == 0))

    def step(carry: Any) -> Any:
        params, state, _, iteration = carry
        value, gradient = value_and_gradient(params, state=state)
        updates, state = solver.update(
            gradient, state, params, value=value, grad=gradient, value_fn=loss
        )
        params = optax.apply_updates(params, updates)
        return params, state, jax.grad(loss)(params), iteration + 1

    zeros = jax.tree.map(jnp.zeros_like, start)
    carry = (start, solver.init(start), zeros, jnp.zeros((), jnp.int32))
    params, _, gradient, _ = jax.lax.while_loop(going, step, carry)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
    params = jax.tree.map(lambda end, begin: jnp.where(finite, end, begin), params, start)
    settled = largest(gradient) <= 30 * tolerance
    # Where the loss all but vanishes, so does its gradient, far from any minimum.
    return params, finite & settled & (loss(params) > tolerance)
