r"""Temperature scaling: divide all logits by one number T.

Accuracy does not change, entropy rises with T, and every class tends to 1/K as T tends to
infinity. At the optimum of the NLL, the mean logit of the true class equals the mean of the logits
under the calibrated probabilities.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from calib_jax.calibrators.parts import contract, event
from calib_jax.calibrators.parts.contract import Code, FitData, FitRows, State
from calib_jax.core import temperature
from calib_jax.core.inputs import checks
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Labels, Logits, Number, Scalar, Vector, Weights

# The criterion of a grid search: a function of (logits / T, labels, weights) to a scalar.
Criterion: TypeAlias = Callable[[Logits, Labels, Weights | None], Any]


class TemperatureParams(NamedTuple):
    """A fitted temperature."""

    temperature: Scalar
    state: State


Params = TemperatureParams


@event.refuses
def fit(logits: Any, labels: Any, weights: Any = None, *, max_iterations: Number = 100) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(z / T)$ over the temperature.

    The NLL is convex in 1/T. Safeguarded Newton steps find the single optimum, and the fitted NLL
    is at most the NLL of the uncalibrated logits. If every prediction is right (T tends to 0) or
    predictions are no better than chance (T tends to infinity), no finite optimum exists: the
    state is then `no_optimum` and T is the best value found.

    Pass logits or log-probabilities; outside `jit`, probabilities raise an error.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      max_iterations: the largest number of steps; about ten are needed. If the
        number does not suffice, the state is `stopped`.

    References:
      Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2.

    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> params = fit(logits, jnp.array([0, 0, 1, 1]))
    >>> params.temperature.round(4), params.state.name
    (Array(1.8205, dtype=float32), 'converged')
    >>> jax.nn.softmax(apply(params, logits[0])).round(4)
    Array([0.75, 0.25], dtype=float32)
    """
    checks.at_least("max_iterations", max_iterations, 1)
    return _fit(contract.examples("temperature", logits, labels, weights), max_iterations)


@jax.jit
def _fit(examples: FitData, max_iterations: Number) -> Params:
    return fit_rows(examples.rows(), max_iterations)


def fit_rows(rows: FitRows, max_iterations: Number = 100) -> Params:
    """Fit the temperature to prepared rows, inside a compiled function."""
    fitted = temperature.fit_nll(
        rows.logits, rows.labels, rows.weight, max_iterations=max_iterations
    )
    return _ended(fitted, rows.usable)


def _ended(fitted: temperature.TemperatureFit, usable: Bool[Array, ""] | bool) -> Params:
    params = Params(fitted.temperature, contract.placeholder(fitted.temperature.dtype))
    limited = jnp.where(fitted.has_optimum, Code.STOPPED, Code.NO_OPTIMUM)
    unsettled = jnp.where(fitted.indistinct, Code.INDISTINCT, limited)
    code = jnp.where(fitted.converged, Code.CONVERGED, unsettled)
    return contract.ended(params, code, usable, fitted.nll_before, fitted.nll_after)


@event.refuses
def fit_grid(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    start: float = 0.1,
    stop: float = 10.0,
    step: float = 0.1,
    criterion: Criterion | None = None,
) -> Params:
    """Fit the temperature by a grid search in one compiled pass; ties go to the first minimum.

    The papers choose T in this way by the ECE on the validation set. Repeated addition builds the
    grid, as in their code, so the temperatures agree to the last bit. The state is `stopped` if
    the minimum lies at an end of the grid. The state is `no_optimum`, with T = 1, if the criterion
    has no finite value.

    Args:
      logits: `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 drops an example, weight k counts it k times.
      start: the first temperature.
      stop: the last temperature, to within half a step.
      step: the increment.
      criterion: the function `(logits, labels, weights) -> scalar` to minimise, such as
        `metrics.ece`; the mean NLL by default. Each new function triggers one compilation.

    References:
      Mukhoti et al. 2020, section 5 (0.1 to 10 by 0.1); Ghosh et al. 2022 (by 0.01).

    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> fit_grid(logits, jnp.array([0, 0, 1, 1])).temperature
    Array(1.8, dtype=float32)
    """
    if not (criterion is None or callable(criterion)):
        raise TypeError(
            "criterion must be a function of (logits, labels, weights), such as metrics.ece, got"
            f" {criterion!r}."
        )
    checks.above("step", step, 0)
    checks.above("start", start, 0)
    checks.at_least("stop", stop, start, ", as is start")
    count = round((stop - start) / step) + 1
    grid = jnp.asarray(temperature.accumulated_grid(step, count, start=start))
    return _fit_grid(contract.examples("temperature", logits, labels, weights), grid, criterion)


@functools.partial(jax.jit, static_argnames="criterion")
def _fit_grid(examples: FitData, grid: Vector, criterion: Criterion | None) -> Params:
    rows = examples.rows()

    def value_of(logits: Logits, labels: Labels, weights: Weights | None) -> Scalar:
        if criterion is None:
            return jnp.sum(weigh(contract.losses_of(logits, rows), rows.decisive))
        value = jnp.asarray(criterion(logits, labels, weights), rows.logits.dtype)
        if value.shape:
            raise TypeError(
                f"the criterion must be one number, and its value has the shape {value.shape}."
            )
        return value

    best, value = temperature.fit_grid(rows.logits, rows.labels, rows.weight, value_of, grid)
    params = Params(best, contract.placeholder(rows.logits.dtype))
    at_an_end = (best <= grid[0]) | (best >= grid[-1])
    code = jnp.where(at_an_end, Code.STOPPED, Code.CONVERGED)
    code = jnp.where(jnp.isfinite(value), code, Code.NO_OPTIMUM)
    scaled = temperature.scaled(rows.logits, params.temperature)
    return contract.finished(params, code, rows, scaled)


@contract.takes(Params)
def apply(params: Params, logits: Any) -> Logits:
    """Divide logits by the temperature.

    The NLL of the result on the examples of the fit is at most the NLL of the logits, although the
    quotients are rounded: the fit keeps T = 1 where rounding costs more than the fit gains.
    """
    logits = contract.logits_for("temperature", logits)
    return temperature.scaled(logits, params.temperature)


__all__ = ["Params", "apply", "fit", "fit_grid"]
