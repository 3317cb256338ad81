"""Data sets of texts in numbers: the words of a vocabulary, or the word pieces of a BERT."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.data.dataset import Dataset
from calib_jax.data.formats import files
from calib_jax.data.text.vocabulary import Vocabulary, words_of
from calib_jax.data.text.word_vectors import read_vectors
from calib_jax.data.text.wordpiece import WordPiece

_VERBS = {"train": "train", "validation": "validate", "test": "test"}


def texts_dataset(
    name: str,
    class_names: tuple[str, ...],
    texts: Mapping[str, Sequence[str]],
    labels: Mapping[str, np.ndarray],
    *,
    about: str,
    data_dir: str | None,
    length: int,
    words: int,
    cut: str,
    vocabulary: str,
    vectors: str | None,
    pieces: str | None,
    counted: Sequence[str] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Dataset:
    """Number the words, or the word pieces, of texts, and build a data set of them.

    Args:
      name, class_names: as for `Dataset`.
      texts, labels: the texts of each part, and their classes.
      about: the beginning of the description.
      data_dir: the folder of the data sets.
      length: the number of words or pieces to which a text is cut or padded.
      words: the size of the vocabulary, with padding.
      cut: the end at which longer texts are cut, "front" or "end".
      vocabulary: the texts whose words are counted, "train" or "all".
      vectors: a file of word vectors, also in `data_dir`.
      pieces: a folder of Hugging Face with the vocabulary of a BERT, for word pieces.
      counted: the texts whose words are counted; None for those that `vocabulary` names.
      weights: the weights of the labels of each part; None for 1.
    """
    checks.whole("length", length)
    checks.one_of("vocabulary", vocabulary, ("train", "all"))
    if pieces and vectors:
        raise ValueError("give pieces or vectors, not both: word pieces have no file of vectors.")
    known: Vocabulary | WordPiece
    table, origin = None, ""
    if pieces:
        folder = files.given(pieces, name, data_dir)
        known = WordPiece.of_folder(folder)
        inputs: dict[str, Any] = {p: known.tokens(some, length, cut) for p, some in texts.items()}
        units = f"word pieces each, cut at the {cut}, of {folder.name}'s {len(known):,}"
        found = [part["tokens"][:, 2:] for part in inputs.values()]
    else:
        split_up = {part: [words_of(text) for text in some] for part, some in texts.items()}
        if counted is None:
            parts = split_up if vocabulary == "all" else {"train": split_up["train"]}
            counting = [text for some in parts.values() for text in some]
        else:
            counting = [words_of(text) for text in counted]
        known = Vocabulary.of(counting, words)
        inputs = {
            part: np.stack([known.numbers(text, length, cut) for text in some])
            for part, some in split_up.items()
        }
        units = (
            f"words each, cut at the {cut}, of the {len(known.words):,} most frequent words of"
            f" {'all' if vocabulary == 'all' else 'training'} texts"
        )
        found = [*inputs.values()]
        if vectors:
            table, origin = _embedding(files.given(vectors, name, data_dir), known)
    empty = sum(int((~numbers.any(axis=1)).sum()) for numbers in found)
    sizes = ", ".join(f"{len(texts[part]):,} to {verb}" for part, verb in _VERBS.items())
    sources: dict[str, Any] = {
        part: InMemory(
            inputs[part], labels[part].astype(np.int32), weights[part] if weights else None
        )
        for part in _VERBS
    }
    return Dataset(
        name=name,
        class_names=class_names,
        **sources,
        description=(
            f"{about}: {sizes}; {length} {units}."
            + f" {empty} texts have no known word." * bool(empty)
            + origin
        ),
        embedding=table,
        vocabulary=known,
    )


def _embedding(path: pathlib.Path, known: Vocabulary) -> tuple[np.ndarray, str]:
    """Read the vector of each word after a row of zeros for padding, and describe the file."""
    read = read_vectors(path, known.words)
    table = np.concatenate([np.zeros((1, read.table.shape[1]), np.float32), read.table])
    found = f"{read.known.sum():,} of {len(known.words):,} words"
    return table, f" Word vectors of {path.name} for {found}."
