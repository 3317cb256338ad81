"""Exponentially weighted losses: a loss times an exponential of itself, held constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import options_of, takes_options_of
from calib_jax.core.numerics import constant_in_gradient, times
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.types import Array, AxisName, Logits, Number, PerExample, PyTree, Weights
from calib_jax.losses.brier import brier
from calib_jax.losses.cross_entropy import cross_entropy, unchecked_cross_entropy
from calib_jax.losses.dual_focal import dual_focal
from calib_jax.losses.focal import focal
from calib_jax.losses.objectives import (
    Objective,
    as_objective,
    make_objective,
    register,
    with_options,
)

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
    values = constant_in_gradient(values)
    limit = checks.per_example("temperature", temperature, values)
    if form == "pure":
        return jnp.exp(jnp.minimum(values, 60))  # Brier scores stay below 2; others may overflow
    clipped = jnp.clip(values, 0, limit)
    if form == "unscaled":
        return jnp.expm1(clipped)
    scaled = clipped / (limit + 1)
    return jnp.exp(scaled) if form == "no_minus" else jnp.expm1(scaled)


@takes_options_of(exponential_weight)
def exponentially_weighted(
    loss: Callable[..., PerExample], **options: Any
) -> Callable[..., PerExample]:
    """Multiply a loss, a function of `(logits, labels)`, by its own `exponential_weight`.

    >>> import jax.numpy as jnp
    >>> from calib_jax import losses
    >>> losses.exponentially_weighted(losses.brier)(jnp.zeros((1, 2)), jnp.array([0])).round(4)
    Array([0.142], dtype=float32)
    """

    def weighted(logits: Array, labels: Array) -> PerExample:
        values = loss(logits, labels)
        return values * exponential_weight(values, **options)

    return checks.mark_checked(weighted, weighted, checks.takes_soft_labels(loss))


def _register_exponential(name: str, loss: Callable[..., PerExample], **fixed: Any) -> None:
    @register(f"{name}_exp")
    @takes_options_of(loss, exponential_weight, without=fixed)
    def factory(**options: Any) -> Objective:
        of_weight = options_of(exponential_weight).keys() & options.keys()
        weight_options = {option: options.pop(option) for option in of_weight}
        inner = with_options(loss, **fixed, **options)
        return as_objective(exponentially_weighted(inner, **weight_options))

    factory.__doc__ = f"The loss `{name}`, exponentially weighted by itself."


_register_exponential("cross_entropy", cross_entropy)
_register_exponential("brier", brier)
_register_exponential("focal", focal, weighting="loss")
_register_exponential("dual_focal", dual_focal, weighting="loss", detach_runner_up=False)


@register("cross_entropy_brier_weight")
@takes_options_of(exponential_weight)
def _cross_entropy_brier_weight(**options: Any) -> Objective:
    """Cross-entropy times one weight per batch, exponential in the batch's mean Brier score."""

    def value(
        _: PyTree, logits: Logits, labels: Array, weights: Weights | None, *, axis_name: AxisName
    ) -> PerExample:
        scores = checks.unchecked(brier)(constant_in_gradient(logits), labels)
        counts = weigh(jnp.ones_like(scores), weights)
        score, count = total((jnp.sum(weigh(scores, weights)), jnp.sum(counts)), axis_name)
        weight = exponential_weight(score / jnp.maximum(count, 1e-30), **options)
        losses = unchecked_cross_entropy(logits, labels)
        return times(jnp.broadcast_to(weight, losses.shape), losses)

    return make_objective(value, soft_labels=True)
