"""Files of predictions: read without running anything that is in them.

run.npz                       arrays logits, labels and, if there, groups and weights
logits.npy with labels.npy    memory-mapped; the labels stand beside: LOGITS.npy,LABELS.npy
run.csv                       columns label, logit_0, logit_1, ... and, if there, group, weight
"""

import csv
import pathlib
import zipfile
from typing import NamedTuple

import numpy as np


class Predictions(NamedTuple):
    """What a file holds; `weights` and `groups` are None if it does not."""

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None


class Unreadable(ValueError):
    """A file that is not what it should be; the message is one sentence."""


def read(name: str) -> Predictions:
    """Read a file by its ending; two .npy files are given as LOGITS.npy,LABELS.npy."""
    paths = [pathlib.Path(part) for part in name.split(",")]
    for path in paths:
        if not path.is_file():
            raise Unreadable(f"there is no file {path}.")
    endings = [path.suffix.lower() for path in paths]
    if endings == [".npz"]:
        found = _npz(paths[0])
    elif endings == [".npy", ".npy"]:
        found = Predictions(*(_npy(path) for path in paths))
    elif endings == [".csv"]:
        found = _csv(paths[0])
    elif endings == [".npy"]:
        raise Unreadable(f"{name} needs its labels: give LOGITS.npy,LABELS.npy.")
    else:
        raise Unreadable(f"{name} must end in .npz, .csv, or be LOGITS.npy,LABELS.npy.")
    return _checked(name, found)


def _npz(path: pathlib.Path) -> Predictions:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            missing = [key for key in ("logits", "labels") if key not in arrays]
            if missing:
                has = ", ".join(arrays.files) or "none"
                raise Unreadable(f"{path} has no array {missing[0]!r}; it has {has}.")
            found = {key: arrays[key] for key in arrays.files}
    except Unreadable:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise Unreadable(_damaged(path, error)) from error
    return Predictions(found["logits"], found["labels"], found.get("weights"), found.get("groups"))


def _npy(path: pathlib.Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Unreadable(_damaged(path, error)) from error


def _damaged(path: pathlib.Path, error: Exception) -> str:
    if "pickle" in str(error):
        return f"{path} holds pickled objects, which are not read: save plain arrays."
    return f"{path} cannot be read: it is damaged, or no NumPy file."


def _csv(path: pathlib.Path) -> Predictions:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            head = next(rows, [])
            names = [name.strip() for name in head]
            columns = sorted(
                (name for name in names if name.startswith("logit_")),
                key=lambda name: int(name.removeprefix("logit_")),
            )
            if "label" not in names or not columns:
                raise Unreadable(
                    f"{path} must have columns label, logit_0, logit_1, ...; it has"
                    f" {', '.join(names) or 'none'}."
                )
            table = list(rows)
    except Unreadable:
        raise
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise Unreadable(f"{path} cannot be read as CSV: {error}.") from error
    for number, row in enumerate(table, start=2):
        if len(row) != len(names):
            raise Unreadable(f"line {number} of {path} has {len(row)} fields, not {len(names)}.")

    def column(name: str) -> list[str]:
        place = names.index(name)
        return [row[place] for row in table]

    def numbers(name: str, kind: type) -> np.ndarray:
        try:
            return np.array(column(name), dtype=kind)
        except ValueError as error:
            raise Unreadable(f"column {name} of {path} must hold numbers: {error}.") from error

    return Predictions(
        np.stack([numbers(name, np.float32) for name in columns], axis=1),
        numbers("label", np.int64),
        numbers("weight", np.float32) if "weight" in names else None,
        np.array(column("group")) if "group" in names else None,
    )


def _checked(name: str, found: Predictions) -> Predictions:
    logits, labels = found.logits, found.labels
    if logits.dtype.kind != "f":
        raise Unreadable(f"the logits of {name} must be floating point, got {logits.dtype}.")
    if labels.dtype.kind not in "iu":
        raise Unreadable(f"the labels of {name} must be integers, got {labels.dtype}.")
    lengths = {key: len(value) for key, value in found._asdict().items() if value is not None}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{count} {key}" for key, count in lengths.items())
        raise Unreadable(f"{name} must hold as many of each: it has {said}.")
    return found
