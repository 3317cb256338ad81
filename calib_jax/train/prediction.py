"""What a trained network says about all examples of a source, in their order."""

from __future__ import annotations

from collections.abc import Callable
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
    """A statistic that forgets nothing."""

    @staticmethod
    def stat(logits: Any, labels: Any, weights: Any) -> Rows:
        return Rows({"logits": logits, "labels": labels, "weights": weights})


def predict(
    forward: Forward,
    state: PyTree,
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    resident_bytes: int = 2**30,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the logits of every example.

    Args:
      forward: of the network.
      state: a train state, on the host.
      source: the examples.
      prepare: as in training.
      batch_size: examples at a time.
      devices: where; all by default.
      resident_bytes: up to this size, examples in memory move to the devices.

    Returns:
      Logits and labels, in the order of the source.
    """
    devices = parallel.local_devices() if devices is None else devices
    arrangement = Arrangement(devices)
    step = make_eval_step(forward, {"all": _Everything}, axis_name=parallel.AXIS, prepare=prepare)
    fed = feed(source, arrangement, resident_bytes=resident_bytes)
    (found,) = fed.evaluation(step, batch_size)(arrangement.place([state]))
    rows = found["metrics"]["all"]
    weights = np.asarray(rows["weights"])
    real = weights.reshape(len(weights), -1).max(axis=1) > 0
    return np.asarray(rows["logits"])[real], np.asarray(rows["labels"])[real]
