"""Feed examples to the devices: keep them resident, or stream them.

    Resident   arrays that fit: copied to every device once; the steps of an epoch are one
               compiled loop that gathers its examples by index
    Streamed   everything else: read by threads ahead of the device, one call per step

Both execute the same steps and return the same numbers. The bounds of the compiled loop are
arguments, so it compiles once for any division of an epoch.

A stream has no state to save: an order and a draw determine the examples, their order and their
random views, and reading can start at any batch.
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
from collections.abc import Callable, Generator, Sequence
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
from calib_jax.train.arrangement import Arrangement
from calib_jax.train.ordering import Order, in_batches, of_process
from calib_jax.train.parallel import Devices
from calib_jax.train.state import TrainState
from calib_jax.train.step import Batch

# Too many queued steps with collectives can starve each other on a CPU and abort.
STEPS_IN_FLIGHT = 4

# Batches queued on the devices, and batches that threads read at once: two, so that no thread is
# idle while the last rows of a batch are read. One more batch may be in transit between them.
BATCHES_AHEAD = 3
BATCHES_READ_AT_ONCE = 2
ROWS_AT_ONCE = 8  # examples per read of a thread
MAPPED = 2**20  # bytes from which on arrays are allocated with mmap

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
EvalStep = Callable[[TrainState, Batch], Joint]


@runtime_checkable
class Runner(Protocol):
    """Run the training steps of all runs, each over its own order of examples."""

    def begin(self, order: Order, start: int, draw: Draw | None = None, *, run: int = 0) -> None:
        """Start a new order for one run, from the step `start` of that order.

        Args:
          order: the order of the global batches.
          start: the first step.
          draw: selects the random views of a source that has them; None selects the evaluation
            view.
          run: the index of the run.
        """
        ...

    def __call__(
        self, states: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> tuple[PyTree, PyTree]:
        """Run the steps of every run from its start to its stop, without waiting.

        A run whose stop equals its start is unchanged.

        Returns:
          The states, and a tree of measurements for `measured_in`.
        """
        ...

    def measured_in(
        self, measured: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> list[dict[str, np.ndarray]]:
        """Wait for the measurements, and return those of each step of every run."""
        ...

    def end(self, run: int) -> None:
        """Free the buffers of a finished run."""
        ...

    def compiled(self, states: PyTree) -> Any:
        """Compile the program of the steps without running it; call `begin` first."""
        ...


# (states of all runs, whether to evaluate each run) -> merged statistics of each run.
Evaluate = Callable[[PyTree, Sequence[bool]], list[Joint]]


def _if_wanted(step: Callable[..., Joint]) -> Callable[..., tuple[tuple[()], Joint]]:
    """Skip the evaluation of runs that are not wanted, such as finished ones."""

    def evaluated(carry: tuple[()], state: Any, wanted: Any, *given: Any) -> tuple[Any, Joint]:
        shapes = jax.eval_shape(step, state, *given)
        zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        return carry, lax.cond(wanted, lambda: step(state, *given), lambda: zeros)

    return evaluated


@runtime_checkable
class Feed(Protocol):
    """A source of examples, ready for training and evaluation on the devices."""

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Build a runner of training steps."""
        ...

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Build an evaluation over all examples, in the order of the source."""
        ...


def feed(
    source: Source,
    arrangement: Arrangement,
    *,
    resident_bytes: int = 2**30,
    threads: int | None = None,
) -> Feed:
    """Keep a source on the devices if it is in memory and small enough, else stream it.

    Args:
      source: the examples.
      arrangement: the placement of the runs on the devices.
      resident_bytes: the largest size at which in-memory examples are copied to the devices.
      threads: the number of reader threads of a stream; None uses one per available core.
    """
    if isinstance(source, InMemory) and source.nbytes <= resident_bytes:
        return Resident(source, arrangement)
    return Streamed(source, arrangement, threads=threads)


def _pass_over(source: Source, num_devices: int, batch_size: int) -> Order:
    size = min(batch_size, len(source))
    return in_batches(np.arange(len(source)), size, multiple=num_devices)


def _own_part(order: Order, arrangement: Arrangement, accumulate: int = 1) -> Order:
    """Select the rows for the devices of this process."""
    if arrangement.apart:
        return order
    local, everywhere = len(arrangement.local), len(arrangement.devices)
    process = arrangement.devices.index(arrangement.local[0]) // local
    return of_process(order, process, everywhere // local, accumulate=accumulate)


def _dealt(order: Order, arrangement: Arrangement, accumulate: int = 1) -> Order:
    """Split the rows of batches between the devices of this process, as a leading axis."""
    sharing = min(arrangement.sharing, len(arrangement.local))
    own = _own_part(order, arrangement, accumulate)
    return Order(*(parallel.rows_of_devices(part, sharing, accumulate, 1) for part in own))


class Resident:
    """A feed that keeps all examples on every device."""

    def __init__(self, source: InMemory, arrangement: Arrangement) -> None:
        self._source = source
        self._arrangement = arrangement
        self._examples = parallel.replicate(source.examples, arrangement.local)

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Build a runner that executes any range of steps as one compiled program."""
        return _ResidentRunner(self._examples, step, self._arrangement, accumulate)

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Build an evaluation over all examples as one compiled program."""
        arrangement = self._arrangement
        order = _dealt(_pass_over(self._source, arrangement.sharing, batch_size), arrangement)
        if arrangement.apart:
            placed = parallel.replicate(Order(*(part[0] for part in order)), arrangement.local)
        else:
            placed = parallel.split(order, arrangement.local)

        def all_steps(state: TrainState, examples: Any, order: Order) -> Joint:
            def one(part: tuple[Any, Any]) -> Joint:
                return step(state, _looked_up(examples, *part))

            stat: Joint = merged_scan(one, tuple(order))
            return stat

        run = arrangement.program(_if_wanted(all_steps), own=2)

        def evaluate(states: PyTree, wanted: Sequence[bool]) -> list[Joint]:
            chosen = arrangement.place([*map(np.bool_, wanted)], idle=np.bool_(False))
            return arrangement.fetch(run((), states, chosen, self._examples, placed)[1])

        return evaluate


class _ResidentRunner:
    def __init__(
        self, examples: Any, step: Step, arrangement: Arrangement, accumulate: int
    ) -> None:
        self._examples = examples
        self._arrangement = arrangement
        self._accumulate = accumulate
        self._orders: dict[int, Order] = {}
        self._placed: PyTree = None

        def steps(state: TrainState, order: Order, start: Any, stop: Any, examples: Any) -> Any:
            index, weights = order

            def one(number: Any, carry: Any) -> Any:
                state, measured = carry
                state, found = step(state, _looked_up(examples, index[number], weights[number]))
                write = lambda row, value: row.at[number].set(value)  # noqa: E731
                return state, jax.tree.map(write, measured, found)

            batch = _looked_up(examples, index[0], weights[0])
            shapes = jax.eval_shape(step, state, batch)[1]
            empty = jax.tree.map(lambda s: jnp.zeros((len(index), *s.shape), s.dtype), shapes)
            return lax.fori_loop(start, stop, one, (state, empty))

        self._run = arrangement.program(steps, own=3, donate=True)

    def begin(self, order: Order, start: int, draw: Draw | None = None, *, run: int = 0) -> None:
        self._orders[run] = _dealt(order, self._arrangement, self._accumulate)
        self._placed = None

    def __call__(
        self, states: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> tuple[PyTree, PyTree]:
        return self._run(states, *self._arguments(starts, stops), self._examples)

    def end(self, run: int) -> None:
        pass  # an order is small, and is the placeholder for finished runs

    def compiled(self, states: PyTree) -> Any:
        none = [0] * self._arrangement.num_runs
        return self._run.compiled(states, *self._arguments(none, none), self._examples)

    def _arguments(self, starts: Sequence[int], stops: Sequence[int]) -> tuple[PyTree, ...]:
        place = self._arrangement.place
        if self._placed is None:
            any_order = next(iter(self._orders.values()))  # placeholder for finished runs
            orders = [self._orders.get(run, any_order) for run in range(self._arrangement.num_runs)]
            self._placed = self._arrangement.place_shares(orders)
        idle = np.int32(0)
        bounds = (place([*map(np.int32, numbers)], idle=idle) for numbers in (starts, stops))
        return self._placed, *bounds

    def measured_in(
        self, measured: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> list[dict[str, np.ndarray]]:
        return [
            {name: rows[start:stop] for name, rows in found.items()}
            for found, start, stop in zip(
                self._arrangement.fetch(measured), starts, stops, strict=True
            )
        ]


def _looked_up(examples: Any, index: Any, weights: Any) -> Batch:
    inputs, labels = jax.tree.map(lambda leaf: leaf[index], examples)
    return Batch(inputs, labels, weights, index)


class Streamed:
    """A feed that reads examples batch by batch; each process reads its own rows.

    Args:
      source: the examples.
      arrangement: the placement of the runs; `over` must be "map", since each run has its own
        order.
      threads: the number of reader threads; None uses one per available core.
    """

    def __init__(
        self, source: Source, arrangement: Arrangement, *, threads: int | None = None
    ) -> None:
        self._source = source
        self._arrangement = arrangement
        self._threads = _cores() if threads is None else threads
        checks.at_least("threads", self._threads, 1)
        if arrangement.over != "map":
            raise ValueError(
                f"over={arrangement.over!r} needs examples that lie on the devices, and these are"
                " streamed: take over='map', or a larger resident_bytes if they are in memory."
            )

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Build a runner that executes one compiled call per training step."""
        run = self._arrangement.program_of_one(step, donate=True)
        # Each run has its own stream, and the streams read concurrently.
        threads = -(-self._threads // self._arrangement.num_runs)
        batches_of = functools.partial(self._batches, accumulate=accumulate, threads=threads)
        return _StreamedRunner(run, self._arrangement, batches_of)

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Build an evaluation over all examples; merge the statistics on the host."""
        arrangement = self._arrangement
        order = _pass_over(self._source, len(arrangement.devices), batch_size)
        run = arrangement.program(_if_wanted(step), own=2)

        def evaluate(states: PyTree, wanted: Sequence[bool]) -> list[Joint]:
            chosen = arrangement.place([*map(np.bool_, wanted)])
            waiting: collections.deque[Any] = collections.deque()
            found = []
            for batch in self._batches(order, None):
                waiting.append(run((), states, chosen, batch)[1])
                if len(waiting) > STEPS_IN_FLIGHT:
                    found.append(arrangement.fetch(waiting.popleft()))
            found += [arrangement.fetch(stats) for stats in waiting]
            return [merged(stats) for stats in zip(*found, strict=True)]

        return evaluate

    def _batches(
        self, order: Order, draw: Draw | None, *, accumulate: int = 1, threads: int | None = None
    ) -> Generator[Batch, None, None]:
        return batches(
            self._source,
            _own_part(order, self._arrangement, accumulate),
            self._arrangement.local,
            accumulate=accumulate,
            draw=draw,
            threads=threads or self._threads,
        )


class _StreamedRunner:
    def __init__(
        self,
        run: parallel.Program,
        arrangement: Arrangement,
        batches_of: Callable[[Order, Draw | None], Generator[Batch, None, None]],
    ) -> None:
        self._run = run
        self._arrangement = arrangement
        self._batches_of = batches_of
        self._batches: dict[int, Generator[Batch, None, None]] = {}
        self._unused: dict[int, Batch] = {}

    def begin(self, order: Order, start: int, draw: Draw | None = None, *, run: int = 0) -> None:
        rest = Order(*(part[start:] for part in order))
        self._batches[run] = self._batches_of(rest, draw)
        self._unused.pop(run, None)

    def __call__(
        self, states: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> tuple[PyTree, PyTree]:
        waiting: collections.deque[Any] = collections.deque()
        found: list[list[Any]] = [[] for _ in starts]
        for run, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            for _ in range(start, stop):
                states, measured = self._run(
                    states, self._arrangement.numbers[run], self._next(run)
                )
                found[run].append(measured)
                waiting.append(measured)
                if len(waiting) > STEPS_IN_FLIGHT:
                    jax.block_until_ready(waiting.popleft())
        return states, found

    def _next(self, run: int) -> Batch:
        return self._unused.pop(run) if run in self._unused else next(self._batches[run])

    def end(self, run: int) -> None:
        stream = self._batches.pop(run, None)
        if stream is not None:
            stream.close()

    def compiled(self, states: PyTree) -> Any:
        run = next(iter(self._batches))
        self._unused[run] = self._next(run)
        number = self._arrangement.numbers[run]
        return self._run.compiled(states, number, self._unused[run])

    def measured_in(
        self, measured: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> list[dict[str, np.ndarray]]:
        def one(found: list[Any]) -> dict[str, np.ndarray]:
            rows = [parallel.first(step) for step in found]
            return jax.tree.map(lambda *values: np.stack(values), *rows) if rows else {}

        return [one(found) for found in measured]


def batches(
    source: Source,
    order: Order,
    devices: Devices,
    *,
    accumulate: int = 1,
    draw: Draw | None = None,
    threads: int = 1,
) -> Generator[Batch, None, None]:
    """Prefetch batches in threads and place them on the devices.

    An exception in a thread is raised here. The threads stop when the iterator is dropped.
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
    ending = weakref.finalize(done, end)  # also runs at process exit
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
    """Read batches in order on the host, while threads prefetch the next one.

    Threads read a batch in pieces, in any order, and write each piece to its rows. So the examples
    do not depend on the number of threads, and the first error in batch order is raised.

    Args:
      source: the examples.
      rows: `[steps, rows]`, the indices of the examples.
      draw: selects the random views of a source that has them.
      threads: the number of reader threads.
    """
    # One thread copies arrays in memory as fast as several.
    piece = rows.shape[1] if isinstance(source, InMemory) else ROWS_AT_ONCE
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
    """A batch that reader threads fill piece by piece.

    Large arrays are allocated with mmap. Heap memory that one thread allocates and another frees
    fragments the heap: a process with batches of 10 MB grew from 250 to 600 MB.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self.examples: Examples | None = None

    def put(self, part: Examples, cut: slice) -> None:
        """Copy a piece to its rows; allocate the batch from the shapes of the first piece."""
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
