"""Tiny-ImageNet: photographs in 200 classes, 64 x 64."""

import pathlib

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, Download, first, register, shuffled, sizes
from calib_jax.data.formats import files
from calib_jax.data.images.image_files import decode_all, pixels
from calib_jax.data.images.image_sets import IMAGENET, Images, crop_and_flip, normalized

_SHAPE = (64, 64, 3)
_LONGEST = 1 << 22  # limit on the bytes of an image
_ADVICE = "unpack the archive anew"
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

    The images are read from the authors' folder tiny-imagenet-200. Some public copies hold further
    classes: they are left out, and the description names them.

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
    classes, others = _classes(located.path)
    train, test = _train(located.path, classes), _test(located.path, classes, others)
    order = shuffled(len(train.labels), seed=seed)
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
            f"{_ABOUT.title}: {sizes(training, validation, test.labels)}; {rule}; {located}."
            + f" Left out, because they are not official: {', '.join(others)}." * bool(others)
            + f" Licence: {_ABOUT.licence}. Le and Yang 2015."
        ),
        prepare=normalized(IMAGENET),
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
    held = np.zeros(len(labels), bool)
    for label in range(labels.max() + 1):
        held[np.flatnonzero(labels == label)[:per_class]] = True
    return held


def _classes(folder: pathlib.Path) -> tuple[list[str], list[str]]:
    """Return the official classes of a copy, sorted, and its other classes."""
    path = pathlib.Path(__file__).with_suffix(".txt")
    official = reading.text(path, "the classes", "install the library anew").split("\n", 1)[1]
    known, given = {*official.split()}, sorted({*_lines(folder / "wnids.txt")})
    classes = [identity for identity in given if identity in known]
    if len(classes) < 2:
        raise reading.Unreadable(f"{folder / 'wnids.txt'} names no classes: {_ADVICE}.")
    return classes, [identity for identity in given if identity not in known]


def _train(folder: pathlib.Path, classes: list[str]) -> Images:
    """Read the images for training, class by class."""
    by_class = [sorted((folder / "train" / name / "images").glob("*.JPEG")) for name in classes]
    if [] in by_class:
        missing = classes[by_class.index([])]
        raise reading.Unreadable(f"{folder} has no images of the class {missing} in train.")
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [*map(len, by_class)])
    return Images(_decoded([path for paths in by_class for path in paths]), labels)


def _test(folder: pathlib.Path, classes: list[str], others: list[str]) -> Images:
    """Read the official validation images, in the order of their list."""
    path = folder / "val" / "val_annotations.txt"
    numbers = {identity: number for number, identity in enumerate(classes)}
    images: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        name, identity, *_ = (*line.split("\t"), "")
        if identity in others:
            continue
        if identity not in numbers or "/" in name:
            raise reading.Unreadable(
                f"line {number} of {path} has {line[:80]!r} in place of a file and a class."
            )
        images[name] = numbers[identity]
    paths = [folder / "val" / "images" / name for name in images]
    return Images(_decoded(paths), np.array([*images.values()], np.int32))


def _decoded(paths: list[pathlib.Path]) -> np.ndarray:
    def decode(row: int) -> np.ndarray:
        coded = reading.content(paths[row], "an image", _ADVICE, at_most=_LONGEST)
        with reading.guard(paths[row], "an image", _ADVICE, library=True):
            return pixels(coded, _SHAPE)

    return decode_all(len(paths), _SHAPE, decode, "tiny_imagenet")


def _lines(path: pathlib.Path) -> list[str]:
    lines = reading.text(path, "a list of Tiny-ImageNet", _ADVICE).splitlines()
    return [line for line in lines if line.strip()]


def _names(folder: pathlib.Path, identities: list[str]) -> tuple[str, ...]:
    """Name each class by the first of its words; use the ids if these are not unique."""
    path = folder / "words.txt"
    words = dict(line.split("\t", 1) for line in (_lines(path) if path.exists() else ()))
    names = tuple(words.get(name, name).partition(",")[0].strip() for name in identities)
    return names if len(set(names)) == len(names) else tuple(identities)
