"""Which examples a step sees: a matter of seed and epoch alone.

An order is cut into batches of one shape, the last of which is filled up with rows of weight 0.
It does not depend on the devices: the first rows of a global batch are the same examples
whatever their number. So a run continues from any step of any epoch, on any machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from calib_jax.core import checks


class Order(NamedTuple):
    """The batches of one pass, in turn.

    Attributes:
      examples: `[steps, rows]`, their numbers.
      weights: `[steps, rows]`, 1 for an example and 0 for a row that only fills the batch.
    """

    examples: np.ndarray
    weights: np.ndarray

    @property
    def num_steps(self) -> int:
        """How many batches there are."""
        return len(self.examples)


def steps_per_epoch(num_examples: int, batch_size: int, *, drop_last: bool = False) -> int:
    """Count the batches of an epoch."""
    checks.at_least("batch_size", batch_size, 1)
    if num_examples == 0:
        raise ValueError("there are no examples to make batches of.")
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
    """Cut a sequence of example numbers into batches.

    Args:
      examples: the numbers, in the order in which they are to be seen.
      batch_size: examples in a batch, over all devices.
      multiple: rows in a microbatch are rounded up to a multiple of this, the devices.
      accumulate: microbatches in a batch, one after another. Each is filled up by itself, so
        that it holds the same examples whatever the devices.
      drop_last: leave out what does not fill the last batch.

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


def of_process(order: Order, process: int, num_processes: int, *, accumulate: int = 1) -> Order:
    """Take the rows of an order that one of several processes has to read.

    Devices are numbered process by process, and every process has as many. Rows are dealt to the
    devices by microbatch, so those of a process are a block of every microbatch, and when it
    deals these to its own devices, each of them gets what it would have got from the whole.

    Args:
      order: of global batches, made with all devices as `multiple`.
      process: which one, from 0.
      num_processes: how many there are.
      accumulate: microbatches in a batch, as the order was made.

    >>> order = in_batches(np.arange(8), 8, multiple=2, accumulate=2)
    >>> [of_process(order, process, 2, accumulate=2).examples.tolist() for process in (0, 1)]
    [[[0, 1, 4, 5]], [[2, 3, 6, 7]]]
    """
    checks.at_least("num_processes", num_processes, 1)
    checks.between("process", process, 0, num_processes - 1)
    steps, rows = order.examples.shape
    if rows % (accumulate * num_processes):
        raise ValueError(
            f"batches of {rows} rows in {accumulate} parts cannot be shared evenly by"
            f" {num_processes} processes: make the order with all their devices as multiple."
        )

    def share(leaf: np.ndarray) -> np.ndarray:
        parts = leaf.reshape(steps, accumulate, num_processes, -1)
        return parts[:, :, process].reshape(steps, -1)

    return Order(*map(share, order))


def shuffled(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Permute the examples for one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)
