r"""Structured vector scaling (SVS): temperature scaling, then slopes near 1, intercepts near 0.

$z'_k = w_k x_k + b_k$ with $x = \log ((1 - u)\, \mathrm{softmax}(z / T) + u / K)$. The penalties
shrink with the number of examples, so the fit lies between temperature scaling and vector scaling.
"""

from typing import Any, NamedTuple

from jaxtyping import Float

from calib_jax.calibrators.parts import contract, event, structured
from calib_jax.calibrators.parts.contract import State
from calib_jax.core import checks
from calib_jax.core.types import Array, Logits, Number, Scalar


class SvsParams(NamedTuple):
    """A temperature T, the uniform part u, and a slope w and an intercept b for each class."""

    temperature: Scalar
    uniform: Scalar
    slope: Float[Array, " classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = SvsParams


@event.refuses
def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    slope_penalty: Number = 1.0,
    intercept_penalty: Number = 1.0,
    max_iterations: Number = 100,
) -> Params:
    r"""Fit T by the NLL, then minimise the penalised NLL of $\mathrm{softmax}(w \circ x + b)$.

    $$\mathrm{NLL} + \tfrac{K}{n} \big(\lambda \sum_k (w_k - 1)^2 + \mu \sum_k b_k^2\big)$$

    for K classes and examples of total weight n, with u = 1 / (n + 1). The criterion is strongly
    convex. The NLL is at most the NLL of temperature scaling plus about 1 / n, the price of
    the mixture.

    The state is the state of the temperature fit unless that fit converged: without an optimal T
    it is `no_optimum`, although the best w and b for the T found exist.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      slope_penalty: $\lambda$, above 0.
      intercept_penalty: $\mu$, above 0.
      max_iterations: the largest number of steps; if more are needed, the state is `stopped`.

    References:
      Berta, Holzmüller, Jordan and Bach 2025, Structured matrix scaling for multi-class
      calibration.

    >>> import jax, jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.5, 0.3, 0.2]]).repeat(1000, axis=0))
    >>> params = fit(logits, jnp.arange(1000) % 3)
    >>> jax.nn.softmax(apply(params, logits[0])).round(2)
    Array([0.33, 0.33, 0.33], dtype=float32)
    """
    checks.above("slope_penalty", slope_penalty, 0)
    checks.above("intercept_penalty", intercept_penalty, 0)
    checks.at_least("max_iterations", max_iterations, 1)
    examples = contract.examples("svs", logits, labels, weights)
    penalties = structured.Penalties(slope_penalty, 0.0, intercept_penalty)
    return structured.fit(Params, examples, penalties, max_iterations, diagonal=True)


@contract.takes(Params)
def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits w x + b."""
    return contract.on_rows("svs", structured.calibrated, params, logits, len(params.slope))


__all__ = ["Params", "apply", "fit"]
