"""Texts of the user's own: a CSV file of texts and labels."""

import codecs
import csv
import dataclasses
import io
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data.dataset import Dataset, register
from calib_jax.data.facts import About
from calib_jax.data.formats import files
from calib_jax.data.own.arrays import assembled, held_out, split_by_class
from calib_jax.data.text.vocabulary import CUTS, Vocabulary, words_of

__all__ = ["from_texts"]

_LONGEST = 1 << 30  # limit on the bytes of the file
_SHOWN = 30  # characters of a value in a message
# Values of the column `split`, by the part that they name.
_PARTS = {
    **{"": "train", "train": "train", "training": "train"},
    **{"validation": "validation", "val": "validation", "valid": "validation"},
    "test": "test",
}


class _Row(NamedTuple):
    """A text of the file.

    Attributes:
      line: the number of its first line, from 1.
      text: with one space between words, so that copies are equal.
      label: the name of its class.
      part: train, validation or test.
    """

    line: int
    text: str
    label: str
    part: str


@register("own_texts", About(title="Texts of your own, in a CSV file", licence="your own"))
def from_texts(
    csv_file: str = "own_texts.csv",
    *,
    data_dir: str | None = None,
    length: int = 200,
    words: int = 10_000,
    cut: str = "end",
    classes: Sequence[str] = (),
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
) -> Dataset:
    r"""Load the texts of a CSV file with the columns `text`, `label` and optionally `split`.

        text,label,split
        "Well made, and it arrived early.",good,train
        Broken after a day,bad,test

    Classes are numbered in alphabetic order. The column `split` has train, validation (or val) or
    test; an empty value is train. A part that no line names is held out of train. Copies of a text
    stay in one part, where they may have different labels. No file is written.

    A text is an array of word numbers, from 1 for the most frequent word of the training texts,
    with padding of 0 at its front. Other words are left out. Words are separated by spaces and
    punctuation (`words_of`), so texts of a language without spaces need spaces between the words.

    Args:
      csv_file: the file, as it is or in the folder of the data sets. It is encoded in UTF-8. Values
        with commas or line breaks are in double quotes, and a quote inside them is written twice.
      data_dir: the folder of the data sets, see `cifar10`.
      length: the number of words of a text; the network `global_pooling_cnn` needs at least 21.
      words: the largest size of the vocabulary, with padding.
      cut: the end at which longer texts are cut, "front" or "end".
      classes: the names of the classes in the order of their numbers; others are an error.
      validation, test: the fraction of each class that is held out, at least one text, unless the
        column `split` has the part. Copies count as one text.
      seed: seed of the split.

    >>> import tempfile
    >>> lines = [f"{'well' if k % 2 else 'badly'} made {k},{k % 2}\n" for k in range(8)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.csv").write_text("text,label\n" + "".join(lines))
    ...     reviews = from_texts(f"{folder}/a.csv", length=4, words=4)
    >>> reviews.class_names, reviews.train.inputs.shape, reviews.vocabulary.words
    (('0', '1'), (4, 4), ('made', 'well', 'badly'))
    """
    checks.whole("length", length)
    checks.whole("words", words, 2)
    checks.one_of("cut", cut, CUTS)
    path = files.given(csv_file, "", data_dir)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file {path}: set the option csv_file to a CSV file with the columns text"
            " and label."
        )
    rows = list(_rows(path))
    names = _class_names(rows, classes, path)
    number = {name: k for k, name in enumerate(names)}
    labels = np.array([number[row.label] for row in rows], np.int32)
    parts, drawn = _parts(rows, labels, names, {"validation": validation, "test": test}, seed, path)
    split_up = [words_of(row.text) for row in rows]
    known = Vocabulary.of((split_up[k] for k in parts["train"]), words)
    inputs = np.stack([known.numbers(text, length, cut) for text in split_up])
    sources = {part: InMemory(inputs[index], labels[index]) for part, index in parts.items()}
    empty = int((~inputs.any(axis=1)).sum())
    dataset = assembled(
        "own_texts",
        names,
        sources,
        f"Texts of {path.name}, {length} words each, cut at the {cut}, of the"
        f" {len(known.words):,} most frequent words of training texts, {held_out(drawn, seed)}"
        + f"; {empty:,} without a known word"
        * bool(empty),
    )
    return dataclasses.replace(dataset, vocabulary=known)


def _rows(path: pathlib.Path) -> Iterator[_Row]:
    """Yield the texts of the file; a line that cannot be used is an error that names it."""
    records = _records(_content(path), path)
    _, header = next(records, (1, []))
    columns = [name.strip().lower() for name in header]
    for column in ("text", "label", "split"):
        if columns.count(column) != 1 and (column != "split" or column in columns):
            raise reading.Unreadable(
                f"line 1 of {path} must name the columns text, label and optionally split once,"
                f" separated by commas; it has {', '.join(map(_quoted, header[:5])) or 'none'}."
            )
    empty = True
    for line, record in records:
        where = f"line {line} of {path}"
        if len(record) > len(columns):
            raise reading.Unreadable(
                f"{where} has {len(record)} values for {len(columns)} columns: put a text with"
                " commas into double quotes."
            )
        values = dict(zip(columns, record, strict=False))
        text, label, part = (
            " ".join(values.get(column, "").split()) for column in ("text", "label", "split")
        )
        if not text or not label:
            raise reading.Unreadable(
                f"{where} has no {'label' if text else 'text'}: fill it in, or remove the line."
            )
        if part.lower() not in _PARTS:
            raise reading.Unreadable(
                f"{where} has the split {_quoted(part)}, which must be train, validation or test."
            )
        empty = False
        yield _Row(line, text, label, _PARTS[part.lower()])
    if empty:
        raise reading.Unreadable(f"{path} has no texts: add a line for each, after the first.")


def _quoted(value: str) -> str:
    """Quote the beginning of a value, which may be a whole text if commas or quotes are wrong.

    >>> _quoted("label" * 99)
    "'labellabellabellabellabellabel...'"
    """
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")


def _content(path: pathlib.Path) -> str:
    """Read the file as UTF-8, and name the line of a byte that is none."""
    coded = reading.content(path, "a table of texts", "give a CSV file", at_most=_LONGEST)
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


def _class_names(
    rows: Sequence[_Row], classes: Sequence[str], path: pathlib.Path
) -> tuple[str, ...]:
    """Name the classes in the order of their numbers."""
    present = sorted({row.label for row in rows})
    if all(name.isdecimal() for name in present):
        present.sort(key=int)
    if not classes:
        if len(present) < 2:
            raise ValueError(f"{path} has one class, {_quoted(present[0])}, and needs two or more.")
        return tuple(present)
    if len(set(classes)) < len(classes):
        raise ValueError(f"classes must be different names, got {', '.join(classes)}.")
    wrong = next((row for row in rows if row.label not in classes), None)
    if wrong is not None:
        raise ValueError(
            f"line {wrong.line} of {path} has the label {_quoted(wrong.label)}, which is none of"
            f" the classes {', '.join(classes)}."
        )
    return tuple(classes)


def _parts(
    rows: Sequence[_Row],
    labels: np.ndarray,
    names: Sequence[str],
    fractions: dict[str, float],
    seed: int,
    path: pathlib.Path,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the numbers of the texts of each part, and the fractions of those not given."""
    _check_copies(rows, path)
    given = np.array([row.part for row in rows])
    drawn = {part: share for part, share in fractions.items() if not np.any(given == part)}
    training = np.flatnonzero(given == "train")
    numbers: dict[str, int] = {}
    # Copies have one number, and move together.
    numbered = [numbers.setdefault(rows[int(k)].text, len(numbers)) for k in training]
    text = np.array(numbered, np.int64)
    first = training[np.unique(text, return_index=True)[1]]
    counts = np.bincount(labels[first], minlength=len(names))
    _check_classes(rows, names, counts, ["train", *drawn], path)
    chosen = split_by_class(labels[first], names, drawn, seed)
    parts = {part: training[np.isin(text, index)] for part, index in chosen.items()}
    parts |= {part: np.flatnonzero(given == part) for part in fractions if part not in drawn}
    return parts, drawn


def _check_copies(rows: Sequence[_Row], path: pathlib.Path) -> None:
    """Raise an error for a text in two parts, which would be trained on and tested."""
    first: dict[str, _Row] = {}
    copies = [row for row in rows if first.setdefault(row.text, row).part != row.part]
    if copies:
        wrong, other = copies[0], first[copies[0].text]
        more = f", and {len(copies) - 1:,} more lines do the same" if len(copies) > 1 else ""
        raise reading.Unreadable(
            f"line {wrong.line} of {path} ({wrong.part}) repeats the text of line {other.line}"
            f" ({other.part}){more}: keep each text in one part."
        )


def _check_classes(
    rows: Sequence[_Row],
    names: Sequence[str],
    counts: np.ndarray,
    parts: Sequence[str],
    path: pathlib.Path,
) -> None:
    """Raise an error for a class with fewer training texts than parts that need one."""
    for name, count in zip(names, counts, strict=True):
        if count >= len(parts):
            continue
        of_class = [row for row in rows if row.label == name]
        if of_class and all(row.part != "train" for row in of_class):
            raise ValueError(
                f"line {of_class[0].line} of {path} has the class {_quoted(name)}, which has no"
                " training text: add some, or remove the lines of the class."
            )
        texts = "text" if count == 1 else "texts"
        raise ValueError(
            f"the class {_quoted(name)} has {count} different training {texts} in {path}, and needs"
            f" {len(parts)}, one for each of {', '.join(parts)}: add texts, remove the class, or"
            " name the parts in the column split."
        )
