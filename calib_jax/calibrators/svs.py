r"""Structured vector scaling (SVS): temperature scaling, then slopes near 1, intercepts near 0.

$z'_k = w_k x_k + b_k$ with $x = \log ((1 - u)\, \mathrm{softmax}(z / T) + u / K)$. The penalties
shrink with the number of examples, so the fit lies between temperature scaling and vector scaling.
u = 1 / (n + 1) for n examples. SMS shares the features and the fit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators import temperature
from calib_jax.calibrators.parts import linear
from calib_jax.calibrators.parts.contract import FitRows, State
from calib_jax.calibrators.temperature import scaled
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

    for K classes and examples of total weight n. The features x are
    $\log ((1 - u)\, \mathrm{softmax}(z / T) + u / K)$ with u = 1 / (n + 1). The criterion is
    strongly convex. The NLL is at most the NLL of temperature scaling plus about 1 / n, the price
    of the mixture.

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

    >>> import jax, numpy as np
    >>> logits = np.log(np.array([[0.5, 0.3, 0.2]])).repeat(1000, axis=0)
    >>> params = fit(logits, np.arange(1000) % 3)
    >>> jax.nn.softmax(apply(params, logits[0])).round(2)
    Array([0.33, 0.33, 0.33], dtype=float32)
    """
    penalties = dict(slope_penalty=slope_penalty, intercept_penalty=intercept_penalty)
    return _FORM.fit((logits, labels, weights), penalties, max_iterations)


def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits w x + b."""
    return _FORM.apply(params, logits)


def features(logits: Logits, temperature: Number, uniform: Number) -> Logits:
    """Compute the logarithm of the mixture of softmax(z / T) and the uniform distribution.

    The mixture keeps features finite. Impossible classes stay impossible, outside the mixture.

    Args:
      logits: `[*batch, classes]`.
      temperature: T.
      uniform: the weight of the uniform distribution.
    """
    possible = logits != -jnp.inf
    # Subtract first: the rounding of a quotient depends on the size of the logits.
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    x = jax.nn.log_softmax(scaled(below, temperature)) + jnp.log1p(-uniform)
    even = jnp.log(uniform / jnp.sum(possible, axis=-1, keepdims=True, dtype=x.dtype))
    return jnp.where(possible, jnp.logaddexp(x, even), -jnp.inf)


def tempered(rows: FitRows) -> tuple[tuple[Scalar, Scalar], Array]:
    """Fit the temperature, and compute the weight of the uniform distribution."""
    fitted = temperature.fit_rows(rows)
    return (fitted.temperature, 1 / (_total(rows) + 1)), fitted.state.code


def ridges(
    penalties: tuple[Number, ...], rows: FitRows, num_classes: int, ndim: int
) -> tuple[Number | Array, Number]:
    """Multiply the penalties by K / n, of entries off the diagonal by K (K - 1) / n.

    Args:
      penalties: the factors of the squares of diagonal entries, of entries off the diagonal if W is
        a matrix, and of intercepts.
      rows: the prepared examples, of total weight n.
      num_classes: K.
      ndim: 2 if W is a matrix, 1 if it is diagonal.
    """
    total = _total(rows)
    per_parameter = num_classes / jnp.where(total > 0, total, 1)
    ridge = penalties[0] * per_parameter
    if ndim == 2:
        others = penalties[1] * per_parameter * (num_classes - 1)
        ridge = jnp.where(jnp.eye(num_classes, dtype=bool), ridge, others)
    return ridge, penalties[-1] * per_parameter


def _total(rows: FitRows) -> Scalar:
    return jnp.sum(jnp.where(rows.decisive > 0, rows.weight, 0))


def form_of(kind: Callable[..., Any], ndim: int) -> linear.Form:
    """Return the form of a structured calibrator, whose W is a diagonal (1) or a matrix (2)."""
    return linear.Form(kind, features, ndim, tempered, ridges, checks.above)


_FORM = form_of(Params, 1)

__all__ = ["Params", "apply", "fit"]
