r"""Beta calibration: a family of curves with logistic, inverse logistic and identity maps.

$p' = \sigma(a \log p - b \log(1 - p) + c)$ with $a, b \ge 0$, so the curve never falls. a = b = 1,
c = 0 is the identity. With more than two classes, each class is fitted against the rest and the
results are divided by their sum.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import contract, fitting, one_versus_rest
from calib_jax.calibrators.parts.contract import FitData, State
from calib_jax.core.types import Array, Vector


class BetaParams(NamedTuple):
    """The a, b and c of each binary question; two classes have one question, about class 1."""

    a: Float[Array, " questions"]
    b: Float[Array, " questions"]
    c: Float[Array, " questions"]
    state: State


Params = BetaParams


def fit(logits: Any, labels: Any = None, weights: Any = None) -> Any:
    """Fit a, b and c by Newton steps on the binary NLL.

    Each of a and b is either positive or 0 at the optimum. All four cases are fitted, and the best
    fit without a negative slope is the exact optimum.

    If a threshold separates the positives of a class from its negatives, or the class has no
    positives or no negatives, no finite optimum exists: the state is `no_optimum` and the curve
    is steep.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`, or a `metrics.Stated`.
      labels: the true classes; a `Stated` holds its own.
      weights: weight 0 drops an example, weight k counts it k times.

    References:
      Kull, Silva Filho and Flach 2017, Beta calibration.

    >>> import numpy as np
    >>> p = np.array([0.2, 0.2, 0.2, 0.5, 0.5, 0.9, 0.9, 0.9, 0.9])
    >>> logits = np.log(np.stack([1 - p, p], axis=1))
    >>> params = fit(logits, [0, 1, 0, 1, 0, 1, 1, 0, 1])
    >>> np.exp(apply(params, logits))[[0, 3, 5], 1].round(3)
    array([0.333, 0.5  , 0.75 ], dtype=float32)
    """
    examples, marked = contract.given("beta", logits, labels, weights)
    return marked(_fit(examples))


@jax.jit
def _fit(examples: FitData) -> Params:
    rows = examples.rows()

    def fit_question(
        log_yes: Vector, log_no: Vector, target: Vector, weight: Vector
    ) -> tuple[Array, Array, Array]:
        columns, share = jnp.stack([log_yes, -log_no]), contract.shares(weight)

        faces = jnp.array([[True, True], [True, False], [False, True], [False, False]])
        face = functools.partial(fitting.logistic, columns, target, share)
        slopes, intercept, nll, settled = jax.vmap(face)(faces)
        best = jnp.argmin(jnp.where(jnp.all(slopes >= 0, axis=1), nll, jnp.inf))
        score = log_yes - log_no
        code = one_versus_rest.code(score, target, share, settled[best], rising=True)
        return slopes[best], intercept[best], code

    log_yes, log_no = one_versus_rest.log_yes_and_no(rows.logits)
    target = one_versus_rest.targets(rows)
    slopes, c, codes = one_versus_rest.each(
        fit_question, log_yes.T, log_no.T, target, one_versus_rest.weights_of(rows)
    )
    params = Params(slopes[:, 0], slopes[:, 1], c, contract.PENDING)
    return contract.finished(params, jnp.max(codes), rows, _apply(params, rows.logits))


def apply(params: Any, logits: Any) -> Any:
    """Compute the calibrated log-probabilities, or the calibrated confidences of an event."""
    return contract.applied(Params, _apply, params, logits)


@jax.jit
def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    log_yes, log_no = one_versus_rest.log_yes_and_no(logits)
    odds = params.a[None] * log_yes - params.b[None] * log_no + params.c[None]
    return one_versus_rest.joined(odds, logits)


__all__ = ["Params", "apply", "fit"]
