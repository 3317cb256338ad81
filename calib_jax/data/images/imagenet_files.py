"""The photographs of ImageNet on disk: the official folders or TFDS records.

Both forms number the photographs by class and then by file name, so both produce the same split,
order and crops.
"""

import functools
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.formats import matlab, tfds
from calib_jax.data.images import decoded
from calib_jax.data.images.photo_lists import Listed, listed_files

TFDS, OFFICIAL = "tfds", "official"
TRAIN, VAL = "train", "val"
_OURS, _OF_TFDS = "imagenet", "imagenet2012"
_CLASS = re.compile(r"n\d{8}")
_SUFFIXES = (".jpeg", ".jpg")
_KAGGLE = "LOC_val_solution.csv"
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_CLASSES_OF_DEVKIT, _TRUTH_OF_DEVKIT = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"
_INDEX = "calib_jax_index.npz"
_ADVICE = "unpack it anew"
_ANEW = "prepare the data set anew"
HOW = (
    "unpack ILSVRC2012_img_train.tar and the archive of every class in it to train/<class>/, and"
    " ILSVRC2012_img_val.tar to val/, both of which image-net.org gives to those who register for"
    " research"
)


class Parts(NamedTuple):
    """The two parts that have labels, and the classes: WordNet ids in alphabetical order."""

    train: Listed
    val: Listed
    classes: tuple[str, ...]
    form: str


def parts(data_dir: str | None, source: str | None = None) -> Parts:
    """Find the data set in one of its forms; the error explains how to get it.

    Args:
      data_dir: the folder of the data sets. It contains `imagenet2012` prepared by TFDS, or the
        official folders, directly or in a subfolder `imagenet`. For None see `tfds.root`.
      source: the form, "tfds" or "official"; None uses the first of these that exists.
    """
    root, why = tfds.root(data_dir)
    missing = []
    if source != OFFICIAL:
        try:
            return _prepared(tfds.find_version(_OF_TFDS, data_dir, formats=(tfds.ARRAY_RECORD,)))
        except FileNotFoundError as error:
            missing.append(str(error))
    if source != TFDS:
        for place in (root / _OURS, root):
            if _is_official(place):
                return _official(place)
        missing.append(
            f"neither {root / _OURS} nor {root} (from {why}) has its official folders"
            f" {TRAIN} and {VAL}.\n  To get it: {HOW}."
        )
    raise tfds.nowhere(missing)


# --------------------------------------------------------------------------------------------
# The official folders.


def _is_official(place: pathlib.Path) -> bool:
    # Other data sets also have a folder `train`.
    return (place / TRAIN).is_dir() and bool(_folders(place / TRAIN))


def _official(place: pathlib.Path) -> Parts:
    classes = tuple(_folders(place / TRAIN))
    train = _in_folders(place / TRAIN, classes)
    if not (place / VAL).is_dir():
        raise FileNotFoundError(f"{place / TRAIN} is there, but {place / VAL} is not: {HOW}.")
    validating = tuple(_folders(place / VAL))
    if not validating:
        return Parts(train, _flat(place, classes), classes, "official folders")
    if validating != classes:
        lone = sorted({*classes} ^ {*validating})
        raise reading.Unreadable(
            f"{place} has {len(classes)} classes in {TRAIN} and {len(validating)} in {VAL}, and"
            f" {len(lone)} in one of them only, {lone[0]} for example: unpack what is missing."
        )
    return Parts(train, _in_folders(place / VAL, classes), classes, "official folders")


def _folders(place: pathlib.Path) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(e.name for e in entries if _CLASS.fullmatch(e.name) and e.is_dir())


def _images(place: pathlib.Path) -> list[str]:
    with os.scandir(place) as entries:
        images = [e.name for e in entries if e.name.lower().endswith(_SUFFIXES)]
    # Some systems add hidden metadata files such as ._n01440764_18.JPEG.
    images = sorted(name for name in images if not name.startswith("."))
    if not images:
        raise reading.Unreadable(
            f"{place} has no images (*.JPEG): unpack the archive that belongs there."
        )
    return images


def _in_folders(place: pathlib.Path, classes: tuple[str, ...]) -> Listed:
    names: list[bytes] = []
    labels: list[np.ndarray] = []
    for number, name in enumerate(classes):
        images = _images(place / name)
        names += [f"{name}/{image}".encode() for image in images]
        labels.append(np.full(len(images), number, np.int32))
    return listed_files(place, np.array(names), np.concatenate(labels))


def _flat(place: pathlib.Path, classes: tuple[str, ...]) -> Listed:
    """List a flat folder of validation images, with their classes from a separate file."""
    names = _images(place / VAL)
    truth = _truth(place, names)
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.empty(len(names), np.int32)
    for row, name in enumerate(names):
        identity = truth.of.get(pathlib.PurePath(name).stem)
        if identity not in numbers:
            problem = "does not name" if identity is None else f"has {identity[:40]!r} for"
            raise reading.Unreadable(
                f"{truth.path} {problem} {name}, and {place / TRAIN} has {len(classes)} classes"
                f" from {classes[0]} to {classes[-1]}: it belongs to other images."
            )
        labels[row] = numbers[identity]
    order = np.argsort(labels, kind="stable")
    coded = np.array([name.encode() for name in names])
    return listed_files(place / VAL, coded[order], labels[order])


class _Truth(NamedTuple):
    path: pathlib.Path
    of: dict[str, str]  # maps the name of an image, without suffix, to its class


def _truth(place: pathlib.Path, names: list[str]) -> _Truth:
    """Read the ground truth of the validation images from Kaggle's table or the official files."""
    if os.path.lexists(path := place / _KAGGLE):
        lines = reading.text(path, "the table of Kaggle", _ADVICE).splitlines()
        rows = [line.split(",") for line in lines]
        return _Truth(path, {row[0]: row[1].partition(" ")[0] for row in rows if len(row) > 1})
    for folder in (place / _DEVKIT, place):
        if os.path.lexists(path := folder / _TRUTH_OF_DEVKIT):
            given = reading.text(path, "the ground truth of the development kit", _ADVICE).split()
            if len(given) != len(names):
                raise reading.Unreadable(
                    f"{path} has {len(given)} lines for the {len(names)} images of {place / VAL}:"
                    " one of the two is not whole."
                )
            ids = _classes_of_devkit(folder / _CLASSES_OF_DEVKIT)
            stems = (pathlib.PurePath(name).stem for name in names)
            identities = (ids.get(number, number) for number in given)
            return _Truth(path, dict(zip(stems, identities, strict=True)))
    raise FileNotFoundError(
        f"{place / VAL} has neither a folder for each class nor a ground truth beside it: put"
        f" {_KAGGLE} of Kaggle or the folder {_DEVKIT.partition('/')[0]} of"
        f" ILSVRC2012_devkit_t12.tar.gz into {place}."
    )


def _classes_of_devkit(path: pathlib.Path) -> dict[str, str]:
    """Read the class of each number of the development kit, which is not in alphabetical order."""
    if not os.path.lexists(path):
        raise FileNotFoundError(
            f"{path} is missing, which has the classes of the numbers in {_TRUTH_OF_DEVKIT}:"
            " take both from ILSVRC2012_devkit_t12.tar.gz."
        )
    table = matlab.read(path, ("synsets",), _ADVICE)["synsets"]
    with reading.guard(path, "the classes of ImageNet", _ADVICE):
        if not isinstance(table, dict):
            raise ValueError("synsets are no structs")
        numbers = [np.asarray(number).reshape(-1) for number in table["ILSVRC2012_ID"]]
        if any(number.dtype.kind not in "iuf" or number.size != 1 for number in numbers):
            raise ValueError("ILSVRC2012_ID is not one number a class")
        pairs = zip(numbers, table["WNID"], strict=True)
        return {str(int(number[0])): str(name) for number, name in pairs}


# --------------------------------------------------------------------------------------------
# TFDS records, read one by one on access.


def _prepared(folder: pathlib.Path) -> Parts:
    with reading.guard(folder, "ImageNet as TFDS prepares it", _ANEW, library=True):
        sources = {part: tfds.opened(folder, part, ("image",)) for part in (TRAIN, "validation")}
        classes = tuple(sources[TRAIN].dataset_info.features["label"].names)
    if list(classes) != sorted(classes):
        raise reading.Unreadable(
            f"the classes in {folder} are not WordNet ids in alphabetic order."
        )

    def index() -> dict[str, np.ndarray]:
        with decoded.progress(sum(map(len, sources.values())), _OF_TFDS) as advance:
            return {
                f"{part}_{what}": array
                for part, source in sources.items()
                for what, array in _indexed(folder, part, source, advance).items()
            }

    key = json.dumps([folder.name, tfds.fingerprint_of_records(folder)])
    arrays = decoded.cached(folder / _INDEX, key, index)

    def listed(part: str) -> Listed:
        names, labels, records = (
            arrays[f"{part}_{what}"] for what in ("names", "labels", "records")
        )
        read = functools.partial(_record, sources[part], records)
        return Listed(names, labels, f"{folder}, {part}", read)

    return Parts(listed(TRAIN), listed("validation"), classes, f"TFDS {folder.name}")


def _record(source: Any, records: np.ndarray, _: str, number: int) -> bytes:
    coded: bytes = source[int(records[number])]["image"]
    return coded


def _indexed(
    folder: pathlib.Path, part: str, source: Any, advance: Callable[[int], object]
) -> dict[str, np.ndarray]:
    """Read the names and labels of all records, and sort them because TFDS shuffles records."""
    # The C++ reader has no exception class of its own, so every exception is caught.
    with reading.guard(f"{part} in {folder}", "records of ImageNet", _ANEW, library=True):
        names, labels = tfds.columns(source, ("file_name", "label"), advance)
    order = np.lexsort((names, labels))
    return {
        "names": names[order],
        "labels": labels[order].astype(np.int32),
        "records": order.astype(np.int64),
    }
