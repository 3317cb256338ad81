"""Photographs by name, with their classes, such as those that a published list names."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.escaping import one_line

_ADVICE = "unpack the photographs that the list names"
_LONGEST = 1 << 26  # limit on the bytes of a photograph


@dataclasses.dataclass(frozen=True)
class Listed:
    """Compressed photographs of one part of a data set, sorted by class and name.

    Attributes:
      names: file names, as bytes.
      labels: their classes.
      place: the folder of the names, for error messages.
      of: `(name, number) -> bytes`, the function that reads a file.
    """

    names: np.ndarray
    labels: np.ndarray
    place: str
    of: Callable[[str, int], bytes]

    def read(self, number: int) -> bytes:
        """Read a file."""
        return self.of(self.names[number].decode(), number)

    def name(self, number: int) -> str:
        """Return the path of a file, for error messages."""
        return f"{self.place}/{self.names[number].decode()}"


def listed_files(
    place: pathlib.Path, names: np.ndarray, labels: np.ndarray, advice: str = reading.ANEW
) -> Listed:
    """Return the photographs of some files of a folder."""

    def read(name: str, _: int) -> bytes:
        return reading.content(place / name, "a photograph", advice, at_most=_LONGEST)

    return Listed(names, labels, str(place), read)


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
