"""CIFAR-10: small colour photographs of ten kinds of things, as prepared by TFDS."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.types import Array
from calib_jax.data import splits, tfds
from calib_jax.data.augmentation import compose, random_crop, random_flip
from calib_jax.data.dataset import Dataset, register

__all__ = ["cifar10"]

_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_MEAN = (0.4914, 0.4822, 0.4465)
_DEVIATION = (0.2023, 0.1994, 0.2010)

# The first labels of the original files, by which one sees whether the order is theirs.
_FIRST = (6, 9, 9, 4, 1, 1, 2, 7, 8, 3)


@register("cifar10")
def cifar10(
    *,
    data_dir: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
    training_size: int | None = None,
) -> Dataset:
    """Load the 60,000 images of CIFAR-10, 32 x 32 in colour, in three parts.

    The test part is the published one. The other 50,000 images are split by the papers' rule
    (`split`): with the defaults 45,000 train and 5,000 validate. They are the papers' own 45,000
    and 5,000 if the ids of the records are those of TFDS, which number the original files; the
    description says whether the labels look like it.

    Training images are padded by 4 black pixels, cropped at random, and mirrored half of the
    time; all are normalised with the papers' mean (.4914, .4822, .4465) and deviation (.2023,
    .1994, .2010).

    The data set must have been prepared by TFDS as array_record; without TensorFlow it is then
    read, and its pixels are kept in a file beside it, so that only the first start decodes.

    Args:
      data_dir: the folder of TFDS, which has a subfolder `cifar10`, or the folder above, if
        TFDS's is called `tfds`. None is the variable CALIB_JAX_DATA_DIR, then TFDS's own rule:
        the variable TFDS_DATA_DIR, then ~/tensorflow_datasets.
      validation: the share of the 50,000 that validates; it may not be 0.
      seed: of the split.
      training_size: train with only the first so many of the training part, which is shuffled;
        None is all.

    References:
      Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    train, test = tfds.images(
        "cifar10",
        data_dir,
        parts=("train", "test"),
        shape=(32, 32, 3),
        num_classes=len(_CLASSES),
    )
    index = splits.split(len(train.labels), validation=validation, seed=seed)
    for name, numbers in (("training", index.train), ("validation", index.validation)):
        if not len(numbers):
            raise ValueError(f"cifar10: no example is left for {name}: validation={validation}.")
    if training_size is not None:
        checks.between("training_size", training_size, 1, len(index.train))
    training = index.train[:training_size]

    def part(numbers: np.ndarray) -> InMemory:
        return InMemory(train.images[numbers], train.labels[numbers])

    original = tuple(train.labels[: len(_FIRST)]) == _FIRST
    order = (
        "on the original order of the images"
        if original
        else "on another order of the images than theirs, so that it picks others"
    )
    return Dataset(
        name="cifar10",
        class_names=_CLASSES,
        train=part(training),
        validation=part(index.validation),
        test=InMemory(*test),
        description=(
            f"CIFAR-10, 32 x 32 in colour: {len(training)} to train, {len(index.validation)} to"
            f" validate, {len(test.labels)} to test; split by the papers' rule with seed {seed},"
            f" {order}. Krizhevsky 2009."
        ),
        prepare=_prepare,
        brightest=255,
        augment=compose(random_crop(padding=4), random_flip()),
    )


def _prepare(inputs: Any) -> Array:
    pixels = jnp.asarray(inputs, dtype=jnp.float32) / 255
    mean = jnp.asarray(_MEAN, dtype=jnp.float32)
    deviation = jnp.asarray(_DEVIATION, dtype=jnp.float32)
    shape = (1,) * (pixels.ndim - 1) + (3,)
    return (pixels - mean.reshape(shape)) / deviation.reshape(shape)
