"""AdaFocal: one gamma per confidence bin, updated from the calibration of validation data."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Real

from calib_jax.core import arrays, checks
from calib_jax.core.binning import bin_index, equal_mass_bins, uniform_edges, whole_example_bins
from calib_jax.core.numerics import at_least_float32, first_argmax, power, valid
from calib_jax.core.probabilities import Probabilities
from calib_jax.core.statistics import Rows
from calib_jax.core.types import Array, Labels, Logits, Number, PerExample, Vector, Weights
from calib_jax.losses.focal import Uncertainty, Weighting, weigh_cross_entropy
from calib_jax.losses.objectives import Objective, Progress, make_objective

RULES = ("released", "slides")


def sorted_into_bins(confidence: Vector, hit: Vector, weight: Vector, num_bins: int) -> Any:
    """Sort the examples, and cut them into bins of equal weight."""
    # Sort by hit and weight as well: the order of equal confidences affects only rounding.
    present = weight > 0
    confidence = jnp.where(present, confidence, jnp.inf)
    hit, weight = jnp.where(present, hit, 0), jnp.where(present, weight, 0)
    confidence, hit, weight = lax.sort((confidence, hit, weight), num_keys=3)
    return equal_mass_bins(confidence, hit, weight, num_bins)


BINNINGS = {"mass": sorted_into_bins, "released": whole_example_bins}


class AdaFocalState(NamedTuple):
    """The gammas and the edges of the bins.

    Attributes:
      gamma: focal where positive, inverse focal where negative.
      edges: ascending, one more than the bins; the two outer edges are not used.
    """

    gamma: Float[Array, " bins"]
    edges: Float[Array, " edges"]


@arrays.takes_logits()
def adafocal(
    logits: Logits, labels: Labels, state: AdaFocalState, *, weighting: Weighting = "loss"
) -> PerExample:
    r"""Compute the focal or inverse focal loss with the gamma of the example's bin.

    $$\ell = (1 - s\, p_y)^{|\gamma_b|} (-\log p_y), \qquad
      s = \operatorname{sign} \gamma_b, \quad e_b \le p_y < e_{b+1}$$

    The bins are formed from the top-label confidence of validation data. A training example is
    assigned to a bin by the probability of its true class; values out of range use the first or
    last bin. The gammas are constants for differentiation.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      state: gammas and edges, from `adafocal_update`.
      weighting: "loss" or "gradient".

    Returns:
      One value per example, in float32 or float64.

    References:
      Ghosh et al. 2022, AdaFocal: Calibration-aware Adaptive Focal Loss.

    >>> import jax.numpy as jnp
    >>> state = AdaFocalState(gamma=jnp.array([2.0, -1.0]), edges=jnp.array([0.0, 0.4, 1.0]))
    >>> logits = jnp.log(jnp.array([[0.25, 0.75], [0.5, 0.5]]))
    >>> adafocal(logits, jnp.array([0, 0]), state).round(4)   # 0.75^2 log 4,  1.5 log 2
    Array([0.7798, 1.0397], dtype=float32)
    """
    uncertainty = adafocal_uncertainty(lax.stop_gradient(state))
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


def adafocal_uncertainty(state: AdaFocalState) -> Uncertainty:
    """Build the score (1 - p_y)^gamma, or (1 + p_y)^|gamma| where the bin's gamma is negative."""
    if len(state.edges) != len(state.gamma) + 1:
        raise ValueError(
            f"a state of {len(state.gamma)} gammas needs {len(state.gamma) + 1} edges, got"
            f" {len(state.edges)}."
        )

    def uncertainty(p: Probabilities) -> PerExample:
        index = bin_index(lax.stop_gradient(p.true), state.edges, "right")
        gamma = state.gamma.astype(p.log_true.dtype)[index]
        log_base = jnp.where(gamma >= 0, p.log_rest, jnp.log1p(p.true))
        return power(log_base, jnp.abs(gamma))

    return uncertainty


def thinned(logits: Logits, labels: Labels, weights: Any, most: int = 2**15) -> tuple[Any, ...]:
    """Keep an even grid of the labels of every example that has more than `most`.

    An image of 1,024 x 2,048 pixels has two million labels, and statistics with one row per label
    do not need all of them.

    >>> logits = jnp.zeros((1, 1024, 2048, 1))
    >>> thinned(logits, jnp.zeros((1, 1024, 2048), int), None)[1].shape
    (1, 128, 256)
    """
    step, sizes = 1, labels.shape[1:]
    while math.prod(-(-size // step) for size in sizes) > most:
        step += 1
    grid = (slice(None), *(slice((min(step, size) - 1) // 2, None, step) for size in sizes))
    grid = grid[: labels.ndim]  # one example alone has no axis
    return logits[grid], labels[grid], None if weights is None else weights[grid]


def adafocal_rows(
    confidence: Real[Array, " rows"],
    hit: Real[Array, " rows"] | Bool[Array, " rows"],
    weight: Weights | None = None,
) -> Rows:
    """Collect validation statistics for `adafocal_update`, one row per example.

    Args:
      confidence: the probability of the predicted class.
      hit: 1 where the prediction is right, else 0.
      weight: the weight of each example; all 1 by default.
    """
    confidence = at_least_float32(jnp.asarray(confidence))
    weight = jnp.ones_like(confidence) if weight is None else weight
    dtype = confidence.dtype
    return Rows(
        {
            "confidence": confidence,
            "hit": jnp.asarray(hit).astype(dtype),
            "weight": jnp.asarray(weight).astype(dtype),
        }
    )


def adafocal_rule(
    gamma: Float[Array, " bins"],
    gap: Float[Array, " bins"],
    *,
    rate: Number = 1.0,
    switch: Number = 0.2,
    gamma_min: Number = -2.0,
    gamma_max: Number = 20.0,
    rule: str = "released",
) -> Float[Array, " bins"]:
    r"""Update each gamma by the calibration gap of its bin, confidence minus accuracy.

    $$\gamma' = \gamma \, e^{\lambda E} \text{ if } \gamma > 0, \quad
      \gamma \, e^{-\lambda E} \text{ otherwise}; \qquad
      \gamma' \to -S \operatorname{sign}(\gamma') \text{ if } |\gamma'| < S$$

    The result is then clipped to the bounds. In an over-confident bin (E > 0) a positive gamma
    grows and a negative gamma shrinks, which lowers confidence more. A gamma of size below S
    changes sign, which switches between focal and inverse focal loss, and gets size S.

    Args:
      gamma: the current gammas.
      gap: E, mean confidence minus accuracy of each bin; 0 for an empty bin.
      rate: $\lambda$.
      switch: S.
      gamma_min, gamma_max: the bounds.
      rule: "released" as above, or "slides", which is $\gamma e^{\lambda E}$ alone.

    References:
      Ghosh et al. 2022, section 4; sign rule, switch and bounds as in their released code.

    >>> import jax.numpy as jnp
    >>> adafocal_rule(jnp.array([1.0, 0.21]), jnp.array([0.1, -0.1])).round(4)
    Array([ 1.1052, -0.2   ], dtype=float32)
    """
    checks.one_of("rule", rule, RULES)
    if rule == "slides":
        return gamma * jnp.exp(rate * gap)
    moved = gamma * jnp.exp(jnp.where(gamma > 0, rate, -rate) * gap)
    switched = jnp.where(moved > 0, -switch, switch)
    return jnp.clip(jnp.where(jnp.abs(moved) < switch, switched, moved), gamma_min, gamma_max)


def adafocal_update(
    state: AdaFocalState,
    rows: Rows,
    *,
    binning: str = "mass",
    rate: Number = 1.0,
    switch: Number = 0.2,
    gamma_min: Number = -2.0,
    gamma_max: Number = 20.0,
    rule: str = "released",
) -> AdaFocalState:
    """Recompute the bins from validation data and update their gammas.

    Args:
      state: the current state.
      rows: from `adafocal_rows`, merged over batches and devices.
      binning: "mass" cuts the examples into bins of equal weight, independent of their order;
        "released" is the released code's binning of whole examples, which drops the lowest.
      rate, switch, gamma_min, gamma_max, rule: the options of `adafocal_rule`.

    Returns:
      The new state, or the old state if there is no validation data.
    """
    checks.one_of("binning", binning, BINNINGS)
    if not rows["weight"].size:
        return state
    sums, edges = BINNINGS[binning](
        rows["confidence"], rows["hit"], rows["weight"], len(state.gamma)
    )
    gamma = adafocal_rule(
        state.gamma,
        sums.gap.astype(state.gamma.dtype),
        rate=rate,
        switch=switch,
        gamma_min=gamma_min,
        gamma_max=gamma_max,
        rule=rule,
    )
    known = jnp.any(rows["weight"] > 0)
    return AdaFocalState(
        gamma=jnp.where(known, gamma, state.gamma),
        edges=jnp.where(known, edges.astype(state.edges.dtype), state.edges),
    )


def adafocal_objective(
    *,
    num_bins: int = 15,
    gamma_initial: Number = 1.0,
    binning: str = "mass",
    weighting: Weighting = "loss",
    rate: Number = 1.0,
    switch: Number = 0.2,
    gamma_min: Number = -2.0,
    gamma_max: Number = 20.0,
    rule: str = "released",
) -> Objective:
    r"""AdaFocal: focal or inverse focal loss with a gamma per bin, updated after each validation.

    The bins hold equal shares of the validation examples by top-label confidence. Before the first
    validation they have equal width, and every bin has `gamma_initial`.

    Args:
      num_bins: number of bins.
      gamma_initial: the gamma of every bin until the first update; 1 in the paper.
      binning: "mass" cuts the examples into bins of equal weight, independent of their order;
        "released" is the released code's binning of whole examples, which drops the lowest.
      weighting: "loss" lets gradients flow through the weight; "gradient" makes it a constant.
      rate: $\lambda$, the factor of the calibration gap in the exponent of an update.
      switch: S; a gamma of size below S changes its sign, which switches between focal and inverse
        focal loss, and gets size S. 0 disables the switch.
      gamma_min: the smallest gamma; negative gammas give inverse focal loss.
      gamma_max: the largest gamma.
      rule: "released", the update with switch and bounds; "slides" multiplies each gamma by
        $e^{\lambda E}$ alone, and `switch`, `gamma_min` and `gamma_max` have no effect.

    References:
      Ghosh et al. 2022, AdaFocal: Calibration-aware Adaptive Focal Loss.
    """
    checks.num_bins(num_bins)
    checks.one_of("binning", binning, BINNINGS)
    checks.one_of("rule", rule, RULES)
    limits: dict[str, Any] = {"switch": switch, "gamma_min": gamma_min, "gamma_max": gamma_max}

    def init(num_classes: int) -> AdaFocalState:
        gamma = jnp.full(num_bins, gamma_initial, float)
        return AdaFocalState(gamma, jnp.asarray(uniform_edges(num_bins), float))

    def value(state: AdaFocalState, logits: Logits, labels: Labels) -> PerExample:
        uncertainty = adafocal_uncertainty(state)
        return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)

    def evidence(state: AdaFocalState, logits: Logits, labels: Labels, weights: Any) -> Rows:
        logits, labels, weights = thinned(logits, labels, weights)
        # The last bits are those of the metrics, so that a confidence falls into their bin.
        rows = at_least_float32(logits)
        spread = jnp.exp(rows - jnp.max(rows, axis=-1, keepdims=True))
        known = valid(labels, logits.shape[-1])
        confidence = jnp.where(known, 1 / jnp.sum(spread, axis=-1), jnp.nan)
        hit = (first_argmax(logits) == labels).astype(confidence.dtype)
        hit = jnp.where(jnp.isnan(confidence), jnp.nan, hit)
        weights = None if weights is None else weights.reshape(-1)
        return adafocal_rows(confidence.reshape(-1), hit.reshape(-1), weights)

    def update(state: AdaFocalState, rows: Rows, progress: Progress) -> AdaFocalState:
        return adafocal_update(state, rows, binning=binning, rate=rate, rule=rule, **limits)

    def table(state: AdaFocalState, rows: Rows) -> dict[str, Array]:
        columns = rows["confidence"], rows["hit"], rows["weight"]
        sums, edges = BINNINGS[binning](*columns, num_bins)
        mass = jnp.where(sums.weight > 0, sums.weight, jnp.nan)
        return {
            "from": edges[:-1],  # also during a warm-up, in which the state stays
            "to": edges[1:],
            "examples": sums.weight,
            "confidence": sums.confidence / mass,
            "accuracy": sums.hit / mass,
            "gap": sums.gap,
            "gamma": state.gamma,
        }

    return make_objective(
        value, init=init, evidence=evidence, update=update, clock="validation", table=table
    )
