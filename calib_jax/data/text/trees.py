"""Binary trees with a label at every node, one in brackets on each line, as in the SST."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calib_jax.core.inputs import checks


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


def parse_tree(line: str, num_labels: int = 5) -> Tree:
    """Parse a tree such as "(3 (2 very) (4 good))".

    A word may contain spaces, since one line of the SST has a word "2 R  ock" in its brackets.
    White space at both ends, such as the end of a line of a file, is ignored.

    Args:
      line: the text.
      num_labels: labels are 0 to `num_labels` - 1.

    >>> parse_tree("(3 (2 not) (1 (2 very) (4 good)))")
    Tree(words=('not', 'very', 'good'), labels=(2, 2, 4, 1, 3), children=((1, 2), (0, 3)))
    >>> parse_tree("(3 (2 not) (1 bad)")
    Traceback (most recent call last):
    ValueError: column 19: 1 bracket is not closed
    """
    words: list[str] = []
    leaf_labels: list[int] = []
    inner_labels: list[int] = []
    children: list[tuple[int, int]] = []
    # An open node: its column, its label, and its children, where ~n is the inner node number n.
    stack: list[tuple[int, int, list[int]]] = []
    root: int | None = None
    position = len(line) - len(line.lstrip())
    line = line.rstrip()
    while position < len(line):
        character = line[position]
        if character == "(":
            if root is not None:
                raise _wrong(position, "a second tree begins on this line")
            label, end = _label(line, position + 1, num_labels)
            stack.append((position, label, []))
            position = end
        elif character == ")":
            if not stack:
                raise _wrong(position, "this bracket was never opened")
            column, label, below = stack.pop()
            if len(below) == 1 and below[0] >= 0 and leaf_labels[below[0]] < 0:
                leaf_labels[below[0]] = label
                node = below[0]
            elif len(below) == 2 and not any(_is_bare(child, leaf_labels) for child in below):
                inner_labels.append(label)
                children.append((below[0], below[1]))
                node = ~(len(inner_labels) - 1)
            else:
                raise _wrong(
                    column, "a node must hold one word or two nodes: this tree is not binary"
                )
            if stack:
                stack[-1][2].append(node)
            else:
                root = node
            position += 1
        elif character == " ":
            position += 1
        else:
            end = min(
                (at for at in (line.find("(", position), line.find(")", position)) if at >= 0),
                default=len(line),
            )
            if not stack:
                raise _wrong(position, f"{line[position:end][:20]!r} is in no bracket")
            words.append(line[position:end].rstrip(" "))
            leaf_labels.append(-1)  # its node has the label
            stack[-1][2].append(len(words) - 1)
            position = end
    if stack:
        raise _wrong(
            len(line), f"{len(stack)} bracket{'s are' * (len(stack) > 1) or ' is'} not closed"
        )
    if root is None:
        raise _wrong(0, "there is no tree")
    numbers = [
        [child if child >= 0 else len(words) + ~child for child in pair] for pair in children
    ]
    return Tree(
        tuple(words), (*leaf_labels, *inner_labels), tuple((left, right) for left, right in numbers)
    )


class Nodes(NamedTuple):
    """The nodes of trees, as arrays of one size.

    Attributes:
      order: the place in the sentence of each word, `[trees, leaves]`.
      structure: the further inputs of the network, see `padded` and `padded_dependencies`.
      root: the place of the root, `[trees]`.
      labels, labeled: the label of each node, and whether it has one, `[trees, nodes]`.
    """

    order: np.ndarray
    structure: dict[str, np.ndarray]
    root: np.ndarray
    labels: np.ndarray
    labeled: np.ndarray


def padded(trees: Sequence[Tree], leaves: int) -> Nodes:
    """Pad trees to `leaves` words and `leaves` - 1 inner nodes.

    The words have the numbers 0 to `leaves` - 1, the inner nodes `leaves` and more. The structure
    is "children", `[trees, leaves - 1, 2]`; padded inner nodes have the first word
    as both children.
    """
    longest = max((len(tree.words) for tree in trees), default=0)
    checks.at_least("leaves", leaves, max(longest, 2))
    children = np.zeros((len(trees), leaves - 1, 2), np.int32)
    root = np.zeros(len(trees), np.int32)
    labels = np.zeros((len(trees), 2 * leaves - 1), np.int32)
    present = np.zeros(labels.shape, bool)
    for row, tree in enumerate(trees):
        words, inner = len(tree.words), len(tree.children)
        pairs = np.array(tree.children, np.int32).reshape(inner, 2)
        children[row, :inner] = np.where(pairs < words, pairs, pairs - words + leaves)
        root[row] = leaves + inner - 1 if inner else 0
        places = np.r_[:words, leaves : leaves + inner]
        labels[row, places] = tree.labels
        present[row, places] = True
    order = np.tile(np.arange(leaves), (len(trees), 1))
    return Nodes(order, {"children": children}, root, labels, present)


def _label(line: str, position: int, num_labels: int) -> tuple[int, int]:
    """Read the label after a bracket; return it and the position after it."""
    end = position
    while end < len(line) and line[end] not in " ()":
        end += 1
    text = line[position:end]
    if not (text.isascii() and text.isdecimal() and int(text) < num_labels):
        raise _wrong(position, f"the label {text[:20]!r} is none of 0 to {num_labels - 1}")
    return int(text), end


def _is_bare(child: int, leaf_labels: list[int]) -> bool:
    """Whether a child is a word without brackets of its own."""
    return child >= 0 and leaf_labels[child] < 0


def _wrong(position: int, what: str) -> ValueError:
    return ValueError(f"column {position + 1}: {what}")
