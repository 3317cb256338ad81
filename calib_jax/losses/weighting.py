"""Cross-entropy weighted by an uncertainty score, the basis of most losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import jax.numpy as jnp
import numpy as np

from calib_jax.core import arrays, checks
from calib_jax.core.numerics import constant_in_gradient, times, widened
from calib_jax.core.probabilities import Probabilities, cross_entropy_and_view, prepare_tempered
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.types import Array, AxisName, Labels, Logits, Numbers, PerExample, Weights

__all__ = ["Probabilities", "Uncertainty", "weighted_cross_entropy"]

Uncertainty: TypeAlias = Callable[[Probabilities], PerExample]
Weighting: TypeAlias = str  # one of WEIGHTINGS; `weight_inputs` validates it with a clearer error
WEIGHTINGS = ("loss", "gradient")

_Arrays = TypeVar("_Arrays")


def weight_inputs(values: _Arrays, weighting: Weighting) -> _Arrays:
    """Return the arrays from which a weight is computed; constants if "gradient"."""
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

    $$\frac{\partial \ell}{\partial z} = u(p, y) \, (p - q).$$

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

    >>> import jax.numpy as jnp
    >>> from calib_jax import losses
    >>> logits, labels = jnp.array([[2.0, 0.0, 0.0]]), jnp.array([0])
    >>> score = lambda p: p.rest**2
    >>> mine = losses.weighted_cross_entropy(logits, labels, score, weighting="loss")
    >>> jnp.allclose(mine, losses.focal(logits, labels, gamma=2.0)).item()
    True
    """
    cross_entropy, view = cross_entropy_and_view(logits, labels)
    if temperature is not None:
        of_examples = arrays.per_example("temperature", temperature, cross_entropy)
        view = prepare_tempered(logits, labels, of_examples)
    score = uncertainty(weight_inputs(view, weighting))
    if not np.shape(score):  # a number is a score that all examples share
        score = jnp.full_like(cross_entropy, score)
    arrays.one_per_example("uncertainty", score, cross_entropy.shape)
    return times(score, cross_entropy)


# For losses whose arguments are validated already.
weigh_cross_entropy = arrays.unchecked(weighted_cross_entropy)


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
    arrays.classes_of_state(len(class_weights), logits)
    losses = cross_entropy_and_view(logits, labels)[0]
    factors = of_true_class(class_weights, labels).astype(losses.dtype)
    return times(mean_one(factors, weights, axis_name) if normalized else factors, losses)


def mean_one(factors: PerExample, weights: Weights | None, axis_name: AxisName) -> PerExample:
    """Scale factors to a weighted mean of 1 over the global batch; keep factors that are all 0."""
    count = weigh(jnp.ones_like(factors), weights)
    size, mass = total((jnp.sum(count), jnp.sum(weigh(factors, weights))), axis_name)
    return factors * size / jnp.where(mass > 0, mass, 1)
