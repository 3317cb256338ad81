"""Compute the logits of a trained network for all examples of a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calib_jax.core.examples import Source
from calib_jax.core.statistics import Rows
from calib_jax.core.types import PyTree
from calib_jax.train import parallel
from calib_jax.train.arrangement import Arrangement
from calib_jax.train.feeding import feed
from calib_jax.train.forward import Forward
from calib_jax.train.parallel import Devices
from calib_jax.train.step import identity, make_eval_step


class _Everything:
    """A statistic that keeps every row."""

    @staticmethod
    def stat(logits: Any, labels: Any, weights: Any) -> Rows:
        return Rows({"logits": logits, "labels": labels, "weights": weights})


def predict(
    forward: Forward,
    state: PyTree,
    source: Source,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the logits of every example.

    Args:
      forward: the forward pass of the network.
      state: a train state, on the host.
      source: the examples.
      options: the options of `predict_all`.

    Returns:
      Logits and labels, in the order of the source.
    """
    logits, labels = predict_all(forward, [state], source, **options)
    return logits[0], labels


def predict_all(
    forward: Forward,
    states: Sequence[PyTree],
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    resident_bytes: int = 2**30,
) -> tuple[list[np.ndarray], np.ndarray]:
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
      Logits of each state, and labels, in the order of the source.
    """
    devices = parallel.local_devices() if devices is None else devices
    arrangement = Arrangement(devices, len(states))
    step = make_eval_step(forward, {"all": _Everything}, axis_name=parallel.AXIS, prepare=prepare)
    fed = feed(source, arrangement, resident_bytes=resident_bytes)
    evaluate = fed.evaluation(step, batch_size)
    stats = evaluate(arrangement.place(states), [True] * len(states))
    rows_of_states = [of_state["metrics"]["all"] for of_state in stats]
    weights = np.asarray(rows_of_states[0]["weights"])
    real = weights.reshape(len(weights), -1).max(axis=1) > 0
    logits = [np.asarray(rows["logits"])[real] for rows in rows_of_states]
    return logits, np.asarray(rows_of_states[0]["labels"])[real]
