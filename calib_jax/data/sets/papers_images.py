"""CIFAR and SVHN: images of 32 x 32 pixels, split and normalised by the papers' rule."""

import pathlib
from collections.abc import Callable

from calib_jax.data import splits
from calib_jax.data.dataset import About, Augment, Dataset
from calib_jax.data.formats import files, tfds
from calib_jax.data.images import image_sets
from calib_jax.data.images.image_sets import Images, Statistics


def papers_images(
    name: str,
    about: About,
    official: Callable[[pathlib.Path], tuple[Images, Images]],
    *,
    class_names: tuple[str, ...],
    first_labels: tuple[int, ...],
    reference: str,
    augment: Augment | None,
    data_dir: str | None,
    source: str | None,
    validation: float,
    seed: int,
    training_size: int | None,
    imbalance: float | None = None,
    test_by: Statistics | None = None,
) -> Dataset:
    """Read both published parts, and split the training part by the papers' rule.

    Args:
      name, class_names, augment: as for `Dataset`.
      about: the facts of the data set.
      official: reads both parts from the authors' files.
      first_labels: first labels of the original files, compared to detect another order.
      reference: text for the description.
      data_dir, source, validation, seed, training_size, imbalance: see `cifar10`.
      test_by: statistics that normalise the test images alone; None takes those of CIFAR-10.
    """
    located = files.find(name, about, data_dir, source)
    if located.form == files.OFFICIAL:
        train, test = official(located.path)
    else:
        shape, num_classes = (32, 32, 3), len(class_names)
        train, test = (
            tfds.images(located.path, part, shape, num_classes) for part in ("train", "test")
        )
    if test_by is not None:
        test = image_sets.as_if_normalized(test, by=test_by, prepared_by=image_sets.CIFAR10)
    index = splits.split_in_two(name, len(train.labels), validation=validation, seed=seed)
    training = image_sets.first(index.train, training_size)
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
            f"{about.title}: {image_sets.sizes(training, index.validation, test.labels)}; split by"
            f" the papers' rule with seed {seed}, {order}; {long_tail}{located}. {reference}."
        ),
        prepare=image_sets.prepare_cifar10,
        brightest=255,
        augment=augment,
    )
