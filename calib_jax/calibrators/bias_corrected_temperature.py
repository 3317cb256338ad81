r"""Bias-corrected temperature scaling: one slope for all logits, an intercept for every class.

$z'_k = z_k / T + b_k$. With the intercepts the mean probability of every class on the fitted
examples is its frequency.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import linear
from calib_jax.calibrators.parts.contract import State
from calib_jax.core.types import Array, Logits, Number, Scalar


class BiasCorrectedTemperatureParams(NamedTuple):
    """The slope 1 / T and an intercept b for each class."""

    slope: Scalar
    intercept: Float[Array, " classes"]
    state: State


Params = BiasCorrectedTemperatureParams


def fit(logits: Any, labels: Any, weights: Any = None, *, max_iterations: Number = 100) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(z / T + b)$ by Newton's method.

    The NLL is convex in (1/T, b). It has no finite optimum if some 1/T and b classify all examples
    correctly, or if a class never occurs; the state is then `no_optimum`. Adding a constant to all
    logits of a row changes nothing.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      max_iterations: the largest number of steps; about ten are needed.

    References:
      Alexandari, Kundaje and Shrikumar 2020, Maximum Likelihood with Bias-Corrected Calibration is
      Hard-To-Beat at Label Shift Adaptation, section 3.

    >>> import jax, numpy as np
    >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
    >>> params = fit(logits, [0, 0, 1, 1, 1, 0])
    >>> jax.nn.softmax(apply(params, logits[0])).round(3), params.state.name
    (Array([0.667, 0.333], dtype=float32), 'converged')
    """
    return _FORM.fit((logits, labels, weights), {}, max_iterations)


def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits z / T + b, from rows of logits minus the largest logit of each row.

    Large offsets of rows thus cost no precision. The result has lost the offsets, so no energy
    score can be computed from it (`metrics.ood_auroc`).
    """
    return _FORM.apply(params, logits)


def _below_top(logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    """Subtract the largest logit of each row: rounding of a product depends on the size."""
    return logits - jnp.max(logits, axis=1, keepdims=True)


_FORM = linear.Form(Params, _below_top, 0)

__all__ = ["Params", "apply", "fit"]
