r"""Bias-corrected temperature scaling: one slope for all logits, an intercept for every class.

$z'_k = z_k / T + b_k$. With the intercepts the mean probability of every class on the fitted
examples is its frequency.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import contract, event, fitting, linear
from calib_jax.calibrators.parts.contract import Code, FitData, State, losses_of
from calib_jax.core import checks, numerics
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Logits, Number, Scalar

_LARGEST_START = 100  # the largest standard deviation of a score at the start


class BiasCorrectedTemperatureParams(NamedTuple):
    """The slope 1 / T and an intercept b for each class."""

    slope: Scalar
    intercept: Float[Array, " classes"]
    state: State


Params = BiasCorrectedTemperatureParams


@event.refuses
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

    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])
    >>> params = fit(logits, jnp.array([0, 0, 1, 1, 1, 1]).at[5].set(0))
    >>> jax.nn.softmax(apply(params, logits[::3])).round(3), params.state.name
    (Array([[0.667, 0.333],
           [0.333, 0.667]], dtype=float32), 'converged')
    """
    checks.at_least("max_iterations", max_iterations, 1)
    examples = contract.examples("bias_corrected_temperature", logits, labels, weights)
    return _fit(examples, max_iterations)


@jax.jit
def _fit(examples: FitData, max_iterations: Number) -> Params:
    rows = examples.rows()
    share, num_classes = rows.decisive, rows.logits.shape[1]
    possible = rows.logits != -jnp.inf
    below = rows.logits - jnp.max(rows.logits, axis=1, keepdims=True)
    x = jnp.where(possible & (share > 0)[:, None], below, 0)
    # The squares of raw logits could overflow, so divide by a power of two first.
    unit = numerics.power_of_two(jnp.max(jnp.abs(x)))
    x = x / unit
    each = contract.shares(jnp.where(possible, share[:, None], 0).T).T
    mean = jnp.sum(each * x, axis=0)
    square = jnp.sum(each * jnp.square(x - mean[None]), axis=0)
    deviation = jnp.sqrt(jnp.mean(square))
    # If all rows are alike, intercepts alone fit the base rates.
    blank = deviation <= 8 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(mean))
    deviation = jnp.where(blank, 1 / unit, deviation)
    x = jnp.where(possible, (x - mean[None]) / deviation, 0)
    true = linear.is_true(rows).astype(x.dtype)

    def scores(point: Float[Array, " d"]) -> Logits:
        return jnp.where(possible, point[0] * x + point[1:][None], -jnp.inf)

    def local(point: Float[Array, " d"]) -> fitting.Local:
        z = scores(point)
        p = jnp.where(share[:, None] > 0, jax.nn.softmax(z), 0)
        residual = share[:, None] * (p - true)
        gradient = jnp.append(jnp.sum(residual * x), jnp.sum(residual, axis=0))
        # The Hessian by z is diag(p) - p p', applied to the changes of the scores.
        average = jnp.sum(p * x, axis=1)
        weighted = share[:, None] * p
        by_slope = jnp.sum(weighted * jnp.square(x - average[:, None]))
        by_both = jnp.sum(weighted * (x - average[:, None]), axis=0)
        by_intercept = jnp.diag(jnp.sum(weighted, axis=0))
        by_intercept -= jnp.matmul(weighted.T, p, precision=fitting.EXACT)
        # An equal change of all intercepts changes nothing: added curvature keeps steps out of it.
        by_intercept += jnp.trace(by_intercept) / num_classes**2
        hessian = jnp.block([[by_slope, by_both[None]], [by_both[:, None], by_intercept]])
        value = jnp.sum(weigh(losses_of(z, rows), share))
        return fitting.Local(value, gradient, hessian)

    identity = jnp.append(unit * deviation, unit * mean)
    # From a start with far larger scores, steps would not progress.
    start = jnp.minimum(1, _LARGEST_START / (unit * deviation)) * identity
    seen = jnp.any(each > 0, axis=0)  # the classes that are possible in some row
    free = jnp.append(~blank, seen)
    point, value, settled = fitting.newton(local, start, free, max_iterations=max_iterations)
    point = jnp.where(value <= local(identity).value, point, identity)

    code = jnp.where(settled, Code.CONVERGED, Code.STOPPED)
    occurs = jnp.any((rows.weight > 0)[:, None] & linear.is_true(rows), axis=0)
    absent = jnp.any(~occurs & seen)
    code = jnp.where(blank & ~absent, Code.INDISTINCT, code)
    code = jnp.where(absent | linear.all_right(scores(point), rows), Code.NO_OPTIMUM, code)
    slope = point[0] / deviation
    params = Params(slope / unit, point[1:] - slope * mean, contract.placeholder(rows.logits.dtype))
    return contract.finished(params, code, rows, _apply(params, rows.logits))


@contract.takes(Params)
def apply(params: Params, logits: Any) -> Logits:
    """Compute the logits z / T + b, from rows of logits minus the largest logit of each row.

    Large offsets of rows thus cost no precision. The result contains no offsets, so it has no
    energy (`metrics.ood_auroc`).
    """
    num_classes = len(params.intercept)
    return contract.on_rows("bias_corrected_temperature", _apply, params, logits, num_classes)


def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    possible = logits != -jnp.inf
    # Subtract first: the rounding of a product depends on the size of the logits.
    below = jnp.where(possible, logits - jnp.max(logits, axis=1, keepdims=True), 0)
    return jnp.where(possible, params.slope * below + params.intercept[None], -jnp.inf)


__all__ = ["Params", "apply", "fit"]
