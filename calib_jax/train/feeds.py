"""The order of examples, and the feeds that bring them to the devices, which then run steps.

An order is computed from the seed and the epoch alone, and cut into batches of one shape; the last
batch is padded with rows of weight 0. It does not depend on the devices: the first rows of a global
batch are the same examples for any number of devices. An order may hold an example several times,
as in class-balanced sampling. The copies of an example are numbered, so that each gets its own
random augmentation. There are two feeds:

    Resident   arrays that fit: copied to every device once; the steps of an epoch are one
               compiled loop that gathers examples by index
    Streamed   everything else: read by threads ahead of the device, one call per step

Both execute the same steps and return the same numbers. A feed hands the loop one function that
runs the steps `start` to `stop` of an epoch. It has no state to save: an order and a draw determine
the examples and their random views, and training can begin at any step, on any machine.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core import checks
from calib_jax.core.examples import Draw, Examples, InMemory, RandomViews, Source, read
from calib_jax.core.statistics import Joint, merged, merged_scan
from calib_jax.core.types import PyTree
from calib_jax.train.pmap import (
    Devices,
    data_parallel,
    first,
    for_many_calls,
    of_this_process,
    replicate,
    split,
)
from calib_jax.train.state import Batch, Sampling, TrainState

Step: TypeAlias = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
EvalStep: TypeAlias = Callable[[TrainState, Batch], Joint]
# (state, order, draw, start, stop) -> (state, read): dispatches the steps start to stop of an epoch
# without waiting; `read()` waits, and returns the measurements of each of these steps.
RunSteps: TypeAlias = Callable[..., tuple[PyTree, Callable[[], dict[str, np.ndarray]]]]
# state -> merged statistics of all examples, on the host.
Evaluate: TypeAlias = Callable[[PyTree], Joint]

# Too many queued steps with collectives can starve each other on a CPU and abort.
STEPS_IN_FLIGHT = 4
BATCHES_AHEAD = 3  # batches in memory, besides those that threads are reading


# ------------------------------------------------------------------------------------------------
# Orders.


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
    step, part, row = np.ogrid[:num_steps, :accumulate, :rows]
    place = part * size + row  # in the batch
    real = (row < size) & (place < batch_size) & (step * batch_size + place < len(examples))
    index = np.where(real, step * batch_size + place, 0)

    def cut(values: np.ndarray) -> np.ndarray:
        return np.where(real, values[index], 0).astype(np.int32).reshape(num_steps, -1)

    weights = real.astype(float).reshape(num_steps, -1)
    return Order(cut(np.asarray(examples)), weights, cut(_copies(examples)))


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


# ------------------------------------------------------------------------------------------------
# Feeds.


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

        def run_steps(state: PyTree, order: Order, draw: Draw | None, start: int, stop: int) -> Any:
            placed = self._place(order, accumulate)
            bounds = replicate((np.int32(start), np.int32(stop)), self._local)
            state, rows = run(state, placed, *bounds, self._examples)
            return state, lambda: {name: of[start:stop] for name, of in first(rows).items()}

        return run_steps

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Compile an evaluation of all examples as one program."""
        order = self._place(one_pass(self._source, len(self._devices), batch_size))
        run = _evaluation(step, self._devices, at_once=True)
        return lambda state: first(run(state, self._examples, order))

    def _place(self, order: Order, accumulate: int = 1) -> PyTree:
        """Place the rows of batches on the devices of this process."""
        return split(shares(order, self._devices, accumulate), self._local)


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
        stream = (batch for batch in list[Batch]())

        def run_steps(state: PyTree, order: Order, draw: Draw | None, start: int, stop: int) -> Any:
            nonlocal last, at, stream
            if order is not last or at != start:
                stream.close()
                rest = Order(*(part[start:] for part in order))
                stream = self._batches(rest, draw, accumulate)
            last = None  # if an example cannot be read, the next call reads anew
            measured = []
            for number in range(stop - start):
                state, values = run(state, next(stream))
                measured.append(values)
                if number >= STEPS_IN_FLIGHT:
                    jax.block_until_ready(measured[number - STEPS_IN_FLIGHT])
            last, at = order, stop
            if stop == order.num_steps:
                stream.close()  # the threads end with the epoch

            def read() -> dict[str, np.ndarray]:
                rows = [first(values) for values in measured]
                return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

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
        run = _evaluation(step, self._devices, at_once=False)

        def statistics(state: PyTree) -> Iterator[Joint]:
            stream = self._batches(order, None)
            begun = ahead(lambda batch: run(state, batch), stream, STEPS_IN_FLIGHT)
            yield from map(first, begun)

        return statistics

    def _batches(
        self, order: Order, draw: Draw | None, accumulate: int = 1
    ) -> Generator[Batch, None, None]:
        """Place the batches of an order on the devices, while threads read the next ones."""
        parts = shares(order, self._devices, accumulate)
        keys = parts.keys(len(self._source))

        def read_batch(step: int) -> Batch:
            index, weights, copies, key = (part[:, step] for part in (*parts, keys))
            examples = _read(self._source, index.ravel(), copies.ravel(), draw)
            deal = lambda leaf: np.reshape(leaf, index.shape + np.shape(leaf)[1:])  # noqa: E731
            inputs, labels, label_weights = jax.tree.map(deal, examples)
            return Batch(inputs, labels, with_weights(weights, label_weights), key)

        local = of_this_process(self._devices)
        for batch in in_threads(read_batch, order.num_steps, self._threads):
            yield split(batch, local)


def _read(source: Source, index: np.ndarray, copies: np.ndarray, draw: Draw | None) -> Examples:
    """Read examples; a source with random views reads the copies of an example one by one."""
    if draw is None or not (isinstance(source, RandomViews) and copies.any()):
        return read(source, index, draw)
    rows = [np.flatnonzero(copies == copy) for copy in np.unique(copies)]
    draws = [draw._replace(copy=int(copies[of_copy[0]])) for of_copy in rows]
    parts = [read(source, index[of], view) for of, view in zip(rows, draws, strict=True)]
    places = np.argsort(np.concatenate(rows))
    joined: Examples = jax.tree.map(lambda *of: np.concatenate(of)[places], *parts)
    return joined


@functools.lru_cache(maxsize=8)  # a step that is evaluated again is not compiled again
def _evaluation(step: EvalStep, devices: tuple[jax.Device, ...], at_once: bool) -> Any:
    """Compile the evaluation of one batch, or of all batches of resident examples."""

    def all_steps(state: TrainState, examples: Any, order: Order) -> Joint:
        def stat_of(rows: tuple[Any, ...]) -> Joint:
            return step(state, _batch(examples, *rows))

        stat: Joint = merged_scan(stat_of, tuple(order))
        return stat

    if at_once:
        return data_parallel(all_steps, devices)
    return for_many_calls(data_parallel(step, devices), devices)


def _cores() -> int:
    """Count the cores that this process may use."""
    may = getattr(os, "sched_getaffinity", None)  # does not exist on every system
    return len(may(0)) if may else os.cpu_count() or 1


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


def in_threads(work: Callable[[int], Any], num_steps: int, threads: int) -> Iterator[Any]:
    """Yield `work(0)`, `work(1)`, ... in order, each begun in a thread some steps ahead.

    An exception in a thread is raised here. All threads end with the generator.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="reading")
    begun = ahead(lambda step: pool.submit(work, step), range(num_steps), threads + BATCHES_AHEAD)
    try:
        yield from (future.result() for future in begun)
    finally:
        pool.shutdown(cancel_futures=True)
