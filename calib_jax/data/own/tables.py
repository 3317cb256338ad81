"""Tables of the user's own data sets: a label and optionally a part in each row of a CSV file."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.formats.files import read_table
from calib_jax.data.own.arrays import split_by_class

# Values of the column `split` and names of folders, by the part that they name.
PARTS = {
    **dict.fromkeys(("train", "training", ""), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class Row(NamedTuple):
    """An example of a table or a folder.

    Attributes:
      value: the text, or the path of the image.
      label: the name of its class.
      part: train, validation or test; the split of the data set may hold out some of train.
    """

    value: Any
    label: str
    part: str = "train"


def rows_of(path: pathlib.Path, column: str) -> list[Row]:
    """Read the columns `column`, `label` and optionally `split` of a CSV file.

    A row that cannot be used is an error that names the row.
    """
    table = read_table(path, f"a table of {column}s", (column, "label"))
    parts = table["split"] if "split" in table else [""] * len(table)
    rows = []
    for number, (value, label, part) in enumerate(
        zip(table[column], table["label"], parts, strict=True), start=1
    ):
        row = Row(value.strip(), " ".join(label.split()), PARTS.get(part.strip().lower(), ""))
        if not all(row):
            wrong = "split" if row.value and row.label else "label" if row.value else column
            raise reading.Unreadable(
                f"row {number} of {path} has the {wrong} {part[:30] if wrong == 'split' else ''!r}:"
                f" give each row a {column}, a label, and train, validation or test as its split."
            )
        rows.append(row)
    if not rows:
        raise reading.Unreadable(f"{path} has no {column}s: add a row for each, after the first.")
    return rows


def class_names(
    labels: Sequence[str], classes: Sequence[str], place: pathlib.Path
) -> tuple[str, ...]:
    """Name the classes in the order of their numbers: sorted, or by value if all are numbers.

    Args:
      labels: the label of each example.
      classes: the names as given; none if the labels are the names.
      place: the file or folder of the data set, for messages.
    """
    present = sorted(set(labels))
    if all(name.isdecimal() for name in present):
        present.sort(key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))
    if not classes:
        if len(present) < 2:
            raise ValueError(f"{place} has one class, {present[0]!r}, and needs two or more.")
        return tuple(present)
    if len(set(classes)) < len(classes):
        raise ValueError(f"classes must be different names, got {', '.join(classes)}.")
    if unknown := [label for label in present if label not in classes]:
        raise ValueError(
            f"example {list(labels).index(unknown[0])} of {place} has the label {unknown[0]!r},"
            f" which is none of the classes {', '.join(classes)}."
        )
    return tuple(classes)


def parts_of(
    given: Sequence[str],
    labels: np.ndarray,
    names: Sequence[str],
    fractions: Mapping[str, float],
    seed: int,
    copies: Sequence[int] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the rows of each part, and the fractions of the parts that are held out.

    Args:
      given: the part of each row, from the table or the folders.
      labels: the class of each row.
      names: the names of the classes.
      fractions: the fraction that is held out for each part without a row.
      seed: seed of the split.
      copies: a number for each row, equal for copies, which stay in one part.
    """
    stated = np.array(given)
    drawn = {part: share for part, share in fractions.items() if part not in given}
    training = np.flatnonzero(stated == "train")
    numbers = training if copies is None else np.array(copies, np.int64)[training]
    _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
    chosen = split_by_class(labels[training[first]], names, drawn, seed)
    parts = {part: training[np.isin(group, index)] for part, index in chosen.items()}
    parts |= {part: np.flatnonzero(stated == part) for part in fractions if part not in drawn}
    return parts, drawn
