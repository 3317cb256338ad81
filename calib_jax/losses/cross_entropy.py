"""Cross-entropy, the basis of most other losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from calib_jax.core import arrays
from calib_jax.core.numerics import at_least_float32, first_argmax, times, true_class, widened
from calib_jax.core.probabilities import cross_entropy_and_view
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.top_label import cross_entropy_and_top_label
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
from calib_jax.losses.objectives import Objective, make_objective


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
# For losses whose arguments are validated already.
unchecked_cross_entropy = arrays.unchecked(cross_entropy)


def scaled_cross_entropy(scale: Numbers) -> Callable[..., PerExample]:
    """Build cross-entropy times `cross_entropy_scale`, to which objectives add a penalty."""

    def scaled(logits: Logits, labels: AnyLabels) -> PerExample:
        return _times_scale(unchecked_cross_entropy(logits, labels), scale)

    return arrays.mark_checked(scaled, scaled, "or_zeros")


def _times_scale(losses: PerExample, scale: Numbers) -> PerExample:
    scales = jnp.asarray(arrays.per_example("cross_entropy_scale", scale, losses), losses.dtype)
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
        return losses + arrays.per_example("scale", scale, top.loss) * extra

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
    arrays.classes_of_state(len(class_weights), logits)
    losses = cross_entropy_and_view(logits, labels)[0]
    factors = of_true_class(class_weights, labels).astype(losses.dtype)
    return times(mean_one(factors, weights, axis_name) if normalized else factors, losses)


def mean_one(factors: PerExample, weights: Weights | None, axis_name: AxisName) -> PerExample:
    """Scale factors to a weighted mean of 1 over the global batch; keep factors that are all 0."""
    count = weigh(jnp.ones_like(factors), weights)
    size, mass = total((jnp.sum(count), jnp.sum(weigh(factors, weights))), axis_name)
    return factors * size / jnp.where(mass > 0, mass, 1)
