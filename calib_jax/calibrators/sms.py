r"""Structured matrix scaling (SMS): temperature scaling, then a matrix near I, intercepts near 0.

$z' = W x + b$ with $x = \log ((1 - u)\, \mathrm{softmax}(z / T) + u / K)$. The penalties shrink
with the number of examples and are strongest off the diagonal, so many classes do not overfit.
"""

from typing import Any, NamedTuple

from jaxtyping import Float

from calib_jax.calibrators import svs
from calib_jax.calibrators.parts.contract import State
from calib_jax.core.types import Array, Logits, Number, Scalar


class SmsParams(NamedTuple):
    """A temperature T, the uniform part u, a matrix W, and an intercept b for each class."""

    temperature: Scalar
    uniform: Scalar
    matrix: Float[Array, "classes classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = SmsParams
_FORM = svs.form_of(Params, 2)


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    diagonal_penalty: Number = 1.0,
    off_diagonal_penalty: Number = 1.0,
    intercept_penalty: Number = 1.0,
    max_iterations: Number = 100,
) -> Params:
    r"""Fit T by the NLL, then minimise the penalised NLL of $\mathrm{softmax}(W x + b)$.

    $$\mathrm{NLL} + \tfrac{K}{n} \big(\lambda \sum_k (W_{kk} - 1)^2 + \mu \sum_k b_k^2\big)
      + \tfrac{K (K - 1)}{n} \nu \sum_{i \ne j} W_{ij}^2$$

    for K classes and examples of total weight n. The features x are
    $\log ((1 - u)\, \mathrm{softmax}(z / T) + u / K)$ with u = 1 / (n + 1). The criterion is
    strongly convex. The NLL is at most the NLL of temperature scaling plus about 1 / n, the price
    of the mixture.

    The state is the state of the temperature fit unless that fit converged: without an optimal T
    it is `no_optimum`, although the best W and b for the T found exist.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      diagonal_penalty: $\lambda$, above 0.
      off_diagonal_penalty: $\nu$, above 0.
      intercept_penalty: $\mu$, above 0.
      max_iterations: the largest number of steps; if more are needed, the state is `stopped`.

    References:
      Berta, Holzmüller, Jordan and Bach 2025, Structured matrix scaling for multi-class
      calibration.
    """
    penalties = dict(
        diagonal_penalty=diagonal_penalty,
        off_diagonal_penalty=off_diagonal_penalty,
        intercept_penalty=intercept_penalty,
    )
    return _FORM.fit((logits, labels, weights), penalties, max_iterations)


def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits W x + b."""
    return _FORM.apply(params, logits)


__all__ = ["Params", "apply", "fit"]
