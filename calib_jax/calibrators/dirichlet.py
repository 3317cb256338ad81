r"""Dirichlet calibration: a linear map of the log-probabilities, $z' = W \log p + b$.

The map follows from a Dirichlet distribution of p for every class, and is the K-class
generalisation of beta calibration. It has $K^2 + K$ parameters: use the penalties with many
classes or few examples.
"""

from typing import Any, NamedTuple

import jax
from jaxtyping import Float

from calib_jax.calibrators.parts import linear
from calib_jax.calibrators.parts.contract import State
from calib_jax.core.types import Array, Logits, Number


class DirichletParams(NamedTuple):
    """A matrix W and an intercept b for each class."""

    matrix: Float[Array, "classes classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = DirichletParams
_FORM = linear.Form(Params, jax.nn.log_softmax, 2)


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    off_diagonal_penalty: Number = 0.0,
    intercept_penalty: Number = 0.0,
    max_iterations: Number = 1000,
) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(W \log p + b)$, by Newton from W = I, b = 0.

    This is matrix scaling of $\log p = \mathrm{logsoftmax}(z)$, with the same penalties. Unlike
    matrix scaling of logits, it is invariant to a shift of a row of logits.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      off_diagonal_penalty: $\lambda$ of the off-diagonal and intercept regularisation (ODIR).
      intercept_penalty: $\mu$ of the same regularisation.
      max_iterations: the largest number of steps; if more are needed, the state is `stopped`.

    References:
      Kull et al. 2019, Beyond temperature scaling: obtaining well-calibrated multiclass
      probabilities with Dirichlet calibration.
    """
    penalties = dict(off_diagonal_penalty=off_diagonal_penalty, intercept_penalty=intercept_penalty)
    return _FORM.fit((logits, labels, weights), penalties, max_iterations)


def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits W log p + b."""
    return _FORM.apply(params, logits)


__all__ = ["Params", "apply", "fit"]
