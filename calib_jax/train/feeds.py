"""Feeds: how examples reach the devices, which then run steps on them.

    Resident   arrays that fit: copied to every device once; the steps of an epoch are one
               compiled loop that gathers examples by index
    Streamed   everything else: read by threads ahead of the device, one call per step

Both execute the same steps and return the same numbers. A feed hands the loop one function that
runs the steps `start` to `stop` of an epoch. It has no state to save: an order and a draw determine
the examples and their random views, and training can begin at any step.
"""

from __future__ import annotations

import collections
import functools
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core import checks
from calib_jax.core.examples import Draw, Examples, InMemory, RandomViews, Source, read
from calib_jax.core.statistics import Joint, merged, merged_scan
from calib_jax.core.types import PyTree
from calib_jax.train.ordering import Order, in_batches, with_weights
from calib_jax.train.pmap import (
    Devices,
    data_parallel,
    first,
    for_many_calls,
    of_this_process,
    replicate,
    split,
)
from calib_jax.train.state import Batch, TrainState

Step: TypeAlias = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
EvalStep: TypeAlias = Callable[[TrainState, Batch], Joint]
# (state, order, draw, start, stop) -> (state, read): dispatches the steps start to stop of an epoch
# without waiting; `read()` waits, and returns the measurements of each of these steps.
RunSteps: TypeAlias = Callable[..., tuple[PyTree, Callable[[], dict[str, np.ndarray]]]]
# state -> merged statistics of all examples, on the host.
Evaluate: TypeAlias = Callable[[PyTree], Joint]

# Too many queued steps with collectives can starve each other on a CPU and abort.
STEPS_IN_FLIGHT = 4
BATCHES_AHEAD = 3  # batches on the devices ahead of the step


def feed(
    source: Source, devices: Devices, *, resident_bytes: int = 2**30, threads: int | None = None
) -> Resident | Streamed:
    """Keep a source on the devices if it is in memory and small enough, else stream it.

    Args:
      source: the examples.
      devices: the devices of all processes.
      resident_bytes: the largest size at which in-memory examples are copied to the devices.
      threads: the number of reader threads of a stream; None uses one per available core.
    """
    if isinstance(source, InMemory) and source.nbytes <= resident_bytes:
        return Resident(source, devices)
    return Streamed(source, devices, threads=threads)


def one_pass(source: Source, num_devices: int, batch_size: int) -> Order:
    """Cut all examples, in the order of the source, into batches."""
    size = min(batch_size, len(source))
    return in_batches(np.arange(len(source)), size, multiple=num_devices)


def shares(order: Order, devices: Devices, accumulate: int = 1) -> Order:
    """Split the rows of batches between the devices, `[devices of this process, steps, rows]`.

    The rows of a batch are its microbatches in sequence, and each microbatch is split between the
    devices. So a microbatch holds the same examples for any number of devices.

    Args:
      order: the order of global batches, made with the number of all devices as `multiple`.
      devices: the devices of all processes.
      accumulate: the number of microbatches in a batch, as in `in_batches`.
    """
    local = of_this_process(devices)
    places = [place for place, device in enumerate(devices) if device in local]
    shape = order.num_steps, accumulate, len(devices), -1

    def share(part: np.ndarray) -> np.ndarray:
        by_device = np.moveaxis(part.reshape(shape), 2, 0)[places]
        return by_device.reshape(len(places), order.num_steps, -1)

    return Order(*map(share, order))


# ------------------------------------------------------------------------------------------------
# Examples on the devices.


class Resident:
    """A feed that keeps all examples on every device."""

    def __init__(self, source: InMemory, devices: Devices) -> None:
        self._source = source
        self._devices = tuple(devices)
        self._local = of_this_process(devices)
        self._examples = replicate(source.examples, self._local)

    def training(self, step: Step, *, accumulate: int = 1) -> RunSteps:
        """Compile a loop over any range of steps of an epoch.

        The bounds of the loop are arguments, so it compiles once for any division of an epoch.
        """

        def steps(state: TrainState, order: Order, start: Any, stop: Any, examples: Any) -> Any:
            def batch_of(number: Any) -> Batch:
                return _batch(examples, *(part[number] for part in order))

            def body(number: Any, carry: Any) -> Any:
                state, measured = carry
                state, values = step(state, batch_of(number))
                write = lambda rows, value: rows.at[number].set(value)  # noqa: E731
                return state, jax.tree.map(write, measured, values)

            shapes = jax.eval_shape(step, state, batch_of(0))[1]
            rows = len(order.examples)
            empty = jax.tree.map(lambda s: jnp.zeros((rows, *s.shape), s.dtype), shapes)
            return lax.fori_loop(start, stop, body, (state, empty))

        run = data_parallel(steps, self._devices, donate=(0,))
        last: Order | None = None
        placed: PyTree = None

        def run_steps(state: PyTree, order: Order, draw: Draw | None, start: int, stop: int) -> Any:
            nonlocal last, placed
            if order is not last:
                last, placed = order, self._place(order, accumulate)
            bounds = replicate((np.int32(start), np.int32(stop)), self._local)
            state, rows = run(state, placed, *bounds, self._examples)
            return state, lambda: {name: of[start:stop] for name, of in first(rows).items()}

        return run_steps

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Compile an evaluation of all examples as one program."""
        order = self._place(one_pass(self._source, len(self._devices), batch_size))
        run = _resident_evaluation(step, self._devices)
        return lambda state: first(run(state, self._examples, order))

    def _place(self, order: Order, accumulate: int = 1) -> PyTree:
        """Place the rows of batches on the devices of this process."""
        return split(shares(order, self._devices, accumulate), self._local)


@functools.lru_cache(maxsize=8)  # a step that is evaluated again is not compiled again
def _resident_evaluation(step: EvalStep, devices: tuple[jax.Device, ...]) -> Any:
    def all_steps(state: TrainState, examples: Any, order: Order) -> Joint:
        def stat_of(rows: tuple[Any, ...]) -> Joint:
            return step(state, _batch(examples, *rows))

        stat: Joint = merged_scan(stat_of, tuple(order))
        return stat

    return data_parallel(all_steps, devices)


def _batch(examples: Any, index: Any, weights: Any, copies: Any) -> Batch:
    inputs, labels, label_weights = jax.tree.map(lambda leaf: leaf[index], examples)
    key = index + copies * len(examples.labels)  # as in `Order.keys`
    return Batch(inputs, labels, with_weights(weights, label_weights), key)


# ------------------------------------------------------------------------------------------------
# Examples read batch by batch.


class Streamed:
    """A feed that reads examples batch by batch; each process reads its own rows.

    Args:
      source: the examples.
      devices: the devices of all processes.
      threads: the number of reader threads; None uses one per available core.
    """

    def __init__(self, source: Source, devices: Devices, *, threads: int | None = None) -> None:
        self._source = source
        self._devices = tuple(devices)
        self._threads = _cores() if threads is None else threads
        checks.at_least("threads", self._threads, 1)

    def training(self, step: Step, *, accumulate: int = 1) -> RunSteps:
        """Compile one training step, which is called for each batch."""
        run = data_parallel(step, self._devices, donate=(0,))
        run = for_many_calls(run, self._devices)
        last: Order | None = None
        at = 0
        stream: Generator[Batch, None, None] | None = None

        def run_steps(state: PyTree, order: Order, draw: Draw | None, start: int, stop: int) -> Any:
            nonlocal last, at, stream
            if order is not last or at != start:
                if stream is not None:
                    stream.close()
                rest = Order(*(part[start:] for part in order))
                stream = self._batches(rest, draw, accumulate)
            assert stream is not None
            waiting: collections.deque[Any] = collections.deque()
            measured = []
            for _ in range(start, stop):
                state, values = run(state, next(stream))
                measured.append(values)
                waiting.append(values)
                if len(waiting) > STEPS_IN_FLIGHT:
                    jax.block_until_ready(waiting.popleft())
            last, at = order, stop
            if stop == order.num_steps:
                stream.close()  # the threads end with the epoch

            def read() -> dict[str, np.ndarray]:
                rows = [first(values) for values in measured]
                return jax.tree.map(lambda *values: np.stack(values), *rows) if rows else {}

            return state, read

        return run_steps

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Build an evaluation of all examples; merge the statistics on the host."""
        statistics = self.batch_statistics(step, batch_size)
        return lambda state: merged([*statistics(state)])

    def batch_statistics(
        self, step: EvalStep, batch_size: int
    ) -> Callable[[PyTree], Iterator[Joint]]:
        """Build a pass over all examples that yields the statistics of each batch, on the host."""
        order = one_pass(self._source, len(self._devices), batch_size)
        run = _streamed_evaluation(step, self._devices)

        def statistics(state: PyTree) -> Iterator[Joint]:
            stream = self._batches(order, None)
            begun = ahead(lambda batch: run(state, batch), stream, STEPS_IN_FLIGHT)
            yield from map(first, begun)

        return statistics

    def _batches(
        self, order: Order, draw: Draw | None, accumulate: int = 1
    ) -> Generator[Batch, None, None]:
        # The rows of this process, device by device.
        parts = shares(order, self._devices, accumulate)
        rows = Order(*(part.swapaxes(0, 1).reshape(order.num_steps, -1) for part in parts))
        local = of_this_process(self._devices)
        return batches(self._source, rows, local, draw=draw, threads=self._threads)


@functools.lru_cache(maxsize=8)  # a step that is evaluated again is not compiled again
def _streamed_evaluation(step: EvalStep, devices: tuple[jax.Device, ...]) -> Any:
    return for_many_calls(data_parallel(step, devices), devices)


def _cores() -> int:
    """Count the cores that this process may use."""
    may = getattr(os, "sched_getaffinity", None)  # does not exist on every system
    return len(may(0)) if may else os.cpu_count() or 1


# ------------------------------------------------------------------------------------------------
# Prefetching: threads read batches on the host, and one more places them on the devices.


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


def in_threads(
    work: Callable[[int], Any], num_steps: int, *, threads: int, count: int, name: str
) -> Iterator[Any]:
    """Yield `work(0)`, `work(1)`, ... in order, each begun in a thread `count` steps ahead.

    An exception in a thread is raised here. All threads end with the generator.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    end = weakref.finalize(work, pool.shutdown, cancel_futures=True)  # also runs at process exit
    try:
        for begun in ahead(lambda step: pool.submit(work, step), range(num_steps), count):
            yield begun.result()
    finally:
        end()


def batches(
    source: Source, order: Order, devices: Devices, *, draw: Draw | None = None, threads: int = 1
) -> Generator[Batch, None, None]:
    """Place batches on the devices in a thread, ahead of the caller.

    Args:
      source: the examples.
      order: the rows of this process, device by device.
      devices: the devices of this process.
      draw, threads: as in `read_ahead`.
    """
    examples = read_ahead(source, order, draw=draw, threads=threads)
    keys = order.keys(len(source))
    double = jax.config.read("jax_enable_x64")  # a thread does not inherit this setting

    def place(step: int) -> Batch:
        inputs, labels, label_weights = next(examples)
        weights = with_weights(order.weights[step], label_weights)
        batch = Batch(inputs, np.asarray(labels), weights, keys[step])
        deal = lambda leaf: leaf.reshape(len(devices), -1, *leaf.shape[1:])  # noqa: E731
        with jax.enable_x64(double):
            return split(jax.tree.map(deal, batch), devices)

    try:
        steps = order.num_steps
        yield from in_threads(place, steps, threads=1, count=BATCHES_AHEAD, name="batches")
    finally:
        examples.close()


def read_ahead(
    source: Source, order: Order, *, draw: Draw | None = None, threads: int = 1
) -> Generator[Examples, None, None]:
    """Read batches in order on the host, while threads read the next ones.

    Args:
      source: the examples.
      order: the batches.
      draw: selects the random views of a source that has them.
      threads: the number of reader threads.
    """
    views = draw is not None and isinstance(source, RandomViews)

    def batch(step: int) -> Examples:
        index, copies = order.examples[step], order.copies[step]
        if draw is None or not (views and copies.any()):
            return read(source, index, draw)
        # A source reads one copy of each example.
        rows = [np.flatnonzero(copies == copy) for copy in np.unique(copies)]
        draws = [draw._replace(copy=int(copies[of_copy[0]])) for of_copy in rows]
        parts = [read(source, index[of], view) for of, view in zip(rows, draws, strict=True)]
        places = np.argsort(np.concatenate(rows))
        joined: Examples = jax.tree.map(lambda *of: np.concatenate(of)[places], *parts)
        return joined

    yield from in_threads(batch, order.num_steps, threads=threads, count=threads, name="reading")
