"""Examples: what a data set hands out, and what a training step takes.

A source is random access: `len(source)` and `source[index]`, with an array of indices. So the
order of the examples is a matter of the training loop alone, an epoch can be resumed in its
middle, and the same examples come back whatever the number of devices.

A source that augments while it reads (a crop of a photograph, before the rest is decoded) has one
method more, `drawn`. What it draws for an example is a matter of seed, epoch and number alone, so
all of this stays true.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from calib_jax.core.types import PyTree


class Examples(NamedTuple):
    """Some examples, one leading axis in every array.

    Attributes:
      inputs: what a network takes; an array, or any tree of arrays.
      labels: the true classes.
    """

    inputs: PyTree
    labels: Any


@runtime_checkable
class Source(Protocol):
    """Examples that can be looked up by their numbers, from several threads at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: np.ndarray) -> Examples:
        """Read the examples of these numbers, in this order, as NumPy arrays."""
        ...


class Draw(NamedTuple):
    """Which one of its random views every example shows.

    Attributes:
      seed: of the run.
      epoch: counted from 0.
    """

    seed: int
    epoch: int


@runtime_checkable
class RandomViews(Source, Protocol):
    """A source whose examples look another way in every epoch of training."""

    def drawn(self, index: np.ndarray, draw: Draw) -> Examples:
        """Read one random view of each of these examples.

        It depends on the draw and the number of the example, and on nothing else: not on the other
        numbers, nor on what was read before.
        """
        ...


def read(source: Source, index: np.ndarray, draw: Draw | None = None) -> Examples:
    """Read examples: for training as drawn, if they have random views, else as they are.

    >>> read(InMemory(np.array([5, 6, 7]), np.array([0, 1, 0])), np.array([1]), Draw(0, epoch=2))
    Examples(inputs=array([6]), labels=array([1]))
    """
    if draw is not None and isinstance(source, RandomViews):
        return source.drawn(index, draw)
    return source[index]


@dataclasses.dataclass(frozen=True)
class _AsStored:
    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return self.source[index]


def as_stored(source: Source) -> Source:
    """Take the random views from a source; one that has none stays what it is."""
    return _AsStored(source) if isinstance(source, RandomViews) else source


@dataclasses.dataclass(frozen=True)
class InMemory:
    """A source whose arrays are in memory already, so that they may move to the device whole.

    >>> digits = InMemory(np.array([[1.0], [2.0], [3.0]]), np.array([0, 1, 0]))
    >>> len(digits)
    3
    >>> digits[np.array([2, 0])].inputs
    array([[3.],
           [1.]])
    """

    inputs: PyTree
    labels: np.ndarray

    def __post_init__(self) -> None:
        sizes = {len(leaf) for leaf in jax.tree.leaves((self.inputs, self.labels))}
        if len(sizes) != 1:
            raise ValueError(f"inputs and labels must have as many rows, got {sorted(sizes)}.")

    @property
    def examples(self) -> Examples:
        """All of them."""
        return Examples(self.inputs, self.labels)

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(self.examples))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return Examples(*jax.tree.map(lambda array: array[index], self.examples))
