r"""The fit of one temperature by the NLL.

Dividing logits by T > 0 changes the confidence but no prediction. The NLL is convex in 1/T,

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
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.parts.contract import Code, FitRows
from calib_jax.core import numerics
from calib_jax.core.probabilities import below_top
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Logits, Number, PyTree, Scalar, Vector

# Bounds of s / T, where s is the largest difference between two logits of a row. The optimum is
# above 1e-7 in float32, because differences cannot cancel to less. It is large where it depends on
# nearly tied rows, whose logits differ by much less than s.
_LOWEST, _START, _HIGHEST = 1e-9, 8.0, 1e20
_LONGEST_STEP = 4.0  # in log T

_BLOCK = 1_000_000  # entries: a block and its exponentials fit into the cache of a CPU
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
    code = jnp.where(has_optimum, Code.STOPPED, Code.NO_OPTIMUM)
    code = jnp.where(largest == 0, Code.INDISTINCT, code)
    converged = has_optimum & settled & jnp.isfinite(before) & (better | alike)
    code = jnp.where(converged, Code.CONVERGED, code)
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
    below = jnp.where(possible, below_top(logits, top), 0)
    lead = jnp.where(present, true - top, 0)
    # Sum differences instead of subtracting means, which is exact for integer logits.
    differences = jnp.sum(jnp.where(possible, below - lead[:, None], 0), axis=-1)
    num_possible = jnp.sum(possible, axis=-1, dtype=lead.dtype)
    differences *= logits.shape[-1] / jnp.maximum(num_possible, 1)
    loss = _losses(logits, top, true, weight, 1)
    return jnp.max(-below), jnp.sum(weigh(differences, weight)), jnp.any(lead < 0), loss


def _derivatives(
    logits: Logits, top: Vector, true: Vector, share: Vector, b: Scalar
) -> tuple[Scalar, Scalar]:
    """Compute the first and second derivatives of the NLL of `b * logits` by b."""
    below = below_top(logits, top)
    exps = jnp.exp(b * below)
    total = jnp.sum(exps, axis=-1)
    expected = jnp.sum(exps * below, axis=-1) / total
    # The largest logit is 0 and its probability at least 1 / K: the difference keeps enough digits.
    square = jnp.sum(exps * below * below, axis=-1) / total
    variance = jnp.maximum(square - jnp.square(expected), 0)
    slopes = expected - (true - top)
    return jnp.sum(weigh(slopes, share)), jnp.sum(weigh(variance, share))


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
    return jnp.sum(weigh(losses, share))


def scaled(logits: Float[Array, "*shape"], temperature: Number) -> Float[Array, "*shape"]:
    """Divide logits by a temperature; the result is the same inside and outside `jit`.

    XLA replaces some divisions by products with 1 / T, so this always computes the product. It
    also fuses a product with a later subtraction of the largest logit, which skips one rounding;
    the selection prevents that.
    """
    return jnp.where(logits == -jnp.inf, -jnp.inf, logits * (1 / temperature))
