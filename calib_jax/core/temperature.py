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

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.core import numerics
from calib_jax.core.rows import present, valid, weigh
from calib_jax.core.types import Array, Labels, Logits, Number, Scalar, Weights

# Bounds of s / T, where s is about the largest difference between two logits of a row. The
# optimum is above 1e-7 in float32, because differences cannot cancel to less. It is large where
# it depends on nearly tied rows, whose logits differ by much less than s.
_LOWEST, _HIGHEST = 1e-9, 1e20
_LONGEST_STEP = 4.0  # in log T


class TemperatureFit(NamedTuple):
    """The fitted temperature and its diagnostics.

    Attributes:
      temperature: the fitted T; 1 if fitting does not improve the NLL.
      has_optimum: whether the NLL has its minimum at a finite T > 0.
      converged: whether there is an optimum and the iterations reached it.
      nll_before: the mean NLL at T = 1.
      nll_after: the mean NLL at `temperature`; at most `nll_before`.
    """

    temperature: Scalar
    has_optimum: Bool[Array, ""]
    converged: Bool[Array, ""]
    nll_before: Scalar
    nll_after: Scalar


def fit_nll(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, max_iterations: Number = 100
) -> TemperatureFit:
    """Minimise the mean NLL over the temperature by safeguarded Newton steps in log T.

    There is no optimum if every prediction is right (the NLL falls as T -> 0) or if the logits
    are no better than chance (it falls as T -> infinity). The result is then the best T met, with
    `converged` False.

    A logit of -inf is a class of probability 0 at every T. If it is the true class, the NLL of
    the row is infinite at every T, and the fit ignores the row.
    """
    logits, labels = present(logits, labels, weights)
    logits = numerics.at_least_float32(logits).reshape(-1, logits.shape[-1])
    labels = labels.reshape(-1)
    weight = weigh(
        jnp.ones(labels.shape, logits.dtype), None if weights is None else weights.reshape(-1)
    )
    possible = logits != -jnp.inf
    rows = jnp.where(possible, logits - jnp.max(logits, axis=-1, keepdims=True), 0)
    scale = numerics.power_of_two(jnp.max(jnp.where(weight[:, None] > 0, -rows, 0)))
    rows = rows / scale
    true = numerics.true_class(rows, labels)
    true = jnp.where(valid(labels, rows.shape[-1]), true, jnp.nan)
    counted = jnp.where(numerics.true_class(logits, labels) == -jnp.inf, 0, weight)
    total = jnp.sum(counted)
    share = counted / total

    def mean(values: Array) -> Scalar:
        return jnp.where(total > 0, jnp.sum(weigh(values, share)), jnp.nan)

    def slope_and_curvature(b: Scalar) -> tuple[Scalar, Scalar]:
        """Compute the first and second derivatives of the NLL of `b * rows` with respect to b."""
        p = jax.nn.softmax(jnp.where(possible, b * rows, -jnp.inf))
        expected = jnp.sum(p * rows, axis=-1)
        variance = jnp.sum(p * jnp.square(rows - expected[:, None]), axis=-1)
        return mean(expected - true), mean(variance)

    # Sum differences instead of subtracting means: this is exact for integer logits.
    differences = jnp.sum(jnp.where(possible, rows - true[:, None], 0), axis=-1)
    differences *= rows.shape[-1] / jnp.sum(possible, axis=-1)
    falls_at_first = jnp.sum(weigh(differences, counted)) < 0
    rises_in_the_end = jnp.any((true < 0) & (counted > 0))
    has_optimum = falls_at_first & rises_in_the_end

    smallest_step = 4 * jnp.finfo(rows.dtype).eps

    def going(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
        _, low, high, step, iteration = carry
        unsettled = (jnp.abs(step) > smallest_step) & (high / low > 1 + smallest_step)
        return (iteration < max_iterations) & unsettled

    def iterate(
        carry: tuple[Array, Array, Array, Array, Array],
    ) -> tuple[Array, Array, Array, Array, Array]:
        b, low, high, _, iteration = carry
        slope, curvature = slope_and_curvature(b)
        low, high = jnp.where(slope < 0, b, low), jnp.where(slope < 0, high, b)
        # Newton step for the root of the slope as a function of log b; its derivative is b f''.
        step = -slope / (b * curvature)
        newton = b * jnp.exp(jnp.clip(step, -_LONGEST_STEP, _LONGEST_STEP))
        inside = (newton > low) & (newton < high)
        middle = jnp.sqrt(low) * jnp.sqrt(high)
        farthest = jnp.exp(jnp.asarray(_LONGEST_STEP, b.dtype))
        following = jnp.where(inside, newton, jnp.clip(middle, b / farthest, b * farthest))
        following = jnp.where(slope == 0, b, following)
        return following, low, high, (following - b) / b, iteration + 1

    number = lambda value: jnp.asarray(value, rows.dtype)  # noqa: E731
    start = (number(8), number(_LOWEST), number(_HIGHEST), number(1), jnp.zeros((), jnp.int32))
    b, low, high, step, _ = lax.while_loop(going, iterate, start)
    # Rounding may keep changing the last digits; too few iterations leave larger steps.
    settled = jnp.minimum(jnp.abs(step), high / low - 1) <= 64 * smallest_step

    limits = jnp.finfo(rows.dtype)
    temperature = jnp.clip(scale / b, limits.tiny, limits.max)

    before, after = (mean(_losses(z, labels)) for z in (logits, logits / temperature))
    # Keep T = 1 where the fit is worse, or no better without an optimum: either may be rounding.
    better = jnp.where(has_optimum, after <= before, after < before)
    impossible = jnp.any((weight > 0) & (counted == 0))
    return TemperatureFit(
        temperature=jnp.where(better, temperature, 1),
        has_optimum=has_optimum,
        converged=has_optimum & settled & jnp.isfinite(before),
        nll_before=jnp.where(impossible, jnp.inf, before),
        nll_after=jnp.where(impossible, jnp.inf, jnp.where(better, after, before)),
    )


def _losses(logits: Float[Array, "rows classes"], labels: Labels) -> Float[Array, " rows"]:
    """Compute the NLL of each row."""
    top = jnp.max(logits, axis=-1, keepdims=True)
    true = numerics.true_class(logits, labels) - top[:, 0]
    losses = jax.nn.logsumexp(logits - top, axis=-1) - true
    return jnp.where(valid(labels, logits.shape[-1]), losses, jnp.nan)


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
    found = jnp.isfinite(values[best])
    return jnp.where(found, candidates[best], 1), values[best]
