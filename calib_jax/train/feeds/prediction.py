"""Compute the logits of a trained network for all examples of a source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from calib_jax.core.display import short_repr
from calib_jax.core.examples import Source, check_source, read
from calib_jax.core.statistics import Rows
from calib_jax.core.types import PyTree
from calib_jax.train.devices import memory, parallel
from calib_jax.train.devices.parallel import Devices
from calib_jax.train.feeds.feed import feed
from calib_jax.train.feeds.ordering import with_weights
from calib_jax.train.feeds.runner import EvalStep, one_pass
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.step.forward import Forward, check_forward
from calib_jax.train.step.state import check_state
from calib_jax.train.step.step import Batch, identity, make_eval_step


class Predicted(NamedTuple):
    """The predictions for all examples of a source, in the order of the source.

    Attributes:
      logits: `[*batch, classes]`; from `predict_all`, the logits of each state.
      labels: `[*batch]`.
      weights: `[*batch]`, or None if all labels have weight 1.
    """

    logits: Any
    labels: np.ndarray
    weights: np.ndarray | None

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of a prediction file by name; without weights if there are none."""
        return {name: leaf for name, leaf in self._asdict().items() if leaf is not None}

    @property
    def present(self) -> np.ndarray:
        """The logits whose labels have positive weight, `[rows, classes]`."""
        rows: np.ndarray = self.logits.reshape(-1, self.logits.shape[-1])
        return rows if self.weights is None else rows[self.weights.reshape(-1) > 0]


class Everything:
    """A statistic that keeps every row."""

    @staticmethod
    def stat(logits: Any, labels: Any, weights: Any) -> Rows:
        """Return the rows unchanged."""
        return Rows({"logits": logits, "labels": labels, "weights": weights})


def rows_step(forward: Forward, prepare: Callable[[PyTree], PyTree]) -> EvalStep:
    """Build the step that keeps every row; equal arguments return the same step, compiled once."""
    try:
        return _rows_step(cast(Any, forward), prepare)
    except TypeError:  # cannot be hashed
        return _rows_step.__wrapped__(forward, prepare)


@functools.lru_cache(maxsize=8)
def _rows_step(forward: Forward, prepare: Callable[[PyTree], PyTree]) -> EvalStep:
    # A network sets the inputs of rows of weight 0 to 0, because padding may hold NaN. Predictions
    # drop the padding, but keep unlabelled examples, such as queries out of scope.
    def without_weights(*args: Any, weights: Any, **options: Any) -> Any:
        return forward(*args, weights=None, **options)

    return make_eval_step(
        without_weights, {"all": Everything}, axis_name=parallel.AXIS, prepare=prepare
    )


def predict(
    forward: Forward,
    state: PyTree,
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    resident_bytes: int = 2**30,
) -> Predicted:
    """Compute the logits of every example.

    Args:
      forward: the forward pass of the network.
      state: a train state, on the host.
      source: the examples.
      prepare, batch_size, devices, resident_bytes: as in `predict_all`.

    Returns:
      Logits, labels and weights, in the order of the source.
    """
    predicted = predict_all(
        forward,
        [state],
        source,
        prepare=prepare,
        batch_size=batch_size,
        devices=devices,
        resident_bytes=resident_bytes,
    )
    return predicted._replace(logits=predicted.logits[0])


def predict_all(
    forward: Forward,
    states: Sequence[PyTree],
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    resident_bytes: int = 2**30,
) -> Predicted:
    """Compute the logits of every example for several train states, in one program.

    Args:
      forward: the forward pass of the network.
      states: train states, on the host.
      source: the examples.
      prepare: as in training.
      batch_size: the batch size.
      devices: the devices; all devices of this process by default.
      resident_bytes: the largest size at which in-memory examples are copied to the devices.

    Returns:
      Logits of each state, labels and weights, in the order of the source.
    """
    check_arguments(forward, states, source)
    _check_memory(forward, states, source, prepare)
    devices = parallel.local_devices() if devices is None else devices
    arrangement = Arrangement(devices, len(states))
    step = rows_step(forward, prepare)
    fed = feed(source, arrangement, resident_bytes=resident_bytes)
    evaluate = fed.evaluation(step, batch_size)
    stats = evaluate(arrangement.place(states), [True] * len(states))
    rows_of_states = [of_state["metrics"]["all"] for of_state in stats]
    # Drop the rows that pad batches; keep an example whose labels have weight 0.
    real = one_pass(source, arrangement.sharing, batch_size).weights.reshape(-1) > 0
    labels, weights = (np.asarray(rows_of_states[0][key])[real] for key in ("labels", "weights"))
    logits = [np.asarray(rows["logits"])[real] for rows in rows_of_states]
    return Predicted(logits, labels, None if np.all(weights == 1) else weights)


def check_arguments(forward: Any, states: Sequence[Any], source: Any) -> None:
    """Raise TypeError for an argument of another kind, such as arrays in place of a source."""
    check_forward(forward)
    for state in states:
        check_state(state)
    check_source("source", source)
    if not len(source):
        raise ValueError("source has no examples to predict.")


def _check_memory(
    forward: Forward, states: Sequence[PyTree], source: Source, prepare: Callable[[PyTree], PyTree]
) -> None:
    """Raise `DoesNotFit` if the logits of many labels, such as pixels, do not fit into memory."""
    inputs, labels, label_weights = read(source, np.arange(1))
    if labels.size * len(source) < memory.MANY_LABELS:
        return
    weights = with_weights(np.ones(1, np.float32), label_weights)
    step = make_eval_step(forward, {"all": Everything}, prepare=prepare)
    of_one = jax.eval_shape(step, states[0], Batch(inputs, labels, weights, np.arange(1)))
    memory.check_joined(
        f"the logits of {len(source):,} examples",
        memory.size(of_one["metrics"]["all"]["logits"]) * len(source) * len(states),
        "take fewer networks at once, or train.predict_blocks (--logits=none or float16)",
    )
