"""Texts of the user's own: a CSV file of texts and labels."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.own.arrays import assembled, held_out
from calib_jax.data.own.tables import class_names, parts_of, rows_of
from calib_jax.data.text.vocabulary import CUTS, Vocabulary, words_of


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
    (the same words) stay in one part, where they may have different labels. No file is written.

    A text is an array of word numbers, from 1 for the most frequent word of the training texts,
    with padding of 0 at its front. Other words are left out. Words are separated by spaces and
    punctuation (`words_of`), so texts of a language without spaces need spaces between the words.

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
    # The words alone, so that texts with equal numbers are copies.
    rows = [row._replace(value=" ".join(words_of(row.value))) for row in rows_of(path, "text")]
    names = class_names([row.label for row in rows], classes, path)
    number = {name: k for k, name in enumerate(names)}
    labels = np.array([number[row.label] for row in rows], np.int32)
    fractions = {"validation": validation, "test": test}
    given = [row.part for row in rows]
    first: dict[str, int] = {}
    copies = [first.setdefault(row.value, place) for place, row in enumerate(rows)]
    for place, copied in enumerate(copies):
        if given[place] != given[copied]:
            raise reading.Unreadable(
                f"row {place + 1} of {path} ({given[place]}) repeats the text of row {copied + 1}"
                f" ({given[copied]}): keep each text in one part."
            )
    parts, drawn = parts_of(given, labels, names, fractions, seed, copies)
    split_up = [row.value.split() for row in rows]
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
