"""Top-label Brier score as a weight (TLBS): the distance of confidence from correctness."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import first_argmax, power, true_class
from calib_jax.core.probabilities import Probabilities
from calib_jax.core.types import Labels, Logits, Numbers, PerExample
from calib_jax.losses.objectives import register_loss
from calib_jax.losses.weighting import Weighting, weigh_cross_entropy


@checks.takes_logits()
def top_label_brier(
    logits: Logits, labels: Labels, *, gamma: Numbers = 2.0, weighting: Weighting = "gradient"
) -> PerExample:
    r"""Compute cross-entropy weighted by the distance of top-label confidence from correctness.

    $$\ell = \bigl| 1[\hat y = y] - c \bigr|^\gamma \, (-\log p_y), \qquad c = \max_k p_k$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      gamma: the power, at least 0; 0 is cross-entropy.
      weighting: "gradient" as released, or "loss".

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2025, released code (TLBS).

    >>> import jax.numpy as jnp
    >>> p = jnp.array([[0.5, 0.3, 0.2]])
    >>> top_label_brier(jnp.log(p), jnp.array([0])).round(4)     # 0.25 log 2
    Array([0.1733], dtype=float32)
    """
    checks.at_least("gamma", gamma, 0)

    def uncertainty(p: Probabilities) -> PerExample:
        # (1 - p_y)^gamma for right and confidence^gamma for wrong predictions.
        largest = true_class(p.logits, first_argmax(p.logits))
        log_confidence = (largest - p.offset) - p.log_total
        log_distance = jnp.where(p.correct, p.log_rest, log_confidence)
        return power(log_distance, checks.per_example("gamma", gamma, log_distance))

    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


register_loss("tlbs", top_label_brier)
