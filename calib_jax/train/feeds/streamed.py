"""Stream examples: batches are prefetched, and the devices run one step per call.

A stream has no state to save: an order and a draw determine the examples, their order and their
random views, and reading can start at any batch.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from calib_jax.core.examples import Draw, Source
from calib_jax.core.inputs import checks
from calib_jax.core.statistics import Joint, merged
from calib_jax.core.types import PyTree
from calib_jax.train.devices import parallel
from calib_jax.train.feeds.ordering import Order
from calib_jax.train.feeds.prefetching import ahead, batches
from calib_jax.train.feeds.runner import (
    EvalStep,
    Evaluate,
    Runner,
    Step,
    evaluated_if,
    local_rows,
    one_pass,
)
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.step.step import Batch

# Too many queued steps with collectives can starve each other on a CPU and abort.
STEPS_IN_FLIGHT = 4


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
                f"over={arrangement.over!r} needs resident examples, and these are streamed: use"
                " over='map', or a larger resident_bytes if they are in memory."
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
        statistics = self.batch_statistics(step, batch_size)

        def evaluate(states: PyTree, wanted: Sequence[bool]) -> list[Joint]:
            return [merged(stats) for stats in zip(*statistics(states, wanted), strict=True)]

        return evaluate

    def batch_statistics(
        self, step: EvalStep, batch_size: int
    ) -> Callable[[PyTree, Sequence[bool]], Iterator[list[Joint]]]:
        """Build a pass over all examples that yields the statistics of each batch, on the host."""
        arrangement = self._arrangement
        order = one_pass(self._source, len(arrangement.devices), batch_size)
        run = _evaluation(step, arrangement)

        def statistics(states: PyTree, wanted: Sequence[bool]) -> Iterator[list[Joint]]:
            chosen = arrangement.place([*map(np.bool_, wanted)])
            in_batches = self._batches(order, None)
            begun = ahead(
                lambda batch: run((), states, chosen, batch)[1], in_batches, STEPS_IN_FLIGHT
            )
            yield from map(arrangement.fetch, begun)

        return statistics

    def _batches(
        self, order: Order, draw: Draw | None, *, accumulate: int = 1, threads: int | None = None
    ) -> Generator[Batch, None, None]:
        return batches(
            self._source,
            local_rows(order, self._arrangement, accumulate),
            self._arrangement.local,
            accumulate=accumulate,
            draw=draw,
            threads=threads or self._threads,
        )


@functools.lru_cache(maxsize=8)  # a step that is evaluated again is not compiled again
def _evaluation(step: EvalStep, arrangement: Arrangement) -> parallel.Program:
    return arrangement.program(evaluated_if(step), per_run=2)


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
        measured: list[list[Any]] = [[] for _ in starts]
        for run, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            number = self._arrangement.numbers[run]
            for _ in range(start, stop):
                states, values = self._run(states, number, self._next(run))
                measured[run].append(values)
                waiting.append(values)
                if len(waiting) > STEPS_IN_FLIGHT:
                    jax.block_until_ready(waiting.popleft())
        return states, measured

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
        def stacked(of_steps: list[Any]) -> dict[str, np.ndarray]:
            rows = [parallel.first(values) for values in of_steps]
            return jax.tree.map(lambda *values: np.stack(values), *rows) if rows else {}

        return [stacked(of_steps) for of_steps in measured]


def _cores() -> int:
    """Count the cores that this process may use."""
    may = getattr(os, "sched_getaffinity", None)  # does not exist on every system
    return len(may(0)) if may else os.cpu_count() or 1
