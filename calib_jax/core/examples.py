"""Examples: the output of a data source and the input of a training step.

A source supports random access: `len(source)` and `source[index]`, with an array of indices. The
training loop alone determines the order of the examples, so training can resume in the middle of
an epoch and reads the same examples with any number of devices.

A source that augments while it reads (such as cropping a photograph before decoding the rest) has
one more method, `drawn`. The random view of an example depends only on the seed, the epoch and the
number of the example, so the properties above still hold.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from calib_jax.core.checks import concrete
from calib_jax.core.types import PyTree


class Examples(NamedTuple):
    """A batch of examples; an example is one index of the leading axis of every array.

    An example may have many labels: an image with a label per pixel, a sentence with a label per
    token, a tree with a label per node.

    Attributes:
      inputs: the input of a network; an array, or any tree of arrays.
      labels: the true classes, `[rows, ...]`.
      weights: `[rows]`, or the shape of the labels; None weighs all labels 1. A label of weight 0
        is absent and may have any value: a void pixel, a padded token, an unlabelled node.
    """

    inputs: PyTree
    labels: Any
    weights: Any = None


def check_weights(weights: Any, labels: Any) -> None:
    """Raise an error if weights do not have the shape of the labels, are negative or are NaN.

    >>> check_weights(np.ones((2, 4)), np.zeros((2, 3), int))
    Traceback (most recent call last):
    ValueError: weights must have the shape of the labels (2, 3), or (2,), got (2, 4).
    """
    if weights is None:
        return
    given, shape = np.shape(weights), np.shape(labels)
    if given not in (shape, shape[:1]):
        raise ValueError(
            f"weights must have the shape of the labels {shape}, or {shape[:1]}, got {given}."
        )
    if concrete(weights) and not np.all((np.asarray(weights) >= 0) & np.isfinite(weights)):
        raise ValueError("weights must be finite and not negative: give 0 to absent labels.")


def has_weight(labels: np.ndarray, weights: Any) -> np.ndarray:
    """Mark the labels whose weight is not 0; a weight of a row counts for all its labels."""
    weights = np.ones(len(labels)) if weights is None else np.asarray(weights)
    missing = (1,) * (labels.ndim - weights.ndim)
    return np.broadcast_to(weights.reshape(weights.shape + missing) > 0, labels.shape)


@runtime_checkable
class Source(Protocol):
    """Random access to examples by number, from several threads at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: np.ndarray) -> Examples:
        """Read the examples with these numbers, in this order, as NumPy arrays."""
        ...


def check_source(name: str, source: Any) -> None:
    """Raise TypeError for arrays in place of a source of examples.

    >>> check_source("train", np.zeros((9, 2)))
    Traceback (most recent call last):
    TypeError: train must be a source of examples, got ndarray:
    give calib_jax.core.InMemory(inputs, labels), with labels 0 if there are none.
    """
    arrays = np.ndarray, jax.Array, tuple, list, Mapping
    if not isinstance(source, Source) or isinstance(source, arrays):
        raise TypeError(
            f"{name} must be a source of examples, got {type(source).__name__}:\ngive"
            " calib_jax.core.InMemory(inputs, labels), with labels 0 if there are none."
        )


class Draw(NamedTuple):
    """The seed and the epoch that determine the random view of every example.

    Attributes:
      seed: the seed of the run.
      epoch: counted from 0.
      copy: how many times the example was read before in this epoch; 0 unless sampled repeatedly.
    """

    seed: int
    epoch: int
    copy: int = 0


@runtime_checkable
class RandomViews(Source, Protocol):
    """A source that reads a different random view of each example in every training epoch."""

    def drawn(self, index: np.ndarray, draw: Draw) -> Examples:
        """Read one random view of each of these examples.

        The view depends only on the draw and the number of the example, not on the other numbers
        or on earlier reads.
        """
        ...


def read(source: Source, index: np.ndarray, draw: Draw | None = None) -> Examples:
    """Read examples: a random view if `draw` is given and the source has views, else as stored.

    >>> read(InMemory(np.array([5, 6, 7]), np.array([0, 1, 0])), np.array([1]), Draw(0, epoch=2))
    Examples(inputs=array([6]), labels=array([1]), weights=None)
    """
    if draw is not None and isinstance(source, RandomViews):
        examples = source.drawn(index, draw)
    else:
        examples = source[index]
    if not isinstance(examples, Examples):  # such as the pair of a torch data set
        raise TypeError(
            f"a source must return calib_jax.core.Examples, got {type(examples).__name__} from"
            f" {type(source).__name__}: make arrays by data.arrays_of."
        )
    check_weights(examples.weights, examples.labels)
    return examples


def labels_of(source: Source) -> np.ndarray | None:
    """Return the labels of all examples; None if only a pass over the source could find them.

    A source with known labels has an attribute `labels`, and `weights` if the labels have weights.

    >>> labels_of(InMemory(np.array([5, 6, 7]), np.array([0, 1, 0])))
    array([0, 1, 0])
    """
    labels = getattr(source, "labels", None)
    return None if labels is None else np.asarray(labels)


def weighted_labels(source: Source) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the labels of all examples, and the mask of the labels whose weight is not 0.

    None if the source has no attribute `labels`; see `labels_of`.
    """
    labels, weights = labels_of(source), getattr(source, "weights", None)
    return None if labels is None else (labels, has_weight(labels, weights))


@dataclasses.dataclass(frozen=True)
class InMemory:
    """A source with all arrays in memory, so that it can be copied to the device as a whole.

    >>> digits = InMemory(np.array([[1.0], [2.0], [3.0]]), np.array([0, 1, 0]))
    >>> len(digits)
    3
    >>> digits[np.array([2, 0])].inputs
    array([[3.],
           [1.]])
    """

    inputs: PyTree
    labels: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        if np.asarray(self.labels).dtype.kind in "OSU":
            raise TypeError("labels must be numbers of classes: data.from_arrays numbers names.")
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves((self.inputs, self.labels))}
        if len(sizes) != 1 or () in sizes:
            raise ValueError(
                f"inputs and labels must be arrays of as many rows, got {sorted(sizes)}."
            )
        check_weights(self.weights, self.labels)

    @property
    def examples(self) -> Examples:
        """All examples."""
        return Examples(self.inputs, self.labels, self.weights)

    @property
    def nbytes(self) -> int:
        """The size of all examples in bytes."""
        return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self.examples))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return Examples(*jax.tree.map(lambda array: array[index], self.examples))
