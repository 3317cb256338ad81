"""Losses that keep predictions from saturating: smoothed labels, entropy and constant norms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from calib_jax.core import arrays, checks
from calib_jax.core.numerics import at_least_float32, is_true_class, of_classes, power, times
from calib_jax.core.probabilities import Probabilities, cross_entropy_and_view, prepare
from calib_jax.core.types import (
    AnyLabels,
    AxisName,
    Labels,
    Logits,
    Numbers,
    PerClass,
    PerExample,
    SoftLabels,
    Weights,
)
from calib_jax.losses.focal import focal_uncertainty, unchecked_cross_entropy
from calib_jax.losses.objectives import Objective, make_objective, per_example


@arrays.takes_logits(soft_labels=True)
def label_smoothing(
    logits: Logits, labels: AnyLabels, *, alpha: Numbers = 0.05, spread: str = "others"
) -> PerExample:
    r"""Compute the cross-entropy against smoothed labels.

    $$\ell = -(1 - \alpha) \log p_y - \frac{\alpha}{K-1} \sum_{k \ne y} \log p_k$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or distributions, which are smoothed in the same way.
      alpha: the probability taken from the true class; the papers use 0.05 and 0.1.
      spread: the classes that share it equally. "others": the wrong classes, as in the papers.
        "all": every class including the true one, as in optax; "all" with $\alpha K / (K-1)$
        equals "others" with $\alpha$.

    Returns:
      One value per example, in float32 or float64.

    References:
      Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss, section 5.

    >>> import jax.numpy as jnp
    >>> label_smoothing(jnp.array([[3.0, 0.0, 0.0]]), jnp.array([0]), alpha=0.1).round(4)
    Array([0.3949], dtype=float32)
    """
    checks.one_of("spread", spread, ("others", "all"))
    if labels.ndim == logits.ndim:
        return unchecked_cross_entropy(logits, smooth(labels, alpha, spread))
    num_classes = logits.shape[-1]
    p = prepare(logits, labels)
    taken = jnp.asarray(per_example("alpha", alpha, p.log_true), p.log_true.dtype)
    # Take a mean and not a sum, because logits may be huge; mask the true class and do not
    # subtract it, because its logit may be -inf.
    share = 1 / (num_classes - 1)
    wrong = jnp.where(is_true_class(labels, num_classes), 0, share)
    mean = jnp.sum(jnp.where(wrong > 0, wrong * (p.logits - p.offset[..., None]), 0), axis=-1)
    others = p.log_total - mean
    # "all" moves alpha / K from the true class to each of the others.
    moved = taken * (num_classes - 1) / num_classes if spread == "all" else taken
    moved = jnp.broadcast_to(moved, others.shape)
    return times(1 - moved, -p.log_true) + times(moved, others)


def smooth(labels: SoftLabels, alpha: Numbers, spread: str = "others") -> PerClass:
    r"""Smooth distributions over the classes, as `label_smoothing` does."""
    num_classes = labels.shape[-1]
    like = at_least_float32(labels[..., 0])
    taken = of_classes(per_example("alpha", alpha, like))
    if spread == "all":
        return (1 - taken) * labels + taken / num_classes
    return (1 - taken) * labels + taken / (num_classes - 1) * (1 - labels)


@arrays.takes_logits()
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
    return _of_view(prepare(logits, labels), gamma)


def _of_view(p: Probabilities, gamma: Numbers) -> PerExample:
    # The entropy of "y or not y", plus 1 - p_y times the entropy of the shares.
    # p log p is 0 at p = 0, where the logarithm is -inf.
    log_true = jnp.maximum(p.log_true, jnp.log(jnp.finfo(p.log_true.dtype).tiny))
    plogp = p.true * log_true + p.rest * (p.log_rest - p.share_entropy)
    return power(p.log_rest, per_example("gamma", gamma, plogp)) * plogp


def entropy_regularized(*, scale: Numbers = 1.0, gamma: Numbers = 0.0) -> Objective:
    """Cross-entropy minus `scale` times the entropy (with gamma = 1, as released)."""
    return focal_entropy_regularized(focal_gamma=0.0, scale=scale, gamma=gamma)


def focal_entropy_regularized(
    *, focal_gamma: Numbers = 3.0, scale: Numbers = 1.0, gamma: Numbers = 0.0
) -> Objective:
    """Focal loss minus `scale` times the entropy."""
    uncertainty = focal_uncertainty(gamma=focal_gamma)

    def value(_: Any, logits: Logits, labels: Labels) -> PerExample:
        losses, view = cross_entropy_and_view(logits, labels)
        penalty = per_example("scale", scale, losses) * _of_view(view, gamma)
        return times(uncertainty(view), losses) + penalty

    return make_objective(value)


_ADDED_TO_NORM = 1e-7  # as released, so that logits of 0 have a gradient


@arrays.takes_logits(soft_labels=True)
def logit_norm(logits: Logits, labels: AnyLabels, *, tau: Numbers = 0.04) -> PerExample:
    r"""Compute the cross-entropy of the logits divided by their norm and a temperature.

    $$\ell = -\log \mathrm{softmax}\Bigl(\frac{z}{\tau (\lVert z \rVert_2 + 10^{-7})}\Bigr)_y$$

    The norm of the logits carries no confidence in training; predictions still use $z$. Other than
    the softmax, the loss depends on a constant that is added to all logits. A class of logit -inf
    is no class, and takes no part in the norm. Where all logits are 0 the gradient is of the size
    $10^7 / \tau$, which float16 cannot hold.

    Args:
      logits: unnormalised log-probabilities, whose sum of squares matters.
      labels: the true classes, or a distribution q over the classes for each example.
      tau: the temperature, greater than 0. The norm of the softmax's input is 1 / tau, so the
        smallest possible loss is about $\log(1 + (K - 1) e^{-1/\tau})$.

    Returns:
      One value per example, in float32 or float64.

    References:
      Wei et al. 2022, Mitigating Neural Network Overconfidence with Logit Normalization. The
      added 1e-7 is in their released code.

    >>> import jax.numpy as jnp
    >>> small, large = jnp.array([[3.0, 4.0]]), jnp.array([[30.0, 40.0]])
    >>> logit_norm(small, jnp.array([0]), tau=1.0).round(4)           # CE of (0.6, 0.8)
    Array([0.7981], dtype=float32)
    >>> logit_norm(large, jnp.array([0]), tau=1.0).round(4)
    Array([0.7981], dtype=float32)
    """
    rows = at_least_float32(logits)
    possible = rows != -jnp.inf
    rows = jnp.where(possible, rows, 0)
    # The square of a large logit overflows, so divide by the largest first.
    largest = lax.stop_gradient(jnp.max(jnp.abs(rows), axis=-1))
    scale = jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(rows / scale[..., None]), axis=-1)
    # The root has no derivative at 0, where the norm is 0.
    norm = scale * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    factor = 1 / (per_example("tau", tau, norm) * (norm + _ADDED_TO_NORM))
    normalized = rows * factor[..., None]
    return unchecked_cross_entropy(jnp.where(possible, normalized, -jnp.inf), labels)
