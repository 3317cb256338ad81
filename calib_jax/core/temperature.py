r"""The temperature fit of the calibrators, and temperature grids.

Dividing logits by T > 0 changes the confidence but no prediction. The NLL is convex in 1/T,

$$f(b) = \operatorname{mean}_n\,\bigl[\log \textstyle\sum_k e^{b z_{nk}} - b z_{ny}\bigr], \quad
  f'(b) = \operatorname{mean}_n\,\bigl[\mathrm{E}_p z - z_y\bigr], \quad
  f''(b) = \operatorname{mean}_n \operatorname{Var}_p z, \qquad b = 1/T,$$

so a bracketed Newton iteration on its derivative cannot diverge. Whether a finite T > 0 is optimal
depends on the data: f' rises from $\operatorname{mean}_n[\operatorname{mean}_k z_k - z_y]$ at
b = 0 to $\operatorname{mean}_n[\max_k z_k - z_y]$ at infinity, and it has a root in between if and
only if the first is negative and the second positive. Calibration errors are not smooth in T, so
they are minimised over the papers' grid.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.core import numerics
from calib_jax.core.numerics import valid
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Labels, Logits, Number, PyTree, Scalar, Vector, Weights

# Bounds of s / T, where s is about the largest difference between two logits of a row. The
# optimum is above 1e-7 in float32, because differences cannot cancel to less. It is large where
# it depends on nearly tied rows, whose logits differ by much less than s.
_LOWEST, _HIGHEST = 1e-9, 1e20
_START = 8.0
_LONGEST_STEP = 4.0  # in log T

_BLOCK = 1_000_000  # entries: a block and its exponentials fit into the cache of a CPU
_SUBSET = 16  # the fit of large data starts from the optimum of one row in 16

_Function: TypeAlias = Callable[[Array, Array, Array], PyTree]


class TemperatureFit(NamedTuple):
    """The fitted temperature and its diagnostics.

    Attributes:
      temperature: the fitted T; 1 if fitting does not improve the NLL.
      has_optimum: whether the NLL has its minimum at a finite T > 0.
      converged: whether there is an optimum and the iterations reached it.
      indistinct: whether all possible classes of every row have the same logit.
      nll_before: the mean NLL at T = 1.
      nll_after: the mean NLL of `logits / temperature`, rounding included; at most `nll_before`.
    """

    temperature: Scalar
    has_optimum: Bool[Array, ""]
    converged: Bool[Array, ""]
    indistinct: Bool[Array, ""]
    nll_before: Scalar
    nll_after: Scalar


def fit_nll(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, max_iterations: Number = 100
) -> TemperatureFit:
    """Minimise the mean NLL over the temperature by safeguarded Newton steps in log T.

    There is no optimum if every prediction is right (the NLL falls as T -> 0) or if the logits
    are no better than chance (it falls as T -> infinity). The result is then the best T visited,
    with `converged` False.

    The NLL of `logits / temperature`, in the precision of the logits, is at most the NLL of the
    logits: T stays 1 where rounding the quotients costs more than the fit gains.

    A logit of -inf is a class of probability 0 at every T. If it is the true class, the NLL of
    the row is infinite at every T, and the fit ignores the row.
    """
    rows = _prepared(logits, labels, weights)
    total = jnp.sum(rows.counted)
    share = rows.counted / total

    def derivatives(scale: Scalar, every: int) -> Callable[[Scalar], tuple[Scalar, Scalar]]:
        parts = [part[::every] for part in (rows.logits, rows.true, share)]
        return lambda b: _sums(functools.partial(_derivatives, scale=scale, b=b), *parts)

    def first_pass(logits: Logits, true: Vector, counted: Vector) -> tuple[_Facts, Scalar]:
        return _facts(logits, true, counted), _losses(logits, true, counted / total, 1)

    facts, loss = _over_blocks(first_pass, rows.logits, rows.true, rows.counted)
    facts, before = _merged(facts), jnp.where(total > 0, jnp.sum(loss), jnp.nan)
    start = jnp.asarray(_START, share.dtype)
    if logits.size > _SUBSET * _BLOCK:
        near, settled = _newton(derivatives(facts.scale, _SUBSET), start, max_iterations)
        start = jnp.where(settled, near, start)
    b, settled = _newton(derivatives(facts.scale, 1), start, max_iterations)
    temperature = _temperature(facts, b)
    losses = functools.partial(_losses, temperature=temperature)
    after = jnp.where(total > 0, _sums(losses, rows.logits, rows.true, share), jnp.nan)
    return _ended(facts, settled, temperature, before, after, rows.impossible)


class _Prepared(NamedTuple):
    """Rows with the logit of their true class.

    Attributes:
      logits: `[rows, classes]`, of any floating type.
      true: the logit of the true class; NaN where the label is out of range.
      counted: the weights, 0 where the true class is impossible.
      impossible: whether a row of positive weight has an impossible true class.
    """

    logits: Logits
    true: Vector
    counted: Vector
    impossible: Bool[Array, ""]


def _prepared(logits: Logits, labels: Labels, weights: Weights | None) -> _Prepared:
    num_classes = logits.shape[-1]
    logits, labels = logits.reshape(-1, num_classes), labels.reshape(-1)
    dtype = numerics.wide(logits.dtype)
    weight = weigh(jnp.ones(labels.shape, dtype), None if weights is None else weights.reshape(-1))
    true = numerics.true_class(logits, labels).astype(dtype)
    true = jnp.where(valid(labels, num_classes), true, jnp.nan)
    counted = jnp.where(true == -jnp.inf, 0, weight)
    return _Prepared(logits, true, counted, jnp.any((weight > 0) & (counted == 0)))


def _temperature(facts: "_Facts", b: Scalar) -> Scalar:
    limits = jnp.finfo(b.dtype)
    return jnp.clip(facts.scale / b, limits.tiny, limits.max)


def _ended(
    facts: "_Facts",
    settled: Bool[Array, ""],
    temperature: Scalar,
    before: Scalar,
    after: Scalar,
    impossible: Bool[Array, ""],
) -> TemperatureFit:
    """Choose between a temperature and 1 by their NLL."""
    has_optimum = (facts.slope < 0) & facts.some_wrong
    # Without an optimum, keep T = 1 if the NLL is equal: the gain of another T may be rounding.
    better = jnp.where(has_optimum, after <= before, after < before)
    # T = 1 counts as the optimum if the two NLLs differ only by the rounding of a mean.
    alike = jnp.abs(after - before) <= 16 * jnp.finfo(temperature.dtype).eps * before
    return TemperatureFit(
        temperature=jnp.where(better, temperature, 1),
        has_optimum=has_optimum,
        converged=has_optimum & settled & jnp.isfinite(before) & (better | alike),
        indistinct=~facts.distinct,
        nll_before=jnp.where(impossible, jnp.inf, before),
        nll_after=jnp.where(impossible, jnp.inf, jnp.where(better, after, before)),
    )


class _Search(NamedTuple):
    """State of the Newton steps: b, its bracket, the last relative step, the number of steps."""

    b: Scalar
    low: Scalar
    high: Scalar
    step: Scalar
    iteration: Array


def _search(start: Scalar) -> _Search:
    number = functools.partial(jnp.asarray, dtype=start.dtype)
    return _Search(start, number(_LOWEST), number(_HIGHEST), number(1), jnp.zeros((), jnp.int32))


def _following(search: _Search, slope: Scalar, curvature: Scalar) -> _Search:
    """Take a Newton step for the root of the slope as a function of log b, inside the bracket."""
    b = search.b
    low, high = jnp.where(slope < 0, b, search.low), jnp.where(slope < 0, search.high, b)
    step = -slope / (b * curvature)  # the derivative by log b is b f''
    newton = b * jnp.exp(jnp.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
    inside = (newton > low) & (newton < high)
    middle = jnp.sqrt(low) * jnp.sqrt(high)
    farthest = jnp.exp(jnp.asarray(_LONGEST_STEP, b.dtype))
    following = jnp.where(inside, newton, jnp.clip(middle, b / farthest, b * farthest))
    # Rounding decides the sign of the slope where a step is this small.
    following = jnp.where((slope == 0) | (jnp.abs(step) <= _smallest_step(b)), b, following)
    return _Search(following, low, high, (following - b) / b, search.iteration + 1)


def _smallest_step(b: Scalar) -> float:
    return 4 * float(jnp.finfo(b.dtype).eps)


def _going(search: _Search, max_iterations: Number, last_step: Number) -> Bool[Array, ""]:
    smallest = _smallest_step(search.b)
    wide = search.high / search.low > 1 + smallest
    unsettled = (jnp.abs(search.step) > jnp.maximum(smallest, last_step)) & wide
    return (search.iteration < max_iterations) & unsettled


def _settled(search: _Search, last_step: Number) -> Bool[Array, ""]:
    """Check whether the last step is small; rounding may keep changing the last digits."""
    last = jnp.minimum(jnp.abs(search.step), search.high / search.low - 1)
    return last <= jnp.maximum(64 * _smallest_step(search.b), last_step)


def _newton(
    derivatives: Callable[[Scalar], tuple[Scalar, Scalar]], start: Scalar, max_iterations: Number
) -> tuple[Scalar, Bool[Array, ""]]:
    """Find the root of an increasing function, given with its derivative.

    Args:
      derivatives: the function and its derivative, at b.
      start: the first b.
      max_iterations: the largest number of steps.

    Returns:
      The last b, and whether the steps have settled there.
    """
    # The error after a step is about the step squared.
    last_step = math.sqrt(jnp.finfo(start.dtype).eps) / 4
    search = lax.while_loop(
        lambda search: _going(search, max_iterations, last_step),
        lambda search: _following(search, *derivatives(search.b)),
        _search(start),
    )
    return search.b, _settled(search, last_step)


def _over_blocks(function: _Function, logits: Logits, true: Vector, weight: Vector) -> PyTree:
    """Apply a function to blocks of rows and stack the results.

    One block holds all rows, except on a CPU, where passes over blocks take a third of the time
    and memory: their exponentials stay in the cache.

    Args:
      function: the function of the logits, true logits and weights of a block.
      logits: `[rows, classes]`, of any floating type.
      true: the logit of the true class of each row.
      weight: the weight of each row; rows of weight 0 may hold anything.
    """

    def of_block(logits: Logits, true: Vector, weight: Vector) -> PyTree:
        return function(numerics.at_least_float32(logits), true, weight)

    rows, num_rows = (logits, true, weight), len(logits)
    num_blocks = min(num_rows, -(-logits.size // _BLOCK))
    if num_blocks <= 1 or jax.default_backend() != "cpu":
        return jax.tree.map(lambda leaf: leaf[None], of_block(*rows))
    size = -(-num_rows // num_blocks)

    def block(first: Array) -> PyTree:
        start = jnp.minimum(first, num_rows - size)
        logits, true, weight = (lax.dynamic_slice_in_dim(part, start, size) for part in rows)
        # Drop the rows of the last block that the previous block already contains.
        fresh = start + jnp.arange(size) >= first
        return of_block(logits, true, jnp.where(fresh, weight, 0))

    return lax.map(block, jnp.arange(0, num_rows, size))


def _sums(function: _Function, logits: Logits, true: Vector, weight: Vector) -> PyTree:
    """Sum the results of a function over all blocks of rows."""
    return jax.tree.map(jnp.sum, _over_blocks(function, logits, true, weight))


def _below_top(logits: Logits) -> tuple[Logits, Bool[Array, "rows classes"], Vector]:
    """Subtract the largest logit of each row; set impossible classes to 0 and mask the others."""
    top = jnp.max(logits, axis=-1)
    possible = logits != -jnp.inf
    return jnp.where(possible, logits - top[:, None], 0), possible, top


class _Facts(NamedTuple):
    """The conditions for an optimum, computed from one block of rows.

    Attributes:
      scale: a power of two, about the largest difference between two logits of a row.
      slope: the derivative of the summed NLL at 1/T = 0, in units of `scale`.
      some_wrong: whether some true class does not have the largest logit.
      distinct: whether the possible classes of some row have different logits.
    """

    scale: Scalar
    slope: Scalar
    some_wrong: Bool[Array, ""]
    distinct: Bool[Array, ""]


def _facts(logits: Logits, true: Vector, weight: Vector) -> _Facts:
    logits = jnp.where((weight > 0)[:, None], logits, 0)
    true = jnp.where(weight > 0, true, 0)
    below, possible, top = _below_top(logits)
    largest = jnp.max(-below)
    scale = numerics.power_of_two(largest)
    true = (true - top) / scale
    # Sum differences instead of subtracting means, which is exact for integer logits.
    differences = jnp.sum(jnp.where(possible, below / scale - true[:, None], 0), axis=-1)
    differences *= logits.shape[-1] / jnp.sum(possible, axis=-1, dtype=differences.dtype)
    return _Facts(
        scale=scale,
        slope=jnp.sum(weigh(differences, weight)),
        some_wrong=jnp.any((true < 0) & (weight > 0)),
        distinct=largest > 0,
    )


def _merged(facts: _Facts) -> _Facts:
    """Merge the stacked conditions of blocks."""
    scale = facts.scale.max()
    return _Facts(
        scale=scale,
        slope=(facts.slope * (facts.scale / scale)).sum(),
        some_wrong=facts.some_wrong.any(),
        distinct=facts.distinct.any(),
    )


def _derivatives(
    logits: Logits, true: Vector, share: Vector, scale: Scalar, b: Scalar
) -> tuple[Scalar, Scalar]:
    """Compute the first and second derivatives of the NLL of `b / scale * logits` by b."""
    below, possible, top = _below_top(logits)
    per_scale = 1 / scale  # exact, and cheaper than a division of every logit
    rows = below * per_scale
    exps = jnp.where(possible, jnp.exp(b * rows), 0)
    total = jnp.sum(exps, axis=-1)
    expected = jnp.sum(exps * rows, axis=-1) / total
    # The largest logit is 0 and its probability at least 1 / K: the difference keeps enough digits.
    square = jnp.sum(exps * rows * rows, axis=-1) / total
    variance = jnp.maximum(square - jnp.square(expected), 0)
    slopes = expected - (true - top) * per_scale
    return jnp.sum(weigh(slopes, share)), jnp.sum(weigh(variance, share))


def _losses(logits: Logits, true: Vector, share: Vector, temperature: Number) -> Scalar:
    """Sum the NLL of the scaled logits."""
    below, possible, top = _below_top(scaled(logits, temperature))
    # Add 1 last, inside log1p, to keep the digits of a small loss.
    ties = jnp.sum(possible & (below == 0), axis=-1, dtype=below.dtype)
    others = jnp.sum(jnp.where(possible & (below != 0), jnp.exp(below), 0), axis=-1)
    losses = jnp.log1p(others + (ties - 1)) - (scaled(true, temperature) - top)
    return jnp.sum(weigh(losses, share))


def scaled(logits: Float[Array, "*shape"], temperature: Number) -> Float[Array, "*shape"]:
    """Divide logits by a temperature; the result is the same inside and outside `jit`.

    XLA replaces some divisions by products with 1 / T, so this always computes the product. It
    also fuses a product with a later subtraction of the largest logit, which skips one rounding;
    the selection prevents that.
    """
    return jnp.where(logits == -jnp.inf, -jnp.inf, logits * (1 / temperature))


def accumulated_grid(
    step: float, count: int, *, start: float | None = None
) -> Float[np.ndarray, " count"]:
    """Compute step, 2 step, ... by repeated addition, as the released loops do (T += 0.1).

    Args:
      step: the increment.
      count: the number of values.
      start: the first value; `step` by default.
    """
    added = np.full(count, step, float)
    added[0] = step if start is None else start
    return np.cumsum(added)


def fit_grid(
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
    criterion: Callable[[Logits, Labels, Weights | None], Scalar],
    temperatures: Float[Array, " count"] | np.ndarray,
) -> tuple[Scalar, Scalar]:
    """Evaluate every temperature in one compiled pass and return the first strict minimum.

    Args:
      criterion: the function of (logits / T, labels, weights) to minimise.

    Returns:
      The temperature and the criterion there; (1, infinity) if no value is finite.
    """
    rows = numerics.at_least_float32(logits)
    candidates = jnp.asarray(temperatures, rows.dtype)
    values = lax.map(lambda t: criterion(rows / t, labels, weights), candidates)
    values = jnp.where(jnp.isnan(values), jnp.inf, values)
    best = jnp.argmin(values)
    is_finite = jnp.isfinite(values[best])
    return jnp.where(is_finite, candidates[best], 1), values[best]
