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
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Integer, Shaped

from calib_jax.calibrators.parts import contract, scaling
from calib_jax.calibrators.parts.contract import Code, FitData, FitRows, State
from calib_jax.core import checks, numerics
from calib_jax.core.binning import class_sums
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Labels, Logits, Number, Scalar, Vector, Weights

# The criterion of a grid search: a function of (logits / T, labels, weights) to a scalar.
Criterion: TypeAlias = Callable[[Logits, Labels, Weights | None], Any]


class TemperatureParams(NamedTuple):
    """A fitted temperature."""

    temperature: Scalar
    state: State


Params = TemperatureParams


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
    temperature, code, before, after = scaling.minimum(rows, max_iterations)
    params = Params(temperature, contract.PENDING)
    return contract.ended(params, code, rows.usable, before, after)


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
    checks.above("step", step, 0)
    checks.above("start", start, 0)
    checks.at_least("stop", stop, start, ", as is start")
    grid = np.full(round((stop - start) / step) + 1, step, float)
    grid[0] = start
    given = contract.examples("temperature", logits, labels, weights)
    return _fit_grid(given, jnp.asarray(np.cumsum(grid)), criterion)


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

    grid = grid.astype(rows.logits.dtype)
    found = lax.map(lambda t: value_of(rows.logits / t, rows.labels, rows.weight), grid)
    found = jnp.where(jnp.isnan(found), jnp.inf, found)
    value, best = jnp.min(found), grid[jnp.argmin(found)]
    params = Params(jnp.where(jnp.isfinite(value), best, 1), contract.PENDING)
    at_an_end = (best <= grid[0]) | (best >= grid[-1])
    code = jnp.where(at_an_end, Code.STOPPED, Code.CONVERGED)
    code = jnp.where(jnp.isfinite(value), code, Code.NO_OPTIMUM)
    scaled = scaling.scaled(rows.logits, params.temperature)
    return contract.finished(params, code, rows, scaled)


def apply(params: Params, logits: Any) -> Logits:
    """Divide logits by the temperature.

    The NLL of the result on the examples of the fit is at most the NLL of the logits, although the
    quotients are rounded: the fit keeps T = 1 where rounding costs more than the fit gains.
    """
    scaled = lambda params, rows: scaling.scaled(rows, params.temperature)  # noqa: E731
    return contract.applied(Params, scaled, params, logits)


class ByGroupParams(NamedTuple):
    """A temperature for each group, and the common one for groups that the fit has not seen.

    Attributes:
      temperature: the temperatures, `[groups]`.
      common: the temperature of all examples.
      spread: the estimated standard deviation, over the groups, of common / temperature.
      names: the sorted names of the groups, `[groups]`.
      state: how the fit of the common temperature ended, and the NLL before and after.
    """

    temperature: Float[Array, " groups"]
    common: Scalar
    spread: Scalar
    names: Any  # a NumPy array, but numbers inside a compiled function
    state: State


# Candidates for the standard deviation of the groups.
_SPREADS = np.append(0, np.geomspace(1e-3, 10, 120))


def fit_by_group(logits: Any, labels: Any, groups: Any, weights: Any = None) -> ByGroupParams:
    r"""Fit a temperature for each group, drawn towards the common temperature.

    The ratios $b_g = T / T_g$ to the common temperature T have the mean 1 and the variance
    $\tau^2$, which is estimated by maximum likelihood from how much the groups differ beyond their
    sampling errors. With $v_g$ the squared sampling error of the own fit $\hat b_g$ of a group,

    $$b_g = 1 + \frac{\tau^2}{\tau^2 + v_g} (\hat b_g - 1).$$

    A small group thus stays near T, a large one has nearly its own fit, and where the groups do
    not differ, all have T. Neither a group without an optimum nor one of a few rows is a problem.

    Args:
      logits: held-out logits, `[*batch, classes]`.
      labels: the true classes.
      groups: the name or number of the group of each example, `[*batch]`; not traced.
      weights: weight 0 drops an example, weight k counts it k times.

    References:
      Efron and Morris 1975, Data analysis using Stein's estimator and its generalizations.

    >>> z = 2 * jax.random.normal(jax.random.key(0), (2000, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), z)
    >>> groups = np.repeat(["easy", "hard"], 1000)
    >>> logits = z * np.repeat([[1.0], [3.0]], 1000, axis=0)  # only "hard" is too confident
    >>> params = fit_by_group(logits, labels, groups)
    >>> params.temperature.round(1), params.common.round(1)
    (Array([0.9, 2.9], dtype=float32), Array(2., dtype=float32))
    >>> calibrated = apply_by_group(params, logits[-5:], groups[-5:])
    """
    names, index = np.unique(_named_groups(groups, np.shape(labels)), return_inverse=True)
    examples = contract.examples("temperature", logits, labels, weights)
    fitted = _fit_by_group(examples, jnp.asarray(index.reshape(-1), jnp.int32), len(names))
    return fitted._replace(names=names)


def _named_groups(groups: Any, shape: tuple[int, ...]) -> Shaped[np.ndarray, "*batch"]:
    names = np.asarray(groups)
    if names.shape != shape:
        raise ValueError(f"groups must have shape {shape}, as the labels, got {names.shape}.")
    return names if names.dtype.kind in "iuU" else names.astype(str)


@functools.partial(jax.jit, static_argnames="num_groups")
def _fit_by_group(
    examples: FitData, index: Integer[Array, " rows"], num_groups: int
) -> ByGroupParams:
    rows = examples.rows()
    common = fit_rows(rows)
    possible = rows.logits != -jnp.inf
    below = rows.logits - jnp.max(rows.logits, axis=1, keepdims=True)
    x = jnp.where(possible, below / common.temperature, 0)
    true = numerics.true_class(x, rows.labels)
    impossible = numerics.true_class(rows.logits, rows.labels) == -jnp.inf
    weight = jnp.where(impossible, 0, rows.weight)

    def improved(walk: Any) -> Any:
        """Take a Newton step for every group, and estimate the spread at the new point.

        Args:
          walk: common / temperature of each group, its spread, the largest relative change of the
            last round, and the number of rounds.
        """
        ratio, _, _, iteration = walk
        p = jax.nn.softmax(jnp.where(possible, ratio[index][:, None] * x, -jnp.inf))
        mean = jnp.sum(p * x, axis=1)
        variance = jnp.sum(p * jnp.square(x - mean[:, None]), axis=1)
        slope, curvature, scatter = (
            class_sums(index, weigh(part, weight), num_groups)
            for part in (mean - true, variance, jnp.square(mean - true))
        )
        # Slopes scatter more than those of calibrated rows where the model is not one temperature
        # away, or where a group has a rare confident mistake.
        excess = jnp.sum(scatter) / jnp.sum(curvature)
        known = curvature > 0
        noise = jnp.where(known, jnp.maximum(scatter, excess * curvature), 1)
        precision = jnp.square(curvature) / noise
        change = jnp.where(known, ratio - slope / jnp.where(known, curvature, 1) - 1, 0)
        spread = _spread(change, precision)
        shrunk = 1 + change * (1 - 1 / (1 + jnp.square(spread) * precision))
        new = jnp.clip(shrunk, jnp.maximum(ratio / 4, 1e-3), 4 * ratio)
        return new, spread, jnp.max(jnp.abs(new / ratio - 1)), iteration + 1

    def going(walk: Any) -> Bool[Array, ""]:
        return (walk[2] > 1e-4) & (walk[3] < 50)

    one = jnp.ones((), x.dtype)
    start = jnp.ones(num_groups, x.dtype), 0 * one, one, jnp.zeros((), jnp.int32)
    ratio, spread, *_ = lax.while_loop(going, improved, start)
    each = common.temperature / ratio
    names = jnp.arange(num_groups)  # no array of a compiled function holds text
    params = ByGroupParams(each, common.temperature, spread, names, contract.PENDING)
    scaled = scaling.scaled(rows.logits, each[index][:, None])
    return contract.finished(params, common.state.code, rows, scaled)


def _spread(change: Float[Array, " groups"], precision: Float[Array, " groups"]) -> Scalar:
    """Choose the most likely standard deviation of changes that are known up to an error.

    The common temperature is fitted to the same rows, so the changes are one number short.
    """
    number = jnp.sum(precision > 0, dtype=change.dtype)
    square = jnp.square(change) * number / jnp.maximum(number - 1, 1)

    def unlikely(spread: Scalar) -> Scalar:
        larger = 1 + jnp.square(spread) * precision
        return jnp.sum(jnp.log(larger) + precision * square / larger)

    candidates = jnp.asarray(_SPREADS, change.dtype)
    best = candidates[jnp.argmin(jax.vmap(unlikely)(candidates))]
    return jnp.where(number > 1, best, 0)


def apply_by_group(params: ByGroupParams, logits: Any, groups: Any) -> Logits:
    """Divide logits by the temperature of their group, or the common one for an unknown group.

    Args:
      params: the parameters that `fit_by_group` returned.
      logits: `[*batch, classes]`.
      groups: the group of each example, `[*batch]`; not traced.
    """
    logits = contract.logits_for("temperature", logits, None)
    names = _named_groups(groups, logits.shape[:-1])
    place = np.minimum(np.searchsorted(params.names, names), len(params.names) - 1)
    known = params.names[place] == names
    each = jnp.where(known, params.temperature[place], params.common)
    return scaling.scaled(logits, each[..., None])


__all__ = ["Params", "apply", "apply_by_group", "fit", "fit_by_group", "fit_grid"]
