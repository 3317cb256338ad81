"""The subwords of a run, saved in its folder, so that translation does not need the data set."""

import pathlib
from typing import Any

from calib_jax import data

NAME = "subwords.txt"


def keep(folder: pathlib.Path, vocabulary: Any) -> None:
    """Save the subwords of a data set in the folder of a run; other vocabularies are not saved."""
    if not isinstance(vocabulary, data.Subwords):
        return
    if (folder / NAME).exists():
        check(folder, vocabulary)
        return
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.write(folder / NAME)


def check(folder: pathlib.Path, vocabulary: Any) -> None:
    """Raise an error if the folder of a run has other subwords than the data set."""
    if not isinstance(vocabulary, data.Subwords) or not (folder / NAME).exists():
        return
    if data.Subwords.read(folder / NAME) != vocabulary:
        raise ValueError(
            f"{folder / NAME} holds other subwords than the data set: it is from another run, or"
            " the data have changed.\nChoose another folder, or give the data set this file by"
            " --config.data.options.subwords."
        )


def read(folder: pathlib.Path, num_classes: int) -> data.Subwords:
    """Read the subwords of a run; their number must be the network's `num_classes`."""
    if not (folder / NAME).exists():
        raise ValueError(f"{folder} has no {NAME}: it holds no run of a translation.")
    subwords = data.Subwords.read(folder / NAME)
    if len(subwords) != num_classes:
        raise ValueError(
            f"{folder / NAME} has {len(subwords):,} subwords and the network {num_classes:,}: the"
            " file is of another run."
        )
    return subwords
