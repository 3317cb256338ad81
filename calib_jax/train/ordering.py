"""Compute the order of examples from the seed and the epoch alone.

An order is cut into batches of one shape, and the last batch is padded with rows of weight 0. It
does not depend on the devices: the first rows of a global batch are the same examples for any
number of devices. So a run can resume from any step of any epoch, on any machine.

An order may hold an example several times, as in class-balanced sampling. The copies of an example
are numbered, so that each gets its own random augmentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from calib_jax.core import checks

# (seed, epoch) -> the indices of the examples of one epoch, in training order.
Sampling: TypeAlias = Callable[[int, int], np.ndarray]


class Order(NamedTuple):
    """The batches of one pass, in order.

    Attributes:
      examples: `[steps, rows]`, the indices of the examples.
      weights: `[steps, rows]`, 1 for an example and 0 for padding.
      copies: `[steps, rows]`, the number of earlier entries with the same example.
    """

    examples: np.ndarray
    weights: np.ndarray
    copies: np.ndarray

    @property
    def num_steps(self) -> int:
        """The number of batches."""
        return len(self.examples)

    def keys(self, num_examples: int) -> np.ndarray:
        """Return the number to fold into the random key, one for each copy of an example."""
        # Equal to the index of the example for its first copy; int32 wraps for huge numbers.
        return self.examples + self.copies * np.int32(num_examples)


def steps_per_epoch(num_examples: int, batch_size: int, *, drop_last: bool = False) -> int:
    """Count the batches of an epoch."""
    checks.whole("batch_size", batch_size)
    if num_examples == 0:
        raise ValueError("a training set needs at least one example, and this one has none.")
    if drop_last and num_examples < batch_size:
        raise ValueError(
            f"batch_size={batch_size} leaves no batch of {num_examples} examples when the last,"
            " smaller one is dropped."
        )
    return num_examples // batch_size if drop_last else -(-num_examples // batch_size)


def in_batches(
    examples: np.ndarray,
    batch_size: int,
    *,
    multiple: int = 1,
    accumulate: int = 1,
    drop_last: bool = False,
) -> Order:
    """Cut a sequence of example indices into batches.

    Args:
      examples: the indices, in training order.
      batch_size: the number of examples in a batch, over all devices.
      multiple: the number of devices, to a multiple of which the rows of a microbatch are padded.
      accumulate: the number of sequential microbatches in a batch. Each is padded separately, so
        it holds the same examples for any number of devices.
      drop_last: drop the last, incomplete batch.

    >>> order = in_batches(np.arange(5), 3, multiple=2)
    >>> order.examples.tolist(), order.weights.tolist()
    ([[0, 1, 2, 0], [3, 4, 0, 0]], [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    """
    checks.whole("multiple", multiple)
    checks.whole("accumulate", accumulate)
    num_steps = steps_per_epoch(len(examples), batch_size, drop_last=drop_last)
    size = -(-batch_size // accumulate)
    rows = -(-size // multiple) * multiple
    shape = num_steps, accumulate, rows
    order = Order(np.zeros(shape, np.int32), np.zeros(shape), np.zeros(shape, np.int32))
    values = Order(examples, np.ones(len(examples)), _copies(examples))
    for step in range(num_steps):
        for place in range(accumulate):
            start = step * batch_size + place * size
            stop = min(start + size, (step + 1) * batch_size)
            for leaf, value in zip(order, values, strict=True):
                part = value[start:stop]
                leaf[step, place, : len(part)] = part
    return Order(*(leaf.reshape(num_steps, -1) for leaf in order))


def _copies(examples: np.ndarray) -> np.ndarray:
    """Count for each entry how many earlier entries are equal to it."""
    by_number = np.argsort(examples, kind="stable")
    numbers = np.asarray(examples)[by_number]
    copies = np.empty(len(numbers), np.int32)
    copies[by_number] = np.arange(len(numbers)) - np.searchsorted(numbers, numbers)
    return copies


def with_weights(padding: Any, weights: Any) -> Any:
    """Multiply the weights of rows by the label weights, if there are any; on any device.

    >>> with_weights(np.array([1.0, 0.0]), np.array([[1, 0, 2], [1, 1, 1]])).tolist()
    [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
    """
    if weights is None:
        return padding
    rows = padding.reshape(padding.shape + (1,) * (weights.ndim - padding.ndim))
    return rows * weights.astype(padding.dtype)


def shuffled(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Permute the examples for one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def class_balanced(
    labels: np.ndarray,
    present: np.ndarray | None = None,
    *,
    power: float = 0.0,
    num_samples: int = 0,
) -> Sampling:
    r"""Sample examples with replacement, so that all classes are equally frequent.

    $$p_k = \frac{n_k^q}{\sum_j n_j^q}$$

    is the probability of class k, which has $n_k$ examples; the examples of a class are equally
    frequent.

    Args:
      labels: `[examples]`, the class of each example.
      present: `[examples]`, whether an example may be sampled, such as `weights > 0`; all by
        default.
      power: q; 0 samples classes equally often, 1 samples examples equally often, and 1/2 is
        between the two.
      num_samples: the number of examples in an epoch, which determines the number of steps; 0 uses
        the number of labels.

    Returns:
      A function `(seed, epoch) -> indices`, for `Task.order`. Classes without an example have
      probability 0.

    References:
      Kang et al. 2020, Decoupling Representation and Classifier for Long-Tailed Recognition,
      section 3.

    >>> order = class_balanced(np.array([0, 0, 0, 0, 0, 0, 0, 1]), num_samples=1000)
    >>> order(seed=0, epoch=0).shape, bool(400 < (order(0, 0) == 7).sum() < 600)
    ((1000,), True)
    """
    labels = np.asarray(labels)
    checks.at_least("num_samples", num_samples, 0)
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            "class_balanced needs one integer label for each example, got labels of shape"
            f" {labels.shape} and type {labels.dtype}."
        )
    if present is not None and np.shape(present) != labels.shape:
        raise ValueError(
            f"present must have one entry for each label {labels.shape}, such as weights > 0, got"
            f" {np.shape(present)}."
        )
    members = np.arange(len(labels)) if present is None else np.flatnonzero(present)
    if not len(members):
        raise ValueError("class_balanced needs an example that may be sampled, and has none.")
    by_class = members[np.argsort(labels[members], kind="stable")]
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    shares = counts**power / np.sum(counts**power)

    def order(seed: int, epoch: int) -> np.ndarray:
        random = np.random.default_rng([seed, epoch])
        classes = random.choice(len(counts), num_samples or len(labels), p=shares)
        return by_class[starts[classes] + random.integers(counts[classes])]

    return order


def examples_of_epoch(
    order: Sampling | None, num_examples: int, seed: int, epoch: int
) -> np.ndarray:
    """Return the indices of the examples of one epoch; without an order, permute all examples."""
    if order is None:
        return shuffled(num_examples, seed, epoch)
    examples = np.asarray(order(seed, epoch))
    if examples.ndim != 1 or not np.issubdtype(examples.dtype, np.integer):
        got = f"{examples.dtype} {examples.shape}"
        raise ValueError(f"the order of epoch {epoch} must be a vector of integers, got {got}.")
    if len(absent := examples[(examples < 0) | (examples >= num_examples)]):
        raise ValueError(
            f"the order of epoch {epoch} names the example {absent[0]}, and there are"
            f" {num_examples} training examples: name only 0 to {num_examples - 1}."
        )
    return examples
