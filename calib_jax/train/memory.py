"""Whether it fits: what a compiled program needs, and what the devices have left."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calib_jax.core.types import PyTree
from calib_jax.train import parallel
from calib_jax.train.parallel import Devices

# Where Linux says what a process may still have: the machine, and the limit of a container.
MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


class DoesNotFit(RuntimeError):
    """More memory is needed than there is."""


def free(devices: Devices) -> float:
    """Say how many bytes a device of this process has left; infinite where nobody knows."""
    device = parallel.of_this_process(devices)[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    if device.platform == "cpu":
        return of_host() / len(parallel.of_this_process(devices))
    return math.inf


def of_host() -> float:
    """Return how many bytes the processes of this machine, or container, can still take."""
    return min(_of_machine(), _of_container())


def _of_machine() -> float:
    try:
        lines = dict(line.split(":", 1) for line in MACHINE.read_text().splitlines())
        return 1024 * float(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return math.inf


def _of_container() -> float:
    try:
        most = float((CONTAINER / "memory.max").read_text())  # "max" is no number
        used = float((CONTAINER / "memory.current").read_text())
        lines = (CONTAINER / "memory.stat").read_text().splitlines()
        stat = {name: float(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return math.inf
    # Files that were read lie in memory, too, until somebody needs it.
    files = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    return max(0.0, most - used + files)


def size(tree: PyTree) -> int:
    """Count the bytes of the arrays of a tree; their shapes are enough."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def check_states(state: PyTree, num_runs: int, devices: Devices, *, over: str = "map") -> None:
    """Refuse to train more runs at once than there is memory for their states.

    Args:
      state: of one run, or its shapes.
      num_runs: how many.
      devices: of all processes.
      over: how the runs lie on them, as in `Arrangement`.
    """
    on_a_device = -(-num_runs // len(devices)) if over == "devices" else num_runs
    one, left = size(state), free(devices)
    if one * on_a_device > left:
        fit = int(left / one) * (len(devices) if over == "devices" else 1)
        way_out = f"train at most {fit} at once" if fit else "take a smaller network"
        raise DoesNotFit(
            f"the state of {num_runs} run{'s' * (num_runs > 1)} takes {said(one * on_a_device)} on"
            f" a device, which has {said(left)} left: {way_out}."
        )


def plan_of(compiled: Any) -> Any:
    """Ask XLA how a program lays out its memory; None where a backend has no answer."""
    try:
        return compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None


class Need:
    """What a compiled training program takes on a device, beside what lies there already.

    Args:
      compiled: the program.
      rows: examples of a batch on one device.
    """

    def __init__(self, compiled: Any, rows: int) -> None:
        found = plan_of(compiled)
        self.known = found is not None
        self.rows = rows
        if self.known:
            made = found.output_size_in_bytes - found.alias_size_in_bytes
            self.stays = found.argument_size_in_bytes
            self.comes = max(found.temp_size_in_bytes + made, 1)

    def check(self, left: float, sharing: int) -> str:
        """Say it in a sentence, or raise one.

        Args:
          left: bytes that a device has.
          sharing: devices that share a batch.
        """
        if not self.known:
            return "this device does not say how much memory a step needs."
        largest = int(min(self.rows * left / self.comes, 1e12)) * sharing
        if self.comes > left:
            fits = f" (about {largest:,} would fit)" if largest else ""
            raise DoesNotFit(
                f"a step needs {said(self.comes)} on a device, which has {said(left)} left: take a"
                f" smaller batch_size{fits}, the same one in parts (accumulate), fewer runs at"
                " once, or a smaller network."
            )
        text = f"memory of a step: {said(self.comes)} beside {said(self.stays)} that stay"
        if math.isinf(left):
            return text + "."
        few = f"{float(f'{largest:.2g}'):,.0f}"
        return f"{text}; {said(left)} are free: batches of up to about {few} examples would fit."


def said(count: float) -> str:
    """Put bytes into words.

    >>> said(1_234), said(56_700_000), said(8.9e9)
    ('1.2 kB', '57 MB', '8.9 GB')
    """
    unit, factor = next(
        ((unit, factor) for unit, factor in (("GB", 1e9), ("MB", 1e6)) if count >= factor),
        ("kB", 1e3),
    )
    return f"{float(f'{count / factor:.2g}'):,g} {unit}"
