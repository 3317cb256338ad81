"""Tempered losses: weights of softmax(z / T), with T refitted on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.binning import calibration_error, fixed_bin_sums
from calib_jax.core.probabilities import Weighting
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import Rows
from calib_jax.core.temperature import accumulated_grid, fit_grid
from calib_jax.core.top_label import top_label
from calib_jax.core.types import Array, Labels, Logits, Number, PerExample, Scalar, Weights
from calib_jax.losses.cross_entropy import cross_entropy
from calib_jax.losses.dual_focal import RUNNERS_UP, dual_focal_uncertainty
from calib_jax.losses.focal import focal_uncertainty
from calib_jax.losses.generalized_brier import generalized_brier_uncertainty
from calib_jax.losses.objectives import Objective, Progress, as_objective, register
from calib_jax.losses.sample_dependent_focal import sample_dependent_uncertainty
from calib_jax.losses.weighting import Uncertainty, weighted_cross_entropy

__all__ = ["TemperedState", "tempered"]


class TemperedState(NamedTuple):
    """The last fitted temperature; 1 at the start."""

    temperature: Scalar


def tempered(
    uncertainty: Uncertainty,
    *,
    weighting: Weighting = "loss",
    criterion: str = "ece",
    num_bins: int = 15,
    step: float = 0.01,
    count: int = 1000,
) -> Objective:
    r"""Build an objective whose uncertainty score uses tempered probabilities.

    $$\ell = u(\mathrm{softmax}(z / T), y) \, (-\log p_y)$$

    After each validation pass T is refitted: it is the first strict minimum of the criterion on
    the validation logits over the grid step, 2 step, ... (0.01 to 10 as released).

    Args:
      uncertainty: a function of `Probabilities`; see `weighted_cross_entropy`.
      weighting: "loss" or "gradient".
      criterion: "ece" or "nll".
      num_bins: of the ECE.
      step, count: the grid.

    References:
      Lin et al. 2025, released code (Temperature... losses).

    >>> objective = tempered(lambda p: p.rest)
    >>> objective.init(10).temperature.item(), objective.clock
    (1.0, 'validation')
    """
    checks.one_of("criterion", criterion, ("ece", "nll"))
    checks.at_least("num_bins", num_bins, 1)
    checks.above("step", step, 0)
    checks.at_least("count", count, 1)

    def error(logits: Array, labels: Labels, weights: Weights | None) -> Scalar:
        if criterion == "nll":
            losses = cross_entropy(logits, labels)
            count = jnp.sum(weigh(jnp.ones_like(losses), weights))
            return jnp.sum(weigh(losses, weights)) / count
        return calibration_error(fixed_bin_sums(*top_label(logits, labels), weights, num_bins))

    def value(logits: Logits, labels: Labels, state: TemperedState) -> PerExample:
        return weighted_cross_entropy(
            logits, labels, uncertainty, weighting=weighting, temperature=state.temperature
        )

    def evidence(
        state: TemperedState, logits: Logits, labels: Labels, weights: Weights | None
    ) -> Rows:
        weight = weigh(jnp.ones(labels.shape, jnp.float32), weights)
        return Rows(
            {
                "logits": logits.reshape(-1, logits.shape[-1]),
                "label": labels.reshape(-1),
                "weight": weight.reshape(-1),
            }
        )

    def update(state: TemperedState, rows: Rows, progress: Progress) -> TemperedState:
        if not rows["weight"].size:
            return state
        grid = accumulated_grid(step, count)
        fitted, _ = fit_grid(rows["logits"], rows["label"], rows["weight"], error, grid)
        known = jnp.any(rows["weight"] > 0)
        fitted = fitted.astype(state.temperature.dtype)
        return TemperedState(jnp.where(known, fitted, state.temperature))

    return as_objective(
        value,
        init=lambda num_classes: TemperedState(jnp.ones((), float)),
        evidence=evidence,
        update=update,
        clock="validation",
    )


@register("tempered_focal")
def _tempered_focal(
    *,
    gamma: Number = 3.0,
    weighting: Weighting = "loss",
    criterion: str = "ece",
    num_bins: int = 15,
) -> Objective:
    """Focal weights of tempered probabilities."""
    checks.at_least("gamma", gamma, 0)
    return tempered(
        focal_uncertainty(gamma), weighting=weighting, criterion=criterion, num_bins=num_bins
    )


@register("tempered_flsd53")
def _tempered_flsd53(
    *,
    gammas: Sequence[Number] = (5.0, 3.0, 3.0),
    weighting: Weighting = "loss",
    criterion: str = "ece",
    num_bins: int = 15,
) -> Objective:
    """FLSD-53 weights of tempered probabilities, which also determine gamma."""
    uncertainty = sample_dependent_uncertainty((0.2, 0.5), gammas)
    return tempered(uncertainty, weighting=weighting, criterion=criterion, num_bins=num_bins)


@register("tempered_dual_focal")
def _tempered_dual_focal(
    *,
    gamma: Number = 5.0,
    runner_up: str = "below",
    weighting: Weighting = "loss",
    criterion: str = "ece",
    num_bins: int = 15,
) -> Objective:
    """Dual focal weights of tempered probabilities."""
    checks.at_least("gamma", gamma, 0)
    checks.one_of("runner_up", runner_up, RUNNERS_UP)
    uncertainty = dual_focal_uncertainty(gamma, runner_up)
    return tempered(uncertainty, weighting=weighting, criterion=criterion, num_bins=num_bins)


@register("tempered_bsce")
def _tempered_bsce(
    *,
    gamma: Number = 2.0,
    beta: Number = 2.0,
    weighting: Weighting = "loss",
    criterion: str = "ece",
    num_bins: int = 15,
) -> Objective:
    """Generalised Brier weights of tempered probabilities."""
    checks.at_least("gamma", gamma, 0)
    checks.at_least("beta", beta, 1, " to be a norm")
    uncertainty = generalized_brier_uncertainty(gamma, beta)
    return tempered(uncertainty, weighting=weighting, criterion=criterion, num_bins=num_bins)
