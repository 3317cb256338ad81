r"""Vector scaling: a slope and an intercept for every class, $z'_k = w_k z_k + b_k$."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import linear
from calib_jax.calibrators.parts.contract import State
from calib_jax.core.types import Array, Logits, Number


class VectorParams(NamedTuple):
    """A slope w and an intercept b for each class."""

    slope: Float[Array, " classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = VectorParams
_FORM = linear.Form(Params, jnp.asarray, 1)


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    slope_penalty: Number = 0.0,
    intercept_penalty: Number = 0.0,
    max_iterations: Number = 1000,
) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(w \circ z + b)$, by Newton from w = 1, b = 0.

    $$\mathrm{NLL} + \lambda \tfrac1K \sum_k (w_k - 1)^2 + \mu \tfrac1K \sum_k b_k^2$$

    Adding one number to all logits of all rows only changes the intercepts, but adding a number
    to a single row changes the fit. If the offset of each row is arbitrary, pass log-probabilities.

    The criterion is convex. Without penalties it has no finite optimum if some w and b classify
    all examples correctly or if a class never occurs; the state is then `no_optimum`.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      slope_penalty: $\lambda$, the strength of the penalty on slopes that differ from 1.
      intercept_penalty: $\mu$, the strength of the penalty on intercepts.
      max_iterations: the largest number of steps; if more are needed, the state is `stopped`.

    References:
      Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2.

    >>> import jax, numpy as np
    >>> logits = np.log(np.array([[0.5, 0.3, 0.2]])).repeat(4, axis=0)
    >>> params = fit(logits, [0, 1, 1, 2])
    >>> jax.nn.softmax(apply(params, logits[0])).round(3), params.state.name
    (Array([0.25, 0.5 , 0.25], dtype=float32), 'indistinct')
    """
    penalties = dict(slope_penalty=slope_penalty, intercept_penalty=intercept_penalty)
    return _FORM.fit((logits, labels, weights), penalties, max_iterations)


def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits w z + b."""
    return _FORM.apply(params, logits)


__all__ = ["Params", "apply", "fit"]
