"""CIFAR-10 and CIFAR-100; images of 32 x 32 pixels are split and normalised by the papers' rule."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import (
    About,
    Augment,
    Dataset,
    Download,
    first,
    long_tailed,
    register,
    sizes,
    split_in_two,
)
from calib_jax.data.formats import files, tfds
from calib_jax.data.images import image_sets
from calib_jax.data.images.image_sets import Images, Statistics, checked_labels

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
# In the alphabetical order of the labels.
_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


def _about(num_classes: int, folder: str, size: int, md5: str) -> About:
    """Describe CIFAR-10 or CIFAR-100, whose classes have equally many images."""
    archive = f"cifar-{num_classes}-binary.tar.gz"
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    counts = {"train": 50_000, "test": 10_000}
    return About(
        title=f"CIFAR-{num_classes}, 32 x 32 in colour",
        licence="none stated; the authors ask to be cited",
        counts={part: (count // num_classes,) * num_classes for part, count in counts.items()},
        tfds=f"cifar{num_classes}",
        official=(folder, archive),
        downloads=(Download(url=url, size=size, md5=md5, folder=folder),),
    )


_ABOUT_10 = _about(10, "cifar-10-batches-bin", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530")
_ABOUT_100 = _about(100, "cifar-100-binary", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8")
_SHARED: dict[str, Any] = {"augment": image_sets.crop_and_flip, "reference": "Krizhevsky 2009"}


@register("cifar10", _ABOUT_10)
def cifar10(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
    training_size: int | None = None,
    imbalance: float | None = None,
) -> Dataset:
    """Load the 60,000 images of CIFAR-10, 32 x 32 in colour, in three parts.

    The test part is the published one. The other 50,000 images are split by the papers' rule
    (`split`): by default 45,000 for training and 5,000 for validation. These are the papers' own
    examples if the images have the order of the original files, which the ids of TFDS records
    preserve; the description reports whether the first labels match that order.

    Training images are padded by 4 black pixels, cropped at random, and mirrored half of the
    time; all are normalised with the papers' mean (.4914, .4822, .4465) and deviation (.2023,
    .1994, .2010).

    Files prepared by TFDS as array_record are read without TensorFlow.

    Args:
      data_dir: the folder of the data sets. None uses the environment variable CALIB_JAX_DATA_DIR,
        then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      source: "tfds" for files prepared by TFDS, "official" for the authors' binary files, unpacked
        or not; None uses the first of these that exists.
      validation: the fraction of the 50,000 used for validation; must not be 0.
      seed: seed of the split.
      training_size: use only the first training_size examples of the shuffled training part; None
        uses all.
      imbalance: makes the training part long-tailed: class sizes fall exponentially from the first
        class to the last, which has imbalance times fewer examples (`long_tailed`). The first class
        has as many as the smallest one after the validation part is held out, some 4,480; in the
        CIFAR-10-LT of other papers, which hold out none, 5,000. Validation and test keep equal
        classes. None keeps all examples.

    References:
      Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    options = {**locals()}
    return papers_images(
        "cifar10",
        _ABOUT_10,
        _cifar10,
        class_names=CLASSES,
        first_labels=(6, 9, 9, 4, 1, 1, 2, 7, 8, 3),
        **_SHARED,
        **options,
    )


@register("cifar100", _ABOUT_100)
def cifar100(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
    training_size: int | None = None,
    imbalance: float | None = None,
    test_normalization: str = "cifar10",
) -> Dataset:
    """Load the 60,000 images of CIFAR-100, 32 x 32 in colour, in three parts.

    Images are split, cropped, mirrored and normalised as in `cifar10`, with the statistics of
    CIFAR-10, as in the papers.

    Args:
      data_dir, source, validation, seed, training_size, imbalance: see `cifar10`.
      test_normalization: "cifar10" normalises all parts with the same statistics. "imagenet"
        reproduces a mistake of the released code, with which the published numbers were measured:
        only the test images are normalised with the statistics of ImageNet. All parts share one
        `prepare`, so the test pixels are then stored rescaled, as float32 instead of uint8.

    References:
      Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    options = {**locals()}
    del options["test_normalization"]
    checks.one_of("test_normalization", test_normalization, ("cifar10", "imagenet"))
    mistake = test_normalization == "imagenet"
    dataset = papers_images(
        "cifar100",
        _ABOUT_100,
        _cifar100,
        class_names=tuple(_NAMES.split()),
        first_labels=(19, 29, 0, 11, 1, 86, 90, 28, 23, 31),
        test_by=image_sets.IMAGENET if mistake else None,
        **_SHARED,
        **options,
    )
    if not mistake:
        return dataset
    note = " Test images alone are normalised with the statistics of ImageNet."
    # The stored test pixels are rescaled, so no value of theirs is white.
    return dataclasses.replace(dataset, description=dataset.description + note, brightest=None)


def _cifar10(path: pathlib.Path) -> tuple[Images, Images]:
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    *train, test = _binary(path, names, num_labels=1, num_classes=10)
    return Images(*(np.concatenate(arrays) for arrays in zip(*train, strict=True))), test


def _cifar100(path: pathlib.Path) -> tuple[Images, Images]:
    # One of 20 coarse classes stands before the class.
    train, test = _binary(path, ["train.bin", "test.bin"], num_labels=2, num_classes=100)
    return train, test


def _binary(
    path: pathlib.Path, names: list[str], *, num_labels: int, num_classes: int
) -> list[Images]:
    """Read files of the authors' binary version: records of labels and pixels."""
    wanted = files.contents(path, lambda name: name.rpartition("/")[2] in names)
    found = {name.rpartition("/")[2]: (name, content) for name, content in wanted}
    parts, size = [], num_labels + 3 * 32 * 32
    for name in names:
        if name not in found:
            raise reading.Unreadable(f"{path} has no {name}: download the archive anew.")
        where, content = f"{found[name][0]} in {path}", found[name][1]
        if not content or len(content) % size:
            raise reading.Unreadable(
                f"{where} has {len(content):,} bytes, which are no whole records of {size:,}."
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, size)
        labels = checked_labels(records[:, num_labels - 1], num_classes, where)
        # A record stores the red plane, then green, then blue.
        planes = records[:, num_labels:].reshape(-1, 3, 32, 32)
        parts.append(Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels))
    return parts


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
    index = split_in_two(name, len(train.labels), validation=validation, seed=seed)
    training = first(index.train, training_size)
    if imbalance is not None:
        kept = long_tailed(train.labels[training], len(class_names), factor=imbalance)
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
            f"{about.title}: {sizes(training, index.validation, test.labels)}; split by"
            f" the papers' rule with seed {seed}, {order}; {long_tail}{located}. {reference}."
        ),
        prepare=image_sets.prepare_cifar10,
        brightest=255,
        augment=augment,
    )
