"""Tiny-ImageNet: photographs in 200 classes, 64 x 64."""

import json
import os
import pathlib
import re
from collections.abc import Callable, Collection

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data import splits
from calib_jax.data.dataset import About, Dataset, Download, register
from calib_jax.data.formats import files
from calib_jax.data.images import decoded
from calib_jax.data.images.image_sets import (
    IMAGENET,
    Images,
    crop_and_flip,
    first,
    normalized,
    sizes,
)

_SHAPE = (64, 64, 3)
_IDENTITY = re.compile(r"\w{1,40}")
_LONGEST = 1 << 22  # limit on the bytes of an image
_ADVICE = "unpack the archive anew"
_ORDER = 1  # increment if this file changes the order or content of the returned images
_ABOUT = About(
    title="Tiny-ImageNet, 64 x 64 in colour",
    licence="that of ImageNet: non-commercial research and education only",
    counts={"train": (500,) * 200, "test": (50,) * 200},
    official=("tiny-imagenet-200",),
    downloads=(
        Download(
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            size=248_100_043,
            md5="90528d7ca1a48142e341f4ef8d21d0de",
            folder="tiny-imagenet-200",
        ),
    ),
)
_prepare = normalized(IMAGENET)


@register("tiny_imagenet", _ABOUT)
def tiny_imagenet(
    *,
    data_dir: str | None = None,
    split: str = "papers",
    validation_per_class: int = 50,
    seed: int = 1,
    training_size: int | None = None,
) -> Dataset:
    """Load 110,000 images of Tiny-ImageNet, 64 x 64 in colour, in three parts.

    Classes are numbered in the order of their WordNet ids. Training images are padded by 4 black
    pixels, cropped at random, and mirrored half of the time, anew in every epoch (the released
    code augments them only once); all are normalised with the statistics of ImageNet. The official
    test images have no published labels and are not used.

    The images are read from the authors' folder tiny-imagenet-200, and the decoded pixels are
    cached in it, so images are decoded only on the first load.

    Args:
      data_dir: see `cifar10`.
      split: "papers" holds out some of the 100,000 training images of each class for validation,
        and tests on the 10,000 official validation images. "released" follows the released code:
        it trains on all 100,000, and both validates and tests on the 10,000, so the temperature is
        chosen on the test images.
      validation_per_class: number of validation images per class for split="papers": the first of
        each class in the order of NumPy's legacy generator (`shuffled`).
      seed: seed of the split.
      training_size: use only the first training_size examples of the shuffled training part; None
        uses all.

    References:
      Le and Yang 2015, Tiny ImageNet Visual Recognition Challenge.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    checks.one_of("split", split, ("papers", "released"))
    located = files.find("tiny_imagenet", _ABOUT, data_dir)
    identities = _lines(located.path / "wnids.txt", "wnid")
    if len(set(identities)) < len(identities):
        raise reading.Unreadable(f"wnids.txt in {located.path} names a class twice: {_ADVICE}.")
    (train, test), classes = _images(located.path, identities), sorted(identities)
    order = splits.shuffled(len(train.labels), seed=seed)
    if split == "papers":
        held = _held_out(train.labels[order], validation_per_class)
        training, validation = order[~held], train.source(order[held])
        rule = f"{validation_per_class} of each class held out with seed {seed}"
    else:
        training, validation = order, test.source()
        rule = "as in the released code, where the same images validate and test"
    training = first(training, training_size)
    return Dataset(
        name="tiny_imagenet",
        class_names=_names(located.path, classes),
        train=train.source(training),
        validation=validation,
        test=test.source(),
        description=(
            f"{_ABOUT.title}: {sizes(training, validation.labels, test.labels)}; {rule}; {located}."
            f" Licence: {_ABOUT.licence}. Le and Yang 2015."
        ),
        prepare=_prepare,
        brightest=255,
        augment=crop_and_flip,
    )


def _held_out(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Return a mask that is True for the first per_class labels of each class."""
    smallest = np.bincount(labels).min()
    if not 0 < per_class < smallest:
        raise ValueError(
            f"tiny_imagenet: validation_per_class must lie in [1, {smallest - 1}], so that"
            f" something is left of every class, got {per_class}."
        )
    by_class = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[by_class], labels[by_class])
    held = np.empty(len(labels), bool)
    held[by_class] = np.arange(len(labels)) - starts < per_class
    return held


def _images(folder: pathlib.Path, identities: list[str]) -> tuple[Images, Images]:
    """Read the images for training, class by class, and the official validation images."""
    numbers = {identity: number for number, identity in enumerate(sorted(identities))}
    train: dict[str, int] = {}
    for identity, number in numbers.items():
        if not _IDENTITY.fullmatch(identity):
            raise reading.Unreadable(
                f"wnids.txt in {folder} has {identity[:80]!r} in place of a class, n01443537."
            )
        images = sorted((folder / "train" / identity / "images").glob("*.JPEG"))
        if not images:
            raise reading.Unreadable(f"{folder} has no images of the class {identity} in train.")
        train |= {path.relative_to(folder).as_posix(): number for path in images}
    test: dict[str, int] = {}
    for line in _lines(folder / "val" / "val_annotations.txt", "annotation"):
        image, _, rest = line.partition("\t")
        identity = rest.partition("\t")[0]
        plain = image.isprintable() and "/" not in image and len(image) < 100
        if identity not in numbers or not plain:
            raise reading.Unreadable(
                f"val_annotations.txt in {folder} has {line[:80]!r} in place of a file and a class."
            )
        test[f"val/images/{image}"] = numbers[identity]

    def decode() -> dict[str, np.ndarray]:
        with decoded.progress(len(train) + len(test), "tiny_imagenet") as advance:
            return {
                "train": _decoded(folder, train, advance),
                "test": _decoded(folder, test, advance),
            }

    key = json.dumps([_ORDER, decoded.fingerprint(folder, [*train, *test])])
    arrays = decoded.cached(folder / decoded.NAME, key, decode)
    return (
        Images(arrays["train"], np.fromiter(train.values(), np.int32)),
        Images(arrays["test"], np.fromiter(test.values(), np.int32)),
    )


def _decoded(
    folder: pathlib.Path, names: Collection[str], advance: Callable[[int], object]
) -> np.ndarray:
    pixels = np.empty((len(names), *_SHAPE), np.uint8)
    for row, name in enumerate(names):
        coded = reading.content(folder / name, "an image", _ADVICE, at_most=_LONGEST)
        with reading.guard(folder / name, "an image", _ADVICE, library=True):
            pixels[row] = decoded.pixels(coded, _SHAPE)
        advance(1)
    return pixels


def _lines(path: pathlib.Path, what: str) -> list[str]:
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{path.parent} has no {path.name}: {_ADVICE}.")
    lines = reading.text(path, f"a list of {what}s", _ADVICE).splitlines()
    if not any(lines):
        raise reading.Unreadable(f"{path} has no {what}.")
    return [line for line in lines if line]


def _names(folder: pathlib.Path, identities: list[str]) -> tuple[str, ...]:
    """Name each class by the first of its words; use the ids if these are not unique."""
    words = {}
    if os.path.lexists(folder / "words.txt"):
        for line in _lines(folder / "words.txt", "word"):
            identity, _, synonyms = line.partition("\t")
            words[identity] = synonyms.partition(",")[0].strip()
    names = tuple(words.get(identity, identity) for identity in identities)
    return names if len(set(names)) == len(names) else tuple(identities)
