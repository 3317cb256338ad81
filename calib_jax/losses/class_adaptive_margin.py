"""Class-adaptive margins (CALS): a multiplier per class, updated by an augmented Lagrangian."""

from __future__ import annotations

from typing import NamedTuple

import jax
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
    SoftLabels,
    Weights,
)
from calib_jax.losses.cross_entropy import cross_entropy_and_gaps
from calib_jax.losses.objectives import Objective, Progress, make_objective, register

PENALTIES = ("phr", "p2", "p3")


class ClassMarginState(NamedTuple):
    """The multipliers and the curvatures of the penalties.

    Attributes:
      multiplier: lambda of each class.
      rho: the curvature of each class, which grows while the class violates its constraint.
      previous: the mean constraint of each class in the last validation; infinity before the first.
    """

    multiplier: Float[Array, " classes"]
    rho: Float[Array, " classes"]
    previous: Float[Array, " classes"]


def _penalty(
    excess: PerClass, multiplier: Array, rho: Array, name: str
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

    $$\ell = -\log p_y + \frac1K \sum_k P(h_k, \lambda_k, \rho_k), \qquad
      h_k = \frac{\max_j z_j - z_k}{m} - 1, \qquad
      P = \frac{\max(0, \lambda + \rho h)^2 - \lambda^2}{2 \rho}$$

    After each validation pass, $\lambda_k$ becomes the mean slope $\partial P / \partial h_k$ of
    the validation examples, within its bounds: it grows for classes whose logits are further than
    m below the largest. A class of logit -inf has no penalty and is left out of the mean.

    Args:
      margin: m, greater than 0.
      penalty: "phr", the formula above; "p2" and "p3" are the cubic and the quadratic penalty of
        the released code, with a hyperbola for negative h.
      multiplier_min: the smallest multiplier, and the multiplier of every class until the first
        update.
      multiplier_max: the largest multiplier.
      rho: the initial curvature of every class.
      rho_max: the largest curvature.
      rho_growth: the factor by which the curvature of a class grows.
      rho_step: curvatures are tested at validations after a multiple of so many finished epochs.
      improvement: the curvature of a class grows if its mean h exceeds this share of its previous
        mean h, or exceeds 0 where that was negative.

    References:
      Liu et al. 2023, Class Adaptive Network Calibration. Formulas and values are those of the
      released main branch, its config and its command. Its devices average the means of devices;
      this objective computes one mean over all validation examples.
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
        curvature = jnp.full(num_classes, rho, float)
        return ClassMarginState(multiplier, curvature, jnp.full(num_classes, jnp.inf, float))

    def excess_of(state: ClassMarginState, gaps: PerClass) -> tuple[PerClass, PerClass]:
        """Compute h, and mark the possible classes with 1."""
        checks.classes_of_state(len(state.multiplier), gaps)
        possible = gaps != jnp.inf
        return jnp.where(possible, gaps, 0) / margin - 1, possible.astype(gaps.dtype)

    def penalty_of(state: ClassMarginState, excess: PerClass) -> tuple[PerClass, PerClass]:
        multiplier, curvature = (
            jnp.broadcast_to(part.astype(excess.dtype), excess.shape) for part in state[:2]
        )
        return _penalty(excess, multiplier, curvature, penalty)

    def value(state: ClassMarginState, logits: Logits, labels: Labels | SoftLabels) -> PerExample:
        losses, gaps = cross_entropy_and_gaps(logits, labels)
        excess, possible = excess_of(state, gaps)
        penalties = possible * penalty_of(state, excess)[0]
        number = jnp.maximum(jnp.sum(possible, axis=-1), 1)
        return losses + jnp.sum(penalties, axis=-1) / number

    def evidence(
        state: ClassMarginState,
        logits: Logits,
        labels: Labels | SoftLabels,
        weights: Weights | None,
    ) -> Sums:
        rows = at_least_float32(logits).reshape(-1, logits.shape[-1])
        excess, possible = excess_of(state, jnp.max(rows, axis=-1, keepdims=True) - rows)
        slopes = jnp.clip(penalty_of(state, excess)[1], multiplier_min, multiplier_max)
        each = weigh(jnp.ones(logits.shape[:-1], rows.dtype), weights).reshape(-1, 1) * possible
        return Sums(
            {
                "slope": jnp.sum(each * slopes, axis=0),
                "excess": jnp.sum(each * excess, axis=0),
                "weight": jnp.sum(each, axis=0),
            }
        )

    def update(state: ClassMarginState, sums: Sums, progress: Progress) -> ClassMarginState:
        absent = sums["weight"] == 0
        weight = jnp.where(absent, 1, sums["weight"])
        multiplier = jnp.clip(sums["slope"] / weight, multiplier_min, multiplier_max)
        excess = sums["excess"] / weight
        grows = excess > improvement * jnp.maximum(state.previous, 0)
        grows &= jnp.asarray(progress.epochs) % rho_step == 0
        grown = jnp.minimum(rho_max, rho_growth * state.rho)
        after = ClassMarginState(multiplier, jnp.where(grows, grown, state.rho), excess)
        return jax.tree.map(
            lambda old, new: jnp.where(absent, old, new).astype(old.dtype), state, after
        )

    def table(state: ClassMarginState, sums: Sums) -> dict[str, Array]:
        number = jnp.arange(len(state.multiplier))
        return {"class": number, "multiplier": state.multiplier, "rho": state.rho}

    return make_objective(
        value,
        init=init,
        evidence=evidence,
        update=update,
        clock="validation",
        table=table,
        soft_labels=True,
    )
