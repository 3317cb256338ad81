"""Prefetch batches: threads read them on the host, and one more places them on the devices."""

from __future__ import annotations

import collections
import math
import mmap
import operator
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from calib_jax.core.examples import Draw, Examples, InMemory, RandomViews, Source, read
from calib_jax.train.devices import parallel
from calib_jax.train.devices.parallel import Devices
from calib_jax.train.feeds.ordering import Order, with_weights
from calib_jax.train.step.step import Batch

# Batches on the devices ahead of the step, plus two batches being read, so that no thread is idle
# while the last rows of a batch are read.
BATCHES_AHEAD = 3
BATCHES_READ_AHEAD = 2
ROWS_AT_ONCE = 8  # examples per read of a thread
MAPPED = 2**20  # bytes from which on arrays are allocated with mmap


def ahead(begin: Callable[[Any], Any], items: Iterable[Any], count: int) -> Iterator[Any]:
    """Begin the work on each item, and yield the result of `begin` `count` items later.

    >>> list(ahead(lambda item: print("begin", item) or item, [1, 2, 3], 1))
    begin 1
    begin 2
    begin 3
    [1, 2, 3]
    """
    begun: collections.deque[Any] = collections.deque()
    for item in items:
        begun.append(begin(item))
        if len(begun) > count:
            yield begun.popleft()
    yield from begun


def batches(
    source: Source,
    order: Order,
    devices: Devices,
    *,
    accumulate: int = 1,
    draw: Draw | None = None,
    threads: int = 1,
) -> Generator[Batch, None, None]:
    """Place batches on the devices in a thread, ahead of the caller.

    An exception in a thread is raised here. All threads end with the generator.
    """
    examples = read_ahead(source, order, draw=draw, threads=threads)
    keys = order.keys(len(source))
    double = jax.config.read("jax_enable_x64")  # a thread does not inherit this setting

    def place(step: int) -> Batch:
        inputs, labels, label_weights = next(examples)
        weights = with_weights(order.weights[step], label_weights)
        batch = Batch(inputs, np.asarray(labels), weights, keys[step])
        deal = lambda leaf: parallel.rows_of_devices(leaf, len(devices), accumulate, 0)  # noqa: E731
        with jax.enable_x64(double):
            return parallel.split(jax.tree.map(deal, batch), devices)

    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    end = weakref.finalize(place, pool.shutdown, cancel_futures=True)  # also runs at process exit
    steps = range(order.num_steps)
    try:
        for placed in ahead(lambda step: pool.submit(place, step), steps, BATCHES_AHEAD):
            yield placed.result()
    finally:
        end()
        examples.close()


def read_ahead(
    source: Source, order: Order, *, draw: Draw | None = None, threads: int = 1
) -> Generator[Examples, None, None]:
    """Read batches in order on the host, while threads prefetch the next ones.

    Threads read a batch in pieces, in any order, and write each piece to its rows. So the examples
    do not depend on the number of threads, and the first error in batch order is raised.

    Args:
      source: the examples.
      order: the batches.
      draw: selects the random views of a source that has them.
      threads: the number of reader threads.
    """
    # One thread copies arrays in memory as fast as several.
    size = order.examples.shape[1]
    piece = size if isinstance(source, InMemory) else ROWS_AT_ONCE
    pieces = [slice(start, min(start + piece, size)) for start in range(0, size, piece)]
    views = draw is not None and isinstance(source, RandomViews)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="reading")

    def fill(buffer: _Buffer, step: int, rows: slice) -> None:
        index, copies = order.examples[step, rows], order.copies[step, rows]
        if draw is None or not (views and copies.any()):
            buffer.put(read(source, index, draw), rows)
            return
        for copy in np.unique(copies):  # a source reads one copy of each example
            places = np.flatnonzero(copies == copy)
            view = draw._replace(copy=int(copy))
            buffer.put(read(source, index[places], view), rows.start + places)

    def begin(step: int) -> tuple[_Buffer, list[Future[None]]]:
        buffer = _Buffer(size)
        return buffer, [pool.submit(fill, buffer, step, rows) for rows in pieces]

    end = weakref.finalize(begin, pool.shutdown, cancel_futures=True)  # also runs at process exit
    try:
        for buffer, written in ahead(begin, range(order.num_steps), BATCHES_READ_AHEAD):
            for future in written:
                future.result()
            assert buffer.examples is not None
            yield buffer.examples
    finally:
        end()


class _Buffer:
    """A batch that reader threads fill piece by piece.

    Large arrays are allocated with mmap. Heap memory that one thread allocates and another frees
    fragments the heap: a process with batches of 10 MB grew from 250 to 600 MB.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self.examples: Examples | None = None

    def put(self, piece: Examples, rows: slice | np.ndarray) -> None:
        """Copy a piece to its rows; the first piece determines the shapes of the batch."""
        piece = jax.tree.map(np.asarray, piece)
        with self._lock:
            if self.examples is None:
                self.examples = jax.tree.map(self._allocated, piece)
        _check_alike(self.examples, piece)
        jax.tree.map(lambda batch, part: operator.setitem(batch, rows, part), self.examples, piece)

    def _allocated(self, leaf: np.ndarray) -> np.ndarray:
        shape = (self._num_rows, *leaf.shape[1:])
        size = math.prod(shape) * leaf.itemsize
        if size < MAPPED:
            return np.empty(shape, leaf.dtype)
        return np.frombuffer(mmap.mmap(-1, size), leaf.dtype).reshape(shape)


def _check_alike(batch: Examples, piece: Examples) -> None:
    """Raise an error for rows that NumPy would repeat, round or cast to fit their batch."""
    if _signature(batch) == _signature(piece):
        return  # before any path is written out, since pieces are small and many
    before, after = _kinds(batch), _kinds(piece)
    path = next(path for path in {**before, **after} if before.get(path) != after.get(path))
    raise TypeError(
        "a source must return arrays of the same dtypes and shapes for all examples, got"
        f" {after.get(path, 'nothing')} beside {before.get(path, 'nothing')} in {path}: convert"
        " them in the source."
    )


def _signature(examples: Examples) -> tuple[Any, list[tuple[Any, ...]]]:
    leaves, tree = jax.tree.flatten(examples)
    return tree, [(leaf.dtype, leaf.shape[1:]) for leaf in leaves]


def _kinds(examples: Examples) -> dict[str, str]:
    """Describe the dtype and the shape of an example, by path."""
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype} [{', '.join(map(str, ('n', *leaf.shape[1:])))}]"
        for path, leaf in jax.tree.leaves_with_path(examples)
    }
