"""Exponentially weighted losses: a loss times an exponential of itself, held constant."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from calib_jax.core import checks
from calib_jax.core.numerics import times
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.types import (
    AxisName,
    Labels,
    Logits,
    Number,
    PerExample,
    Weights,
)
from calib_jax.losses.brier import brier
from calib_jax.losses.cross_entropy import cross_entropy
from calib_jax.losses.dual_focal import dual_focal
from calib_jax.losses.focal import focal
from calib_jax.losses.objectives import Objective, as_objective, register

__all__ = ["exponential_weight", "exponentially_weighted"]

FORMS = ("scaled", "unscaled", "no_minus", "pure")


def exponential_weight(
    values: PerExample, *, temperature: Number = 1.0, form: str = "scaled"
) -> PerExample:
    r"""Compute weights that grow exponentially with the loss values, as constants for autodiff.

    $$\text{scaled: } e^{\mathrm{clip}(v, 0, T) / (T + 1)} - 1, \quad
      \text{unscaled: } e^{\mathrm{clip}(v, 0, T)} - 1, \quad
      \text{no\_minus: } e^{\mathrm{clip}(v, 0, T) / (T + 1)}, \quad
      \text{pure: } e^{\min(v, 60)}$$

    Args:
      values: losses.
      temperature: T.
      form: one of the four. The released names are BrierScoreExp, ...NoClipping (which does
        clip), ...NoMinus and ...Pure.

    References:
      Lin et al. 2025, released code.

    >>> import jax.numpy as jnp
    >>> exponential_weight(jnp.array([0.0, 0.5, 3.0])).round(4)
    Array([0.    , 0.284 , 0.6487], dtype=float32)
    """
    checks.one_of("form", form, FORMS)
    checks.above("temperature", temperature, 0)
    values = lax.stop_gradient(values)
    if form == "pure":
        return jnp.exp(jnp.minimum(values, 60))  # Brier scores stay below 2; others may overflow
    clipped = jnp.clip(values, 0, temperature)
    if form == "unscaled":
        return jnp.expm1(clipped)
    scaled = clipped / (temperature + 1)
    return jnp.exp(scaled) if form == "no_minus" else jnp.expm1(scaled)


def exponentially_weighted(
    loss: Callable[..., PerExample], *, temperature: Number = 1.0, form: str = "scaled"
) -> Callable[[Logits, Labels], PerExample]:
    """Multiply a loss, a function of `(logits, labels)`, by its own `exponential_weight`.

    >>> import jax.numpy as jnp
    >>> from calib_jax import losses
    >>> losses.exponentially_weighted(losses.brier)(jnp.zeros((1, 2)), jnp.array([0])).round(4)
    Array([0.142], dtype=float32)
    """

    def weighted(logits: Logits, labels: Labels) -> PerExample:
        values = loss(logits, labels)
        return values * exponential_weight(values, temperature=temperature, form=form)

    return weighted


@register("cross_entropy_exp")
def _cross_entropy_exp(*, temperature: Number = 1.0, form: str = "scaled") -> Objective:
    """Cross-entropy, exponentially weighted by itself."""
    return as_objective(exponentially_weighted(cross_entropy, temperature=temperature, form=form))


@register("brier_exp")
def _brier_exp(*, temperature: Number = 1.0, form: str = "scaled") -> Objective:
    """Brier score, exponentially weighted by itself."""
    return as_objective(exponentially_weighted(brier, temperature=temperature, form=form))


@register("focal_exp")
def _focal_exp(
    *, gamma: Number = 3.0, temperature: Number = 1.0, form: str = "scaled"
) -> Objective:
    """Focal loss, exponentially weighted by itself."""
    return as_objective(
        exponentially_weighted(
            lambda logits, labels: focal(logits, labels, gamma=gamma),
            temperature=temperature,
            form=form,
        )
    )


@register("dual_focal_exp")
def _dual_focal_exp(
    *,
    gamma: Number = 5.0,
    runner_up: str = "below",
    temperature: Number = 1.0,
    form: str = "scaled",
) -> Objective:
    """Dual focal loss, exponentially weighted by itself."""
    return as_objective(
        exponentially_weighted(
            lambda logits, labels: dual_focal(logits, labels, gamma=gamma, runner_up=runner_up),
            temperature=temperature,
            form=form,
        )
    )


@register("cross_entropy_brier_weight")
def _cross_entropy_brier_weight(*, temperature: Number = 1.0, form: str = "scaled") -> Objective:
    """Cross-entropy times one weight per batch, exponential in the batch's mean Brier score."""

    def value(
        logits: Logits, labels: Labels, weights: Weights | None, axis_name: AxisName
    ) -> PerExample:
        scores = brier(lax.stop_gradient(logits), labels)
        counts = weigh(jnp.ones_like(scores), weights)
        score, count = total((jnp.sum(weigh(scores, weights)), jnp.sum(counts)), axis_name)
        mean = score / jnp.maximum(count, 1e-30)
        weight = exponential_weight(mean, temperature=temperature, form=form)
        losses = cross_entropy(logits, labels)
        return times(jnp.broadcast_to(weight, losses.shape), losses)

    return as_objective(value)
