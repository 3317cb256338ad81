"""Splitting and normalisation shared by the papers' image data sets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.core.types import Array
from calib_jax.data import splits
from calib_jax.data.dataset import Augment, Dataset
from calib_jax.data.images.augmentation import compose, on_inputs, random_crop, random_flip


class Images(NamedTuple):
    """One part of a data set: pixels `[n, height, width, channels]` of type uint8, and labels."""

    images: np.ndarray
    labels: np.ndarray

    def source(self, numbers: np.ndarray | None = None) -> InMemory:
        """Return a source of these images, or of the given ones."""
        if numbers is None:
            return InMemory(self.images, self.labels)
        return InMemory(self.images[numbers], self.labels[numbers])


class Statistics(NamedTuple):
    """Mean and standard deviation per channel, for pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


CIFAR10 = Statistics((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def normalized(statistics: Statistics) -> Callable[[Any], Array]:
    """Return a function that normalises stored pixels by mean and standard deviation.

    >>> normalized(IMAGENET)(np.array([0, 0, 255], np.uint8))
    Array([-2.118, -2.036, 2.640], dtype=float32)
    """

    def prepare(inputs: Any) -> Array:
        pixels = jnp.asarray(inputs, dtype=jnp.float32) / 255
        mean, deviation = (jnp.asarray(numbers, dtype=jnp.float32) for numbers in statistics)
        shape = (1,) * (pixels.ndim - 1) + (-1,)
        return (pixels - mean.reshape(shape)) / deviation.reshape(shape)

    return prepare


prepare_cifar10 = normalized(CIFAR10)  # the papers also use it for CIFAR-100 and SVHN
crop_and_flip = on_inputs(compose(random_crop(padding=4), random_flip()))  # of the papers


def as_if_normalized(part: Images, by: Statistics, prepared_by: Statistics) -> Images:
    """Rescale pixels so that `normalized(prepared_by)` returns what `normalized(by)` did before.

    The new pixels are float32 and may lie outside [0, 255].
    """
    mean, deviation = (np.asarray(numbers) for numbers in by)
    other_mean, other_deviation = (np.asarray(numbers) for numbers in prepared_by)
    scale = (other_deviation / deviation).astype(np.float32)
    shift = (255 * (other_mean - mean * other_deviation / deviation)).astype(np.float32)
    return Images(part.images * scale + shift, part.labels)


def checked_labels(
    labels: np.ndarray, num_classes: int, where: str, *, lowest: int = 0
) -> np.ndarray:
    """Convert labels to int32; raise an error that names the first one that is no class.

    >>> checked_labels(np.array([3, 10]), 10, "train.bin")
    Traceback (most recent call last):
    calib_jax.core.files.reading.Unreadable: example 1 of train.bin has the label 10; labels must
    lie in [0, 9].
    """
    wrong = np.flatnonzero((labels < lowest) | (labels >= lowest + num_classes))
    if wrong.size:
        raise reading.Unreadable(
            f"example {wrong[0]} of {where} has the label {labels[wrong[0]]}; labels must lie in"
            f" [{lowest}, {lowest + num_classes - 1}]."
        )
    return labels.astype(np.int32)


def papers_dataset(
    train: Images,
    test: Images,
    *,
    name: str,
    title: str,
    reference: str,
    read: object,
    class_names: tuple[str, ...],
    first_labels: tuple[int, ...],
    validation: float,
    seed: int,
    training_size: int | None,
    augment: Augment | None,
    imbalance: float | None = None,
) -> Dataset:
    """Split images of 32 x 32 pixels by the papers' rule, and normalise them like CIFAR-10.

    Args:
      train, test: the published parts; `train` is split.
      name: name in the catalogue.
      title, reference, read: text for the description; `read` names the form that was read.
      class_names: one name per class, in the order of the labels.
      first_labels: first labels of the original files, compared to detect another order.
      validation: the fraction used for validation; no part may be empty.
      seed: seed of the split.
      training_size: use only the first training_size examples of the training part; None uses all.
      augment: augmentation of the training images.
      imbalance: size of the largest over the smallest class of the training part, see
        `long_tailed`; None keeps all classes. The other parts do not change.
    """
    index = splits.split_in_two(name, len(train.labels), validation=validation, seed=seed)
    training = first(index.train, training_size)
    if imbalance is not None:
        kept = splits.long_tailed(train.labels[training], len(class_names), factor=imbalance)
        training = training[kept]
    order = "on another order of the images than theirs, so that it picks others"
    if tuple(train.labels[: len(first_labels)]) == first_labels:
        order = "on the original order of the images"
    long_tail = "" if imbalance is None else f"long-tailed training by a factor of {imbalance:g}; "
    return Dataset(
        name=name,
        class_names=class_names,
        train=train.source(training),
        validation=train.source(index.validation),
        test=test.source(),
        description=(
            f"{title}: {sizes(training, index.validation, test.labels)}; split by the papers'"
            f" rule with seed {seed}, {order}; {long_tail}{read}. {reference}."
        ),
        prepare=prepare_cifar10,
        brightest=255,
        augment=augment,
    )


def first(numbers: np.ndarray, training_size: int | None) -> np.ndarray:
    """Return the first training_size numbers, or all."""
    if training_size is not None:
        checks.whole("training_size", training_size)
        checks.between("training_size", training_size, 1, len(numbers))
    return numbers[:training_size]


def sizes(training: np.ndarray, validating: np.ndarray, testing: np.ndarray) -> str:
    """Format the number of examples of each part."""
    return f"{len(training)} to train, {len(validating)} to validate, {len(testing)} to test"
