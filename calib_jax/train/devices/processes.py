"""Communication between the processes of one run: process 0 broadcasts, all processes reduce.

Process 0 alone reads and writes the folders of runs. It broadcasts what it has read, and all
processes reduce the values that differ between processes (a signal that one process received, the
seconds of a chunk), so that every process takes the same step next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from calib_jax.core.types import PyTree
from calib_jax.train.devices import parallel
from calib_jax.train.devices.parallel import Devices


class ProcessZeroFailed(RuntimeError):
    """Raised in the other processes when process 0 raises an error."""


class Processes:
    """Communication between the processes that own the devices.

    Args:
      devices: the devices of all processes, or of this process alone.

    Attributes:
      number: the number of processes.
    """

    def __init__(self, devices: Devices) -> None:
        local = parallel.of_this_process(devices)
        if not local:
            raise ValueError("devices has none of this process: give jax.devices(), or its own.")
        self.number = len(devices) // len(local)
        if self.number not in (1, jax.process_count()):
            raise ValueError(
                f"the devices belong to {self.number} of {jax.process_count()} processes: give the"
                " devices of one process, or of all."
            )

    @property
    def leads(self) -> bool:
        """Whether this process reads and writes folders."""
        return self.number == 1 or jax.process_index() == 0

    def largest(self, values: Sequence[float]) -> list[float]:
        """Reduce a list of numbers, one by one, to the maximum over all processes."""
        if self.number == 1:
            return [*values]
        gathered = multihost_utils.process_allgather(np.asarray(values, np.float32))
        return [float(value) for value in gathered.max(axis=0)]

    def broadcast(self, function: Callable[[], bytes]) -> bytes:
        """Call a function in process 0, and broadcast its result or error to all processes."""
        if self.number == 1:
            return function()
        result, error = b"", None
        if self.leads:
            try:
                result = function()
            except Exception as caught:  # the others wait for a broadcast
                result, error = str(caught).encode(), caught
        size, failed = multihost_utils.broadcast_one_to_all(
            np.array([len(result), error is not None], np.uint32)
        )
        result = multihost_utils.broadcast_one_to_all(
            np.frombuffer(result or bytes(size), np.uint8)
        ).tobytes()
        if error is not None:
            raise error
        if failed:
            raise ProcessZeroFailed(result.decode())
        return result

    def raise_alike(self, error: Exception | None) -> None:
        """Raise an error of process 0 in all processes; the others would wait for process 0."""
        (failed,) = self.largest([float(error is not None)])
        if error is not None:
            raise error
        if failed:
            raise ProcessZeroFailed("process 0 had an error and ended: see its message.")

    def broadcast_tree(self, tree: PyTree) -> PyTree:
        """Broadcast the arrays of process 0, bit for bit; shapes are the same in all processes."""
        if self.number == 1:
            return tree
        # Broadcast bytes, because the broadcast adds zeros and -0.0 + 0.0 is 0.0.
        as_bytes = jax.tree.map(lambda leaf: np.frombuffer(leaf.tobytes(), np.uint8), tree)
        return jax.tree.map(
            lambda leaf, sent: np.frombuffer(sent.tobytes(), leaf.dtype).reshape(leaf.shape),
            tree,
            multihost_utils.broadcast_one_to_all(as_bytes),
        )
