"""Examples: what a data set hands out, and what a training step takes.

A source is random access: `len(source)` and `source[index]`, with an array of indices. So the
order of the examples is a matter of the training loop alone, an epoch can be resumed in its
middle, and the same examples come back whatever the number of devices.
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
    """Examples that can be looked up by their numbers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: np.ndarray) -> Examples:
        """Read the examples of these numbers, in this order, as NumPy arrays."""
        ...


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
