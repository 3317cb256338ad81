r"""The temperature fit of the calibrators, and the temperature grid of the tempered losses.

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
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.core import numerics
from calib_jax.core.rows import valid, weigh
from calib_jax.core.types import (
    Array,
    Labels,
    Logits,
    Number,
    PyTree,
    Scalar,
    Vector,
    Weights,
)

# Bounds of s / T, where s is about the largest difference between two logits of a row. The
# optimum is above 1e-7 in float32, because differences cannot cancel to less. It is large where
# it depends on nearly tied rows, whose logits differ by much less than s.
_LOWEST, _HIGHEST = 1e-9, 1e20
_START = 8.0
_LONGEST_STEP = 4.0  # in log T

_BLOCK = 200_000  # entries: a block and its exponentials stay in the cache of a CPU
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
      nll_after: the mean NLL of `logits / temperature`, rounded as it is; at most `nll_before`.
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
    are no better than chance (it falls as T -> infinity). The result is then the best T met, with
    `converged` False.

    The NLL of `logits / temperature`, in the precision of the logits, is at most that of the
    logits: T stays 1 where rounding the quotients costs more than the fit gains.

    A logit of -inf is a class of probability 0 at every T. If it is the true class, the NLL of
    the row is infinite at every T, and the fit ignores the row.
    """
    num_classes = logits.shape[-1]
    logits, labels = logits.reshape(-1, num_classes), labels.reshape(-1)
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    weight = weigh(jnp.ones(labels.shape, dtype), None if weights is None else weights.reshape(-1))
    true = numerics.true_class(logits, labels).astype(dtype)
    true = jnp.where(valid(labels, num_classes), true, jnp.nan)
    counted = jnp.where(true == -jnp.inf, 0, weight)
    total = jnp.sum(counted)
    share = counted / total
    impossible = jnp.any((weight > 0) & (counted == 0))

    def mean_nll(temperature: Number) -> Scalar:
        losses = functools.partial(_losses, temperature=temperature)
        sums = _over_blocks(losses, logits, true, share)
        return jnp.where(total > 0, jnp.sum(sums), jnp.nan)

    facts = _over_blocks(_facts, logits, true, counted)
    scale = jnp.max(facts.scale)
    has_optimum = (jnp.sum(facts.slope * (facts.scale / scale)) < 0) & jnp.any(facts.some_wrong)

    derivatives = functools.partial(_derivatives, scale=scale)

    def newton(start: Scalar, *rows: Array) -> tuple[Scalar, Array]:
        at = lambda b: _sums(functools.partial(derivatives, b=b), *rows)  # noqa: E731
        return _newton(at, start, max_iterations)

    start = jnp.asarray(_START, dtype)
    if logits.size > _SUBSET * _BLOCK:
        near, settled = newton(start, *(part[::_SUBSET] for part in (logits, true, share)))
        start = jnp.where(settled, near, start)
    b, settled = newton(start, logits, true, share)

    limits = jnp.finfo(dtype)
    temperature = jnp.clip(scale / b, limits.tiny, limits.max)
    before, after = mean_nll(1), mean_nll(temperature)
    # Without an optimum, a T of equal NLL is kept at 1: its gain may be rounding.
    better = jnp.where(has_optimum, after <= before, after < before)
    # T = 1 is the optimum as well if the two differ by the rounding of a mean alone.
    alike = jnp.abs(after - before) <= 16 * limits.eps * before
    return TemperatureFit(
        temperature=jnp.where(better, temperature, 1),
        has_optimum=has_optimum,
        converged=has_optimum & settled & jnp.isfinite(before) & (better | alike),
        indistinct=~jnp.any(facts.distinct),
        nll_before=jnp.where(impossible, jnp.inf, before),
        nll_after=jnp.where(impossible, jnp.inf, jnp.where(better, after, before)),
    )


def _newton(
    derivatives: Callable[[Scalar], tuple[Scalar, Scalar]], start: Scalar, max_iterations: Number
) -> tuple[Scalar, Bool[Array, ""]]:
    """Find the root of a rising function by Newton steps in log b, inside a bracket.

    Args:
      derivatives: the function and its derivative, at b.
      start: the first b.
      max_iterations: the largest number of steps.

    Returns:
      The last b, and whether the steps have settled there.
    """
    smallest_step = 4 * jnp.finfo(start.dtype).eps

    def going(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
        _, low, high, step, iteration = carry
        unsettled = (jnp.abs(step) > smallest_step) & (high / low > 1 + smallest_step)
        return (iteration < max_iterations) & unsettled

    def iterate(
        carry: tuple[Array, Array, Array, Array, Array],
    ) -> tuple[Array, Array, Array, Array, Array]:
        b, low, high, _, iteration = carry
        slope, curvature = derivatives(b)
        low, high = jnp.where(slope < 0, b, low), jnp.where(slope < 0, high, b)
        # Newton step for the root of the slope as a function of log b; its derivative is b f''.
        step = -slope / (b * curvature)
        newton = b * jnp.exp(jnp.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
        inside = (newton > low) & (newton < high)
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        farthest = jnp.exp(jnp.asarray(_LONGEST_STEP, b.dtype))
        following = jnp.where(inside, newton, jnp.clip(middle, b / farthest, b * farthest))
        # Rounding decides the sign of the slope where a step is this small.
        following = jnp.where((slope == 0) | (jnp.abs(step) <= smallest_step), b, following)
        return following, low, high, (following - b) / b, iteration + 1

    number = lambda value: jnp.asarray(value, start.dtype)  # noqa: E731
    carry = (start, number(_LOWEST), number(_HIGHEST), number(1), jnp.zeros((), jnp.int32))
    b, low, high, step, _ = lax.while_loop(going, iterate, carry)
    # Rounding may keep changing the last digits; too few iterations leave larger steps.
    return b, jnp.minimum(jnp.abs(step), high / low - 1) <= 64 * smallest_step


def _over_blocks(function: _Function, logits: Logits, true: Vector, weight: Vector) -> PyTree:
    """Apply a function to blocks of rows and stack its results.

    One block holds all rows, except on a CPU, where a pass over small blocks is eight times as
    fast: their exponentials stay in the cache.

    Args:
      function: of the logits, true logits and weights of a block.
      logits: `[rows, classes]`, of any floating type.
      true: the logit of the true class of each row.
      weight: the weight of each row; rows of weight 0 may hold anything.
    """

    def of_block(logits: Logits, true: Vector, weight: Vector) -> PyTree:
        logits = jnp.where((weight > 0)[:, None], numerics.at_least_float32(logits), 0)
        return function(logits, jnp.where(weight > 0, true, 0), weight)

    rows, num_rows = (logits, true, weight), len(logits)
    size = max(1, _BLOCK // logits.shape[1])
    if size >= num_rows or jax.default_backend() != "cpu":
        return jax.tree.map(lambda leaf: leaf[None], of_block(*rows))

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
    """Subtract the largest logit of each row; impossible classes get 0, and a mask marks others."""
    top = jnp.max(logits, axis=-1)
    possible = logits != -jnp.inf
    return jnp.where(possible, logits - top[:, None], 0), possible, top


class _Facts(NamedTuple):
    """What decides whether a block has an optimum.

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
    below, possible, top = _below_top(logits)
    largest = jnp.max(-below)
    scale = numerics.power_of_two(largest)
    true = (true - top) / scale
    # Sum differences instead of subtracting means: this is exact for integer logits.
    differences = jnp.sum(jnp.where(possible, below / scale - true[:, None], 0), axis=-1)
    differences *= logits.shape[-1] / jnp.sum(possible, axis=-1)
    return _Facts(
        scale=scale,
        slope=jnp.sum(weigh(differences, weight)),
        some_wrong=jnp.any((true < 0) & (weight > 0)),
        distinct=largest > 0,
    )


def _derivatives(
    logits: Logits, true: Vector, share: Vector, *, scale: Scalar, b: Scalar
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


def _losses(logits: Logits, true: Vector, share: Vector, *, temperature: Number) -> Scalar:
    """Sum the NLL of the scaled logits."""
    below, possible, top = _below_top(scaled(logits, temperature))
    # Add 1 last, inside log1p, which keeps the digits of a small loss.
    ties = jnp.sum(possible & (below == 0), axis=-1)
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
