"""CSV files of the user's own: a label and optionally a part in each row; texts and labels."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.own.arrays import assembled, held_out, split_by_class
from calib_jax.data.text.vocabulary import CUTS, Vocabulary, words_of

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
    table = files.read_table(path, f"a table of {column}s", (column, "label"))
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
    labels: Sequence[str], classes: Sequence[str | int], place: pathlib.Path
) -> tuple[str, ...]:
    """Name the classes in the order of their numbers: sorted, or by value if all are numbers.

    Args:
      labels: the label of each example.
      classes: the names as given; none if the labels are the names.
      place: the file or folder of the data set, for messages.
    """
    present = sorted(set(labels))
    with contextlib.suppress(ValueError, ZeroDivisionError):  # of a name that is no number
        present.sort(key=Fraction)
    if not classes:
        if len(present) < 2:
            raise ValueError(f"{place} has one class, {present[0]!r}, and needs two or more.")
        return tuple(present)
    names = tuple(map(str, classes))  # a flag's 0,1 are numbers
    if len(set(names)) < len(names):
        raise ValueError(f"classes must be different names, got {', '.join(names)}.")
    if unknown := [label for label in present if label not in names]:
        raise ValueError(
            f"example {list(labels).index(unknown[0])} of {place} has the label {unknown[0]!r},"
            f" which is none of the classes {', '.join(names)}."
        )
    return names


def numbered(labels: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Return the number of each label."""
    number = {name: k for k, name in enumerate(names)}
    return np.array([number[label] for label in labels], np.int32)


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


@register("own_texts", About(title="Texts of your own, in a CSV file", licence="your own"))
def from_texts(
    csv_file: str = "own_texts.csv",
    *,
    data_dir: str | None = None,
    length: int = 200,
    words: int = 10_000,
    cut: str = "end",
    classes: Sequence[str | int] = (),
    validation: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
) -> Dataset:
    r"""Load the texts of a CSV file with the columns `text`, `label` and optionally `split`.

        text,label,split
        "Well made, and it arrived early.",good,train
        Broken after a day,bad,test

    Classes are numbered in alphabetic order, or by value if all are numbers. The column `split` has
    train, validation (or val) or test; an empty value is train. A part that no line names is held
    out of train. Copies of a text (the same words) stay in one part, where they may have different
    labels. No file is written.

    A text is an array of word numbers, from 1 for the most frequent word of the training texts,
    with padding of 0 at its front. Other words are left out. Words are separated by white space and
    punctuation (`words_of(" ".join(text.split()))`), so texts of a language without spaces need
    spaces between the words.

    Args:
      csv_file: the file, as a path or in the folder of the data sets. The encoding is UTF-8. Values
        with commas or line breaks are in double quotes, and a quote inside them is written twice.
      data_dir: the folder of the data sets, see `cifar10`.
      length: the number of words of a text; the network `global_pooling_cnn` needs at least 21.
      words: the largest size of the vocabulary, with padding.
      cut: the end at which longer texts are cut, "front" or "end".
      classes: the names of the classes in the order of their numbers; others are an error.
      validation, test: the fraction of each class that is held out, at least one text, unless the
        column `split` has the part. Copies count as one text.
      seed: seed of the split.

    >>> import pathlib, tempfile
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
    rows = rows_of(path, "text")
    # Texts with equal words are copies; all white space is the same.
    split_up = [words_of(" ".join(row.value.split())) for row in rows]
    names = class_names([row.label for row in rows], classes, path)
    labels = numbered([row.label for row in rows], names)
    fractions = {"validation": validation, "test": test}
    given = [row.part for row in rows]
    first: dict[Any, int] = {}  # a text without words has no copies
    copies = [first.setdefault(tuple(text) or place, place) for place, text in enumerate(split_up)]
    for place, copied in enumerate(copies):
        if given[place] != given[copied]:
            raise reading.Unreadable(
                f"row {place + 1} of {path} ({given[place]}) repeats the text of row {copied + 1}"
                f" ({given[copied]}): keep each text in one part."
            )
    parts, drawn = parts_of(given, labels, names, fractions, seed, copies)
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
