"""Texts in numbers: the words of a vocabulary, or the word pieces of a BERT."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.data.formats import files
from calib_jax.data.text.vocabulary import Vocabulary, words_of
from calib_jax.data.text.word_vectors import read_vectors
from calib_jax.data.text.wordpiece import WordPiece

_VOCABULARIES = ("train", "all")


class Numbered(NamedTuple):
    """The texts of each part in numbers.

    Attributes:
      inputs: the network inputs of each part.
      vocabulary: the words or word pieces by number.
      units: the length and the vocabulary, for the description of a data set.
      empty: the number of texts without a known word.
      table: a vector for each word, if a file of vectors was given.
      origin: the file of the vectors, for the description.
    """

    inputs: dict[str, Any]
    vocabulary: Vocabulary | WordPiece
    units: str
    empty: int
    table: np.ndarray | None = None
    origin: str = ""


def number_texts(
    name: str,
    texts: Mapping[str, Sequence[str]],
    *,
    data_dir: str | None,
    length: int,
    words: int,
    cut: str,
    vocabulary: str,
    vectors: str | None,
    pieces: str | None,
    counted: Sequence[str] | None = None,
) -> Numbered:
    """Number the words, or the word pieces, of the texts of a data set.

    Args:
      name: the name of the data set.
      texts: the texts of each part.
      data_dir: the folder of the data sets.
      length: the number of words or pieces to which a text is cut or padded.
      words: the size of the vocabulary, with padding.
      cut: the end at which longer texts are cut, "front" or "end".
      vocabulary: the texts whose words are counted, "train" or "all".
      vectors: a file of word vectors, also in `data_dir`.
      pieces: a folder of Hugging Face with the vocabulary of a BERT, for word pieces.
      counted: the texts whose words are counted; None for those that `vocabulary` names.
    """
    checks.at_least("length", length, 1)
    checks.one_of("vocabulary", vocabulary, _VOCABULARIES)
    if pieces and vectors:
        raise ValueError("give pieces or vectors, not both: word pieces have no file of vectors.")
    if pieces:
        return _in_pieces(texts, files.given(pieces, name, data_dir), length, cut)
    split_up = {part: [words_of(text) for text in of_part] for part, of_part in texts.items()}
    if counted is None:
        of_words = split_up if vocabulary == "all" else {"train": split_up["train"]}
        counting = [text for of_part in of_words.values() for text in of_part]
    else:
        counting = [words_of(text) for text in counted]
    known = Vocabulary.of(counting, words)
    inputs = {
        part: np.stack([known.numbers(text, length, cut) for text in of_part])
        for part, of_part in split_up.items()
    }
    units = (
        f"words each, cut at the {cut}, of the {len(known.words):,} most frequent words of"
        f" {'all' if vocabulary == 'all' else 'training'} texts"
    )
    empty = sum(int((~numbers.any(axis=1)).sum()) for numbers in inputs.values())
    if not vectors:
        return Numbered(inputs, known, units, empty)
    path = files.given(vectors, name, data_dir)
    read = read_vectors(path, known.words)
    table = np.concatenate([np.zeros((1, read.table.shape[1]), np.float32), read.table])
    origin = f" Word vectors of {path.name} for {read.known.sum():,} of {len(known.words):,} words."
    return Numbered(inputs, known, units, empty, table, origin)


def _in_pieces(
    texts: Mapping[str, Sequence[str]], folder: pathlib.Path, length: int, cut: str
) -> Numbered:
    known = WordPiece.of_folder(folder)
    inputs = {part: known.tokens(of_part, length, cut) for part, of_part in texts.items()}
    units = f"word pieces each, cut at the {cut}, of {folder.name}'s {len(known):,}"
    empty = sum(int((part["tokens"][:, 2:] == 0).all(axis=1).sum()) for part in inputs.values())
    return Numbered(inputs, known, units, empty)
