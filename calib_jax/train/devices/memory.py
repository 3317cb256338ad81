"""Check that a compiled program fits into the free memory of the devices."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from calib_jax.core import machine
from calib_jax.core.types import PyTree
from calib_jax.train.devices import parallel
from calib_jax.train.devices.parallel import Devices

# Rows with fewer labels need little memory and are not checked.
MANY_LABELS = 2**22
# The copies of all rows at the peak: the batches, the joined array and the array without padding.
COPIES = 3


class DoesNotFit(RuntimeError):
    """Raised when a program needs more memory than a device has free."""


def free(devices: Devices) -> float:
    """Return the free bytes of a device of this process; infinity if the number is unknown."""
    device = parallel.of_this_process(devices)[0]
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    if device.platform == "cpu":
        return machine.free_memory() / len(parallel.of_this_process(devices))
    return math.inf


def size(tree: PyTree) -> int:
    """Count the bytes of a tree of arrays or of `ShapeDtypeStruct`s."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def check_states(state: PyTree, num_runs: int, devices: Devices, *, over: str = "map") -> None:
    """Raise `DoesNotFit` if the states of all runs do not fit into memory.

    Args:
      state: the state of one run, or its shapes.
      num_runs: the number of runs.
      devices: the devices of all processes.
      over: the placement of the runs, as in `Arrangement`.
    """
    on_a_device = -(-num_runs // len(devices)) if over == "devices" else num_runs
    needed, left = size(state), free(devices)
    if needed * on_a_device > left:
        fit = int(left / needed) * (len(devices) if over == "devices" else 1)
        way_out = f"train at most {fit} at once" if fit else "take a smaller network"
        raise DoesNotFit(
            f"the state of {num_runs} run{'s' * (num_runs > 1)} takes"
            f" {text_of(needed * on_a_device)} on a device, which has {text_of(left)} left:"
            f" {way_out}."
        )


def plan_of(compiled: Any) -> Any:
    """Return XLA's memory analysis of a program; None if the backend has none."""
    try:
        return compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None


def check_step(compiled: Any, rows: int, left: float, sharing: int) -> str:
    """Return a message about the memory of a training step; raise `DoesNotFit` if it is too large.

    Args:
      compiled: the program.
      rows: the number of examples of a batch on one device.
      left: the free bytes of a device.
      sharing: the number of devices that share a batch.
    """
    plan = plan_of(compiled)
    if plan is None:
        return "this device does not report the memory that a step needs."
    made = plan.output_size_in_bytes - plan.alias_size_in_bytes
    temporaries = max(plan.temp_size_in_bytes + made, 1)
    largest = int(min(rows * left / temporaries, 1e12)) * sharing
    if temporaries > left:
        fits = f" (about {largest:,} would fit)" if largest else ""
        raise DoesNotFit(
            f"a step needs {text_of(temporaries)} on a device, which has {text_of(left)} left: take"
            f" a smaller batch_size{fits}, the same one in parts (accumulate), fewer runs at once,"
            " or a smaller network."
        )
    text = (
        f"a step needs {text_of(plan.argument_size_in_bytes)} of memory for its inputs (network,"
        f" optimizer, data) and {text_of(temporaries)} more while it runs"
    )
    if math.isinf(left):
        return text + "."
    few = f"{float(f'{largest:.2g}'):,.0f}"
    return f"{text}; {text_of(left)} are free: batches of up to about {few} examples would fit."


def check_joined(subject: str, size: int, way_out: str) -> None:
    """Raise `DoesNotFit` if the host has no memory to join the rows of all batches.

    Args:
      subject: the start of the error message.
      size: the bytes of all rows.
      way_out: what the user can do.
    """
    left = machine.free_memory()
    if size * COPIES > left:
        raise DoesNotFit(
            f"{subject} take {text_of(size)}, {COPIES} times while batches are joined, and"
            f" {text_of(left)} are free: {way_out}."
        )


def text_of(count: float) -> str:
    """Format a number of bytes with two digits.

    >>> text_of(1_234), text_of(56_700_000), text_of(8.9e9)
    ('1.2 kB', '57 MB', '8.9 GB')
    """
    unit, factor = next(
        ((unit, factor) for unit, factor in (("GB", 1e9), ("MB", 1e6)) if count >= factor),
        ("kB", 1e3),
    )
    return f"{float(f'{count / factor:.2g}'):,g} {unit}"
