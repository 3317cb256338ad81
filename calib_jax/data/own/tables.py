"""Tables of the user's own data sets: a label and optionally a part in each line of a CSV file."""

import codecs
import csv
import io
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.own.arrays import split_by_class

_LONGEST = 1 << 30  # limit on the bytes of the file
_SHOWN = 30  # characters of a value in a message
# Values of the column `split` and names of folders, by the part that they name.
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class Row(NamedTuple):
    """An example of a table.

    Attributes:
      line: the number of its first line, from 1.
      value: the text, or the path of the image.
      label: the name of its class.
      part: train, validation or test.
    """

    line: int
    value: str
    label: str
    part: str


def rows_of(path: pathlib.Path, column: str) -> list[Row]:
    """Read the columns `column`, `label` and optionally `split` of a CSV file.

    A line that cannot be used is an error that names the line.
    """
    records = _records(_content(path, column), path)
    _, header = next(records, (1, []))
    columns = [name.strip().lower() for name in header]
    for name in (column, "label", "split"):
        if columns.count(name) != 1 and (name != "split" or name in columns):
            raise reading.Unreadable(
                f"line 1 of {path} must name the columns {column}, label and optionally split once,"
                f" separated by commas; it has {', '.join(map(quoted, header[:5])) or 'none'}."
            )
    rows = []
    for line, record in records:
        where = f"line {line} of {path}"
        if len(record) > len(columns):
            raise reading.Unreadable(
                f"{where} has {len(record)} values for {len(columns)} columns: put a {column} with"
                " commas into double quotes."
            )
        values = dict(zip(columns, record, strict=False))
        value, label, part = (values.get(name, "").strip() for name in (column, "label", "split"))
        if not value or not label:
            raise reading.Unreadable(
                f"{where} has no {'label' if value else column}: fill it in, or remove the line."
            )
        if part and part.lower() not in PARTS:
            raise reading.Unreadable(
                f"{where} has the split {quoted(part)}, which must be train, validation or test."
            )
        rows.append(Row(line, value, label, PARTS.get(part.lower(), "train")))
    if not rows:
        raise reading.Unreadable(f"{path} has no {column}s: add a line for each, after the first.")
    return rows


def quoted(value: str) -> str:
    """Quote the beginning of a value, which may be a whole text if commas or quotes are wrong.

    >>> quoted("label" * 99)
    "'labellabellabellabellabellabel...'"
    """
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")


def class_names(
    labels: Mapping[str, str], classes: Sequence[str], place: pathlib.Path
) -> tuple[str, ...]:
    """Name the classes in the order of their numbers: sorted, or by value if all are numbers.

    Args:
      labels: the first place of each label, for the message.
      classes: the names as given; none if the labels are the names.
      place: the file or folder of the data set.
    """
    if not classes:
        present = sorted(labels)
        if all(name.isdecimal() for name in present):
            digits = {name: name.lstrip("0") for name in present}
            present.sort(key=lambda name: (len(digits[name]), digits[name]))  # int() has a limit
        if len(present) < 2:
            raise ValueError(f"{place} has one class, {quoted(present[0])}, and needs two or more.")
        return tuple(present)
    if len(set(classes)) < len(classes):
        raise ValueError(f"classes must be different names, got {', '.join(classes)}.")
    for label, where in labels.items():
        if label not in classes:
            raise ValueError(
                f"{where} has the label {quoted(label)}, which is none of the classes"
                f" {', '.join(classes)}."
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


def _content(path: pathlib.Path, column: str) -> str:
    """Read the file as UTF-8; an error names the line of an invalid byte."""
    coded = reading.content(path, f"a table of {column}s", "give a CSV file", at_most=_LONGEST)
    coded = coded.removeprefix(codecs.BOM_UTF8)
    try:
        return coded.decode("utf-8")
    except UnicodeDecodeError as error:
        line = coded.count(b"\n", 0, error.start) + 1
        raise reading.Unreadable(
            f"line {line} of {path} is not in UTF-8: save the file in this encoding, which"
            " spreadsheets call CSV UTF-8."
        ) from error


def _records(content: str, path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file, each with the number of its first line."""
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise reading.Unreadable(
                f"line {line} of {path} has quotes that do not match, or a value of more than"
                f" {csv.field_size_limit():,} characters: put a text into double quotes, and write"
                " each quote inside it twice."
            ) from error
        if record is None:
            return
        if record:  # not an empty line
            yield line, record
