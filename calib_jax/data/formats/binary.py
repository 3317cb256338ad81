"""Read the authors' binary version of CIFAR: records of labels and pixels, without pickle."""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.formats import archives
from calib_jax.data.images.image_sets import Images, checked_labels

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_LONGEST = 1 << 28  # limit on the bytes of a file; the largest file has 154 million


def images(
    path: pathlib.Path,
    *,
    folder: str,
    parts: Mapping[str, tuple[str, ...]],
    num_labels: int,
    num_classes: int,
) -> tuple[Images, ...]:
    """Read the parts of a data set, in the order of its files.

    Args:
      path: the folder, or the archive that contains it, which is read without unpacking.
      folder: name of the folder in the archive.
      parts: the files of each part.
      num_labels: number of label bytes before the pixels; the last one is the class.
      num_classes: labels must lie in [0, num_classes).
    """
    names = [name for files in parts.values() for name in files]
    if path.is_dir():
        if missing := [name for name in names if not os.path.lexists(path / name)]:
            raise FileNotFoundError(f"{path} has no {missing[0]}: unpack the archive anew.")
        content = {
            name: reading.content(
                path / name, "records of CIFAR", "unpack the archive anew", at_most=_LONGEST
            )
            for name in names
        }
    else:
        whole = archives.read(path, [f"{folder}/{name}" for name in names])
        content = {name: whole[f"{folder}/{name}"] for name in names}
    return tuple(
        _joined([_records(path, name, content[name], num_labels, num_classes) for name in files])
        for files in parts.values()
    )


def _joined(some: list[Images]) -> Images:
    return Images(*(np.concatenate(arrays) for arrays in zip(*some, strict=True)))


def _records(
    path: pathlib.Path, name: str, content: bytes, num_labels: int, num_classes: int
) -> Images:
    size = num_labels + _PIXELS
    if not content or len(content) % size:
        raise reading.Unreadable(
            f"{name} in {path} has {len(content):,} bytes, which are no whole records of {size:,}."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = checked_labels(records[:, num_labels - 1], num_classes, f"{name} in {path}")
    # A record stores the red plane, then green, then blue.
    planes = records[:, num_labels:].reshape(-1, 3, _SIDE, _SIDE)
    return Images(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
