"""The Brier score as a loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.probabilities import prepare
from calib_jax.core.types import Labels, Logits, PerExample, SoftLabels
from calib_jax.losses.generalized_brier import generalized_brier_uncertainty
from calib_jax.losses.objectives import register_loss


@checks.takes_logits(soft_labels=True)
def brier(logits: Logits, labels: Labels | SoftLabels) -> PerExample:
    r"""Compute the Brier score, the squared distance of the probabilities from the label.

    $$\ell = \sum_k (q_k - p_k)^2$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.

    Returns:
      One value in [0, 2] per example, in float32 or float64.

    References:
      Brier 1950; Mukhoti et al. 2020, section 5, who train with its mean over the batch.

    >>> import jax.numpy as jnp
    >>> brier(jnp.zeros((1, 2)), jnp.array([0]))
    Array([0.5], dtype=float32)
    """
    if labels.ndim == logits.ndim:
        return jnp.sum(jnp.square(labels - jax.nn.softmax(at_least_float32(logits))), axis=-1)
    return generalized_brier_uncertainty(gamma=2.0, beta=2.0)(prepare(logits, labels))


register_loss("brier", brier)
