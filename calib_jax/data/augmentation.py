"""Random changes of one example, on the device, from the example's own key.

Each is a function `(key, image) -> image`; the training step maps it over a batch. So what is
done to an example depends on its number and on the step, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core import checks
from calib_jax.core.types import Array

__all__ = ["all_of", "flip", "pad_and_crop"]

Augmentation = Callable[[Array, Array], Array]


def pad_and_crop(padding: int = 4, *, mode: str = "constant") -> Augmentation:
    """Pad an image `[height, width, channels]` and cut its size out again, anywhere.

    Args:
      padding: pixels on each side.
      mode: of `jnp.pad`: "constant" is zeros, as in the papers; "reflect".
    """
    checks.at_least("padding", padding, 0)

    def augment(key: Array, image: Array) -> Array:
        edges = [(padding, padding), (padding, padding), (0, 0)]
        start = jax.random.randint(key, (2,), 0, 2 * padding + 1)
        return lax.dynamic_slice(
            jnp.pad(image, edges, mode=mode), (start[0], start[1], 0), image.shape
        )

    return augment


def flip(probability: float = 0.5) -> Augmentation:
    """Mirror an image left to right, now and then."""
    checks.between("probability", probability, 0, 1)

    def augment(key: Array, image: Array) -> Array:
        return jnp.where(jax.random.bernoulli(key, probability), image[:, ::-1], image)

    return augment


def all_of(*augmentations: Augmentation) -> Augmentation:
    """Do one after another, each with a key of its own."""

    def augment(key: Array, image: Array) -> Array:
        for number, one in enumerate(augmentations):
            image = one(jax.random.fold_in(key, number), image)
        return image

    return augment
