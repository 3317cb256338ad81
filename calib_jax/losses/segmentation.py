"""Losses of dense labels: the hardest pixels, soft IoU and Lovasz-softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core import arrays
from calib_jax.core.binning import class_sums
from calib_jax.core.numerics import argsort, at_least_float32, is_true_class, times, valid
from calib_jax.core.probabilities import prepare
from calib_jax.core.statistics import gather, total
from calib_jax.core.types import (
    AnyLabels,
    Array,
    AxisName,
    Labels,
    Logits,
    Number,
    Numbers,
    Scalar,
    Weights,
)
from calib_jax.losses.batch_calibration import some_possible, weighted_sum
from calib_jax.losses.focal import scaled_cross_entropy, unchecked_cross_entropy
from calib_jax.losses.kernel_calibration import ordered_bits
from calib_jax.losses.objectives import Objective, make_objective, regularized, with_options


def check_images(pixels: Array) -> None:
    """Raise an error for an array without an axis of images and an axis of pixels."""
    if pixels.ndim < 2:
        raise ValueError(
            f"per_image needs labels of shape [images, pixels], got {pixels.shape}: give the pixels"
            " of an image an axis, or per_image=False."
        )


def weights_or_ones(weights: Weights | None, pixels: Array, dtype: jnp.dtype) -> Array:
    """Return the weights in this dtype; 1 for every pixel if `weights` is None."""
    return jnp.ones(pixels.shape, dtype) if weights is None else weights.astype(dtype)


def mean_over_images(
    penalty: Callable[[Array, Array, Array], Scalar],
    logits: Logits,
    labels: AnyLabels,
    weights: Array,
    axis_name: AxisName,
) -> Scalar:
    """Average a penalty of the pixels of one image over the images that have a pixel.

    Args:
      penalty: a function of the logits, labels and weights of one image.
      logits, labels, weights: the leading axis counts the images.
      axis_name: a device axis, over which the images are spread.
    """
    check_images(weights)
    values = jax.vmap(penalty)(logits, labels, weights)
    present = jnp.any(weights != 0, axis=tuple(range(1, weights.ndim)))
    added, count = total((jnp.sum(jnp.where(present, values, 0)), jnp.sum(present)), axis_name)
    return added / jnp.maximum(count, 1).astype(values.dtype)


def _threshold_and_share(losses: Array, weights: Array, kept: Number) -> tuple[Array, Array]:
    """Return the smallest loss that is kept, and the kept share of the examples with this loss.

    The hardest examples of total weight `kept` are kept. Examples of equal loss share the rest of
    `kept`, so weight k equals k copies. A batch of no more weight than `kept` is kept whole.
    """
    if not len(losses):
        return jnp.zeros((), losses.dtype), jnp.zeros((), losses.dtype)
    # Rounding of the sums below must drop no example of a batch that is kept whole.
    is_whole = kept >= jnp.sum(weights)
    threshold = jnp.where(is_whole, -jnp.inf, _largest_with_mass_above(losses, weights, kept))
    above = jnp.sum(jnp.where(losses > threshold, weights, 0))
    equal = jnp.sum(jnp.where(losses == threshold, weights, 0))
    return threshold, jnp.clip((kept - above) / jnp.where(equal > 0, equal, 1), 0, 1)


def _largest_with_mass_above(losses: Array, weights: Array, kept: Number) -> Array:
    """Find the largest loss such that the losses from it on have at least the weight `kept`.

    The bits of the result are found one by one, each by a sum, which takes a tenth of the time of
    sorting.
    """
    keys = ordered_bits(jnp.where(losses > 0, losses, 0))  # NaN is last
    num_bits = jnp.iinfo(keys.dtype).bits - 1  # without the sign

    def set_bit(number: Array, key: Array) -> Array:
        candidate = key | jnp.left_shift(jnp.ones((), keys.dtype), num_bits - 1 - number)
        mass = jnp.sum(jnp.where(keys >= candidate, weights, 0))
        return jnp.where(mass >= kept, candidate, key)

    found = lax.fori_loop(0, num_bits, set_bit, jnp.zeros_like(keys, shape=()))
    return lax.bitcast_convert_type(found, losses.dtype)


def _shares(losses: Array, threshold: Array, share: Array) -> Array:
    return jnp.where(losses > threshold, 1, jnp.where(losses == threshold, share, 0))


def ohem(*, fraction: Number = 0.7) -> Objective:
    r"""Online hard example mining: the mean cross-entropy of the hardest part of the batch.

    $$\ell_n = \frac{1}{f} \, 1[n \text{ is among the hardest } f N] \, (-\log p_{n y_n})$$

    The selection is a constant for differentiation.

    Args:
      fraction: f, the part of the weight of the batch that is kept; 1 is cross-entropy.

    References:
      Shrivastava, Gupta and Girshick 2016, Training Region-based Object Detectors with Online
      Hard Example Mining. The released code of Tian et al. 2021 keeps the same number of pixels of
      every row of an image: as many as 0.7 times the images of the batch.
    """

    def value(_: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        cross_entropy = unchecked_cross_entropy(logits, labels)
        losses = lax.stop_gradient(cross_entropy)
        mass = weights_or_ones(weights, labels, losses.dtype)
        everything, everyone = gather((losses.reshape(-1), mass.reshape(-1)), axis_name)
        cut = _threshold_and_share(everything, everyone, fraction * jnp.sum(everyone))
        return times(_shares(losses, *cut) / fraction, cross_entropy)

    return make_objective(value)


def bootstrapped(*, count: Number = 512, per_image: bool = False) -> Objective:
    r"""Bootstrapped cross-entropy: the mean cross-entropy of the `count` hardest examples.

    It is the mean of the terms over the batch. The selection is a constant for differentiation.

    Args:
      count: the total weight of the examples that are kept; a batch of less weight is kept whole.
      per_image: keep the hardest pixels of every image, the leading axis of the labels, and
        average over the images that have a label; `count` is then for one image.

    References:
      Wu, Shen and van den Hengel 2016, Bridging Category-level and Instance-level Semantic Image
      Segmentation, section 3.2. The released code of Tian et al. 2021 is per image.
    """

    def value(_: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        cross_entropy = unchecked_cross_entropy(logits, labels)
        losses = lax.stop_gradient(cross_entropy)
        mass = weights_or_ones(weights, labels, losses.dtype)
        if per_image:
            check_images(labels)
            shares = jax.vmap(_of_image, in_axes=(0, 0, None))(losses, mass, count)
            images = jnp.any(mass.reshape(len(mass), -1) > 0, axis=1)
            size, number = total((jnp.sum(mass), jnp.sum(images)), axis_name)
            # The mean over the batch is then the mean over the images.
            factors = shares * size / jnp.maximum(number, 1).astype(size.dtype)
        else:
            everything, everyone = gather((losses.reshape(-1), mass.reshape(-1)), axis_name)
            size = jnp.sum(everyone)
            kept = jnp.minimum(count, size)
            cut = _threshold_and_share(everything, everyone, kept)
            factors = _shares(losses, *cut) * size / jnp.where(kept > 0, kept, 1)
        return times(factors.astype(losses.dtype), cross_entropy)

    return make_objective(value)


def _of_image(losses: Array, weights: Array, count: Number) -> Array:
    """Return factors whose weighted sum over an image is the mean of its hardest pixels."""
    kept = jnp.minimum(count, jnp.sum(weights))
    cut = _threshold_and_share(losses.reshape(-1), weights.reshape(-1), kept)
    return _shares(losses, *cut) / jnp.where(kept > 0, kept, 1)


@arrays.takes_logits(soft_labels="or_zeros")
def soft_iou_penalty(
    logits: Logits,
    labels: AnyLabels,
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

        def of_image(logits: Logits, labels: AnyLabels, weights: Weights) -> Scalar:
            return _penalty(*_overlaps(logits, labels, weights))

        return mean_over_images(of_image, logits, labels, each, axis_name)
    return _penalty(*total(_overlaps(logits, labels, each), axis_name))


def _overlaps(logits: Logits, labels: AnyLabels, weights: Weights) -> tuple[Array, ...]:
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


def _penalty(shared: Array, union: Array, counted: Array) -> Scalar:
    filled = union != 0  # a NaN counts, so that the value is NaN
    union = jnp.where(filled, union, 1)
    # The derivative of a quotient squares the divisor, which is 0 for tiny unions: both are scaled
    # by a power of two. After a division by the union, XLA would join the quotients to this square.
    scale = jnp.exp2(-jnp.floor(jnp.log2(lax.stop_gradient(union))))
    iou = jnp.where(filled, (shared * scale) / (union * scale), 0)
    count = jnp.sum(counted != 0, dtype=union.dtype)
    return jnp.where(count > 0, 1 - jnp.sum(iou) / jnp.maximum(count, 1), 0)


def soft_iou(
    *, scale: Numbers = 1.0, cross_entropy_scale: Numbers = 0.0, per_image: bool = False
) -> Objective:
    """`scale` times 1 minus the soft IoU, plus `cross_entropy_scale` times cross-entropy."""
    loss = scaled_cross_entropy(cross_entropy_scale)
    return regularized(loss, with_options(soft_iou_penalty, per_image=per_image), scale)


@arrays.takes_logits()
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


def _errors(logits: Logits, labels: Labels, weights: Weights) -> tuple[Array, Array, Array]:
    """Compute the error of every class, whether it is the true one, and the weight of each row."""
    num_classes = logits.shape[-1]
    p = jax.nn.softmax(at_least_float32(logits)).reshape(-1, num_classes)
    labels = labels.reshape(-1)
    true = is_true_class(labels, num_classes)
    # A product with NaN sends NaN back to the row of a label out of range.
    right = jnp.where(valid(labels, num_classes), 1.0, jnp.nan).astype(p.dtype)
    return jnp.where(true, 1 - p, p) * right[:, None], true, weights.reshape(-1).astype(p.dtype)


def _surrogate(errors: Array, true: Array, weights: Array) -> Scalar:
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


def lovasz(
    *, scale: Numbers = 1.0, cross_entropy_scale: Numbers = 0.0, per_image: bool = False
) -> Objective:
    """`scale` times Lovasz-softmax, plus `cross_entropy_scale` times cross-entropy.

    The paper and the released code of Tian et al. 2021 train on Lovasz-softmax alone, per image.
    """
    loss = scaled_cross_entropy(cross_entropy_scale)
    return regularized(loss, with_options(lovasz_penalty, per_image=per_image), scale)
