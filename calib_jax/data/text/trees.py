"""Binary trees with a label at every node, one in brackets on each line, as in the SST."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks


class Tree(NamedTuple):
    """A binary tree of words.

    Nodes are numbered: the words from left to right first, then every inner node after its two
    children. The root has the last number, also in a tree of one word.

    Attributes:
      words: the words.
      labels: the label of each node.
      children: the numbers of the left and the right child of each inner node.
    """

    words: tuple[str, ...]
    labels: tuple[int, ...]
    children: tuple[tuple[int, int], ...]


# Words and parts of words as the Penn Treebank writes them, and in ordinary text.
_ESCAPES = {"-LRB-": "(", "-RRB-": ")", "\\/": "/", "\\*": "*"}


def plain_words(text: str) -> str:
    r"""Convert words of a treebank to ordinary text.

    >>> plain_words(r"-LRB- comedy\/drama -RRB-")
    '( comedy/drama )'
    """
    for escape, written in _ESCAPES.items():
        text = text.replace(escape, written)
    return text


_TOKEN = re.compile(r"\([^ ()]*|\)|[^()]+")


def parse_tree(line: str, num_labels: int = 5) -> Tree:
    """Parse a tree such as "(3 (2 very) (4 good))".

    A word may contain spaces, since one line of the SST has a word "2 R  ock" in its brackets.

    Args:
      line: the text.
      num_labels: labels are 0 to `num_labels` - 1.

    >>> parse_tree("(3 (2 not) (1 (2 very) (4 good)))")
    Tree(words=('not', 'very', 'good'), labels=(2, 2, 4, 1, 3), children=((1, 2), (0, 3)))
    >>> parse_tree("(3 (2 not) (1 bad)")
    Traceback (most recent call last):
    ValueError: 1 bracket is not closed
    """
    words: list[str] = []
    leaf_labels: list[int] = []
    inner_labels: list[int] = []
    children: list[tuple[Any, Any]] = []

    def node(label: str, below: list[str | int]) -> int:
        """Add a node; return the number of a leaf, or ~n for the inner node number n."""
        if not (label.isascii() and label.isdecimal() and int(label) < num_labels):
            raise ValueError(f"the label {label[:20]!r} is none of 0 to {num_labels - 1}")
        if len(below) == 1 and isinstance(below[0], str):
            words.append(below[0])
            leaf_labels.append(int(label))
            return len(words) - 1
        if len(below) == 2 and not any(isinstance(child, str) for child in below):
            children.append((below[0], below[1]))
            inner_labels.append(int(label))
            return ~(len(children) - 1)
        raise ValueError("a node must hold one word or two nodes: this tree is not binary")

    # The open nodes, each with its label and what it holds; the first one holds the tree.
    stack: list[tuple[str, list[str | int]]] = [("", [])]
    for token in _TOKEN.findall(line.strip()):
        if token[0] == "(":
            stack.append((token[1:], []))
        elif token == ")" and len(stack) > 1:
            label, below = stack.pop()
            stack[-1][1].append(node(label, below))
        elif stripped := token.strip(" "):
            stack[-1][1].append(stripped)
    if unclosed := len(stack) - 1:
        raise ValueError(f"{unclosed} bracket{'s are' if unclosed > 1 else ' is'} not closed")
    if len(stack[0][1]) != 1 or isinstance(stack[0][1][0], str):
        raise ValueError("it holds no tree, or more than one")
    numbers = [
        tuple(child if child >= 0 else len(words) + ~child for child in pair) for pair in children
    ]
    pairs = tuple((left, right) for left, right in numbers)
    return Tree(tuple(words), (*leaf_labels, *inner_labels), pairs)


class Nodes(NamedTuple):
    """The nodes of trees, as arrays of one size.

    Attributes:
      children: the numbers of the children of each inner node, `[trees, leaves - 1, 2]`.
      root: the number of the root, `[trees]`.
      labels, labeled: the label of each node, and whether it has one, `[trees, 2 leaves - 1]`.
    """

    children: np.ndarray
    root: np.ndarray
    labels: np.ndarray
    labeled: np.ndarray


def padded(trees: Sequence[Tree], leaves: int) -> Nodes:
    """Pad trees to `leaves` words and `leaves` - 1 inner nodes.

    The words have the numbers 0 to `leaves` - 1, the inner nodes `leaves` and more. Padded inner
    nodes have the first word as both children.
    """
    longest = max((len(tree.words) for tree in trees), default=0)
    checks.whole("leaves", leaves, max(longest, 2))
    children = np.zeros((len(trees), leaves - 1, 2), np.int32)
    root = np.zeros(len(trees), np.int32)
    labels = np.zeros((len(trees), 2 * leaves - 1), np.int32)
    labeled = np.zeros(labels.shape, bool)
    for row, tree in enumerate(trees):
        words, inner = len(tree.words), len(tree.children)
        pairs = np.array(tree.children, np.int32).reshape(inner, 2)
        children[row, :inner] = np.where(pairs < words, pairs, pairs - words + leaves)
        root[row] = leaves + inner - 1 if inner else 0
        places = np.r_[:words, leaves : leaves + inner]
        labels[row, places] = tree.labels
        labeled[row, places] = True
    return Nodes(children, root, labels, labeled)
