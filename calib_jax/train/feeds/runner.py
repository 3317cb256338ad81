"""The interface of a feed, which places examples on the devices and runs steps on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core.examples import Draw, Source
from calib_jax.core.statistics import Joint
from calib_jax.core.types import PyTree
from calib_jax.train.feeds.ordering import Order, in_batches, of_process
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.step.state import TrainState
from calib_jax.train.step.step import Batch

Step = Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]
EvalStep = Callable[[TrainState, Batch], Joint]


@runtime_checkable
class Runner(Protocol):
    """Run the training steps of all runs; each run has its own order of examples."""

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
        """Execute the steps of every run from `starts` to `stops`, without waiting.

        A run whose stop equals its start is unchanged.

        Returns:
          The states, and a tree of measurements for `measured_in`.
        """
        ...

    def measured_in(
        self, measured: PyTree, starts: Sequence[int], stops: Sequence[int]
    ) -> list[dict[str, np.ndarray]]:
        """Wait for the measurements, and return the values of each step of every run."""
        ...

    def end(self, run: int) -> None:
        """Free the buffers of a finished run."""
        ...

    def compiled(self, states: PyTree) -> Any:
        """Compile the program of the steps without running it; call `begin` first."""
        ...


@runtime_checkable
class Feed(Protocol):
    """A source of examples, ready for training and evaluation on the devices."""

    def training(self, step: Step, *, accumulate: int = 1) -> Runner:
        """Build a runner of training steps."""
        ...

    def evaluation(self, step: EvalStep, batch_size: int) -> Evaluate:
        """Build an evaluation over all examples, in the order of the source."""
        ...


# (states of all runs, whether to evaluate each run) -> merged statistics of each run.
Evaluate = Callable[[PyTree, Sequence[bool]], list[Joint]]


def evaluated_if(step: Callable[..., Joint]) -> Callable[..., tuple[tuple[()], Joint]]:
    """Build a step that returns zeros for runs that are not requested, such as finished runs."""

    def evaluated(carry: tuple[()], state: Any, wanted: Any, *batch: Any) -> tuple[Any, Joint]:
        shapes = jax.eval_shape(step, state, *batch)
        zeros = jax.tree.map(jnp.zeros_like, shapes)
        return carry, lax.cond(wanted, lambda: step(state, *batch), lambda: zeros)

    return evaluated


def one_pass(source: Source, num_devices: int, batch_size: int) -> Order:
    """Cut all examples, in the order of the source, into batches."""
    size = min(batch_size, len(source))
    return in_batches(np.arange(len(source)), size, multiple=num_devices)


def local_rows(order: Order, arrangement: Arrangement, accumulate: int = 1) -> Order:
    """Select the rows for the devices of this process."""
    if arrangement.splits_runs:
        return order
    local, everywhere = len(arrangement.local), len(arrangement.devices)
    process = arrangement.devices.index(arrangement.local[0]) // local
    return of_process(order, process, everywhere // local, accumulate=accumulate)
