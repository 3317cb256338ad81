r"""Temperature scaling: one number that divides all logits.

Accuracy stays as it is, entropy rises with T, and for T to infinity every class has 1/K. Where
the NLL is at its optimum, the mean logit of the true class equals the mean of the logits under
the calibrated probabilities.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from calib_jax.calibrators import contract
from calib_jax.calibrators.contract import Code, Examples, Rows, State
from calib_jax.core import checks, temperature
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Labels, Logits, Number, Scalar, Vector, Weights

# What a grid minimises: of logits / T, labels and weights, one number.
Objective: TypeAlias = Callable[[Logits, Labels, Weights | None], Any]


class TemperatureParams(NamedTuple):
    """A fitted temperature."""

    temperature: Scalar
    state: State


Params = TemperatureParams


def fit(logits: Any, labels: Any, weights: Any = None, *, max_iterations: Number = 100) -> Params:
    r"""Minimise the mean NLL of $\mathrm{softmax}(z / T)$ over the temperature.

    The NLL is convex in 1/T: safeguarded Newton steps find its one optimum, and never leave the
    examples with a worse NLL than they had. There is no finite optimum where every prediction is
    right (T falls towards 0) or where they are no better than chance (T rises without end): the
    state is then `no_optimum` and T the best one met.

    Give logits or log-probabilities; probabilities are refused outside `jit`.

    Args:
      logits: `[*batch, classes]`, of examples that the model was not trained on.
      labels: the true classes.
      weights: weight 0 means absent, weight k means k copies.
      max_iterations: after which the state is `stopped`; about ten are needed.

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
def _fit(examples: Examples, max_iterations: Number) -> Params:
    return fit_rows(examples.rows(), max_iterations)


def fit_rows(rows: Rows, max_iterations: Number = 100) -> Params:
    """Fit to prepared rows; for the inside of a compiled function."""
    found = temperature.fit_nll(
        rows.logits, rows.labels, rows.weight, max_iterations=max_iterations
    )
    params = Params(found.temperature, contract.unknown_state(rows))
    limited = jnp.where(found.has_optimum, Code.STOPPED, Code.NO_OPTIMUM)
    unsettled = jnp.where(_indistinct(rows), Code.INDISTINCT, limited)
    code = jnp.where(found.converged, Code.CONVERGED, unsettled)
    return contract.finished(params, code, rows, rows.logits / params.temperature)


def fit_grid(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    start: float = 0.1,
    stop: float = 10.0,
    step: float = 0.1,
    objective: Objective | None = None,
) -> Params:
    """Try a grid of temperatures in one compiled pass; the first strict minimum wins.

    The papers choose T this way by the ECE on the validation set. The grid is counted by repeated
    addition, as their code does, so its temperatures are the same to the last bit. The state is
    `stopped` where the minimum lies at an end of the grid, and `no_optimum`, with T = 1, where
    the objective is nowhere a finite number.

    Args:
      logits: `[*batch, classes]`.
      labels: the true classes.
      weights: weight 0 means absent, weight k means k copies.
      start: the first temperature.
      stop: the last one, to within half a step.
      step: what is added each time.
      objective: `(logits, labels, weights) -> scalar` to minimise, such as `metrics.ece`; the
        mean NLL by default. Compiled once for each function it is.

    References:
      Mukhoti et al. 2020, section 5 (0.1 to 10 by 0.1); Ghosh et al. 2022 (by 0.01).

    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> fit_grid(logits, jnp.array([0, 0, 1, 1])).temperature
    Array(1.8, dtype=float32)
    """
    checks.above("step", step, 0)
    checks.above("start", start, 0)
    checks.at_least("stop", stop, start, ", as is start")
    count = round((stop - start) / step) + 1
    grid = jnp.asarray(temperature.accumulated_grid(step, count, start=start))
    return _fit_grid(contract.examples("temperature", logits, labels, weights), grid, objective)


@functools.partial(jax.jit, static_argnames="objective")
def _fit_grid(examples: Examples, grid: Vector, objective: Objective | None) -> Params:
    rows = examples.rows()

    def criterion(logits: Logits, labels: Labels, weights: Weights | None) -> Scalar:
        if objective is None:
            return jnp.sum(weigh(contract.losses_of(logits, rows), rows.decisive))
        return jnp.asarray(objective(logits, labels, weights), rows.logits.dtype)

    found, value = temperature.fit_grid(rows.logits, rows.labels, rows.weight, criterion, grid)
    params = Params(found, contract.unknown_state(rows))
    at_an_end = (found <= grid[0]) | (found >= grid[-1])
    code = jnp.where(at_an_end, Code.STOPPED, Code.CONVERGED)
    code = jnp.where(jnp.isfinite(value), code, Code.NO_OPTIMUM)
    return contract.finished(params, code, rows, rows.logits / params.temperature)


def apply(params: Any, logits: Any) -> Logits:
    r"""Divide logits by the temperature."""
    contract.check_params("temperature", Params, params)
    return contract.logits_for("temperature", logits) / params.temperature


def _indistinct(rows: Rows) -> Bool[Array, ""]:
    """Tell whether every row gives all possible classes the same logit."""
    top = jnp.max(rows.logits, axis=-1, keepdims=True)
    unlike = jnp.any((rows.logits != top) & (rows.logits != -jnp.inf), axis=-1)
    return ~jnp.any(unlike & (rows.weight > 0))


__all__ = ["Params", "apply", "fit", "fit_grid"]
