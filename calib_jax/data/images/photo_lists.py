"""Photographs that a published list names, with their classes."""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.escaping import one_line
from calib_jax.data.images.imagenet_files import Listed, listed_files

_ADVICE = "unpack the photographs that the list names"


def listed(
    path: pathlib.Path, place: pathlib.Path, names: Sequence[str], labels: Sequence[int]
) -> Listed:
    """Return the photographs of a list, sorted by class and name; raise if one is absent.

    Args:
      path: the list, for error messages.
      place: the folder that contains the photographs.
      names: their paths in this folder.
      labels: their classes.
    """
    if not names:
        raise reading.Unreadable(f"{path} names no photographs: get it anew.")
    _check_present(path, place, names)
    coded, classes = np.array([name.encode() for name in names]), np.array(labels, np.int32)
    order = np.lexsort((coded, classes))

    return listed_files(place, coded[order], classes[order], _ADVICE)


def _check_present(path: pathlib.Path, place: pathlib.Path, names: Sequence[str]) -> None:
    """Raise an error that names the first photograph that is absent or outside the folder."""
    folders: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if name.startswith("/") or ".." in name.split("/"):
            raise reading.Unreadable(f"{path} names {name[:80]!r}, which is outside {place}.")
        if folder not in folders:
            # List each folder once: there are hundreds of thousands of photographs.
            try:
                folders[folder] = {*os.listdir(place / folder)}
            except (OSError, ValueError):
                folders[folder] = set()
        if file not in folders[folder]:
            raise reading.Unreadable(
                f"{path} names {one_line(name[:80])}, and {place} does not have it: {_ADVICE}."
            )
