"""Handwritten digits, 8 by 8 pixels: small enough to be part of the package."""

from __future__ import annotations

import pathlib

import jax.numpy as jnp
import numpy as np

from calib_jax.core.types import Array
from calib_jax.data.dataset import Dataset, register
from calib_jax.data.splits import in_parts, split_sizes, with_noise

__all__ = ["digits"]

FILE = pathlib.Path(__file__).with_name("digits.npz")  # digits.txt has its source and licence
NUM_CLASSES = 10


def _prepare(images: Array) -> Array:
    return images.astype(jnp.float32)[..., None] / 16


@register("digits")
def digits(
    *,
    training_size: int = 500,
    validation_size: int = 397,
    test_size: int = -1,
    label_noise: float = 0.0,
    clean_test: bool = False,
    seed: int = 0,
) -> Dataset:
    """Make the 1,797 digits of the UCI repository a data set.

    Args:
      training_size, validation_size, test_size: how many; -1 is the rest.
      label_noise: share of examples whose label is replaced by one drawn from all classes. No
        network can know better than (1 - share) + share / 10 of such labels, so one that learns
        them by heart is too sure of itself.
      clean_test: keep the right labels in the test set.
      seed: of the split and of the noise.

    >>> from calib_jax import data
    >>> found = data.digits(training_size=1000)
    >>> len(found.train), len(found.validation), len(found.test)
    (1000, 397, 400)
    """
    with np.load(FILE, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int32)
    parts = split_sizes(
        len(labels), training_size=training_size, validation_size=validation_size,
        test_size=test_size,
    )  # fmt: skip
    order = np.random.default_rng([seed, 0]).permutation(len(labels))
    images, labels = images[order], labels[order]
    noisy = with_noise(labels, NUM_CLASSES, label_noise, np.random.default_rng([seed, 1]))
    if clean_test:
        noisy[parts["test_size"]] = labels[parts["test_size"]]
    train, validation, test = in_parts(images, noisy, parts)
    return Dataset(
        name="digits",
        num_classes=NUM_CLASSES,
        train=train,
        validation=validation,
        test=test,
        class_names=tuple("0123456789"),
        prepare=_prepare,
        description=(
            f"UCI handwritten digits, 8 x 8: {len(train)} for training, {len(validation)} for"
            f" validation, {len(test)} for testing, {label_noise:.0%} of the labels at random,"
            f" seed {seed}."
        ),
    )
