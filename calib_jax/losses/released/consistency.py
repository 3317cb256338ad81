"""Consistency weights: focal weights of calibrated probabilities."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32, tempered, times
from calib_jax.core.probabilities import prepare
from calib_jax.core.types import Array, Labels, Logits, Numbers, PerExample
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.focal import focal_uncertainty
from calib_jax.losses.objectives import Objective, as_objective, register
from calib_jax.losses.weighting import Weighting, weight_inputs


@checks.takes_logits()
def consistency(
    logits: Logits,
    labels: Labels,
    calibrated_logits: Array,
    *,
    gamma: Numbers = 3.0,
    weighting: Weighting = "gradient",
) -> PerExample:
    r"""Compute cross-entropy weighted by the focal weight of calibrated probabilities.

    $$\ell = (1 - \tilde p_y)^\gamma \, (-\log p_y), \qquad \tilde p = \mathrm{softmax}(\tilde z)$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      calibrated_logits: $\tilde z$, the logits or log-probabilities of any calibrator.
      gamma: the focusing parameter, at least 0.
      weighting: "gradient" as released, or "loss", which also differentiates $\tilde z$.

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2025, released code; its local calibrator is not part of the release.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.array([[2.0, 0.0]]), jnp.array([0])
    >>> consistency(logits, labels, logits / 1.5, gamma=1.0).round(4)
    Array([0.0265], dtype=float32)
    """
    calibrated_logits = jnp.asarray(calibrated_logits)
    if calibrated_logits.shape != logits.shape:
        raise ValueError(
            f"calibrated_logits must have the shape of the logits {logits.shape}, got"
            f" {calibrated_logits.shape}."
        )
    uncertainty = focal_uncertainty(gamma=gamma)
    calibrated = prepare(weight_inputs(calibrated_logits, weighting), labels)
    return times(uncertainty(calibrated), unchecked_cross_entropy(logits, labels))


@register("consistency")
def _consistency(
    *, gamma: Numbers = 3.0, temperature: Numbers = 1.5, weighting: Weighting = "gradient"
) -> Objective:
    """Consistency weights with a fixed temperature as the calibrator."""
    checks.above("temperature", temperature, 0)

    @checks.takes_logits()
    def loss(logits: Logits, labels: Labels) -> PerExample:
        like = at_least_float32(logits[..., 0])
        calibrated = tempered(logits, checks.per_example("temperature", temperature, like))
        return checks.unchecked(consistency)(
            logits, labels, calibrated, gamma=gamma, weighting=weighting
        )

    return as_objective(loss)
