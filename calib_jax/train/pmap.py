"""Data parallelism over several devices and processes; no other file calls `jax.pmap`.

A step is written for one device with an `axis_name`, and `data_parallel` runs it on all devices
with `jax.pmap`. State and resident data are replicated; batches are split between the devices.
Arrays placed here have the sharding of pmap's results. With another sharding the second call would
compile again and donate no buffers.

With several processes, process 0 alone reads and writes folders. It broadcasts what it has read,
and all processes agree on the values that may differ between them, such as a received signal.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from calib_jax.core.types import PyTree

AXIS = "devices"

Devices: TypeAlias = Sequence[jax.Device]


def local_devices(count: int | None = None) -> Devices:
    """List all devices of this process, or the first `count`."""
    devices = jax.local_devices()
    if count is not None and not 1 <= count <= len(devices):
        raise ValueError(f"there are {len(devices)} devices, so {count} cannot be used.")
    return devices[:count]


def all_devices() -> Devices:
    """List the devices of all processes, process by process."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    counts = collections.Counter(device.process_index for device in devices)
    if len({*counts.values()}) > 1:
        listed = ", ".join(f"process {process} has {count}" for process, count in counts.items())
        raise ValueError(f"all processes must have the same number of devices: {listed}.")
    return devices


def of_this_process(devices: Devices) -> Devices:
    """Select the devices of this process."""
    return [device for device in devices if device.process_index == jax.process_index()]


def axis_of(devices: Devices) -> str | None:
    """Return the name of the device axis; None for one device.

    With an axis of one device, XLA's CPU compiler would copy all gradients to sum them.
    """
    return AXIS if len(devices) > 1 else None


def data_parallel(
    step: Callable[..., Any], devices: Devices, *, axis_name: str = AXIS, donate: Sequence[int] = ()
) -> Any:
    """Map a function over devices, each with one entry of the leading axis.

    Args:
      step: the function that runs on each device.
      devices: the devices; each process passes the entries of its own devices.
      axis_name: the name of the device axis inside the step.
      donate: the positions of arguments whose buffers are donated.
    """
    return jax.pmap(step, axis_name=axis_name, devices=devices, donate_argnums=tuple(donate))


def for_many_calls(run: Any, devices: Devices) -> Any:
    """Make calls of a data-parallel step cheap where the devices belong to several processes.

    There `jax.pmap` turns each argument into an array over all devices and each result back, which
    takes 4 ms for a state of 430 arrays. The compiled program takes and returns arrays over all
    devices, so that only new ones are turned.
    """
    if len(of_this_process(devices)) == len(devices):
        return run
    sharding, programs = _sharding(devices), {}

    def over_all(leaf: jax.Array) -> jax.Array:
        if not leaf.is_fully_addressable:
            return leaf
        shape = (len(devices), *leaf.shape[1:])
        parts = [shard.data for shard in leaf.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=leaf.dtype)

    def call(*arguments: PyTree) -> Any:
        arguments = jax.tree.map(over_all, arguments)
        kinds = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        if kinds not in programs:
            programs[kinds] = run.lower(*arguments).compile()
        return programs[kinds](*arguments)

    return call


# ------------------------------------------------------------------------------------------------
# Transfers between the host and the devices of this process.


def _sharding(devices: Devices) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


def replicate(tree: PyTree, devices: Devices) -> PyTree:
    """Copy a tree to every device, with a new leading axis."""

    def copies(leaf: Any) -> np.ndarray:
        host = canonical(leaf)
        return np.broadcast_to(host, (len(devices), *host.shape))

    return split(jax.tree.map(copies, tree), devices)


def split(tree: PyTree, devices: Devices) -> PyTree:
    """Place each entry of the leading axis on its device: `[devices, rows, ...]`."""
    count, sharding = len(devices), _sharding(devices)

    def placed(leaf: Any) -> jax.Array:
        shape = np.shape(leaf)
        if shape[:1] != (count,):
            raise ValueError(
                f"split needs a leading axis over the {count} devices, got the shape {shape}:"
                f" reshape the rows to [{count}, -1, ...]."
            )
        return jax.device_put(canonical(leaf), sharding)

    return jax.tree.map(placed, tree)


def canonical(leaf: Any) -> np.ndarray:
    """Convert a leaf to a host array with a JAX dtype: without x64, 64 bits become 32.

    Integers that do not fit are clipped, so that a label out of range stays out of range.
    """
    host = np.asarray(leaf)
    dtype = jax.dtypes.canonicalize_dtype(host.dtype)
    if host.dtype != dtype and host.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        host = np.clip(host, limits.min, limits.max)
    return host.astype(dtype, copy=False)


def first(tree: PyTree) -> PyTree:
    """Copy the first device's values to the host.

    The result must be a copy, because a view would change when the device buffer is donated.
    """
    shards = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_shards[0].data), tree)
    return jax.tree.map(lambda shard: np.array(shard[0]), shards)


# ------------------------------------------------------------------------------------------------
# Several processes.


class ProcessZeroFailed(RuntimeError):
    """Raised in the other processes when process 0 raises an error."""


class Processes:
    """Communication between the processes that own the devices.

    Args:
      devices: the devices of all processes, or of this process alone.

    Attributes:
      number: the number of processes.
      leads: whether this process reads and writes folders.
    """

    def __init__(self, devices: Devices) -> None:
        self.number = len({device.process_index for device in devices})
        if not of_this_process(devices) or self.number not in (1, jax.process_count()):
            raise ValueError(
                f"the devices belong to {self.number} of {jax.process_count()} processes: give the"
                " devices of this process, or jax.devices()."
            )
        self.leads = self.number == 1 or jax.process_index() == 0

    def largest(self, *values: float) -> list[float]:
        """Reduce numbers, one by one, to the maximum over all processes."""
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
