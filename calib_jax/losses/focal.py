"""Cross-entropy: plain, weighted by an uncertainty score as in the focal losses, or by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from calib_jax.core import arrays, checks
from calib_jax.core.numerics import (
    at_least_float32,
    first_argmax,
    is_true_class,
    log_probabilities,
    max_where,
    of_classes,
    power,
    times,
    true_class,
    weigh,
    widened,
)
from calib_jax.core.probabilities import (
    Probabilities,
    cross_entropy_and_top_label,
    cross_entropy_and_view,
)
from calib_jax.core.statistics import total
from calib_jax.core.types import (
    AnyLabels,
    Array,
    AxisName,
    Labels,
    Logits,
    Numbers,
    PerClass,
    PerExample,
    Scalar,
    Weights,
)
from calib_jax.losses import objectives
from calib_jax.losses.objectives import Objective, make_objective, per_example

__all__ = ["Probabilities", "Uncertainty", "weighted_cross_entropy"]

Uncertainty: TypeAlias = Callable[[Probabilities], PerExample]
Weighting: TypeAlias = str  # one of WEIGHTINGS; `weight_inputs` validates it with a clearer error
WEIGHTINGS = ("loss", "gradient")

_Arrays = TypeVar("_Arrays")


@arrays.takes_logits(soft_labels=True)
def cross_entropy(logits: Logits, labels: AnyLabels) -> PerExample:
    r"""Compute the cross-entropy, the negative log-likelihood of the labels.

    $$\ell = -\log p_y, \qquad \text{or} \quad \ell = -\sum_k q_k \log p_k$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.

    Returns:
      One value per example, in float32 or float64.

    References:
      Guo et al. 2017, On Calibration of Modern Neural Networks, section 2.

    >>> import jax.numpy as jnp
    >>> cross_entropy(jnp.zeros((2, 4)), jnp.array([0, 3])).round(4)
    Array([1.3863, 1.3863], dtype=float32)
    """
    if labels.ndim == logits.ndim:
        log_p = jax.nn.log_softmax(at_least_float32(logits))
        return -jnp.sum(jnp.where(labels == 0, 0.0, labels * log_p), axis=-1)
    return cross_entropy_and_view(logits, labels)[0]


nll = cross_entropy
# For losses whose arguments are validated already; also `weigh_cross_entropy`.
unchecked_cross_entropy = arrays.unchecked(cross_entropy)


@jax.custom_vjp
def constant_in_gradient(values: _Arrays) -> _Arrays:
    r"""Return arrays that are constants for a gradient, but not for the derivative of the gradient.

    The gradient of $u(z) \, \ell(z)$ with u constant is $u(z) \, \ell'(z)$. The derivative of this
    gradient has a term of $u'(z)$, which `lax.stop_gradient` would drop.
    """
    return values


# No cotangent is a symbolic zero, which costs nothing.
constant_in_gradient.defvjp(lambda values: (values, None), lambda residuals, cotangents: (None,))


def weight_inputs(values: _Arrays, weighting: Weighting) -> _Arrays:
    """Return the arrays from which a weight is computed; constants if "gradient"."""
    if weighting not in WEIGHTINGS:
        checks.one_of("weighting", weighting, WEIGHTINGS)
    return constant_in_gradient(values) if weighting == "gradient" else values


@arrays.takes_logits()
def weighted_cross_entropy(
    logits: Logits,
    labels: Labels,
    uncertainty: Uncertainty,
    *,
    weighting: Weighting,
    temperature: Numbers | None = None,
) -> PerExample:
    r"""Compute cross-entropy times a custom uncertainty score.

    $$\ell = u(p, y) \cdot (-\log p_y)$$

    With `weighting="loss"` the whole product is differentiated, as in the focal family. With
    `weighting="gradient"` the value is the same but u is a constant in the backward pass: the
    gradient of cross-entropy is scaled by u and keeps its direction,

    $$\frac{\partial \ell}{\partial z} = u(p, y) \, (p - q)$$

    with the one-hot label q.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      uncertainty: a function of `Probabilities`, the prepared view of the softmax. Fields it
        does not use cost nothing under `jit`, and it may close over traced numbers.
      weighting: "loss" or "gradient".
      temperature: if given, the uncertainty score uses softmax(logits / temperature).

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2025, BSCE-GRA: uncertainty weights on gradients.

    >>> import jax, jax.numpy as jnp, numpy as np
    >>> from calib_jax import losses
    >>> def mine(logits, labels):
    ...     score = lambda p: p.rest**2
    ...     return losses.weighted_cross_entropy(logits, labels, score, weighting="loss")
    >>> logits, labels = jnp.array([[2.0, 0.0, 0.0]]), jnp.array([0])
    >>> np.allclose(jax.jit(mine)(logits, labels), losses.focal(logits, labels, gamma=2.0))
    True
    """
    plain, view = cross_entropy_and_view(logits, labels)
    if temperature is not None:
        of_examples = per_example("temperature", temperature, plain)
        _, view = cross_entropy_and_view(logits, labels, of_examples)
    score = uncertainty(weight_inputs(view, weighting))
    if not np.shape(score):  # a number is a score that all examples share
        score = jnp.full_like(plain, score)
    objectives.one_per_example("uncertainty", score, plain.shape)
    return times(score, plain)


weigh_cross_entropy = arrays.unchecked(weighted_cross_entropy)


@arrays.takes_logits(soft_labels=True)
def focal(
    logits: Logits, labels: AnyLabels, *, gamma: Numbers = 3.0, weighting: Weighting = "loss"
) -> PerExample:
    r"""Compute the focal loss: cross-entropy times $(1 - p_y)^\gamma$.

    $$\ell = (1 - p_y)^\gamma \, (-\log p_y), \qquad \text{or} \quad
      \ell = \sum_k q_k (1 - p_k)^\gamma (-\log p_k)$$

    For $\gamma \ge 1$ it satisfies $\ell \ge \mathrm{KL}(q \| p) - \gamma H(p)$, whose entropy
    term keeps probabilities from saturating.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      gamma: the focusing parameter, at least 0; 0 is cross-entropy. The papers use 1, 2, 3.
      weighting: "loss"; or "gradient", which makes the weight a constant in the backward pass
        (FL-GRA).

    Returns:
      One value per example, in float32 or float64.

    References:
      Lin et al. 2017, Focal Loss for Dense Object Detection; Mukhoti et al. 2020, section 4.

    >>> import jax.numpy as jnp
    >>> focal(jnp.zeros((1, 2)), jnp.array([0]), gamma=2.0).round(4)
    Array([0.1733], dtype=float32)
    """
    uncertainty = focal_uncertainty(gamma=gamma)
    if labels.ndim == logits.ndim:
        log_p, log_rest = log_probabilities(logits)
        exponent = of_classes(per_example("gamma", gamma, log_p[..., 0]))
        weight = power(weight_inputs(log_rest, weighting), exponent)
        surprise = jnp.where(labels == 0, 0.0, -labels * log_p)
        return jnp.sum(times(weight, surprise), axis=-1)
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


@arrays.takes_logits()
def inverse_focal(
    logits: Logits, labels: Labels, *, gamma: Numbers = 1.0, weighting: Weighting = "loss"
) -> PerExample:
    r"""Compute the inverse focal loss: cross-entropy times $(1 + p_y)^\gamma$.

    It counters under-confidence by larger weights on examples of high $p_y$.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      gamma: the focusing parameter, at least 0; 0 is cross-entropy.
      weighting: "loss" or "gradient".

    Returns:
      One value per example, in float32 or float64.

    References:
      Ghosh et al. 2022, AdaFocal, which switches to it in under-confident bins.

    >>> import jax.numpy as jnp
    >>> inverse_focal(jnp.zeros((1, 2)), jnp.array([0])).round(4)
    Array([1.0397], dtype=float32)
    """

    def uncertainty(p: Probabilities) -> PerExample:
        return power(jnp.log1p(p.true), per_example("gamma", gamma, p.log_true))

    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


def focal_uncertainty(*, gamma: Numbers) -> Uncertainty:
    """Build the uncertainty score (1 - p_y)^gamma."""
    return lambda p: power(p.log_rest, per_example("gamma", gamma, p.log_rest))


def focal_gradient_ratio(p: ArrayLike, gamma: ArrayLike) -> Array:
    r"""Compute the factor by which the focal loss scales the gradient of cross-entropy.

    $$g(p, \gamma) = (1-p)^\gamma - \gamma p (1-p)^{\gamma-1} \log p,$$

    so that the gradient of the focal loss is $g(p_y, \gamma)$ times the gradient of
    cross-entropy. g is above 1 for $p < p_0(\gamma)$ and below 1 for $p > p_0(\gamma)$; see
    `gamma_for`. NaN where p is outside [0, 1].

    References:
      Mukhoti et al. 2020, Proposition 1.

    >>> focal_gradient_ratio(0.25, 3.0).round(4)
    Array(1.0067, dtype=float32)
    """
    p, gamma = jnp.asarray(p, float), jnp.asarray(gamma, float)
    # p log p -> 0 at p = 0, and (1-p)^(gamma-1) (-log p) -> (1-p)^gamma at p = 1.
    inside = (p > 0) & (p < 1)
    q = jnp.where(inside, p, 0.5)
    ratio = power(jnp.log1p(-q), gamma) * (1 - gamma * q * jnp.log(q) / (1 - q))
    at_one = jnp.where(gamma == 0, 1.0, 0.0)
    at_end = jnp.where(p == 0, 1.0, jnp.where(p == 1, at_one, jnp.nan))
    return jnp.where(inside, ratio, at_end)


RUNNERS_UP = ("below", "wrong", "second")


@arrays.takes_logits()
def dual_focal(
    logits: Logits,
    labels: Labels,
    *,
    gamma: Numbers = 5.0,
    runner_up: str = "below",
    detach_runner_up: bool = False,
    weighting: Weighting = "loss",
) -> PerExample:
    r"""Compute the dual focal loss: cross-entropy times $(1 - p_y + p_j)^\gamma$.

    $$\ell = (1 - p_y + p_j)^\gamma \, (-\log p_y)$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      gamma: the focusing parameter, at least 0. No source gives a value; 5 is our default.
      runner_up: which probability is $p_j$. "below": the largest one strictly below $p_y$,
        0 if there is none (as in the released code and the published results). "wrong": the
        largest of the wrong classes. "second": the second largest of all, which may be
        $p_y$ itself (the released notebook).
      detach_runner_up: treat only $p_j$ as a constant in the backward pass, as the released
        "DFL-GRA" does; `weighting="gradient"` treats the whole weight as a constant.
      weighting: "loss" or "gradient" (DFL-GRA).

    Returns:
      One value per example, in float32 or float64.

    References:
      Tao et al. 2023, Dual Focal Loss for Calibration; Lin et al. 2025, BSCE-GRA.

    >>> import jax.numpy as jnp
    >>> dual_focal(jnp.log(jnp.array([[0.5, 0.3, 0.2]])), jnp.array([0]), gamma=1.0).round(4)
    Array([0.5545], dtype=float32)
    """
    uncertainty = dual_focal_uncertainty(
        gamma=gamma, runner_up=runner_up, detach_runner_up=detach_runner_up
    )
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


def dual_focal_uncertainty(
    *, gamma: Numbers, runner_up: str, detach_runner_up: bool
) -> Uncertainty:
    """Build the uncertainty score (1 - p_y + p_j)^gamma."""
    checks.one_of("runner_up", runner_up, RUNNERS_UP)

    def uncertainty(p: Probabilities) -> PerExample:
        # (1 - p_y + p_j) = (1 - p_y) (1 + p_j / (1 - p_y)), in logarithms.
        relative = (_runner_up(p, runner_up) - p.offset) - p.log_others
        if detach_runner_up:
            log_runner_up = lax.stop_gradient(relative + p.log_rest)
            log_base = jnp.logaddexp(p.log_rest, log_runner_up)
        else:
            log_base = p.log_rest + jax.nn.softplus(relative)
        return power(log_base, per_example("gamma", gamma, log_base))

    return uncertainty


def _runner_up(p: Probabilities, which: str) -> PerExample:
    """Compute the logit of the runner-up; -inf if there is none."""
    if which == "below":
        true = true_class(p.logits, p.labels)[..., None]
        return max_where(p.logits, p.logits < true)
    excluded = p.labels if which == "wrong" else first_argmax(p.logits)
    return max_where(p.logits, ~is_true_class(excluded, p.logits.shape[-1]))


# ------------------------------------------------------------------------------------------------
# Parts of other losses: cross-entropy with a penalty, and with weights of the classes.


def scaled_cross_entropy(scale: Numbers) -> Callable[..., PerExample]:
    """Build cross-entropy times `cross_entropy_scale`, to which objectives add a penalty."""

    def scaled(logits: Logits, labels: AnyLabels) -> PerExample:
        return _times_scale(unchecked_cross_entropy(logits, labels), scale)

    return arrays.mark_checked(scaled, scaled, "or_zeros")


def _times_scale(losses: PerExample, scale: Numbers) -> PerExample:
    scales = jnp.asarray(per_example("cross_entropy_scale", scale, losses), losses.dtype)
    return times(jnp.broadcast_to(scales, losses.shape), losses)


def cross_entropy_and_gaps(logits: Logits, labels: AnyLabels) -> tuple[PerExample, PerClass]:
    """Compute cross-entropy, and how far each logit is below the largest, at one softmax."""
    if labels.ndim == logits.ndim:
        rows = at_least_float32(logits)
        largest = true_class(rows, first_argmax(rows))
        return unchecked_cross_entropy(logits, labels), largest[..., None] - rows
    top = cross_entropy_and_top_label(logits, labels)
    return top.loss, top.gaps


def with_top_label_penalty(
    penalty: Callable[..., Scalar], scale: Numbers, cross_entropy_scale: Numbers = 1.0
) -> Objective:
    """Add a penalty of the predictions of a batch to cross-entropy, at one softmax.

    Args:
      penalty: `(TopLabel, weights, axis_name) -> scalar`.
      scale: the factor of the penalty.
      cross_entropy_scale: the factor of cross-entropy.
    """

    def value(_: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        top = cross_entropy_and_top_label(logits, labels)
        extra = penalty(top, weights, axis_name)
        losses = _times_scale(top.loss, cross_entropy_scale)
        return losses + per_example("scale", scale, top.loss) * extra

    return make_objective(value)


def of_true_class(values: Array, labels: Labels) -> PerExample:
    """Gather the value of each example's class; labels out of range are clipped."""
    return values[jnp.clip(widened(labels), 0, len(values) - 1)]


def weigh_classes(
    class_weights: Array,
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    axis_name: AxisName = None,
    *,
    normalized: bool = False,
) -> PerExample:
    """Multiply cross-entropy by the weight of the true class.

    Args:
      class_weights: the weight of each class.
      logits, labels, weights, axis_name: the examples, and the axis of the devices.
      normalized: whether the factors are divided by their mean over the global batch.
    """
    objectives.classes_of_state(len(class_weights), logits)
    losses = cross_entropy_and_view(logits, labels)[0]
    factors = of_true_class(class_weights, labels).astype(losses.dtype)
    return times(mean_one(factors, weights, axis_name) if normalized else factors, losses)


def mean_one(factors: PerExample, weights: Weights | None, axis_name: AxisName) -> PerExample:
    """Scale factors to a weighted mean of 1 over the global batch; keep factors that are all 0."""
    count = weigh(jnp.ones_like(factors), weights)
    size, mass = total((jnp.sum(count), jnp.sum(weigh(factors, weights))), axis_name)
    return factors * size / jnp.where(mass > 0, mass, 1)
