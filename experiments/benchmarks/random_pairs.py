"""Random sentence pairs with the lengths of Multi30k, for processes with and without JAX."""

from typing import NamedTuple

import numpy as np

WORDS = 8_000  # subwords of both languages, with the special ones
LENGTH = 28  # to which sentences are padded
MEAN, DEVIATION = 14.5, 4.5  # subwords of a sentence
PADDING, BEGIN, END, FIRST = 0, 1, 2, 4


class RandomPairs(NamedTuple):
    """Sentence pairs, `[pairs, LENGTH]` each.

    Attributes:
      source: a sentence and its end.
      target: the begin and the translation.
      labels: the translation and its end.
    """

    source: np.ndarray
    target: np.ndarray
    labels: np.ndarray


def draw(count: int, seed: int = 0) -> RandomPairs:
    """Draw sentence pairs."""
    random = np.random.default_rng(seed)
    source, labels = (_ended(random, count) for _ in range(2))
    target = np.roll(labels, 1, axis=1)
    target[:, 0] = BEGIN
    return RandomPairs(source, np.where(target == END, PADDING, target), labels)


def _ended(random: np.random.Generator, count: int) -> np.ndarray:
    lengths = np.clip(np.rint(random.normal(MEAN, DEVIATION, count)), 1, LENGTH - 1).astype(int)
    places = np.arange(LENGTH)[None]
    words = random.integers(FIRST, WORDS, (count, LENGTH))
    words = np.where(places < lengths[:, None], words, PADDING)
    return np.where(places == lengths[:, None], END, words).astype(np.int32)
