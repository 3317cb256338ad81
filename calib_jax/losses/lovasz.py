"""Lovasz-softmax: a convex surrogate of the intersection over union."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import takes_options_of
from calib_jax.core.numerics import at_least_float32, is_true_class, valid
from calib_jax.core.sorting import argsort
from calib_jax.core.statistics import gather
from calib_jax.core.types import Array, AxisName, Labels, Logits, Numbers, Scalar, Weights
from calib_jax.losses.cross_entropy import scaled_cross_entropy
from calib_jax.losses.images import mean_over_images, weights_or_ones
from calib_jax.losses.objectives import Objective, register, regularized, with_options


@checks.takes_logits()
def lovasz_penalty(
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    *,
    per_image: bool = False,
    axis_name: AxisName = None,
) -> Scalar:
    r"""Compute the Lovasz extension of the Jaccard loss, averaged over the classes that occur.

    $$\frac{1}{|C|} \sum_{c \in C} \sum_i m_{(i)} \, (J_i - J_{i-1}), \qquad
      m_n = |1[y_n = c] - p_{nc}|$$

    with the errors m in descending order, and $J_i$ the Jaccard loss, 1 - IoU, of class c when
    exactly the i largest errors are mistakes. It is one value for the whole batch: add it to a
    loss with `regularized`.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      per_image: compute the value of every image, the leading axis of the labels, and average
        over the images that have a label.
      axis_name: a device axis, over which the examples are gathered; every device returns the
        value of the global batch.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Berman, Triki and Blaschko 2018, The Lovasz-Softmax Loss, equations 8, 9 and 11.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.8, 0.2]]))
    >>> lovasz_penalty(logits, jnp.array([0, 0])).round(4)
    Array(0.2, dtype=float32)
    """
    weights = weights_or_ones(weights, labels, at_least_float32(logits).dtype)
    if per_image:

        def of_image(logits: Logits, labels: Labels, weights: Weights) -> Scalar:
            return _surrogate(*_errors(logits, labels, weights))

        return mean_over_images(of_image, logits, labels, weights, axis_name)
    return _surrogate(*gather(_errors(logits, labels, weights), axis_name))


def _errors(
    logits: Logits, labels: Labels, weights: Weights
) -> tuple[Float[Array, "rows classes"], Bool[Array, "rows classes"], Float[Array, " rows"]]:
    """Compute the error of every class, whether it is the true one, and the weight of each row."""
    num_classes = logits.shape[-1]
    p = jax.nn.softmax(at_least_float32(logits)).reshape(-1, num_classes)
    labels = labels.reshape(-1)
    true = is_true_class(labels, num_classes)
    # A product with NaN sends NaN back to the row of a label out of range.
    right = jnp.where(valid(labels, num_classes), 1.0, jnp.nan).astype(p.dtype)
    return jnp.where(true, 1 - p, p) * right[:, None], true, weights.reshape(-1).astype(p.dtype)


def _surrogate(
    errors: Float[Array, "rows classes"],
    true: Bool[Array, "rows classes"],
    weights: Float[Array, " rows"],
) -> Scalar:
    errors = errors.T
    order = argsort(lax.stop_gradient(-errors))  # NaN is last
    inside = jnp.where(true.T, weights, 0)
    size = jnp.sum(inside, axis=1, keepdims=True)
    inside = jnp.take_along_axis(inside, order, axis=1)
    mass = weights[order]
    outside_sum = jnp.cumsum(mass - inside, axis=1)
    kept = size - jnp.cumsum(inside, axis=1) + inside  # of the class, before this row is wrong
    union = jnp.maximum(size + outside_sum, jnp.finfo(errors.dtype).tiny)
    before = jnp.maximum(size + outside_sum - (mass - inside), jnp.finfo(errors.dtype).tiny)
    # J_i - J_{i-1} without a difference of two nearly equal quotients.
    slope = (inside + (mass - inside) * kept / before) / union
    of_class = jnp.sum(jnp.take_along_axis(errors, order, axis=1) * slope, axis=1)
    occurs = (size[:, 0] > 0) | jnp.isnan(of_class)
    count = jnp.sum(occurs, dtype=of_class.dtype)
    return jnp.sum(jnp.where(occurs, of_class, 0)) / jnp.maximum(count, 1)


@register("lovasz")
@takes_options_of(lovasz_penalty, without=["axis_name"])
def _lovasz(
    *, scale: Numbers = 1.0, cross_entropy_scale: Numbers = 0.0, **options: Any
) -> Objective:
    """`scale` times Lovasz-softmax, plus `cross_entropy_scale` times cross-entropy.

    The paper and the released code of Tian et al. 2021 train on Lovasz-softmax alone, per image.
    """
    loss = scaled_cross_entropy(cross_entropy_scale)
    return regularized(loss, with_options(lovasz_penalty, **options), scale)
