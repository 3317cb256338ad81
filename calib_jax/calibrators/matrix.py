r"""Matrix scaling: an affine map of the logits, $z' = W z + b$.

It has $K^2 + K$ parameters: with many classes or few examples it overfits without penalties.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import linear
from calib_jax.calibrators.parts.contract import State
from calib_jax.core.types import Array, Logits, Number


class MatrixParams(NamedTuple):
    """A matrix W and an intercept b for each class."""

    matrix: Float[Array, "classes classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = MatrixParams
_FORM = linear.Form(Params, jnp.asarray, 2)


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    off_diagonal_penalty: Number = 0.0,
    intercept_penalty: Number = 0.0,
    max_iterations: Number = 1000,
) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(W z + b)$, by Newton steps from W = I, b = 0.

    $$\mathrm{NLL} + \lambda \tfrac{1}{K (K-1)} \sum_{i \ne j} W_{ij}^2
      + \mu \tfrac1K \sum_k b_k^2$$

    The criterion is convex. Without penalties it has no finite optimum if some W and b classify
    all examples correctly or if a class never occurs; the state is then `no_optimum`.

    Adding one vector to all rows of W changes no probability; the fit returns the equivalent W
    nearest to I (unless logits are in the tens of thousands). Adding one number to all logits of
    all examples changes no fitted probability. Adding a number to a single row of logits changes
    the result, unlike in `dirichlet`.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      off_diagonal_penalty: $\lambda$, the strength of the penalty on entries off the diagonal.
      intercept_penalty: $\mu$, the strength of the penalty on intercepts.
      max_iterations: the largest number of steps; if more are needed, the state is `stopped`.

    References:
      Guo et al. 2017, section 4.2; Kull et al. 2019, Beyond temperature scaling, section 4 (the
      penalties, ODIR).
    """
    penalties = dict(off_diagonal_penalty=off_diagonal_penalty, intercept_penalty=intercept_penalty)
    return _FORM.fit((logits, labels, weights), penalties, max_iterations)


def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits W z + b."""
    return _FORM.apply(params, logits)


__all__ = ["Params", "apply", "fit"]
