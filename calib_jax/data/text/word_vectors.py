"""Files of word vectors in the GloVe format: a word and its numbers in each line."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calib_jax.core.files import reading

_KIND = "a file of word vectors"
_ADVICE = "each line must hold a word and its numbers, separated by single spaces"


class WordVectorsRead(NamedTuple):
    """Vectors of some words.

    Attributes:
      table: a row for each word in the requested order; zeros for words that the file lacks.
      known: whether the file has each word.
    """

    table: np.ndarray
    known: np.ndarray


def read_vectors(
    path: str | pathlib.Path, words: Sequence[str], width: int | None = None
) -> WordVectorsRead:
    """Read the vectors of some words from a text file, line by line.

    The files of GloVe have this form, and so has the text form of word2vec, whose first line (the
    number of words and the width) is skipped, as are spaces at the end of a line, which the C
    program writes. A word may contain spaces. Only the first line, and lines that begin like a
    requested word, are read.

    Args:
      path: the file.
      words: the words, in the order of the rows of the table.
      width: the size of a vector; None takes the size in the file.
    """
    wanted = set(words)
    first_words = {word.split(" ")[0].encode() for word in wanted}
    vectors: dict[str, np.ndarray] = {}
    with reading.opened(path, _KIND, _ADVICE) as file:
        for number, line in enumerate(file, start=1):
            # Most lines of a large file are of other words; to split them takes most of the time.
            if width is not None and number > 1 and line.partition(b" ")[0] not in first_words:
                continue
            # Only the first line can have a byte-order mark.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            fields = text.rstrip("\r\n ").split(" ")
            if number == 1 and len(fields) == 2 and all(map(str.isdecimal, fields)):
                continue
            width = len(fields) - 1 if width is None else width
            if len(fields) <= width or width < 1:
                raise ValueError(
                    f"line {number} holds {len(fields) - 1} numbers and not {width or 1}"
                )
            word = " ".join(fields[:-width])
            if word in wanted and word not in vectors:
                vectors[word] = _vector(fields[-width:], number)
    if not width:
        raise reading.Unreadable(f"{path} is empty: {_ADVICE}.")
    table = np.zeros((len(words), width), np.float32)
    known = np.array([word in vectors for word in words], bool)
    for row, word in enumerate(words):
        table[row] = vectors.get(word, 0)
    return WordVectorsRead(table, known)


def write_vectors(path: str | pathlib.Path, vectors: Mapping[str, np.ndarray]) -> None:
    """Write the vector of each word, in the format that `read_vectors` reads."""
    with open(path, "w", encoding="utf-8") as file:
        for word, vector in vectors.items():
            file.write(" ".join([word, *(f"{number:.6g}" for number in vector)]) + "\n")


def _vector(fields: Sequence[str], number: int) -> np.ndarray:
    try:
        vector = np.array(fields, np.float32)
    except ValueError as error:
        raise ValueError(f"line {number} holds {fields[0]!r} ..., which are no numbers") from error
    if not np.isfinite(vector).all():
        raise ValueError(f"line {number} holds a number that is not finite")
    return vector
