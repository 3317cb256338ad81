"""Data parallelism over several devices; no other file calls `jax.pmap`.

A step is written for one device with an `axis_name`, and `data_parallel` runs it on all devices.
State and resident data are replicated; batches are split between the devices. Arrays placed here
have the sharding of pmap's results. With another sharding the second call would compile again and
donate no buffers.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
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
        said = ", ".join(f"process {process} has {count}" for process, count in counts.items())
        raise ValueError(f"all processes must have as many devices: {said}.")
    return devices


def of_this_process(devices: Devices) -> Devices:
    """Select the devices of this process."""
    return [device for device in devices if device.process_index == jax.process_index()]


class Program:
    """A function that runs on every device, on its entry of the leading axis."""

    def __init__(self, run: Any, *first: Any) -> None:
        self._run = run
        self._first = first

    def given(self, *first: Any) -> Program:
        """Bind the first arguments of all calls."""
        return Program(self._run, *self._first, *first)

    def __call__(self, *arguments: Any) -> Any:
        """Run on all devices, without waiting."""
        return self._run(*self._first, *arguments)

    def compiled(self, *arguments: Any) -> Any:
        """Compile for arguments of these shapes without running; later calls reuse the result."""
        return self._run.lower(*self._first, *arguments).compile()


def data_parallel(
    step: Callable[..., Any],
    devices: Devices,
    *,
    axis_name: str = AXIS,
    donate: Sequence[int] = (),
) -> Program:
    """Map a function over devices, each with its entry of the leading axis.

    Args:
      step: the function that runs on each device.
      devices: the devices; each process passes the entries of its own devices.
      axis_name: the name of the device axis inside the step.
      donate: the positions of arguments whose buffers are donated.
    """
    return Program(
        jax.pmap(step, axis_name=axis_name, devices=devices, donate_argnums=tuple(donate))
    )


def _sharding(devices: Devices) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


def replicate(tree: PyTree, devices: Devices) -> PyTree:
    """Copy a tree to every device, with a new leading axis."""
    count, sharding = len(devices), _sharding(devices)

    def placed(leaf: Any) -> jax.Array:
        host = _canonical(leaf)
        copies = [jax.device_put(host[None], device) for device in devices]
        return jax.make_array_from_single_device_arrays(
            (count, *host.shape), sharding, copies, dtype=host.dtype
        )

    return jax.tree.map(placed, tree)


def split(tree: PyTree, devices: Devices) -> PyTree:
    """Place each entry of the leading axis on its device."""
    sharding = _sharding(devices)
    return jax.tree.map(lambda leaf: jax.device_put(_canonical(leaf), sharding), tree)


def _canonical(leaf: Any) -> np.ndarray:
    """Convert a leaf to an array with a JAX dtype: without x64, 64 bits become 32."""
    host = np.asarray(leaf)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)


def rows_of_devices(array: np.ndarray, num_devices: int, accumulate: int, axis: int) -> np.ndarray:
    """Split the rows of global batches between the devices, as a new leading axis.

    The rows of a batch are its microbatches in sequence, and each microbatch is split between the
    devices. So a microbatch holds the same examples for any number of devices.
    """
    shape = array.shape
    rows = shape[axis] // (num_devices * accumulate)
    array = array.reshape(*shape[:axis], accumulate, num_devices, rows, *shape[axis + 1 :])
    array = np.moveaxis(array, axis + 1, 0)
    return array.reshape(num_devices, *shape[:axis], accumulate * rows, *shape[axis + 1 :])


def first(tree: PyTree) -> PyTree:
    """Copy the first device's values to the host.

    The result must be a copy, because a view would change when the device buffer is donated.
    """

    def one(leaf: jax.Array) -> np.ndarray:
        return np.array(np.asarray(leaf.addressable_shards[0].data)[0], copy=True)

    return jax.tree.map(one, tree)


def of_every_device(tree: PyTree) -> PyTree:
    """Copy the values of every device of this process to the host."""
    return jax.tree.map(lambda leaf: np.array(leaf, copy=True), tree)


def differing(tree: PyTree) -> list[str]:
    """List the leaves whose copies are not bitwise equal on all devices."""
    found = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        copies = [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards]
        if len(set(copies)) > 1:
            found.append(jax.tree_util.keystr(path, simple=True, separator="/"))
    return found
