r"""Platt scaling: a logistic curve over the log-odds.

With two classes, $p_1 = \sigma(a (z_1 - z_0) + b)$. With more, each class k is fitted against the
rest over $\log p_k - \log(1 - p_k)$, and the K probabilities are divided by their sum.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import contract, fitting, one_versus_rest
from calib_jax.calibrators.parts.contract import Code, FitData, State
from calib_jax.core.types import Array, Vector


class PlattParams(NamedTuple):
    """A slope a and an intercept b for each question; two classes have one question."""

    slope: Float[Array, " questions"]
    intercept: Float[Array, " questions"]
    state: State


Params = PlattParams


def fit(logits: Any, labels: Any = None, weights: Any = None, *, smoothed: bool = False) -> Any:
    r"""Fit slopes and intercepts by Newton steps on the binary NLL.

    If a threshold separates the positives of a class from its negatives, or the class has no
    positives or no negatives, no finite optimum exists: the state is `no_optimum` and the curve
    is steep. With `smoothed` an optimum always exists.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`, a `metrics.Stated` or a `Scored`.
      labels: the true classes; a `Stated` or `Scored` holds its own.
      weights: weight 0 drops an example, weight k counts it k times.
      smoothed: whether to use Platt's targets, $(N_+ + 1) / (N_+ + 2)$ and $1 / (N_- + 2)$,
        instead of 1 and 0.

    References:
      Platt 1999, Probabilistic Outputs for Support Vector Machines.

    >>> logits = [[0.0, 2.0]] * 6 + [[0.0, -2.0]] * 3
    >>> params = fit(logits, [1, 1, 1, 1, 0, 0, 0, 0, 1])
    >>> params.slope.round(4), params.intercept.round(4) + 0, params.state.name
    (Array([0.3466], dtype=float32), Array([0.], dtype=float32), 'converged')
    """
    examples, marked = contract.given("platt", logits, labels, weights)
    return marked(_fit(examples, bool(smoothed)))


@functools.partial(jax.jit, static_argnames="smoothed")
def _fit(examples: FitData, smoothed: bool) -> Params:
    rows = examples.rows()

    def fit_question(score: Vector, target: Vector, weight: Vector) -> tuple[Array, Array, Array]:
        aim, share = target, contract.shares(weight)
        if smoothed:
            yes = jnp.sum(weight * target)
            no = jnp.sum(weight) - yes
            aim = jnp.where(target == 1, (yes + 1) / (yes + 2), 1 / (no + 2))
        slopes, intercept, _, settled = fitting.logistic(score[None], aim, share, jnp.array([True]))
        code = one_versus_rest.code(score, target, share, settled, rising=False)
        if smoothed:  # an optimum always exists
            ended = jnp.where(settled, Code.CONVERGED, Code.STOPPED)
            code = jnp.where(code == Code.INDISTINCT, code, ended)
        return slopes[0], intercept, code

    target = one_versus_rest.targets(rows)
    score = one_versus_rest.log_odds(rows.logits).T
    slope, intercept, codes = one_versus_rest.each(
        fit_question, score, target, one_versus_rest.weights_of(rows)
    )
    params = Params(slope, intercept, contract.PENDING)
    return contract.finished(params, jnp.max(codes), rows, _apply(params, rows.logits))


def apply(params: Any, logits: Any) -> Any:
    """Compute the calibrated log-probabilities, or the calibrated confidences of an event."""
    return contract.applied(Params, _apply, params, logits)


@jax.jit
def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    odds = one_versus_rest.log_odds(logits)
    return one_versus_rest.joined(params.slope[None] * odds + params.intercept[None], logits)


__all__ = ["Params", "apply", "fit"]
