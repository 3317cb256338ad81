r"""The temperature fit that tempered losses and calibrators share.

Dividing logits by T > 0 changes confidence and no prediction. The NLL is convex in 1/T,

$$f(b) = \operatorname{mean}_n\,\bigl[\log \textstyle\sum_k e^{b z_{nk}} - b z_{ny}\bigr], \quad
  f'(b) = \operatorname{mean}_n\,\bigl[\mathrm{E}_p z - z_y\bigr], \quad
  f''(b) = \operatorname{mean}_n \operatorname{Var}_p z, \qquad b = 1/T,$$

so a bracketed Newton iteration on its derivative cannot wander off. Calibration errors are
piecewise and ragged in T: for them there is the papers' grid.
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

LIMIT = 1e6  # temperatures are sought between 1 / LIMIT and LIMIT


class TemperatureFit(NamedTuple):
    """Where the fit ended and whether it can be believed.

    Attributes:
      temperature: the fitted T; 1 where no finite optimum exists or it would not help.
      converged: whether the derivative of the NLL vanishes at T, and iterations sufficed.
      nll_before: the mean NLL at T = 1.
      nll_after: the mean NLL at `temperature`; never more than before.
    """

    temperature: Scalar
    converged: Bool[Array, ""]
    nll_before: Scalar
    nll_after: Scalar


def fit_nll(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, max_iterations: Number = 100
) -> TemperatureFit:
    """Minimise the mean NLL over the temperature by safeguarded Newton steps in log T.

    Where the NLL falls towards a limit (every prediction right: T -> 0; no better than chance:
    T -> infinity) there is no optimum: the result is the best T met, with `converged` False.
    """
    logits, labels = present(logits, labels, weights)
    rows = numerics.at_least_float32(logits).reshape(-1, logits.shape[-1])
    rows = rows - jnp.max(rows, axis=-1, keepdims=True)
    labels = labels.reshape(-1)
    true = numerics.true_class(rows, labels)
    true = jnp.where(valid(labels, rows.shape[-1]), true, jnp.nan)
    weight = weigh(jnp.ones_like(true), None if weights is None else weights.reshape(-1))
    count = jnp.sum(weight)

    def nll(log_b: Scalar) -> Scalar:
        scaled = jnp.exp(log_b) * rows
        losses = jax.nn.logsumexp(scaled, axis=-1) - jnp.exp(log_b) * true
        return jnp.sum(weigh(losses, weight)) / count

    def slope_and_curvature(log_b: Scalar) -> tuple[Scalar, Scalar]:
        """Differentiate the NLL by b = exp(log_b), twice."""
        p = jax.nn.softmax(jnp.exp(log_b) * rows)
        mean = jnp.sum(p * rows, axis=-1)
        variance = jnp.sum(p * jnp.square(rows - mean[:, None]), axis=-1)
        return jnp.sum(weigh(mean - true, weight)) / count, (
            jnp.sum(weigh(variance, weight)) / count
        )

    bound = jnp.log(jnp.asarray(LIMIT, rows.dtype))
    smallest_step = 4 * jnp.finfo(rows.dtype).eps

    def going(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
        _, low, high, step, iteration = carry
        unsettled = (jnp.abs(step) > smallest_step) & (high - low > smallest_step)
        return (iteration < max_iterations) & unsettled

    def iterate(
        carry: tuple[Array, Array, Array, Array, Array],
    ) -> tuple[Array, Array, Array, Array, Array]:
        log_b, low, high, _, iteration = carry
        slope, curvature = slope_and_curvature(log_b)
        low, high = jnp.where(slope < 0, log_b, low), jnp.where(slope < 0, high, log_b)
        # Newton for the root of the slope as a function of log b, whose derivative is b f''.
        newton = log_b - slope / (jnp.exp(log_b) * curvature)
        inside = (newton > low) & (newton < high)
        following = jnp.where(inside, newton, (low + high) / 2)
        following = jnp.where(slope == 0, log_b, following)
        return following, low, high, following - log_b, iteration + 1

    zero = jnp.zeros((), rows.dtype)
    start = (zero, -bound, bound, jnp.ones((), rows.dtype), jnp.zeros((), jnp.int32))
    log_b, low, high, step, _ = lax.while_loop(going, iterate, start)

    before, after = nll(zero), nll(log_b)
    # Where the derivative only vanishes because it underflows, the curvature does as well.
    settled = slope_and_curvature(log_b)[1] > 0
    # Rounding may keep the last digits moving; iterations that ran out leave more than that.
    settled &= jnp.minimum(jnp.abs(step), high - low) <= 64 * smallest_step
    interior = jnp.abs(log_b) < bound - 0.1
    better = after <= before
    return TemperatureFit(
        temperature=jnp.where(better, jnp.exp(-log_b), 1),
        converged=settled & interior & better & jnp.isfinite(after),
        nll_before=before,
        nll_after=jnp.where(better, after, before),
    )


def accumulated_grid(
    step: float, count: int, *, start: float | None = None
) -> Float[np.ndarray, " count"]:
    """List step, 2 step, ..., by repeated addition, as the released loops count (T += 0.1).

    Args:
      step: what is added.
      count: how many numbers there are.
      start: the first one, if it is not `step`.
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
    """Try every temperature in one compiled pass; the first strict minimum wins.

    Args:
      criterion: what to minimise, a function of (logits / T, labels, weights).

    Returns:
      The temperature and the criterion there; (1, infinity) where no value is a number.
    """
    rows = numerics.at_least_float32(logits)
    candidates = jnp.asarray(temperatures, rows.dtype)
    values = lax.map(lambda t: criterion(rows / t, labels, weights), candidates)
    values = jnp.where(jnp.isnan(values), jnp.inf, values)
    best = jnp.argmin(values)
    found = jnp.isfinite(values[best])
    return jnp.where(found, candidates[best], 1), values[best]
