r"""Temperature scaling: divide all logits by one number T.

Accuracy does not change, entropy rises with T, and every class tends to 1/K as T tends to
infinity. At the optimum of the NLL, the mean logit of the true class equals the mean of the logits
under the calibrated probabilities. The NLL is convex in 1/T,

$$f(b) = \operatorname{mean}_n\,\bigl[\log \textstyle\sum_k e^{b z_{nk}} - b z_{ny}\bigr], \quad
  f'(b) = \operatorname{mean}_n\,\bigl[\mathrm{E}_p z - z_y\bigr], \quad
  f''(b) = \operatorname{mean}_n \operatorname{Var}_p z, \qquad b = 1/T,$$

so a bracketed Newton iteration on its derivative cannot diverge. Whether a finite T > 0 is optimal
depends on the data: f' rises from $\operatorname{mean}_n[\operatorname{mean}_k z_k - z_y]$ at
b = 0 to $\operatorname{mean}_n[\max_k z_k - z_y]$ at infinity, and it has a root in between if and
only if the first is negative and the second positive.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Integer, Shaped

from calib_jax.calibrators.parts import contract
from calib_jax.calibrators.parts.contract import Code, FitData, FitRows, State
from calib_jax.core import checks, numerics
from calib_jax.core.binning import class_sums
from calib_jax.core.probabilities import below_top
from calib_jax.core.types import Array, Labels, Logits, Number, PyTree, Scalar, Vector, Weights

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

    >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> params = fit(logits, [0, 0, 1, 1])
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
    temperature, code, before, after = minimum(rows, max_iterations)
    return contract.ended(Params(temperature, contract.PENDING), code, rows.usable, before, after)


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

    >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> fit_grid(logits, [0, 0, 1, 1]).temperature
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
            return jnp.sum(numerics.weigh(contract.losses_of(logits, rows), rows.decisive))
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
    calibrated = scaled(rows.logits, params.temperature)
    return contract.finished(params, code, rows, calibrated)


def apply(params: Params, logits: Any) -> Logits:
    """Divide logits by the temperature.

    The NLL of the result on the examples of the fit is at most the NLL of the logits, although the
    quotients are rounded: the fit keeps T = 1 where rounding costs more than the fit gains.
    """
    divided = lambda params, rows: scaled(rows, params.temperature)  # noqa: E731
    return contract.applied(Params, divided, params, logits)


# --------------------------------------------------------------------------------------------
# The minimum of the NLL.

# Bounds of s / T, where s is the largest difference between two logits of a row. The optimum is
# above 1e-7 in float32, because differences cannot cancel to less. It is large where it depends on
# nearly tied rows, whose logits differ by much less than s.
_LOWEST, _START, _HIGHEST = 1e-9, 8.0, 1e20
_LONGEST_STEP = 4.0  # in log T

_BLOCK = 1_000_000  # entries: a block and its exponentials fit into the cache of a CPU
_FEW_CLASSES = 32  # up to so many are added column by column
_SUBSET = 16  # the fit of large data starts from the optimum of one row in 16


def minimum(
    rows: FitRows, max_iterations: Number
) -> tuple[Scalar, Integer[Array, ""], Scalar, Scalar]:
    """Minimise the mean NLL over the temperature by safeguarded Newton steps in log T.

    There is no optimum if every prediction is right (the NLL falls as T -> 0) or if the logits
    are no better than chance (it falls as T -> infinity). The result is then the best T visited.

    The NLL of `logits / temperature`, in the precision of the logits, is at most the NLL of the
    logits: T stays 1 where rounding the quotients costs more than the fit gains.

    A logit of -inf is a class of probability 0 at every T. If it is the true class, the NLL of
    the row is infinite at every T, and the fit ignores the row.

    Returns:
      T, the code of the state, and the mean NLL at T = 1 and at T, rounding included.
    """
    logits, limits = rows.logits, jnp.finfo(rows.logits.dtype)
    true = numerics.true_class(logits, rows.labels)
    counted = jnp.where(true == -jnp.inf, 0, rows.weight)
    impossible = jnp.any((rows.weight > 0) & (counted == 0))
    total = jnp.sum(counted)
    columns = logits, jnp.max(logits, axis=-1), true, counted / total

    # Counts, unlike shares, sum exactly, and the sign of the slope decides.
    largest, slope, some_wrong, loss = _over_blocks(_facts, *columns[:3], counted)
    largest, slope, some_wrong = jnp.max(largest), jnp.sum(slope), jnp.any(some_wrong)
    scale = jnp.where(largest > 0, largest, 1)

    def search(start: Scalar, every: int) -> tuple[Scalar, Bool[Array, ""]]:
        parts = [part[::every] for part in columns]
        derivatives = lambda b: _sums(functools.partial(_derivatives, b=b), *parts)  # noqa: E731
        low, high = _LOWEST / scale, jnp.minimum(_HIGHEST / scale, limits.max)
        return _newton(derivatives, (start, low, high), max_iterations)

    start = _START / scale
    if logits.size > _SUBSET * _BLOCK:
        near, settled = search(start, _SUBSET)
        start = jnp.where(settled, near, start)
    b, settled = search(start, 1)
    temperature = jnp.clip(1 / b, limits.tiny, limits.max)
    after = _sums(functools.partial(_losses, temperature=temperature), *columns)
    before, after = (jnp.where(total > 0, nll, jnp.nan) for nll in (jnp.sum(loss) / total, after))

    has_optimum = (slope < 0) & some_wrong
    # Without an optimum, keep T = 1 if the NLL is equal: the gain of another T may be rounding.
    better = jnp.where(has_optimum, after <= before, after < before)
    # T = 1 counts as the optimum if the two NLLs differ only by the rounding of a mean.
    alike = jnp.abs(after - before) <= 16 * limits.eps * before
    converged = has_optimum & settled & jnp.isfinite(before) & (better | alike)
    codes = [Code.CONVERGED, Code.INDISTINCT, Code.STOPPED]
    code = jnp.select([converged, largest == 0, has_optimum], codes, Code.NO_OPTIMUM)
    after = jnp.where(better, after, before)
    before, after = (jnp.where(impossible, jnp.inf, nll) for nll in (before, after))
    return jnp.where(better, temperature, 1), code, before, after


def _newton(
    derivatives: Callable[[Scalar], tuple[Scalar, Scalar]],
    bracket: tuple[Scalar, Scalar, Scalar],
    max_iterations: Number,
) -> tuple[Scalar, Bool[Array, ""]]:
    """Find the root of an increasing function of b by Newton steps in log b inside a bracket.

    Args:
      derivatives: the function and its derivative, at b.
      bracket: the first b, and the bounds of the root.
      max_iterations: the largest number of steps.

    Returns:
      The last b, and whether the steps have settled there.
    """
    eps = float(jnp.finfo(bracket[0].dtype).eps)
    last_step = math.sqrt(eps) / 4  # the error after a step is about the step squared

    def settled(low: Scalar, high: Scalar, step: Scalar) -> Bool[Array, ""]:
        return jnp.minimum(jnp.abs(step), high / low - 1) <= last_step

    def going(state: tuple[Array, ...]) -> Bool[Array, ""]:
        _, low, high, step, number = state
        return (number < max_iterations) & ~settled(low, high, step)

    def following(state: tuple[Array, ...]) -> tuple[Array, ...]:
        b, low, high, _, number = state
        slope, curvature = derivatives(b)
        low, high = jnp.where(slope < 0, b, low), jnp.where(slope < 0, high, b)
        step = -slope / (b * curvature)  # the derivative by log b is b f''
        newton = b * jnp.exp(jnp.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
        inside = (newton > low) & (newton < high)
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        farthest = math.exp(_LONGEST_STEP)
        new = jnp.where(inside, newton, jnp.clip(middle, b / farthest, b * farthest))
        # Rounding decides the sign of the slope where a step is this small.
        new = jnp.where((slope == 0) | (jnp.abs(step) <= 4 * eps), b, new)
        return new, low, high, (new - b) / b, number + 1

    first: Any = (*bracket, jnp.ones_like(bracket[0]), jnp.zeros((), jnp.int32))
    b, low, high, step, _ = lax.while_loop(going, following, first)
    return b, settled(low, high, step)


def _over_blocks(function: Callable[..., PyTree], *rows: Array) -> PyTree:
    """Apply a function to blocks of rows and stack the results.

    One block holds all rows, except on a CPU, where passes over blocks take a third of the time
    and memory: their exponentials stay in the cache. Rows of weight 0, the last array, may hold
    anything.
    """
    num_rows = len(rows[0])
    num_blocks = min(num_rows, -(-rows[0].size // _BLOCK))
    if num_blocks <= 1 or jax.default_backend() != "cpu":
        return jax.tree.map(lambda leaf: leaf[None], function(*rows))
    size = -(-num_rows // num_blocks)

    def block(first: Array) -> PyTree:
        start = jnp.minimum(first, num_rows - size)
        *parts, weight = (lax.dynamic_slice_in_dim(part, start, size) for part in rows)
        # Drop the rows of the last block that the previous block already contains.
        return function(*parts, jnp.where(start + jnp.arange(size) >= first, weight, 0))

    return lax.map(block, jnp.arange(0, num_rows, size))


def _sums(function: Callable[..., PyTree], *rows: Array) -> PyTree:
    """Sum the results of a function over all blocks of rows."""
    return jax.tree.map(jnp.sum, _over_blocks(function, *rows))


def _facts(
    logits: Logits, top: Vector, true: Vector, weight: Vector
) -> tuple[Scalar, Scalar, Bool[Array, ""], Scalar]:
    """Compute the conditions of an optimum, and the summed NLL at T = 1.

    Returns:
      The largest difference between two logits of a row, the derivative of the NLL at 1/T = 0
      times the number of classes, whether a true class is not the largest, and the NLL.
    """
    present = weight > 0
    possible = present[:, None] & (logits != -jnp.inf)
    below = jnp.where(possible, below_top(logits, top[:, None]), 0)
    lead = jnp.where(present, true - top, 0)
    # Sum differences instead of subtracting means, which is exact for integer logits.
    differences = jnp.sum(jnp.where(possible, below - lead[:, None], 0), axis=-1)
    num_possible = jnp.sum(possible, axis=-1, dtype=lead.dtype)
    differences *= logits.shape[-1] / jnp.maximum(num_possible, 1)
    loss = _losses(logits, top, true, weight, 1)
    return jnp.max(-below), jnp.sum(numerics.weigh(differences, weight)), jnp.any(lead < 0), loss


def _derivatives(
    logits: Logits, top: Vector, true: Vector, share: Vector, b: Scalar
) -> tuple[Scalar, Scalar]:
    """Compute the first and second derivatives of the NLL of `b * logits` by b."""
    if logits.shape[-1] > _FEW_CLASSES:
        sums = [jnp.sum(part, axis=-1) for part in _moments(below_top(logits, top[:, None]), b)]
    else:  # on a CPU, XLA adds columns for many rows at a time, but the entries of a row in turn
        columns = [_moments(below_top(column, top), b) for column in jnp.unstack(logits, axis=-1)]
        sums = [sum(parts) for parts in zip(*columns, strict=True)]
    total, first, second = sums
    expected = first / total
    # The largest logit is 0 and its probability at least 1 / K: the difference keeps enough digits.
    variance = jnp.maximum(second / total - jnp.square(expected), 0)
    slopes = expected - (true - top)
    return jnp.sum(numerics.weigh(slopes, share)), jnp.sum(numerics.weigh(variance, share))


def _moments(below: Array, b: Scalar) -> tuple[Array, Array, Array]:
    """Compute exp(b x), and its products with x and its square."""
    exps = jnp.exp(b * below)
    return exps, exps * below, exps * below * below


def _losses(
    logits: Logits, top: Vector, true: Vector, share: Vector, temperature: Number
) -> Scalar:
    """Sum the NLL of the scaled logits."""
    top = scaled(top, temperature)
    below = scaled(logits.astype(top.dtype), temperature) - top[:, None]
    # Add 1 last, inside log1p, to keep the digits of a small loss.
    ties = jnp.sum(below == 0, axis=-1, dtype=below.dtype)
    others = jnp.sum(jnp.where(below != 0, jnp.exp(below), 0), axis=-1)
    losses = jnp.log1p(others + (ties - 1)) - (scaled(true, temperature) - top)
    return jnp.sum(numerics.weigh(losses, share))


@functools.partial(jax.jit, inline=True)  # one program instead of one per operation
def scaled(logits: Float[Array, "*shape"], temperature: Number) -> Float[Array, "*shape"]:
    """Divide logits by a temperature; the result is the same inside and outside `jit`.

    XLA replaces some divisions by products with 1 / T, so this always computes the product. It
    also fuses a product with a later subtraction of the largest logit, which skips one rounding;
    the selection prevents that.
    """
    return jnp.where(logits == -jnp.inf, -jnp.inf, logits * (1 / temperature))


# --------------------------------------------------------------------------------------------
# A temperature for each group.


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

    >>> random = np.random.default_rng(0)
    >>> z = 2 * random.normal(size=(2000, 3))
    >>> labels = (z + random.gumbel(size=z.shape)).argmax(axis=1)
    >>> groups = np.repeat(["easy", "hard"], 1000)
    >>> logits = z * np.repeat([[1.0], [3.0]], 1000, axis=0)  # only "hard" is too confident
    >>> params = fit_by_group(logits, labels, groups)
    >>> params.temperature.round(1), params.common.round(1)
    (Array([1. , 2.9], dtype=float32), Array(2., dtype=float32))
    >>> calibrated = apply_by_group(params, logits[-5:], groups[-5:])
    """
    names, index = np.unique(_named_groups(groups, np.shape(labels)), return_inverse=True)
    examples = contract.examples("temperature", logits, labels, weights)
    fitted = _fit_by_group(examples, jnp.asarray(index.ravel(), jnp.int32), len(names))
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
    weight = jnp.where(rows.decisive > 0, rows.weight, 0)

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
            class_sums(index, numerics.weigh(part, weight), num_groups)
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

    going = lambda walk: (walk[2] > 1e-4) & (walk[3] < 50)  # noqa: E731
    one = jnp.ones((), x.dtype)
    start = jnp.ones(num_groups, x.dtype), 0 * one, one, jnp.zeros((), jnp.int32)
    ratio, spread, *_ = lax.while_loop(going, improved, start)
    each = common.temperature / ratio
    # No array of a compiled function holds text, so numbers stand for the names.
    parts = each, common.temperature, spread, jnp.arange(num_groups)
    params = ByGroupParams(*parts, contract.PENDING)
    calibrated = scaled(rows.logits, each[index][:, None])
    return contract.finished(params, common.state.code, rows, calibrated)


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
    if (names.dtype.kind == "U") != (params.names.dtype.kind == "U"):
        raise TypeError(f"groups are {names.dtype}, in the fit {params.names.dtype}: convert them.")
    place = np.minimum(np.searchsorted(params.names, names), len(params.names) - 1)
    each = jnp.where(params.names[place] == names, params.temperature[place], params.common)
    return scaled(logits, each[..., None])


__all__ = ["Params", "apply", "apply_by_group", "fit", "fit_by_group", "fit_grid"]
