"""Several processes that train together: who leads, and how all come to know one thing.

The first process alone reads and writes the folder of a run. What it found there, and what only
one of them can know (that a signal came, how long a piece took), is told to all through the
devices, so that every process does the same step next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax import lax

from calib_jax.core.types import PyTree
from calib_jax.train import parallel
from calib_jax.train.parallel import AXIS, Devices

WORD = 4  # bytes


class Elsewhere(RuntimeError):
    """What the first process has found wrong, said by another one."""


class Together:
    """The processes whose devices these are.

    Args:
      devices: of all of them.

    Attributes:
      number: how many processes.
    """

    def __init__(self, devices: Devices) -> None:
        self._local = parallel.of_this_process(devices)
        if not self._local:
            raise ValueError("none of the devices belongs to this process.")
        self._several = len(self._local) < len(devices)
        self.number = len(devices) // len(self._local)
        self._largest = parallel.data_parallel(lambda value: lax.pmax(value, AXIS), devices)
        self._total = parallel.data_parallel(lambda value: lax.psum(value, AXIS), devices)

    @property
    def leads(self) -> bool:
        """Whether this process is the first one, which reads and writes."""
        return not self._several or jax.process_index() == 0

    def largest(self, values: Sequence[float]) -> list[float]:
        """Agree on the largest of what every process has, number by number."""
        if not self._several:
            return [*values]
        mine = parallel.replicate(np.asarray(values, np.float32), self._local)
        return [float(value) for value in parallel.first(self._largest(mine))]

    def of_first(self, function: Callable[[], bytes]) -> bytes:
        """Call a function in the first process alone; all get what it gives, or raise."""
        if not self._several:
            return function()
        found, error = b"", None
        if self.leads:
            try:
                found = function()
            except Exception as caught:  # the others wait, and must hear of it
                found, error = str(caught).encode(), caught
        size, failed = self._summed(np.array([len(found), error is not None], np.uint32))
        told = self._told(found, int(size))
        if error is not None:
            raise error
        if failed:
            raise Elsewhere(told.decode())
        return told

    def tree_of_first(self, tree: PyTree) -> PyTree:
        """Give all processes the arrays that the first one has; shapes are the same in all."""
        if not self._several:
            return tree

        def one(leaf: np.ndarray) -> np.ndarray:
            told = self._told(leaf.tobytes(), leaf.nbytes)
            return np.frombuffer(told, leaf.dtype).reshape(leaf.shape)

        return jax.tree.map(one, tree)

    def _told(self, found: bytes, size: int) -> bytes:
        """Send bytes of the first process, as many words as a power of two: few programs."""
        if not size:
            return b""
        words = np.zeros(1 << (-(-size // WORD) - 1).bit_length(), np.uint32)
        if self.leads:
            words.view(np.uint8)[:size] = np.frombuffer(found, np.uint8)
        return self._summed(words).tobytes()[:size]

    def _summed(self, words: np.ndarray) -> np.ndarray:
        """Add up what all devices say, of which only the first says anything."""
        rows = np.zeros((len(self._local), len(words)), np.uint32)
        if self.leads:
            rows[0] = words
        total: np.ndarray = parallel.first(self._total(parallel.split(rows, self._local)))
        return total
