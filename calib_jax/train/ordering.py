"""Compute the order of examples from the seed and the epoch alone.

An order is cut into batches of one shape, and the last batch is padded with rows of weight 0. It
does not depend on the devices: the first rows of a global batch are the same examples for any
number of devices. So a run can resume from any step of any epoch, on any machine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks


class Order(NamedTuple):
    """The batches of one pass, in order.

    Attributes:
      examples: `[steps, rows]`, the indices of the examples.
      weights: `[steps, rows]`, 1 for an example and 0 for padding.
    """

    examples: np.ndarray
    weights: np.ndarray

    @property
    def num_steps(self) -> int:
        """The number of batches."""
        return len(self.examples)


def steps_per_epoch(num_examples: int, batch_size: int, *, drop_last: bool = False) -> int:
    """Count the batches of an epoch."""
    checks.at_least("batch_size", batch_size, 1)
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
      multiple: the rows of a microbatch are padded to a multiple of this, the number of devices.
      accumulate: the number of sequential microbatches in a batch. Each is padded separately, so
        it holds the same examples for any number of devices.
      drop_last: drop the last, incomplete batch.

    >>> order = in_batches(np.arange(5), 3, multiple=2)
    >>> order.examples.tolist(), order.weights.tolist()
    ([[0, 1, 2, 0], [3, 4, 0, 0]], [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    """
    num_steps = steps_per_epoch(len(examples), batch_size, drop_last=drop_last)
    size = -(-batch_size // accumulate)
    rows = -(-size // multiple) * multiple
    numbers = np.zeros((num_steps, accumulate, rows), np.int32)
    weights = np.zeros((num_steps, accumulate, rows))
    for step in range(num_steps):
        batch = examples[step * batch_size : (step + 1) * batch_size]
        for place in range(accumulate):
            part = batch[place * size : (place + 1) * size]
            numbers[step, place, : len(part)] = part
            weights[step, place, : len(part)] = 1
    return Order(*(leaf.reshape(num_steps, -1) for leaf in (numbers, weights)))


def with_weights(padding: Any, weights: Any) -> Any:
    """Multiply the weights of rows by those of their labels, if there are any; on any device.

    >>> with_weights(np.array([1.0, 0.0]), np.array([[1, 0, 2], [1, 1, 1]])).tolist()
    [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
    """
    if weights is None:
        return padding
    rows = padding.reshape(padding.shape + (1,) * (weights.ndim - padding.ndim))
    return rows * weights.astype(padding.dtype)


def of_process(order: Order, process: int, num_processes: int, *, accumulate: int = 1) -> Order:
    """Select the rows of an order that one process reads.

    Devices are numbered process by process, and every process has the same number of devices. The
    rows of each microbatch are split between the devices, so a process reads one block of every
    microbatch. Each device gets the same rows as from the global order.

    Args:
      order: the order of global batches, made with the number of all devices as `multiple`.
      process: the index of the process, from 0.
      num_processes: the number of processes.
      accumulate: the number of microbatches in a batch, as in `in_batches`.

    >>> order = in_batches(np.arange(8), 8, multiple=2, accumulate=2)
    >>> [of_process(order, process, 2, accumulate=2).examples.tolist() for process in (0, 1)]
    [[[0, 1, 4, 5]], [[2, 3, 6, 7]]]
    """
    checks.at_least("num_processes", num_processes, 1)
    checks.between("process", process, 0, num_processes - 1)
    steps, rows = order.examples.shape
    if rows % (accumulate * num_processes):
        raise ValueError(
            f"{num_processes} processes cannot share batches of {rows} rows in {accumulate} parts"
            " evenly: build the order with multiple= the number of all devices."
        )

    def share(leaf: np.ndarray) -> np.ndarray:
        parts = leaf.reshape(steps, accumulate, num_processes, -1)
        return parts[:, :, process].reshape(steps, -1)

    return Order(*map(share, order))


def shuffled(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Permute the examples for one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)
