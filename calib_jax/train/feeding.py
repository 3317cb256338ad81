"""How examples reach the devices: they live there, or they stream.

    Resident   arrays that fit: copied to every device once; the steps of an epoch are one
               compiled loop that looks its examples up by number
    Streamed   everything else: read in a thread ahead of the device, one call a step

Both take the same steps and give the same numbers. A loop with bounds that are arguments is
compiled once, however an epoch is cut.
"""

from __future__ import annotations

import collections
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core.examples import InMemory, Source
from calib_jax.core.statistics import Joint, merged, merged_scan
from calib_jax.core.types import PyTree
from calib_jax.train import parallel
from calib_jax.train.ordering import Order, in_batches
from calib_jax.train.parallel import Devices
from calib_jax.train.state import TrainState
from calib_jax.train.step import Batch

# Steps with collectives that pile up unawaited can starve each other on a CPU, and abort.
STEPS_IN_FLIGHT = 4
BATCHES_AHEAD = 3

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
EvalStep = Callable[[TrainState, Batch], Joint]


@runtime_checkable
class Runner(Protocol):
    """Training steps over an order of examples."""

    def begin(self, order: Order, start: int) -> None:
        """Take a new order, from the step `start` of it on."""
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


def feed(source: Source, devices: Devices, *, resident_bytes: int = 2**30) -> Feed:
    """Keep a source on the devices if it is in memory and not larger than this, else stream it."""
    if isinstance(source, InMemory) and source.nbytes <= resident_bytes:
        return Resident(source, devices)
    return Streamed(source, devices)


def _dealt(order: Order, devices: Devices, accumulate: int, *, axis: int = 1) -> Order:
    deal = (len(devices), accumulate, axis)
    return Order(*(parallel.rows_of_devices(part, *deal) for part in order))


def _pass_over(source: Source, devices: Devices, batch_size: int) -> Order:
    size = min(batch_size, len(source))
    return in_batches(np.arange(len(source)), size, multiple=len(devices))


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
        order = _dealt(_pass_over(self._source, self._devices, batch_size), self._devices, 1)
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

    def begin(self, order: Order, start: int) -> None:
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
    """Examples that are read batch by batch."""

    def __init__(self, source: Source, devices: Devices) -> None:
        self._source = source
        self._devices = devices

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Make what runs training steps, one call each."""
        return _StreamedRunner(self._source, step, self._devices, accumulate)

    def evaluation(self, step: EvalStep, batch_size: int) -> Callable[[TrainState], Joint]:
        """Make a pass over all examples, whose statistics are merged on the host."""
        order = _pass_over(self._source, self._devices, batch_size)
        run = parallel.data_parallel(step, self._devices)

        def evaluate(state: TrainState) -> Joint:
            waiting: collections.deque[Any] = collections.deque()
            found = []
            for batch in batches(self._source, order, self._devices, 1):
                waiting.append(run(state, batch))
                if len(waiting) > STEPS_IN_FLIGHT:
                    found.append(parallel.first(waiting.popleft()))
            found += [parallel.first(stat) for stat in waiting]
            stat: Joint = merged(found)
            return stat

        return evaluate


class _StreamedRunner:
    def __init__(self, source: Source, step: Step, devices: Devices, accumulate: int) -> None:
        self._source = source
        self._devices = devices
        self._accumulate = accumulate
        self._run = parallel.data_parallel(step, devices, donate=(0,))
        self._batches: Iterator[Batch] = iter(())

    def begin(self, order: Order, start: int) -> None:
        rest = Order(*(part[start:] for part in order))
        self._batches = batches(self._source, rest, self._devices, self._accumulate)

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


def batches(source: Source, order: Order, devices: Devices, accumulate: int) -> Iterator[Batch]:
    """Read batches in a thread, a few ahead, and place them on the devices.

    What goes wrong in the thread is raised here; when the iterator is dropped, it ends.
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

    def read() -> None:
        deal = (len(devices), accumulate, 0)
        try:
            for index, weights in zip(order.examples, order.weights, strict=True):
                inputs, labels = source[index]
                batch = Batch(inputs, np.asarray(labels), weights, index)
                dealt = jax.tree.map(lambda leaf: parallel.rows_of_devices(leaf, *deal), batch)
                put(parallel.split(dealt, devices))
                if done.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    def read_in_thread() -> None:
        with jax.enable_x64(double):
            read()

    thread = threading.Thread(target=read_in_thread, name="batches", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        done.set()
        thread.join()
