"""Class-adaptive margins (CALS): a multiplier per class, updated by an augmented Lagrangian."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.numerics import at_least_float32, weigh
from calib_jax.core.statistics import Sums
from calib_jax.core.types import AnyLabels, Array, Logits, Number, PerClass, PerExample
from calib_jax.losses.focal import cross_entropy_and_gaps
from calib_jax.losses.objectives import Objective, Progress, classes_of_state, make_objective

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
    half = jnp.broadcast_to(0.5 / rho, excess.shape)
    multiplier, rho = (jnp.broadcast_to(part, excess.shape) for part in (multiplier, rho))
    if name == "phr":
        slope = jnp.maximum(multiplier + rho * excess, 0)
        return (jnp.square(slope) - jnp.square(multiplier)) * half, slope
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


def _num_possible(logits: Logits) -> PerExample:
    """Count the classes of each row whose logit is not -inf; rarely any is, so a count is rare."""
    some = jnp.any(logits == -jnp.inf)
    counted = lambda: jnp.sum(logits != -jnp.inf, axis=-1, dtype=jnp.float32)  # noqa: E731
    every = lambda: jnp.full_like(logits[..., 0], logits.shape[-1], jnp.float32)  # noqa: E731
    return jnp.maximum(lax.cond(some, counted, every), 1)


def class_adaptive_margin(
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
    checks.one_of("penalty", penalty, PENALTIES)

    def init(num_classes: int) -> ClassMarginState:
        multiplier = jnp.full(num_classes, multiplier_min, float)
        curvature = jnp.full(num_classes, rho, float)
        return ClassMarginState(multiplier, curvature, jnp.full(num_classes, jnp.inf, float))

    def of_classes(state: ClassMarginState, gaps: PerClass) -> tuple[PerClass, PerClass, PerClass]:
        """Compute h, the penalty and its slope; 0 for impossible classes."""
        classes_of_state(len(state.multiplier), gaps)
        possible = gaps != jnp.inf
        excess = jnp.where(possible, gaps, 0) / margin - 1
        multiplier, curvature = (part.astype(gaps.dtype) for part in state[:2])
        values, slopes = _penalty(excess, multiplier, curvature, penalty)
        slopes = jnp.clip(slopes, multiplier_min, multiplier_max)
        excess, values = jnp.where(possible, excess, 0), jnp.where(possible, values, 0)
        return excess, values, jnp.where(possible, slopes, 0)

    def value(state: ClassMarginState, logits: Logits, labels: AnyLabels) -> PerExample:
        losses, gaps = cross_entropy_and_gaps(logits, labels)
        penalties = jnp.sum(of_classes(state, gaps)[1], axis=-1)
        return losses + penalties / _num_possible(logits).astype(losses.dtype)

    def evidence(state: ClassMarginState, logits: Logits, labels: AnyLabels, weights: Any) -> Sums:
        rows = at_least_float32(logits).reshape(-1, logits.shape[-1])
        gaps = jnp.max(rows, axis=-1, keepdims=True) - rows
        excess, _, slopes = of_classes(state, gaps)
        each = weigh(jnp.ones(logits.shape[:-1], rows.dtype), weights).reshape(-1, 1)
        present = jnp.where(gaps == jnp.inf, 0, each)
        parts = {"slope": each * slopes, "excess": each * excess, "weight": present}
        return Sums({name: jnp.sum(part, axis=0) for name, part in parts.items()})

    def update(state: ClassMarginState, sums: Sums, progress: Progress) -> ClassMarginState:
        absent = sums["weight"] == 0
        weight = jnp.where(absent, 1, sums["weight"])
        multiplier = jnp.clip(sums["slope"] / weight, multiplier_min, multiplier_max)
        excess = sums["excess"] / weight
        grows = excess > improvement * jnp.maximum(state.previous, 0).astype(excess.dtype)
        grows &= jnp.asarray(progress.epochs) % rho_step == 0
        grown = jnp.minimum(rho_max, rho_growth * state.rho)
        after = ClassMarginState(multiplier, jnp.where(grows, grown, state.rho), excess)
        return jax.tree.map(
            lambda old, new: jnp.where(absent, old, new.astype(old.dtype)), state, after
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
