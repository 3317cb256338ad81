r"""Vector scaling: a slope and an intercept for every class, $z'_k = w_k z_k + b_k$."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators import contract, linear
from calib_jax.calibrators.contract import Examples, State
from calib_jax.core import checks
from calib_jax.core.types import Array, Logits, Number


class VectorParams(NamedTuple):
    """A slope w and an intercept b for each class."""

    slope: Float[Array, " classes"]
    intercept: Float[Array, " classes"]
    state: State


Params = VectorParams


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    slope: Number = 0.0,
    intercept: Number = 0.0,
    max_iterations: Number = 1000,
) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(w \circ z + b)$, by L-BFGS from w = 1, b = 0.

    $$\mathrm{NLL} + \lambda \tfrac1K \sum_k (w_k - 1)^2 + \mu \tfrac1K \sum_k b_k^2$$

    The intercepts take up a number that is added to all logits of all rows, but not one that is
    added to a row alone: where rows are defined only up to that, give log-probabilities.

    It is convex. Without penalties there is no finite optimum where all predictions can be made
    right or a class never occurs: the state is then `no_optimum`.

    Give logits or log-probabilities; probabilities are refused outside `jit`.

    Args:
      logits: `[*batch, classes]`, of examples that the model was not trained on.
      labels: the true classes.
      weights: weight 0 means absent, weight k means k copies.
      slope: $\lambda$, how strongly slopes are drawn to 1.
      intercept: $\mu$, how strongly intercepts are drawn to 0.
      max_iterations: after which the state is `stopped`.

    References:
      Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.5, 0.3, 0.2]]).repeat(4, axis=0))
    >>> params = fit(logits, jnp.array([0, 1, 1, 2]))
    >>> jax.nn.softmax(apply(params, logits[0])).round(3), params.state.name
    (Array([0.25, 0.5 , 0.25], dtype=float32), 'indistinct')
    """
    checks.at_least("slope", slope, 0)
    checks.at_least("intercept", intercept, 0)
    checks.at_least("max_iterations", max_iterations, 1)
    examples = contract.examples("vector", logits, labels, weights)
    return _fit(examples, slope, intercept, max_iterations)


@jax.jit
def _fit(examples: Examples, slope: Number, intercept: Number, max_iterations: Number) -> Params:
    rows = examples.rows()
    found = linear.fit(
        rows.logits,
        rows,
        diagonal=True,
        weight_penalty=slope,
        intercept_penalty=intercept,
        max_iterations=max_iterations,
    )
    params = Params(found.weights, found.intercept, contract.unknown_state(rows))
    return contract.finished(params, found.code, rows, _apply(params, rows.logits))


def apply(params: Any, logits: Any) -> Logits:
    """Compute the logits w z + b."""
    contract.check_params("vector", Params, params)
    return contract.on_rows("vector", _apply, params, logits, len(params.slope))


def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    possible = logits != -jnp.inf
    scores = linear.scores(params.slope, params.intercept, jnp.where(possible, logits, 0))
    return jnp.where(possible, scores, -jnp.inf)


__all__ = ["Params", "apply", "fit"]
