"""Print examples as a network receives them: words, trees, sentence pairs, pixels and labels."""

import textwrap
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from calib_jax import data
from calib_jax.core import checks
from calib_jax.core.examples import Examples
from experiments.running import building

_WIDTH = 100
_STRUCTURE = ("children", "parents")  # inputs that are positions in a sentence, not words


def shown(name: str, number: int, data_dir: str | None) -> str:
    """Describe a data set, and the example with a given number in each part.

    Args:
      name: the name of the data set, which is read with its default options.
      number: the number of the example, from 0.
      data_dir: folder of the data sets.
    """
    checks.at_least("number", number, 0)
    dataset = building.data_set(name, {}, data_dir)
    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    largest = max(map(len, parts.values()))
    if number >= largest:
        raise ValueError(f"--example={number} is in no part of {name}: give at most {largest - 1}.")
    lines = [textwrap.fill(dataset.description, _WIDTH)]
    for part, source in parts.items():
        if number >= len(source):
            lines += ["", f"{part}: has {len(source):,} examples, numbered from 0"]
            continue
        lines += ["", f"{part}, example {number:,} of {len(source):,}"]
        lines += described(dataset, Examples(*source[np.array([number])]))
    return "\n".join(lines)


def described(dataset: data.Dataset, batch: Examples) -> list[str]:
    """Describe the first example of a batch: at least one line per array and for the labels."""
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[0], batch)
    lines = []
    for path, leaf in jax.tree.leaves_with_path(batch.inputs):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "input"
        lines += _row(name, f"{leaf.dtype} {list(leaf.shape)}")
        if dataset.vocabulary is not None and name not in _STRUCTURE:
            lines += _row("", " ".join(_words(dataset.vocabulary, leaf)))
        elif np.issubdtype(leaf.dtype, np.number):
            lines += _row("", f"values {leaf.min():g} to {leaf.max():g}")
    return lines + _labels(dataset, batch)


def _row(name: str, text: str) -> list[str]:
    start = f"  {name:<10}"
    indent = " " * len(start)
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=indent) or [start]


def _words(vocabulary: Any, numbers: np.ndarray) -> list[str]:
    """Convert numbers to words or subwords, without padding."""
    known: Sequence[str]
    if isinstance(vocabulary, data.WordPiece):
        known = vocabulary.vocabulary
    elif isinstance(vocabulary, data.Subwords):
        known = vocabulary.pieces
    elif isinstance(vocabulary, data.Vocabulary):
        known = ("", *vocabulary.words)
    else:
        raise TypeError(f"a vocabulary of type {type(vocabulary).__name__} is not known.")
    return [known[number] for number in numbers.tolist() if number]


def _labels(dataset: data.Dataset, example: Examples) -> list[str]:
    """Describe the label, or the labels: a tree, a translation, or shares of the classes."""
    labels, names = example.labels, dataset.class_names
    if labels.ndim == 0:
        return _row("label", names[labels])
    weights = np.ones(()) if example.weights is None else example.weights
    apart = (1,) * (labels.ndim - weights.ndim)  # one weight for all labels of an example
    present = np.broadcast_to(weights.reshape(weights.shape + apart), labels.shape) > 0
    inputs = example.inputs if isinstance(example.inputs, dict) else {}
    lines = _row("labels", f"{labels.dtype} {list(labels.shape)}, {present.sum():,} with weight")
    if "children" in inputs:
        return lines + _row("tree", _tree(dataset, inputs, labels, present))
    if "target" in inputs:
        return lines + _row("", " ".join(names[label] for label in labels[present]))
    counts = np.bincount(labels[present].astype(int), minlength=len(names))
    shares = [
        f"{names[k]} {counts[k] / counts.sum():.1%}" for k in np.argsort(-counts) if counts[k]
    ]
    return lines + _row("", ", ".join(shares))


def _tree(
    dataset: data.Dataset, inputs: dict[str, np.ndarray], labels: np.ndarray, present: np.ndarray
) -> str:
    """Format a tree in brackets; the class of a labelled node follows its bracket."""
    children, count = inputs["children"], len(inputs["words"])
    pairs: dict[int, Sequence[int]] = dict(enumerate(children.tolist(), start=count))
    known = dict(enumerate(_words(dataset.vocabulary, inputs["words"])))
    # The root comes last: padded inner nodes have the first word as both children.
    inner = [node for node, (left, right) in pairs.items() if left != right]

    def written(node: int) -> str:
        below = [known[node]] if node < count else [written(child) for child in pairs[node]]
        if present[node]:
            below = [dataset.class_names[labels[node]], *below]
        return f"({' '.join(below)})" if len(below) > 1 else below[0]

    return written(inner[-1] if inner else 0)
