"""ImageNet: over a million photographs in 1,000 classes, streamed from disk.

The classification task of ILSVRC 2012 has 1,281,167 training photographs (732 to 1,300 per class)
and 50,000 for validation (50 per class). The latter are the test part here, because the labels of
the 100,000 test images were never published. Registered users of image-net.org can download:

    ILSVRC2012_img_train.tar       147,897,477,120 bytes, MD5 1d675b47d978889d74fa0da5fadfb00e
    ILSVRC2012_img_val.tar           6,744,924,160 bytes, MD5 29b22e2961454d5413ddabcf34fc5622
    ILSVRC2012_devkit_t12.tar.gz    the labels of the latter, MD5 fa75699e90414af021442c21a62c3abf
"""

import os
import pathlib
import re

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register, shuffled, some_of_each
from calib_jax.data.formats import files
from calib_jax.data.images.jpeg import Listed, check_sizes, photographs

_CLASS = re.compile(r"n\d{8}")
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_ADVICE = "unpack it anew"
_HOW = (
    "register at https://image-net.org/challenges/LSVRC/2012/2012-downloads.php, unpack"
    " ILSVRC2012_img_train.tar and the archive of every class in it to train/<class>/,"
    " ILSVRC2012_img_val.tar to val/, and ILSVRC2012_devkit_t12.tar.gz beside them"
)
_ABOUT = About(
    title="ImageNet (ILSVRC 2012), photographs of about 500 x 375 in colour",
    licence="terms of image-net.org: non-commercial research and education only",
    counts={"train": 1_281_167, "test": 50_000},
    official=("train",),
    by_hand=_HOW,
    size=147_897_477_120 + 6_744_924_160,
)


@register("imagenet", _ABOUT)
def imagenet(
    *,
    data_dir: str | None = None,
    held_out: str = "train",
    validation_per_class: int = 50,
    seed: int = 0,
    size: int = 224,
    resize: int = 256,
) -> Dataset:
    """Stream the photographs of ILSVRC 2012 in three parts, decoding each on access.

    Training crops a random window (8 to 100 % of the area, aspect ratio 3/4 to 4/3), resizes it to
    `size` and mirrors it half of the time. Evaluation resizes the shorter side to `resize` and
    crops the centre. Both run on the host; the window depends only on the run's seed, the epoch and
    the photograph. The device normalises by ImageNet's mean and deviation.

    The classes are WordNet ids, numbered in alphabetical order.

    Args:
      data_dir: the folder of the data sets. Either it, or its subfolder `imagenet`, contains the
        official folders `train/<class>/*.JPEG`, `val/*.JPEG` and the development kit. None uses the
        environment variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      held_out: the part from which validation examples are taken. "train", this library's default,
        holds out validation_per_class examples of every class of the training part and tests on the
        whole official validation set. "val" splits the official validation set into halves for
        validation and test, 25,000 each, the sizes of Guo et al., whose split is not published.
      validation_per_class: photographs of every class held out of the training part.
      seed: seed of the split.
      size: side of the returned images, in pixels.
      resize: length of the shorter side before the centre crop of evaluation.

    References:
      Russakovsky et al. 2015, ImageNet Large Scale Visual Recognition Challenge.
      Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.
    """
    checks.one_of("held_out", held_out, ("train", "val"))
    checks.whole("validation_per_class", validation_per_class)
    check_sizes(size, resize)
    place = files.find("imagenet", _ABOUT, data_dir).path.parent
    if not (place / "val").is_dir():
        raise FileNotFoundError(f"{place / 'train'} is there, but {place / 'val'} is not: {_HOW}.")
    classes = tuple(_folders(place / "train"))
    if not classes:
        raise reading.Unreadable(f"{place / 'train'} has no folder n01440764 of a class: {_HOW}.")
    train, val = _train(place / "train", classes), _val(place, classes)
    training, testing = np.arange(len(train.labels)), np.arange(len(val.labels))
    if held_out == "train":
        validating = some_of_each(
            train.labels, classes, validation_per_class, name="imagenet", seed=seed
        )
        training = np.delete(training, validating)
        rule = f"{validation_per_class} of each class of the training part, drawn with seed {seed}"
    else:
        order = shuffled(len(testing), seed=seed)
        validating, testing = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
        rule = f"half of the official validation set, drawn with seed {seed}"
    parts = {
        "train": (train, training),
        "validation": (train if held_out == "train" else val, validating),
        "test": (val, testing),
    }
    rule = f"validation is {rule}; Russakovsky et al. 2015"
    return photographs("imagenet", _ABOUT, classes, parts, (size, resize), rule)


def _folders(place: pathlib.Path) -> list[str]:
    """List the folders of classes."""
    with reading.guard(place, "a folder of ImageNet", _HOW), os.scandir(place) as entries:
        return sorted(e.name for e in entries if _CLASS.fullmatch(e.name) and e.is_dir())


def _images(place: pathlib.Path) -> list[str]:
    with reading.guard(place, "a folder of images", _ADVICE), os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.endswith((".JPEG", ".jpg", ".jpeg"))]
        # Some systems add hidden metadata files such as ._n01440764_18.JPEG.
        images = sorted(name for name in names if not name.startswith("."))
        if not images:
            raise ValueError("it has no images *.JPEG")
    return images


def _train(place: pathlib.Path, classes: tuple[str, ...]) -> Listed:
    """List the images of a folder for each class."""
    images = [_images(place / name) for name in classes]
    names = [
        f"{name}/{image}" for name, some in zip(classes, images, strict=True) for image in some
    ]
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(some) for some in images])
    return Listed(place, np.array([name.encode() for name in names]), labels)


def _val(place: pathlib.Path, classes: tuple[str, ...]) -> Listed:
    """List the validation images, with the ground truth of the development kit."""
    from scipy.io import loadmat

    names, kit = _images(place / "val"), place / _DEVKIT
    if not (kit / _TRUTH).exists():
        raise FileNotFoundError(
            f"{kit / _TRUTH} is not there: unpack ILSVRC2012_devkit_t12.tar.gz in {place}."
        )
    given = reading.text(kit / _TRUTH, "the ground truth of ImageNet", _ADVICE).split()
    # SciPy raises errors of many kinds for a damaged file.
    with reading.guard(kit / "meta.mat", "the classes of ImageNet", _ADVICE, library=True):
        synsets = loadmat(kit / "meta.mat", squeeze_me=True)["synsets"]
        # The numbers of the development kit are not in the alphabetical order of the classes.
        ids = {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in synsets}
    if len(given) != len(names):
        raise reading.Unreadable(
            f"{kit / _TRUTH} has {len(given)} lines for the {len(names)} images of {place / 'val'}:"
            " one of the two is not whole."
        )
    numbers = {identity: number for number, identity in enumerate(classes)}
    for line, number in enumerate(given, start=1):
        if ids.get(number) not in numbers:
            raise reading.Unreadable(
                f"line {line} of {kit / _TRUTH} has the class {number[:20]!r}, which"
                f" {place / 'train'} does not have."
            )
    labels = np.array([numbers[ids[number]] for number in given], np.int32)
    order = np.argsort(labels, kind="stable")
    return Listed(place / "val", np.array([name.encode() for name in names])[order], labels[order])
