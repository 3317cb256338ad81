"""Tempered losses: weights of softmax(z / T), with T refitted on validation data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax.numpy as jnp

from calib_jax.core.binning import calibration_error, fixed_bin_sums
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import options_of, takes_options_of
from calib_jax.core.numerics import wide
from calib_jax.core.rows import thinned, weigh
from calib_jax.core.statistics import Rows
from calib_jax.core.temperature import accumulated_grid, fit_grid
from calib_jax.core.top_label import top_label
from calib_jax.core.types import Array, Labels, Logits, PerExample, Scalar, Weights
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.dual_focal import dual_focal, dual_focal_uncertainty
from calib_jax.losses.focal import focal, focal_uncertainty
from calib_jax.losses.generalized_brier import generalized_brier, generalized_brier_uncertainty
from calib_jax.losses.objectives import Objective, Progress, make_objective, register
from calib_jax.losses.sample_dependent_focal import flsd, sample_dependent_uncertainty
from calib_jax.losses.weighting import Uncertainty, Weighting, weigh_cross_entropy


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
      num_bins: the number of bins of the ECE.
      step, count: the grid.

    References:
      Lin et al. 2025, released code (Temperature... losses).

    >>> objective = tempered(lambda p: p.rest)
    >>> objective.init(10).temperature.item(), objective.clock
    (1.0, 'validation')
    """
    checks.one_of("criterion", criterion, ("ece", "nll"))
    checks.num_bins(num_bins)
    checks.above("step", step, 0)
    checks.at_least("count", count, 1)

    def error(logits: Array, labels: Labels, weights: Weights | None) -> Scalar:
        if criterion == "nll":
            losses = unchecked_cross_entropy(logits, labels)
            count = jnp.sum(weigh(jnp.ones_like(losses), weights))
            return jnp.sum(weigh(losses, weights)) / count
        return calibration_error(fixed_bin_sums(*top_label(logits, labels), weights, num_bins))

    def value(state: TemperedState, logits: Logits, labels: Labels) -> PerExample:
        return weigh_cross_entropy(
            logits, labels, uncertainty, weighting=weighting, temperature=state.temperature
        )

    def evidence(
        state: TemperedState, logits: Logits, labels: Labels, weights: Weights | None
    ) -> Rows:
        logits, labels, weights = thinned(logits, labels, weights)
        weight = weigh(jnp.ones(labels.shape, wide(logits.dtype)), weights)
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
        # The grid skips NaN, and would give 1 here.
        unusable = jnp.any(jnp.isnan(rows["logits"]) & (rows["weight"] != 0)[:, None])
        fitted = jnp.where(unusable, jnp.nan, fitted).astype(state.temperature.dtype)
        return TemperedState(jnp.where(known, fitted, state.temperature))

    return make_objective(
        value,
        init=lambda num_classes: TemperedState(jnp.ones((), float)),
        evidence=evidence,
        update=update,
        clock="validation",
    )


def _register_tempered(
    name: str,
    loss: Callable[..., PerExample],
    uncertainty: Callable[..., Uncertainty],
    without: Collection[str] = (),
) -> None:
    @register(f"tempered_{name}")
    @takes_options_of(tempered, loss, without=("step", "count", *without))
    def factory(**options: Any) -> Objective:
        of_score = options_of(uncertainty)
        chosen = {**options_of(loss), **options}
        others = {option: value for option, value in options.items() if option not in of_score}
        return tempered(uncertainty(**{option: chosen[option] for option in of_score}), **others)

    factory.__doc__ = f"The loss `{name}`, with the weight of tempered probabilities."


_register_tempered("focal", focal, focal_uncertainty)
_register_tempered("flsd53", flsd, sample_dependent_uncertainty, without=["thresholds"])
_register_tempered("dual_focal", dual_focal, dual_focal_uncertainty, without=["detach_runner_up"])
_register_tempered("bsce", generalized_brier, generalized_brier_uncertainty, without=["reading"])
