"""The Brier score as a loss, and its generalisation as an uncertainty score: BSCE and BSCE-GRA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import arrays, checks
from calib_jax.core.numerics import at_least_float32, log_probabilities, of_classes, power, times
from calib_jax.core.probabilities import Probabilities, prepare
from calib_jax.core.types import AnyLabels, Array, Labels, Logits, Number, Numbers, PerExample
from calib_jax.losses.focal import (
    Uncertainty,
    Weighting,
    unchecked_cross_entropy,
    weigh_cross_entropy,
    weight_inputs,
)
from calib_jax.losses.gamma_schedules import gamma_by_probability
from calib_jax.losses.objectives import per_example

READINGS = ("norm", "sum")


@arrays.takes_logits(soft_labels=True, constants=("gamma", "beta"))
def generalized_brier(
    logits: Logits,
    labels: AnyLabels,
    *,
    gamma: Numbers = 2.0,
    beta: Numbers = 2.0,
    reading: str = "norm",
    weighting: Weighting = "gradient",
) -> PerExample:
    r"""Compute cross-entropy weighted by the generalised Brier score: BSCE-GRA or BSCE.

    $$\ell = u \cdot (-\log p_y), \qquad u = \|q - p\|_\beta^\gamma
      = \Bigl(\sum_k |q_k - p_k|^\beta\Bigr)^{\gamma / \beta}$$

    u measures the distance of the prediction from the label over all classes, while focal loss
    uses only $p_y$. By default u scales the gradient and is not differentiated, so an uncertain
    example gets a larger step in the direction of the cross-entropy gradient,

    $$\frac{\partial \ell}{\partial z} = u \, (p - q).$$

    With beta = gamma = 2, u is the Brier score. With beta = 1 it is $(2 (1 - p_y))^\gamma$:
    $2^\gamma$ times focal loss, the default of the released code.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      gamma: the power, at least 0; 0 is cross-entropy, or K times cross-entropy with "sum".
      beta: the norm, at least 1.
      reading: "norm" as above, as in the released code and the published results. "sum":
        $u = \sum_k |q_k - p_k|^\gamma$, the paper's formula applied class by class; the two
        agree if gamma = beta.
      weighting: "gradient" (BSCE-GRA) or "loss" (BSCE).

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2025, BSCE-GRA: uncertainty weights on gradients.

    >>> import jax, jax.numpy as jnp
    >>> logits, labels = jnp.log(jnp.array([[0.5, 0.3, 0.2]])), jnp.array([0])
    >>> generalized_brier(logits, labels).round(4)      # 0.38 * log 2
    Array([0.2634], dtype=float32)
    >>> jax.grad(lambda z: generalized_brier(z, labels).sum())(logits).round(4)  # 0.38 * (p - q)
    Array([[-0.19 ,  0.114,  0.076]], dtype=float32)
    """
    uncertainty = generalized_brier_uncertainty(gamma=gamma, beta=beta, reading=reading)
    if labels.ndim == logits.ndim:
        weight = _soft_uncertainty(weight_inputs(logits, weighting), labels, gamma, beta, reading)
        return times(weight, unchecked_cross_entropy(logits, labels))
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


@arrays.takes_logits(constants=("beta",))
def adaptive_generalized_brier(
    logits: Logits,
    labels: Labels,
    *,
    thresholds: Sequence[Number] = (0.2, 0.5),
    gammas: Sequence[Number] = (5.0, 3.0, 3.0),
    beta: Numbers = 2.0,
    weighting: Weighting = "gradient",
) -> PerExample:
    r"""Compute cross-entropy weighted by $\|q - p\|_\beta^{\gamma(p_y)}$, with FLSD's gamma.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      thresholds, gammas: as in `flsd`.
      beta: the norm, at least 1.
      weighting: "gradient" as released, or "loss".

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2025, released code (adaptive BSCE-GRA).

    >>> import jax.numpy as jnp
    >>> adaptive_generalized_brier(jnp.zeros((1, 2)), jnp.array([0])).round(4)   # 0.5^1.5 log 2
    Array([0.2451], dtype=float32)
    """
    gamma = gamma_by_probability(thresholds, gammas)
    uncertainty = generalized_brier_uncertainty(gamma=gamma, beta=beta)
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


def generalized_brier_uncertainty(
    *, gamma: Numbers | Callable[[Probabilities], PerExample], beta: Numbers, reading: str = "norm"
) -> Uncertainty:
    r"""Build the score $\|q - p\|_\beta^\gamma$, or $\sum_k |q_k - p_k|^\gamma$ for "sum".

    With the shares r, $\|q-p\|_\beta = (1 - p_y) (1 + \sum_{k \ne y} r_k^\beta)^{1/\beta}$. The
    second factor lies in [1, 2], which avoids the kink of the norm at 0.
    """
    checks.one_of("reading", reading, READINGS)

    def uncertainty(p: Probabilities) -> PerExample:
        given = gamma(p) if callable(gamma) else gamma
        power_of = per_example("gamma", given, p.log_rest)
        norm = per_example("beta", beta, p.log_rest)
        if reading == "sum":
            return power(p.log_rest, power_of) * (1 + _share_power_sum(p, power_of))
        log_norm = p.log_rest + jnp.log1p(_share_power_sum(p, norm)) / norm
        return power(log_norm, power_of)

    return uncertainty


def _share_power_sum(p: Probabilities, exponent: Number) -> PerExample:
    """Sum the powers of the shares; the sums for exponents 1 and 2 are known."""
    if checks.concrete(exponent) and not jnp.ndim(exponent):
        if exponent == 1:
            return jnp.ones_like(p.log_rest)
        if exponent == 2:
            return p.share_squares
    if checks.concrete(exponent) and np.all(np.asarray(exponent) > 0):
        return jnp.sum(power(p.log_share, of_classes(exponent)), axis=-1)
    # The true class and classes of probability 0 have no share, and 0^0 would count them.
    shares = p.log_share > -jnp.inf
    powers = power(jnp.where(shares, p.log_share, 0), of_classes(exponent))
    return jnp.sum(jnp.where(shares, powers, 0), axis=-1)


def _soft_uncertainty(
    logits: Array, labels: Array, gamma: Any, beta: Any, reading: str
) -> PerExample:
    distance = jnp.abs(labels - jnp.exp(log_probabilities(logits)[0]))
    # The norm has a kink at q = p; its gradient there is 0, as in the released code.
    apart = distance > 0
    log_distance = jnp.log(jnp.where(apart, distance, 1))
    gamma, beta = (
        per_example(name, value, distance[..., 0])
        for name, value in (("gamma", gamma), ("beta", beta))
    )
    if reading == "sum":
        return jnp.sum(jnp.where(apart, power(log_distance, of_classes(gamma)), 0), axis=-1)
    powers = jnp.sum(jnp.where(apart, power(log_distance, of_classes(beta)), 0), axis=-1)
    anywhere = powers > 0
    norm_power = power(jnp.log(jnp.where(anywhere, powers, 1)), gamma / beta)
    return jnp.where(anywhere, norm_power, jnp.where(gamma == 0, 1.0, 0.0))


@arrays.takes_logits(soft_labels=True)
def brier(logits: Logits, labels: AnyLabels) -> PerExample:
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
