"""Soft intersection over union: the IoU of every class with probabilities as predictions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core.binning import class_sums
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import takes_options_of
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.probabilities import prepare
from calib_jax.core.rows import weighted_sum
from calib_jax.core.statistics import total
from calib_jax.core.types import (
    Array,
    AxisName,
    Labels,
    Logits,
    Numbers,
    Scalar,
    SoftLabels,
    Weights,
)
from calib_jax.losses.cross_entropy import scaled_cross_entropy
from calib_jax.losses.images import mean_over_images, weights_or_ones
from calib_jax.losses.mdca import some_possible
from calib_jax.losses.objectives import Objective, register, regularized, with_options


@checks.takes_logits(soft_labels="or_zeros")
def soft_iou_penalty(
    logits: Logits,
    labels: Labels | SoftLabels,
    weights: Weights | None = None,
    *,
    per_image: bool = False,
    axis_name: AxisName = None,
) -> Scalar:
    r"""Compute 1 minus the soft intersection over union, averaged over the classes.

    $$1 - \frac{1}{K} \sum_c
      \frac{\sum_n p_{nc} q_{nc}}{\sum_n p_{nc} + q_{nc} - p_{nc} q_{nc}}$$

    A class that no example has, whose logits are all -inf, is left out of the mean. It is one
    value for the whole batch: add it to a loss with `regularized`.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      weights: the weight of each example; weight k equals k copies.
      per_image: compute the value of every image, the leading axis of the labels, and average
        over the images that have a label.
      axis_name: a device axis, over which intersections and unions are summed.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Rahman and Wang 2016, Optimizing Intersection-Over-Union in Deep Neural Networks for Image
      Segmentation. The released code of Tian et al. 2021 has the same gradient per image, and the
      value minus 1. Its void pixels count in the union as probability: for the same result, give
      them weight 1 and a distribution of zeros.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.2, 0.8]]))
    >>> soft_iou_penalty(logits, jnp.array([0, 1])).round(4)       # 1 - 0.8 / 1.2
    Array(0.3333, dtype=float32)
    """
    each = weights_or_ones(weights, logits[..., 0], at_least_float32(logits).dtype)
    if per_image:

        def of_image(logits: Logits, labels: Labels | SoftLabels, weights: Weights) -> Scalar:
            return _penalty(*_overlaps(logits, labels, weights))

        return mean_over_images(of_image, logits, labels, each, axis_name)
    return _penalty(*total(_overlaps(logits, labels, each), axis_name))


def _overlaps(
    logits: Logits, labels: Labels | SoftLabels, weights: Weights
) -> tuple[Float[Array, " classes"], ...]:
    """Sum the intersection and the union of every class, and mark the classes that count."""
    num_classes = logits.shape[-1]
    weights = weights.reshape(-1)
    if labels.ndim == logits.ndim:
        p = jax.nn.softmax(at_least_float32(logits)).reshape(-1, num_classes)
        q = labels.reshape(p.shape).astype(p.dtype)
        union = weighted_sum(weights, q + p * (1 - q))
        return weighted_sum(weights, p * q), union, some_possible(logits, weights, union)
    view = prepare(logits.reshape(-1, num_classes), labels.reshape(-1))
    shared, occurs = (
        class_sums(view.labels, each, num_classes)
        for each in (weights * jnp.exp(view.log_true), weights)
    )
    union = occurs + weighted_sum(weights * view.rest, view.share)
    return shared, union, some_possible(logits, weights, union)


def _penalty(
    shared: Float[Array, " classes"],
    union: Float[Array, " classes"],
    counted: Float[Array, " classes"],
) -> Scalar:
    filled = union != 0  # a NaN counts, so that the value is NaN
    union = jnp.where(filled, union, 1)
    # The derivative of a quotient squares the divisor, which is 0 for tiny unions: both are scaled
    # by a power of two. After a division by the union, XLA would join the quotients to this square.
    scale = jnp.exp2(-jnp.floor(jnp.log2(lax.stop_gradient(union))))
    iou = jnp.where(filled, (shared * scale) / (union * scale), 0)
    count = jnp.sum(counted != 0, dtype=union.dtype)
    return jnp.where(count > 0, 1 - jnp.sum(iou) / jnp.maximum(count, 1), 0)


@register("soft_iou")
@takes_options_of(soft_iou_penalty, without=["axis_name"])
def _soft_iou(
    *, scale: Numbers = 1.0, cross_entropy_scale: Numbers = 0.0, **options: Any
) -> Objective:
    """`scale` times 1 minus the soft IoU, plus `cross_entropy_scale` times cross-entropy."""
    loss = scaled_cross_entropy(cross_entropy_scale)
    return regularized(loss, with_options(soft_iou_penalty, **options), scale)
