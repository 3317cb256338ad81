"""Keep examples on the devices: copied once, and gathered by index inside one compiled loop.

The bounds of the loop are arguments, so it compiles once for any division of an epoch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core.examples import Draw, InMemory
from calib_jax.core.statistics import Joint, merged_scan
from calib_jax.core.types import PyTree
from calib_jax.train.devices import parallel
from calib_jax.train.feeds.ordering import Order, with_weights
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
from calib_jax.train.step.state import TrainState
from calib_jax.train.step.step import Batch


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
        order = _shares(one_pass(self._source, arrangement.sharing, batch_size), arrangement)
        if arrangement.splits_runs:
            placed = parallel.replicate(Order(*(part[0] for part in order)), arrangement.local)
        else:
            placed = parallel.split(order, arrangement.local)

        run = _evaluation(step, arrangement)

        def evaluate(states: PyTree, wanted: Sequence[bool]) -> list[Joint]:
            chosen = arrangement.place([*map(np.bool_, wanted)], idle=np.bool_(False))
            return arrangement.fetch(run((), states, chosen, self._examples, placed)[1])

        return evaluate


@functools.lru_cache(maxsize=8)  # a step that is evaluated again is not compiled again
def _evaluation(step: EvalStep, arrangement: Arrangement) -> parallel.Program:
    def all_steps(state: TrainState, examples: Any, order: Order) -> Joint:
        def stat_of(rows: tuple[Any, ...]) -> Joint:
            return step(state, _batch(examples, *rows))

        stat: Joint = merged_scan(stat_of, tuple(order))
        return stat

    return arrangement.program(evaluated_if(all_steps), per_run=2)


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

        self._run = arrangement.program(steps, per_run=3, donate=True)

    def begin(self, order: Order, start: int, draw: Draw | None = None, *, run: int = 0) -> None:
        self._orders[run] = _shares(order, self._arrangement, self._accumulate)
        self._placed = None

    def __call__(
        self, states: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> tuple[PyTree, PyTree]:
        return self._run(states, *self._arguments(starts, stops), self._examples)

    def end(self, run: int) -> None:
        pass  # an order is small, and serves as the placeholder for finished runs

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
            {name: rows[start:stop] for name, rows in of_run.items()}
            for of_run, start, stop in zip(
                self._arrangement.fetch(measured), starts, stops, strict=True
            )
        ]


def _batch(examples: Any, index: Any, weights: Any, copies: Any) -> Batch:
    inputs, labels, label_weights = jax.tree.map(lambda leaf: leaf[index], examples)
    key = index + copies * len(examples.labels)  # as in `Order.keys`
    return Batch(inputs, labels, with_weights(weights, label_weights), key)


def _shares(order: Order, arrangement: Arrangement, accumulate: int = 1) -> Order:
    """Split the rows of batches between the devices of this process, as a leading axis."""
    sharing = min(arrangement.sharing, len(arrangement.local))
    local = local_rows(order, arrangement, accumulate)
    return Order(*(parallel.rows_of_devices(part, sharing, accumulate, 1) for part in local))
