"""Entropy regularisation, which rewards predictions of high entropy."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import power, times
from calib_jax.core.probabilities import Probabilities, cross_entropy_and_view, prepare
from calib_jax.core.types import AxisName, Labels, Logits, Numbers, PerExample, PyTree, Weights
from calib_jax.losses.focal import focal_uncertainty
from calib_jax.losses.objectives import Objective, make_objective, register


@checks.takes_logits()
def entropy_penalty(
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    *,
    gamma: Numbers = 0.0,
    axis_name: AxisName = None,
) -> PerExample:
    r"""Compute the negative entropy of the prediction, optionally with a focal weight.

    $$-(1 - p_y)^\gamma \, H(p), \qquad H(p) = -\sum_k p_k \log p_k$$

    Add it to a loss with `regularized`. It penalises confident predictions whatever the label;
    with $\gamma > 0$ (gamma = 1 in the released code) mostly wrong predictions.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights, axis_name: arguments of every penalty; this one does not depend on the batch.
      gamma: at least 0; 0 is the plain negative entropy.

    Returns:
      One value per example, at most 0, in float32 or float64.

    References:
      Pereyra et al. 2017, Regularizing Neural Networks by Penalizing Confident Output
      Distributions; the focal weight is in the released code of Mukhoti et al. 2020.

    >>> import jax.numpy as jnp
    >>> entropy_penalty(jnp.zeros((1, 2)), jnp.array([0])).round(4)
    Array([-0.6931], dtype=float32)
    """
    checks.at_least("gamma", gamma, 0)
    return _of_view(prepare(logits, labels), gamma)


def _of_view(p: Probabilities, gamma: Numbers) -> PerExample:
    # The entropy of "y or not y", plus 1 - p_y times the entropy of the shares.
    # p log p is 0 at p = 0, where the logarithm is -inf.
    log_true = jnp.maximum(p.log_true, jnp.log(jnp.finfo(p.log_true.dtype).tiny))
    plogp = p.true * log_true + p.rest * (p.log_rest - p.share_entropy)
    return power(p.log_rest, checks.per_example("gamma", gamma, plogp)) * plogp


@register("entropy_regularized")
def _entropy_regularized(*, scale: Numbers = 1.0, gamma: Numbers = 0.0) -> Objective:
    """Cross-entropy minus `scale` times the entropy (with gamma = 1, as released)."""
    return _focal_entropy_regularized(focal_gamma=0.0, scale=scale, gamma=gamma)


@register("focal_entropy_regularized")
def _focal_entropy_regularized(
    *, focal_gamma: Numbers = 3.0, scale: Numbers = 1.0, gamma: Numbers = 0.0
) -> Objective:
    """Focal loss minus `scale` times the entropy."""
    uncertainty = focal_uncertainty(gamma=focal_gamma)
    checks.at_least("gamma", gamma, 0)

    def value(_: PyTree, logits: Logits, labels: Labels) -> PerExample:
        losses, view = cross_entropy_and_view(logits, labels)
        penalty = checks.per_example("scale", scale, losses) * _of_view(view, gamma)
        return times(uncertainty(view), losses) + penalty

    return make_objective(value)
