"""ECE-weighted cross-entropy: weights from the calibration gaps of the last validation pass."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core.binning import (
    BinSums,
    calibration_error,
    class_bin_sums,
    equal_mass_bins,
    fixed_bin_sums,
    left_closed_bin_index,
    uniform_edges,
    whole_example_bins,
)
from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32, ordered_bits, times, widened
from calib_jax.core.probabilities import cross_entropy_and_view
from calib_jax.core.rows import thinned, weigh
from calib_jax.core.statistics import Joint, Rows, Sums, gather
from calib_jax.core.top_label import top_label
from calib_jax.core.types import (
    Array,
    AxisName,
    Labels,
    Logits,
    Number,
    PerExample,
    Scalar,
    Weights,
)
from calib_jax.losses.objectives import Objective, Progress, make_objective, register

BINNINGS = {"mass": equal_mass_bins, "released": whole_example_bins}


class EceWeightedState(NamedTuple):
    """The calibration gaps of the last validation pass.

    Attributes:
      fixed_gap: confidence minus accuracy in bins of equal width.
      mass_gap: confidence minus accuracy in bins of equal mass.
      class_error: the calibration error of each class.
      blend: the share of plain cross-entropy, from 1 at the start of training to 0 at its end.
    """

    fixed_gap: Float[Array, " bins"]
    mass_gap: Float[Array, " bins"]
    class_error: Float[Array, " classes"]
    blend: Scalar


@checks.takes_logits()
def ece_weighted(
    logits: Logits,
    labels: Labels,
    state: EceWeightedState,
    weights: Weights | None = None,
    *,
    classwise_scale: Number = 2.0,
    axis_name: AxisName = None,
) -> PerExample:
    r"""Compute cross-entropy weighted by the validation gaps of the example's bins and class.

    $$\ell = \bigl(l + (1 - l) w\bigr) (-\log p_y), \qquad
      w = \tfrac13 \bigl(|E_{b(p_y)}| + |\tilde E_{r}| + 2 |E^{class}_y|\bigr)$$

    with $E_{b(p_y)}$ the gap of the equal-width bin $[lo, hi)$ that contains $p_y$ (0 at exactly
    1), $\tilde E_r$ the gap of the equal-mass bin of the rank of $p_y$ in the batch (B groups of
    N // B in ascending order, the remainder in the last), and l the state's blend. Because of
    the rank, the loss of an example depends on its batch.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      state: from the objective's `update`.
      weights: the weight of each example; examples of weight 0 have no rank.
      classwise_scale: the factor of the class error.
      axis_name: a device axis, over which the batch is ranked.

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2025, released code (ECELoss).

    >>> import jax.numpy as jnp
    >>> gaps = jnp.array([0.1, 0.3])
    >>> state = EceWeightedState(gaps, gaps, jnp.zeros(2), blend=jnp.array(0.5))
    >>> ece_weighted(jnp.array([[-4.0, 0.0], [4.0, 0.0]]), jnp.array([0, 0]), state).round(4)
    Array([2.143 , 0.0109], dtype=float32)
    """
    state = lax.stop_gradient(state)
    return _ece_weighted_terms(
        state, logits, labels, weights, classwise_scale=classwise_scale, axis_name=axis_name
    )


def _ece_weighted_terms(
    state: EceWeightedState,
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
    *,
    classwise_scale: Number,
    axis_name: AxisName,
) -> PerExample:
    checks.classes_of_state(len(state.class_error), logits)
    num_bins = len(state.mass_gap)
    cross_entropy, view = cross_entropy_and_view(logits, labels)
    true = lax.stop_gradient(view.true)
    fixed_gap = state.fixed_gap[left_closed_bin_index(true, uniform_edges(num_bins))]
    fixed_gap = jnp.where(true >= 1, 0, fixed_gap)

    rank, count = _ranks(true, weights, axis_name)
    size = count // num_bins
    # In a batch with fewer examples than bins, every example uses the gap of the last bin.
    group = jnp.where(size > 0, rank // jnp.maximum(size, 1), num_bins - 1)
    mass_gap = state.mass_gap[jnp.minimum(group, num_bins - 1)]

    class_error = state.class_error[jnp.clip(widened(labels), 0, logits.shape[-1] - 1)]
    gaps = jnp.abs(fixed_gap) + jnp.abs(mass_gap) + classwise_scale * jnp.abs(class_error)
    weight = state.blend + (1 - state.blend) * gaps / 3
    return times(weight.astype(cross_entropy.dtype), cross_entropy)


def _ranks(values: PerExample, weights: Weights | None, axis_name: AxisName) -> tuple[Array, Array]:
    """Rank values over the global batch, with absent rows last, and count the present rows."""
    flat = values.reshape(-1)
    present = jnp.ones(flat.shape, bool) if weights is None else weights.reshape(-1) > 0
    everything, everyone = gather((jnp.where(present, flat, jnp.inf), present), axis_name)
    # Equal values share the lowest of their ranks, so that the order of rows does not matter.
    ascending = jnp.sort(ordered_bits(everything))
    rank = jnp.searchsorted(ascending, ordered_bits(flat), method="scan_unrolled")
    return rank.reshape(values.shape), jnp.sum(everyone, dtype=rank.dtype)


@register("ece_weighted")
def _ece_weighted(
    *, num_bins: int = 15, classwise_scale: Number = 2.0, binning: str = "mass"
) -> Objective:
    """ECE-weighted cross-entropy; plain cross-entropy until the first validation pass.

    Args:
      num_bins: number of bins of equal width, and of equal mass.
      classwise_scale: the factor of the class error.
      binning: how bins of equal mass are cut: "mass" cuts the examples into bins of equal
        weight; "released" is the released code's binning of whole examples, which drops the lowest.

    References:
      Lin et al. 2025, released code (ECELoss).
    """
    checks.num_bins(num_bins)
    checks.one_of("binning", binning, BINNINGS)

    def init(num_classes: int) -> EceWeightedState:
        no_gap = jnp.zeros(num_bins, float)
        return EceWeightedState(no_gap, no_gap, jnp.zeros(num_classes, float), jnp.ones((), float))

    def evidence(
        state: EceWeightedState, logits: Logits, labels: Labels, weights: Weights | None
    ) -> Joint:
        some_logits, some_labels, some_weights = thinned(logits, labels, weights)
        confidence, hit = top_label(some_logits, some_labels)
        weight = weigh(jnp.ones_like(confidence), some_weights)
        columns = {"confidence": confidence, "hit": hit, "weight": weight}
        p = jax.nn.softmax(at_least_float32(logits))
        return Joint(
            {
                "rows": Rows({name: column.reshape(-1) for name, column in columns.items()}),
                "classes": Sums(class_bin_sums(p, labels, weights, num_bins)._asdict()),
            }
        )

    def update(state: EceWeightedState, stat: Joint, progress: Progress) -> EceWeightedState:
        rows = stat["rows"]
        columns = rows["confidence"], rows["hit"], rows["weight"]
        blend = jnp.asarray(1 - progress.epochs / progress.num_epochs, state.blend.dtype)
        if not rows["weight"].size:
            return state._replace(blend=blend)
        mass, _ = BINNINGS[binning](*columns, num_bins)
        errors = EceWeightedState(
            fixed_gap=fixed_bin_sums(*columns, num_bins).gap,
            mass_gap=mass.gap,
            class_error=calibration_error(BinSums(**stat["classes"].values)),
            blend=blend,
        )
        # Keep the old gaps after a validation pass of total weight 0.
        known = jnp.any(rows["weight"] > 0)
        kept = state._replace(blend=blend)
        return jax.tree.map(
            lambda new, old: jnp.where(known, new.astype(old.dtype), old), errors, kept
        )

    value = functools.partial(_ece_weighted_terms, classwise_scale=classwise_scale)
    return make_objective(value, init=init, evidence=evidence, update=update, clock="validation")
