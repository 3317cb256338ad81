"""Dependency trees in the CoNLL-U format, which lists the head of each word."""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data.text.trees import Nodes, Tree, plain_words

_KIND, _ADVICE = "dependency trees in CoNLL-U", "parse the sentences again"
_COLUMNS = 10
_FORM, _HEAD = 1, 6
_NO_WORD = re.compile(r"\d+[-.]\d+")  # 1-2 is a token of two words, and 1.1 is no word of the text


class DependencyTree(NamedTuple):
    """A sentence, and for each word the place of the word on which it depends.

    Attributes:
      words: the words.
      heads: places from 0; -1 for the root.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]


def read_dependencies(path: str | pathlib.Path) -> list[DependencyTree]:
    """Read a file in the CoNLL-U format; multiword tokens and empty nodes are left out.

    A sentence has a line of ten columns for each word, separated by tabs, and ends with an empty
    line. Column 1 counts the words from 1, column 2 is the word, and column 7 the number of the
    word on which it depends, 0 for the root.
    """
    trees: list[DependencyTree] = []
    words: list[str] = []
    heads: list[int] = []
    with reading.guard(path, _KIND, _ADVICE):
        text = reading.text(path, _KIND, _ADVICE)
        for number, line in enumerate([*text.split("\n"), ""], start=1):
            line = line.rstrip("\r")
            try:
                if not line and words:
                    trees.append(_checked(tuple(words), tuple(heads)))
                    words, heads = [], []
                elif line and not line.startswith("#"):
                    columns = line.split("\t")
                    if len(columns) != _COLUMNS:
                        raise ValueError(f"it has {len(columns)} columns and not {_COLUMNS}")
                    if _NO_WORD.fullmatch(columns[0]):
                        continue
                    if columns[0] != str(len(words) + 1) or not columns[_HEAD].isdecimal():
                        raise ValueError("the words must be numbered from 1, and so their heads")
                    words.append(columns[_FORM])
                    heads.append(int(columns[_HEAD]) - 1)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return trees


def _checked(words: tuple[str, ...], heads: tuple[int, ...]) -> DependencyTree:
    """Raise an error unless the words form one tree."""
    if max(heads) >= len(words):
        raise ValueError(f"a word depends on word {max(heads) + 1} of {len(words)}")
    if heads.count(-1) != 1:
        raise ValueError(f"the sentence has {heads.count(-1)} roots and not 1")
    if len(_depths(heads)) < len(words):
        raise ValueError("some words depend on each other in a circle")
    return DependencyTree(words, heads)


def _depths(heads: Sequence[int]) -> dict[int, int]:
    """Return the depth of each word that the root reaches."""
    dependents: dict[int, list[int]] = {}
    for word, head in enumerate(heads):
        dependents.setdefault(head, []).append(word)
    depths: dict[int, int] = {}
    level, words = 0, dependents[-1]
    while words:
        depths |= dict.fromkeys(words, level)
        words = [below for word in words for below in dependents.get(word, [])]
        level += 1
    return depths


class Ordered(NamedTuple):
    """A dependency tree with labels, whose words come after their dependents.

    Attributes:
      order: the place in the sentence of each word; the root is last.
      parents: for each word the place of its parent in the order; the root is its own parent.
      labels: the labels of the phrase of each word and all its dependents.
      labeled: whether the constituency tree has the phrase.
    """

    order: np.ndarray
    parents: np.ndarray
    labels: np.ndarray
    labeled: np.ndarray


def ordered(tree: DependencyTree, constituents: Tree) -> Ordered:
    """Order the words of a dependency tree, with the labels of the same phrases in another tree.

    Raises:
      ValueError: the trees have different words.
    """
    theirs, ours = (
        [" ".join(plain_words(word).split()) for word in words]
        for words in (tree.words, constituents.words)
    )
    if theirs != ours:
        raise ValueError(
            f"the dependency tree of {' '.join(theirs)[:40]!r} has other words than the sentence"
            f" {' '.join(ours)[:40]!r}"
        )
    depths = _depths(tree.heads)
    order = np.array(sorted(range(len(ours)), key=lambda word: (-depths[word], word)), np.int32)
    place = np.argsort(order)
    parents = np.array(
        [place[word if tree.heads[word] < 0 else tree.heads[word]] for word in order], np.int32
    )
    # The first and the last word and the number of words of each subtree.
    spans = [[word, word, 1] for word in range(len(ours))]
    for word in order[:-1]:
        first, last, size = spans[word]
        above = spans[tree.heads[word]]
        above[:] = min(above[0], first), max(above[1], last), above[2] + size
    known = _labels_of_spans(constituents)
    by_word = [known.get((spans[word][0], spans[word][1] + 1), -1) for word in order]
    whole = np.array([spans[w][1] - spans[w][0] + 1 == spans[w][2] for w in order])
    labels = np.array(by_word, np.int32)
    labeled = whole & (labels >= 0)
    return Ordered(order, parents, np.where(labeled, labels, 0), labeled)


def _labels_of_spans(tree: Tree) -> dict[tuple[int, int], int]:
    """Return the label of each phrase by its first word and the word after it."""
    spans = [(word, word + 1) for word in range(len(tree.words))]
    for left, right in tree.children:
        spans.append((spans[left][0], spans[right][1]))
    return dict(zip(spans, tree.labels, strict=True))


def padded_dependencies(trees: Sequence[Ordered], length: int) -> Nodes:
    """Pad dependency trees to a number of words.

    The structure is "parents", `[trees, words]`; padding is its own parent.
    """
    checks.at_least("leaves", length, max((len(tree.order) for tree in trees), default=1))
    shape = len(trees), length
    order, labels = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    parents = np.tile(np.arange(length, dtype=np.int32), (len(trees), 1))
    labeled = np.zeros(shape, bool)
    for row, tree in enumerate(trees):
        count = len(tree.order)
        order[row, :count], parents[row, :count] = tree.order, tree.parents
        labels[row, :count], labeled[row, :count] = tree.labels, tree.labeled
    root = np.array([len(tree.order) - 1 for tree in trees], np.int32)
    return Nodes(order, {"parents": parents}, root, labels, labeled)
