"""Parts of a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import Examples, InMemory, Source

__all__ = ["Subset", "legacy_split", "part_of", "split_sizes"]


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some examples of a source, in an order of their own."""

    source: Source
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return self.source[self.index[index]]


def part_of(source: Source, index: np.ndarray) -> Source:
    """Take some examples: of arrays a copy, else a view.

    >>> part_of(InMemory(np.array([5.0, 6.0, 7.0]), np.array([0, 1, 0])), np.array([2, 0])).inputs
    array([7., 5.])
    """
    if isinstance(source, InMemory):
        return InMemory(*jax.tree.map(lambda array: array[index], source.examples))
    return Subset(source, np.asarray(index))


def split_sizes(total: int, **sizes: int) -> dict[str, slice]:
    """Cut a sequence into named parts; a size of -1 is the rest.

    >>> split_sizes(10, train=5, test=-1)
    {'train': slice(0, 5, None), 'test': slice(5, 10, None)}
    """
    given = sum(size for size in sizes.values() if size >= 0)
    parts, start = {}, 0
    for name, size in sizes.items():
        size = total - given if size == -1 else size
        if size < 1 or start + size > total:
            asked = ", ".join(f"{key}={value}" for key, value in sizes.items())
            raise ValueError(
                f"{total} examples cannot be split into {asked}: every part needs one (-1 is the"
                " rest)."
            )
        parts[name] = slice(start, start + size)
        start += size
    return parts


def legacy_split(
    num_examples: int, *, share: float = 0.1, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Split as the papers' programs do: validation is the first part of a shuffle.

    Args:
      num_examples: of the training set.
      share: of validation.
      seed: of NumPy's legacy generator.

    Returns:
      The numbers of the training and of the validation examples.

    References:
      Mukhoti et al. 2020, released code: seed 1, the first 5,000 of CIFAR's 50,000.
    """
    checks.between("share", share, 0, 1)
    numbers = np.arange(num_examples)
    np.random.RandomState(seed).shuffle(numbers)
    cut = int(np.floor(share * num_examples))
    return numbers[cut:], numbers[:cut]


def with_noise(
    labels: np.ndarray, num_classes: int, share: float, random: np.random.Generator
) -> np.ndarray:
    """Replace a share of labels by classes drawn at random, the right one among them."""
    checks.between("label_noise", share, 0, 1)
    labels = labels.copy()
    chosen = random.permutation(len(labels))[: round(share * len(labels))]
    labels[chosen] = random.integers(num_classes, size=len(chosen))
    return labels


def in_parts(inputs: np.ndarray, labels: np.ndarray, parts: dict[str, slice]) -> Sequence[InMemory]:
    """Cut arrays into sources."""
    return [InMemory(inputs[part], labels[part]) for part in parts.values()]
