"""Class-adaptive margins (CALS): a multiplier per class, updated by an augmented Lagrangian."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Sums
from calib_jax.core.types import (
    Array,
    Labels,
    Logits,
    Number,
    PerClass,
    PerExample,
    Scalar,
    SoftLabels,
    Weights,
)
from calib_jax.losses.cross_entropy import cross_entropy_and_gaps
from calib_jax.losses.objectives import Objective, Progress, make_objective, register

PENALTIES = ("phr", "p2", "p3")


class ClassMarginState(NamedTuple):
    """The multipliers and the curvature of the penalty.

    Attributes:
      multiplier: lambda of each class.
      rho: the curvature, which grows while the validation penalty does not fall.
      previous: the mean penalty of the last validation; 0 before the first.
    """

    multiplier: Float[Array, " classes"]
    rho: Scalar
    previous: Scalar


def _penalty(
    excess: PerClass, multiplier: Array, rho: Scalar, name: str
) -> tuple[PerClass, PerClass]:
    """Compute the penalty of a constraint `excess <= 0`, and the slope, the next multiplier."""
    if name == "phr":
        slope = jnp.maximum(multiplier + rho * excess, 0)
        return (jnp.square(slope) - jnp.square(multiplier)) / (2 * rho), slope
    # Both branches are finite: each sees the excess on its own side of 0 only.
    above, below = jnp.maximum(excess, 0), 1 - rho * jnp.minimum(excess, 0)
    value = multiplier * above + multiplier * rho * jnp.square(above)
    slope = multiplier + 2 * multiplier * rho * above
    if name == "p2":
        value += jnp.square(rho) * above**3 / 6
        slope += jnp.square(rho) * jnp.square(above) / 2
    inside = excess < 0
    return (
        jnp.where(inside, multiplier * jnp.minimum(excess, 0) / below, value),
        jnp.where(inside, multiplier / jnp.square(below), slope),
    )


@register("class_adaptive_margin")
def _class_adaptive_margin(
    *,
    margin: Number = 10.0,
    penalty: str = "phr",
    multiplier_min: Number = 1e-6,
    multiplier_max: Number = 1e6,
    rho: Number = 1.0,
    rho_max: Number = 10.0,
    rho_growth: Number = 1.2,
    rho_step: int = 10,
    improvement: Number = 0.9,
) -> Objective:
    r"""Class-adaptive margins: cross-entropy plus a penalty on far logits, with class multipliers.

    $$\ell = -\log p_y + \sum_k P(h_k, \lambda_k, \rho), \qquad
      h_k = \frac{\max_j z_j - z_k}{m} - 1, \qquad
      P = \frac{\max(0, \lambda + \rho h)^2 - \lambda^2}{2 \rho}$$

    After each validation pass, $\lambda_k$ becomes the mean slope $\partial P / \partial h_k$ of
    the validation examples, within its bounds: it grows for classes whose logits are further than
    m below the largest. A class of logit -inf has no penalty.

    Args:
      margin: m, greater than 0.
      penalty: "phr", the formula above; "p2" and "p3" are the cubic and the quadratic penalty of
        the released code, with a hyperbola for negative h.
      multiplier_min: the smallest multiplier, and the multiplier of every class until the first
        update.
      multiplier_max: the largest multiplier.
      rho: the initial curvature.
      rho_max: the largest curvature.
      rho_growth: the factor by which the curvature grows.
      rho_step: the curvature is tested at validations after a multiple of so many finished epochs.
      improvement: the curvature grows unless the validation penalty falls below this share of the
        previous one; both must be positive.

    References:
      Liu et al. 2023, Class Adaptive Network Calibration. The values are those of the released
      config and command. Their devices average the means of devices; this objective computes
      one mean over all validation examples.
    """
    checks.above("margin", margin, 0)
    checks.one_of("penalty", penalty, PENALTIES)
    checks.at_least("multiplier_min", multiplier_min, 0)
    checks.at_least("multiplier_max", multiplier_max, multiplier_min, " (multiplier_min)")
    checks.above("rho", rho, 0)
    checks.at_least("rho_max", rho_max, rho, " (rho)")
    checks.at_least("rho_growth", rho_growth, 1)
    checks.whole("rho_step", rho_step)

    def init(num_classes: int) -> ClassMarginState:
        multiplier = jnp.full(num_classes, multiplier_min, float)
        return ClassMarginState(multiplier, jnp.asarray(rho, float), jnp.zeros((), float))

    def of_classes(state: ClassMarginState, gaps: PerClass) -> tuple[PerClass, PerClass]:
        checks.classes_of_state(len(state.multiplier), gaps)
        possible = gaps != jnp.inf
        excess = jnp.where(possible, gaps, 0) / margin - 1
        multiplier = jnp.broadcast_to(state.multiplier.astype(gaps.dtype), gaps.shape)
        values, slopes = _penalty(excess, multiplier, state.rho.astype(gaps.dtype), penalty)
        return jnp.where(possible, values, 0), jnp.where(possible, slopes, 0)

    def value(state: ClassMarginState, logits: Logits, labels: Labels | SoftLabels) -> PerExample:
        losses, gaps = cross_entropy_and_gaps(logits, labels)
        return losses + jnp.sum(of_classes(state, gaps)[0], axis=-1)

    def evidence(
        state: ClassMarginState,
        logits: Logits,
        labels: Labels | SoftLabels,
        weights: Weights | None,
    ) -> Sums:
        rows = at_least_float32(logits)
        values, slopes = of_classes(state, jnp.max(rows, axis=-1, keepdims=True) - rows)
        weight = weigh(jnp.ones(values.shape[:-1], values.dtype), weights).reshape(-1)
        values = jnp.sum(values, axis=-1).reshape(-1)
        slopes = jnp.clip(slopes, multiplier_min, multiplier_max).reshape(-1, logits.shape[-1])
        return Sums(
            {
                "slope": jnp.sum(weight[:, None] * slopes, axis=0),
                "penalty": jnp.sum(weight * values),
                "weight": jnp.sum(weight),
            }
        )

    def update(state: ClassMarginState, sums: Sums, progress: Progress) -> ClassMarginState:
        nothing = sums["weight"] == 0
        mass = jnp.where(nothing, 1, sums["weight"])
        moved = jnp.clip(sums["slope"] / mass, multiplier_min, multiplier_max)
        current = (sums["penalty"] / mass).astype(state.previous.dtype)
        stuck = (state.previous > 0) & (current > 0) & (current > improvement * state.previous)
        stuck &= jnp.asarray(progress.epochs) % rho_step == 0
        grown = jnp.minimum(rho_max, rho_growth * state.rho).astype(state.rho.dtype)
        after = ClassMarginState(
            moved.astype(state.multiplier.dtype), jnp.where(stuck, grown, state.rho), current
        )
        return ClassMarginState(
            *(jnp.where(nothing, old, new) for old, new in zip(state, after, strict=True))
        )

    def table(state: ClassMarginState, sums: Sums) -> dict[str, Array]:
        return {"class": jnp.arange(len(state.multiplier)), "multiplier": state.multiplier}

    return make_objective(
        value,
        init=init,
        evidence=evidence,
        update=update,
        clock="validation",
        table=table,
        soft_labels=True,
    )
