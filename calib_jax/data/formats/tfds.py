"""Read data sets that TFDS prepared as array_record, without TensorFlow."""

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.images.image_files import decode_all, pixels
from calib_jax.data.images.image_sets import Images, checked_labels

_ABOUT = "dataset_info.json"
_KIND = "a data set that TFDS prepared"
_ADVICE = "prepare the data set anew as array_record: tfds build NAME --file_format=array_record"


def images(folder: pathlib.Path, part: str, shape: tuple[int, ...], num_classes: int) -> Images:
    """Read a part of a data set in the order in which its authors published it.

    TFDS shuffles the records and gives each an id that ends with its number in the original files.
    The records are sorted by these ids; without ids they keep the order of TFDS.

    Args:
      folder: the folder of a version, as found by `files.find`.
      part: the name of the part in TFDS.
      shape: required shape of an image.
      num_classes: labels must lie in [0, num_classes).
    """
    where = f"{part} in {folder}"
    coded, labels, names = [], [], []
    for features in _records(folder, part):
        coded.append(features["image"].bytes_list.value[0])
        labels.append(features["label"].int64_list.value[0])
        names.append(features["id"].bytes_list.value[0] if "id" in features else b"")
    order = _numbered(names)

    def decode(row: int) -> np.ndarray:
        with reading.guard(f"image {row} of {where}", "an image", _ADVICE, library=True):
            return pixels(coded[order[row]], shape)

    decoded = decode_all(len(coded), shape, decode, folder.parent.name)
    return Images(decoded, checked_labels(np.array(labels)[order], num_classes, where))


def texts(folder: pathlib.Path, part: str, features: Sequence[str]) -> list[list[str]]:
    """Read the texts of some features of a part, in the order of TFDS.

    Args:
      folder: the folder of a version, as found by `files.find`.
      part: the name of the part in TFDS.
      features: the names of the features.
    """
    lines: list[list[str]] = [[] for _ in features]
    for record in _records(folder, part):
        for feature, column in zip(features, lines, strict=True):
            column.append(record[feature].bytes_list.value[0].decode("utf-8"))
    return lines


def _records(folder: pathlib.Path, part: str) -> Iterator[Any]:
    """Yield the features of all records of a part; raise unless there are as many as stated."""
    from array_record.python.array_record_module import ArrayRecordReader
    from tensorflow_datasets.proto import tf_example_pb2

    about = reading.json_mapping(folder / _ABOUT, _KIND, _ADVICE)
    # The C++ reader has no exception class of its own, and the JSON may have any form.
    with reading.guard(f"{part} in {folder}", _KIND, _ADVICE, library=True):
        lengths = {split["name"]: split["shardLengths"] for split in about["splits"]}
        size, count = sum(map(int, lengths.get(part, ()))), 0
        for shard in sorted(folder.glob(f"*-{part}.array_record-*")):
            if not shard.is_file():  # the C++ reader ends the process for a folder
                continue
            for coded in ArrayRecordReader(str(shard)).read_all():
                count += 1
                yield tf_example_pb2.Example.FromString(coded).features.feature
        if count != size or not count:
            raise ValueError(f"it has {count:,} records in array_record, and states {size:,}")


def _numbered(names: list[bytes]) -> np.ndarray:
    """Return the order of the numbers at the end of the ids; as it is unless they are 0 to n - 1.

    >>> _numbered([b"train_2", b"train_0", b"train_1"])
    array([1, 2, 0])
    """
    ends = [re.search(rb"\d+$", name) for name in names]
    numbers = np.array([int(end[0]) if end else -1 for end in ends])
    order = np.argsort(numbers, kind="stable")
    whole = np.array_equal(numbers[order], np.arange(len(names)))
    return order if whole else np.arange(len(names))
