"""Random binary trees with the sentence lengths of the SST, for processes with and without JAX."""

from typing import NamedTuple

import numpy as np

WORDS = 19_428  # of the SST, with padding
LONGEST, MEAN, DEVIATION = 52, 19.3, 9.3  # words of its training sentences
CLASSES = 3


class RandomTree(NamedTuple):
    """A tree: words have the first numbers, inner nodes the next ones, the root the last.

    Attributes:
      words: the number of each word in the vocabulary, `[words]`.
      children: the two children of each inner node, `[words - 1, 2]`.
      labels: a label for every node, `[2 words - 1]`.
    """

    words: np.ndarray
    children: np.ndarray
    labels: np.ndarray


def draw(count: int, seed: int = 0) -> list[RandomTree]:
    """Draw trees; neighbours are joined in random order until one node is left."""
    random = np.random.default_rng(seed)
    lengths = np.clip(np.rint(random.normal(MEAN, DEVIATION, count)), 2, LONGEST).astype(int)
    trees = []
    for length in lengths:
        nodes, children = list(range(length)), []
        while len(nodes) > 1:
            at = random.integers(len(nodes) - 1)
            children.append(nodes[at : at + 2])
            nodes[at : at + 2] = [length + len(children) - 1]
        words = random.integers(1, WORDS, length)
        labels = random.integers(CLASSES, size=2 * length - 1)
        trees.append(RandomTree(words, np.array(children), labels))
    return trees
