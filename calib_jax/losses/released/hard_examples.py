"""Cross-entropy of the hardest examples alone: OHEM and bootstrapped cross-entropy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import ordered_bits, times
from calib_jax.core.statistics import gather, total
from calib_jax.core.types import (
    Array,
    AxisName,
    Labels,
    Logits,
    Number,
    PerExample,
    PyTree,
    Vector,
    Weights,
)
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.images import check_images, weights_or_ones
from calib_jax.losses.objectives import Objective, make_objective, register


def _threshold_and_share(losses: Vector, weights: Vector, kept: Number) -> tuple[Array, Array]:
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


def _largest_with_mass_above(losses: Vector, weights: Vector, kept: Number) -> Array:
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

    found = lax.fori_loop(0, num_bits, set_bit, jnp.zeros((), keys.dtype))
    return lax.bitcast_convert_type(found, losses.dtype)


def _shares(losses: PerExample, threshold: Array, share: Array) -> PerExample:
    return jnp.where(losses > threshold, 1, jnp.where(losses == threshold, share, 0))


@register("ohem")
def _ohem(*, fraction: Number = 0.7) -> Objective:
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
    checks.between("fraction", fraction, 0, 1)
    checks.above("fraction", fraction, 0)

    def value(
        _: PyTree, logits: Logits, labels: Labels, weights: Weights | None, *, axis_name: AxisName
    ) -> PerExample:
        cross_entropy = unchecked_cross_entropy(logits, labels)
        losses = lax.stop_gradient(cross_entropy)
        mass = weights_or_ones(weights, labels, losses.dtype)
        everything, everyone = gather((losses.reshape(-1), mass.reshape(-1)), axis_name)
        cut = _threshold_and_share(everything, everyone, fraction * jnp.sum(everyone))
        return times(_shares(losses, *cut) / fraction, cross_entropy)

    return make_objective(value)


@register("bootstrapped")
def _bootstrapped(*, count: Number = 512, per_image: bool = False) -> Objective:
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
    checks.above("count", count, 0)

    def value(
        _: PyTree, logits: Logits, labels: Labels, weights: Weights | None, *, axis_name: AxisName
    ) -> PerExample:
        cross_entropy = unchecked_cross_entropy(logits, labels)
        losses = lax.stop_gradient(cross_entropy)
        mass = weights_or_ones(weights, labels, losses.dtype)
        if per_image:
            check_images(labels)
            shares = jax.vmap(_of_image, in_axes=(0, 0, None))(losses, mass, count)
            images = jnp.any(mass.reshape(len(mass), -1) > 0, axis=1)
            size, number = total((jnp.sum(mass), jnp.sum(images)), axis_name)
            # The mean over the batch is then the mean over the images.
            factors = shares * size / jnp.maximum(number, 1)
        else:
            everything, everyone = gather((losses.reshape(-1), mass.reshape(-1)), axis_name)
            size = jnp.sum(everyone)
            kept = jnp.minimum(count, size)
            cut = _threshold_and_share(everything, everyone, kept)
            factors = _shares(losses, *cut) * size / jnp.where(kept > 0, kept, 1)
        return times(factors.astype(losses.dtype), cross_entropy)

    return make_objective(value)


def _of_image(losses: PerExample, weights: PerExample, count: Number) -> PerExample:
    """Return factors whose weighted sum over an image is the mean of its hardest pixels."""
    kept = jnp.minimum(count, jnp.sum(weights))
    cut = _threshold_and_share(losses.reshape(-1), weights.reshape(-1), kept)
    return _shares(losses, *cut) / jnp.where(kept > 0, kept, 1)
