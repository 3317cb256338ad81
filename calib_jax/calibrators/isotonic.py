r"""Isotonic regression: the non-decreasing curve nearest to the hits, one class against the rest.

$$\min_{f \text{ non-decreasing}} \sum_i w_i \bigl(f(p_i) - [y_i = k]\bigr)^2$$

Between the probabilities it was fitted on the curve is a straight line, beyond them constant.

References:
  Zadrozny and Elkan, Transforming classifier scores into accurate multiclass probability
  estimates, KDD 2002.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.calibrators import contract
from calib_jax.core.types import Array, Logits, PerClass, Vector

__all__ = ["Params", "apply", "fit"]


class Params(NamedTuple):
    """A curve for every class, through as many points as there were examples.

    Attributes:
      p: `[classes, rows]`, ascending; points of absent examples repeat others.
      frequency: `[classes, rows]`, never falling.
      converged: whether every class occurs, and so has a curve above 0.
    """

    p: Float[Array, "classes rows"]
    frequency: Float[Array, "classes rows"]
    converged: Bool[Array, ""]


def fit(logits: Any, labels: Any, weights: Any = None) -> Params:
    """Fit the curves by pooling adjacent violators; equal probabilities are pooled first.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
    """
    data = contract.data_of("isotonic", logits, labels, weights)
    p, occurs = jax.nn.softmax(data.logits), contract.one_versus_rest(data)

    def one(columns: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        p, target = columns
        # Absent examples last, as copies of the last one present.
        order = jnp.argsort(jnp.where(data.weights > 0, p, jnp.inf))
        p, target, weight = p[order], target[order], data.weights[order]
        p = jnp.where(weight > 0, p, jnp.max(jnp.where(weight > 0, p, -jnp.inf)))
        return p, pooled(p, target, weight)

    p, frequency = jax.vmap(one)((p.T, occurs.T))
    occurring = jnp.sum(data.weights[:, None] * occurs, axis=0) > 0
    return Params(p, frequency, jnp.all(occurring))


def apply(params: Params, logits: Any) -> Logits:
    """Read every probability's frequency off its class's curve; log-probabilities."""
    return contract.as_log_probabilities(frequencies(params, logits))


def frequencies(params: Params, logits: Any) -> PerClass:
    """Read frequencies off the curves, before renormalising."""
    rows = contract.checked_logits(logits)
    contract.same_classes(params.p.shape[-2], rows)
    p = jax.nn.softmax(rows).reshape(-1, rows.shape[-1])
    found = jax.vmap(jnp.interp, in_axes=(1, 0, 0), out_axes=1)(p, params.p, params.frequency)
    return found.reshape(rows.shape)


def pooled(p: Vector, target: Vector, weight: Vector) -> Vector:
    """Compute the curve at every row, of rows sorted by p.

    Neighbouring blocks whose means do not rise have one value in the solution, and so has a run
    of such blocks. Pooling all runs at once, again and again until every mean rises, takes a few
    passes over the rows, where a loop from row to row takes as many steps as there are rows.
    """
    num_rows = p.shape[0]
    row = jnp.arange(num_rows)

    def sums_of(block: Array) -> tuple[Vector, Vector]:
        return (
            jax.ops.segment_sum(weight, block, num_rows, indices_are_sorted=True),
            jax.ops.segment_sum(weight * target, block, num_rows, indices_are_sorted=True),
        )

    def falls(block: Array) -> Bool[Array, " rows"]:
        """Mark the blocks whose mean is not above that of the block before."""
        weights, sums = sums_of(block)
        # sum / weight, without a division by the weight 0 of absent rows
        fall = sums[:-1] * weights[1:] >= sums[1:] * weights[:-1]
        return jnp.append(False, fall) & (row <= block[-1])

    def pool(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        block, fall = carry
        block = jnp.cumsum(~fall)[block] - 1
        return block, falls(block)

    rises = jnp.append(False, p[1:] != p[:-1])  # equal probabilities are one block from the start
    block = jnp.cumsum(rises.astype(jnp.int32))
    block, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), pool, (block, falls(block)))
    weights, sums = sums_of(block)
    return jnp.where(weights > 0, sums / jnp.where(weights > 0, weights, 1), 0)[block]
