"""Losses of whole images: one value per image from its pixels, averaged over the images."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from calib_jax.core.statistics import total
from calib_jax.core.types import Array, AxisName, Labels, Logits, Scalar, SoftLabels, Weights


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
    labels: Labels | SoftLabels,
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
