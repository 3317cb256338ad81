"""How examples reach the devices: they live there, or they stream.

    Resident   arrays that fit: copied to every device once; the steps of an epoch are one
               compiled loop that looks its examples up by number
    Streamed   everything else: read by threads ahead of the device, one call a step

Both take the same steps and give the same numbers. A loop with bounds that are arguments is
compiled once, however an epoch is cut.

A stream has no state that would have to be saved: which examples come, in which order and with
which random views, is said by an order and a draw, and any batch of it can be read first.
"""

from __future__ import annotations

import collections
import functools
import math
import mmap
import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core import checks
from calib_jax.core.examples import Draw, Examples, InMemory, Source, read
from calib_jax.core.statistics import Joint, merged, merged_scan
from calib_jax.core.types import PyTree
from calib_jax.train import parallel
from calib_jax.train.ordering import Order, in_batches, of_process
from calib_jax.train.parallel import Devices
from calib_jax.train.state import TrainState
from calib_jax.train.step import Batch

# Steps with collectives that pile up unawaited can starve each other on a CPU, and abort.
STEPS_IN_FLIGHT = 4

# Batches that wait on the devices, and batches that threads are reading: two, so that no thread
# is idle while the last rows of one are read. One more may be on its way between them.
BATCHES_AHEAD = 3
BATCHES_READ_AT_ONCE = 2
PIECE = 8  # examples that a thread reads in one go
MAPPED = 2**20  # bytes from which on memory is taken from the system and given back to it

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
EvalStep = Callable[[TrainState, Batch], Joint]


@runtime_checkable
class Runner(Protocol):
    """Training steps over an order of examples."""

    def begin(self, order: Order, start: int, draw: Draw | None = None) -> None:
        """Take a new order, from the step `start` of it on.

        Args:
          order: of the global batches.
          start: the first step.
          draw: for a source with random views, which of them; None shows it as it is evaluated.
        """
        ...

    def __call__(self, state: TrainState, start: int, stop: int) -> tuple[TrainState, PyTree]:
        """Do the steps from `start` to `stop` without waiting.

        Returns:
          The state, and what was measured: a tree, which `measured_in` reads.
        """
        ...

    def measured_in(self, measured: PyTree, start: int, stop: int) -> dict[str, np.ndarray]:
        """Wait for what was measured in each of these steps."""
        ...


@runtime_checkable
class Feed(Protocol):
    """A source on its way to the devices."""

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Make what runs training steps."""
        ...

    def evaluation(self, step: EvalStep, batch_size: int) -> Callable[[TrainState], Joint]:
        """Make a pass over all examples in their order, which gives the merged statistics."""
        ...


def feed(
    source: Source,
    devices: Devices,
    *,
    resident_bytes: int = 2**30,
    threads: int | None = None,
) -> Feed:
    """Keep a source on the devices if it is in memory and not larger than this, else stream it.

    Args:
      source: the examples.
      devices: where.
      resident_bytes: up to this size, examples in memory move to the devices.
      threads: that read a stream; None is one for each core that this process may use.
    """
    if isinstance(source, InMemory) and source.nbytes <= resident_bytes:
        return Resident(source, devices)
    return Streamed(source, devices, threads=threads)


def _dealt(order: Order, devices: Devices, accumulate: int, *, axis: int = 1) -> Order:
    deal = (len(devices), accumulate, axis)
    return Order(*(parallel.rows_of_devices(part, *deal) for part in order))


def _pass_over(source: Source, num_devices: int, batch_size: int) -> Order:
    size = min(batch_size, len(source))
    return in_batches(np.arange(len(source)), size, multiple=num_devices)


class Resident:
    """Examples on every device."""

    def __init__(self, source: InMemory, devices: Devices) -> None:
        self._source = source
        self._devices = devices
        self._examples = parallel.replicate(source.examples, devices)

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Make what runs training steps: one program for any stretch of them."""
        return _ResidentRunner(self._examples, step, self._devices, accumulate)

    def evaluation(self, step: EvalStep, batch_size: int) -> Callable[[TrainState], Joint]:
        """Make a pass over all examples: one program."""
        order = _pass_over(self._source, len(self._devices), batch_size)
        order = _dealt(order, self._devices, 1)
        index, weights = parallel.split(order, self._devices)

        def all_steps(state: TrainState, examples: Any, index: Any, weights: Any) -> Joint:
            def one(part: tuple[Any, Any]) -> Joint:
                return step(state, _looked_up(examples, *part))

            return merged_scan(one, (index, weights))

        run = parallel.data_parallel(all_steps, self._devices)
        return lambda state: parallel.first_on_device(run(state, self._examples, index, weights))


class _ResidentRunner:
    def __init__(self, examples: Any, step: Step, devices: Devices, accumulate: int) -> None:
        self._examples = examples
        self._devices = devices
        self._accumulate = accumulate

        def steps(
            state: TrainState, examples: Any, index: Any, weights: Any, start: Any, stop: Any
        ) -> Any:
            def one(number: Any, carry: Any) -> Any:
                state, measured = carry
                state, found = step(state, _looked_up(examples, index[number], weights[number]))
                write = lambda row, value: row.at[number].set(value)  # noqa: E731
                return state, jax.tree.map(write, measured, found)

            batch = _looked_up(examples, index[0], weights[0])
            shapes = jax.eval_shape(step, state, batch)[1]
            empty = jax.tree.map(lambda s: jnp.zeros((len(index), *s.shape), s.dtype), shapes)
            return lax.fori_loop(start, stop, one, (state, empty))

        self._run = parallel.data_parallel(
            steps, devices, in_axes=(0, 0, 0, 0, None, None), donate=(0,)
        )

    def begin(self, order: Order, start: int, draw: Draw | None = None) -> None:
        dealt = _dealt(order, self._devices, self._accumulate)
        self._index, self._weights = parallel.split(dealt, self._devices)

    def __call__(self, state: TrainState, start: int, stop: int) -> tuple[TrainState, PyTree]:
        bounds = np.int32(start), np.int32(stop)
        return self._run(state, self._examples, self._index, self._weights, *bounds)

    def measured_in(self, measured: PyTree, start: int, stop: int) -> dict[str, np.ndarray]:
        return {name: rows[start:stop] for name, rows in parallel.first(measured).items()}


def _looked_up(examples: Any, index: Any, weights: Any) -> Batch:
    inputs, labels = jax.tree.map(lambda leaf: leaf[index], examples)
    return Batch(inputs, labels, weights, index)


class Streamed:
    """Examples that are read batch by batch.

    Args:
      source: the examples.
      devices: those of this process.
      threads: that read; None is one for each core that this process may use.
      process: which process this is, from 0; it reads its own rows of every batch only.
      num_processes: how many there are, each with as many devices.
    """

    def __init__(
        self,
        source: Source,
        devices: Devices,
        *,
        threads: int | None = None,
        process: int = 0,
        num_processes: int = 1,
    ) -> None:
        self._source = source
        self._devices = devices
        self._threads = _cores() if threads is None else threads
        self._process = process
        self._num_processes = num_processes
        checks.at_least("threads", self._threads, 1)
        checks.between("process", process, 0, num_processes - 1)

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Make what runs training steps, one call each."""
        run = parallel.data_parallel(step, self._devices, donate=(0,))
        return _StreamedRunner(run, functools.partial(self._batches, accumulate=accumulate))

    def evaluation(self, step: EvalStep, batch_size: int) -> Callable[[TrainState], Joint]:
        """Make a pass over the examples of this process; statistics are merged on the host."""
        num_devices = len(self._devices) * self._num_processes
        order = _pass_over(self._source, num_devices, batch_size)
        run = parallel.data_parallel(step, self._devices)

        def evaluate(state: TrainState) -> Joint:
            waiting: collections.deque[Any] = collections.deque()
            found = []
            for batch in self._batches(order, None, accumulate=1):
                waiting.append(run(state, batch))
                if len(waiting) > STEPS_IN_FLIGHT:
                    found.append(parallel.first(waiting.popleft()))
            found += [parallel.first(stat) for stat in waiting]
            stat: Joint = merged(found)
            return stat

        return evaluate

    def _batches(self, order: Order, draw: Draw | None, *, accumulate: int) -> Iterator[Batch]:
        own = of_process(order, self._process, self._num_processes, accumulate=accumulate)
        return batches(
            self._source,
            own,
            self._devices,
            accumulate=accumulate,
            draw=draw,
            threads=self._threads,
        )


class _StreamedRunner:
    def __init__(
        self, run: Callable[..., Any], batches: Callable[[Order, Draw | None], Iterator[Batch]]
    ) -> None:
        self._run = run
        self._batches_of = batches
        self._batches: Iterator[Batch] = iter(())

    def begin(self, order: Order, start: int, draw: Draw | None = None) -> None:
        rest = Order(*(part[start:] for part in order))
        self._batches = self._batches_of(rest, draw)

    def __call__(self, state: TrainState, start: int, stop: int) -> tuple[TrainState, PyTree]:
        found: list[Any] = []
        for _ in range(start, stop):
            state, measured = self._run(state, next(self._batches))
            found.append(measured)
            if len(found) > STEPS_IN_FLIGHT:
                jax.block_until_ready(found[-1 - STEPS_IN_FLIGHT])
        return state, found

    def measured_in(self, measured: PyTree, start: int, stop: int) -> dict[str, np.ndarray]:
        rows = [parallel.first(found) for found in measured]
        return jax.tree.map(lambda *values: np.stack(values), *rows)


def batches(
    source: Source,
    order: Order,
    devices: Devices,
    *,
    accumulate: int = 1,
    draw: Draw | None = None,
    threads: int = 1,
) -> Iterator[Batch]:
    """Read batches in threads, a few ahead, and place them on the devices.

    What goes wrong in a thread is raised here; when the iterator is dropped, all of them end.
    """
    ready: queue.Queue[Any] = queue.Queue(BATCHES_AHEAD)
    done = threading.Event()
    double = jax.config.read("jax_enable_x64")  # a thread does not inherit it

    def put(item: Any) -> None:
        while not done.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def place() -> None:
        deal = (len(devices), accumulate, 0)
        numbers = zip(order.examples, order.weights, strict=True)
        examples = read_ahead(source, order.examples, draw=draw, threads=threads)
        try:
            for (index, weights), (inputs, labels) in zip(numbers, examples, strict=True):
                batch = Batch(inputs, np.asarray(labels), weights, index)
                dealt = jax.tree.map(lambda leaf: parallel.rows_of_devices(leaf, *deal), batch)
                put(parallel.split(dealt, devices))
                if done.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)
        finally:
            examples.close()

    def place_in_thread() -> None:
        with jax.enable_x64(double):
            place()

    def end() -> None:
        done.set()
        thread.join()

    thread = threading.Thread(target=place_in_thread, name="batches", daemon=True)
    thread.start()
    ending = weakref.finalize(done, end)  # also at the end of a process that still holds this
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        ending()


def read_ahead(
    source: Source, rows: np.ndarray, *, draw: Draw | None = None, threads: int = 1
) -> Generator[Examples, None, None]:
    """Read one batch after another, in order, on the host; threads read the next one meanwhile.

    A batch is read in pieces, in whatever order threads come to them, and put together again. So
    the examples do not depend on the threads, and the first error of the order is the one raised.

    Args:
      source: the examples.
      rows: `[steps, rows]`, their numbers.
      draw: for a source with random views, which of them.
      threads: that read.
    """
    # Arrays in memory are copied as fast by one thread.
    piece = rows.shape[1] if isinstance(source, InMemory) else PIECE
    pool = ThreadPoolExecutor(threads, thread_name_prefix="reading")
    begun: collections.deque[tuple[_Whole, list[Future[None]]]] = collections.deque()

    def oldest() -> Examples:
        whole, pieces = begun.popleft()
        for part in pieces:
            part.result()
        assert whole.examples is not None
        return whole.examples

    try:
        for index in rows:
            whole = _Whole(len(index))
            cuts = [slice(start, start + piece) for start in range(0, len(index), piece)]

            def fill(cut: slice, index: np.ndarray = index, whole: _Whole = whole) -> None:
                whole.put(read(source, index[cut], draw), cut)

            begun.append((whole, [pool.submit(fill, cut) for cut in cuts]))
            if len(begun) == BATCHES_READ_AT_ONCE:
                yield oldest()
        while begun:
            yield oldest()
    finally:
        pool.shutdown(cancel_futures=True)


class _Whole:
    """A batch that is put together from pieces, by the threads that read them.

    Its large arrays are mapped: memory of that size from the heap, taken by one thread and freed
    by another, leaves holes there, and a process with batches of 10 MB grew from 250 to 600 MB.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self.examples: Examples | None = None

    def put(self, part: Examples, cut: slice) -> None:
        """Copy rows to their places; the first that come say what rows look like."""
        with self._lock:
            if self.examples is None:
                self.examples = jax.tree.map(self._like, part)

        def copy(all_rows: np.ndarray, some: Any) -> None:
            all_rows[cut] = some

        jax.tree.map(copy, self.examples, part)

    def _like(self, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        shape = (self._num_rows, *leaf.shape[1:])
        size = math.prod(shape) * leaf.itemsize
        if size < MAPPED:
            return np.empty(shape, leaf.dtype)
        return np.frombuffer(mmap.mmap(-1, size), leaf.dtype).reshape(shape)


def _cores() -> int:
    """Count the cores that this process may use."""
    may = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(may(0)) if may else os.cpu_count() or 1
