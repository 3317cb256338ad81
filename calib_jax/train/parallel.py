"""Several devices: the one file that says pmap.

A step is written for one device with an `axis_name`; `data_parallel` runs it on all. State and
resident data are copied to every device, batches are split between them. What is placed here
has the sharding that pmap gives its results, else the second call would compile once more and
nothing would be donated.
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
    """List devices of this process: all, or the first few."""
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
    """Leave out the devices of other processes."""
    return [device for device in devices if device.process_index == jax.process_index()]


class Program:
    """A function that runs on every device, each with its entry of the leading axis."""

    def __init__(self, run: Any, *first: Any) -> None:
        self._run = run
        self._first = first

    def given(self, *first: Any) -> Program:
        """Give it its first arguments for all calls."""
        return Program(self._run, *self._first, *first)

    def __call__(self, *arguments: Any) -> Any:
        """Run on all devices, without waiting."""
        return self._run(*self._first, *arguments)

    def compiled(self, *arguments: Any) -> Any:
        """Compile for arguments like these, without running; a call does not compile again."""
        return self._run.lower(*self._first, *arguments).compile()


def data_parallel(
    step: Callable[..., Any],
    devices: Devices,
    *,
    axis_name: str = AXIS,
    donate: Sequence[int] = (),
) -> Program:
    """Run a function on every device, each with its entry of the leading axis.

    Args:
      step: what runs on each.
      devices: where; of several processes, each gives the entries of its own devices.
      axis_name: of the devices, inside the step.
      donate: positions of arguments whose memory the results may take.
    """
    return Program(
        jax.pmap(step, axis_name=axis_name, devices=devices, donate_argnums=tuple(donate))
    )


def _sharding(devices: Devices) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


def replicate(tree: PyTree, devices: Devices) -> PyTree:
    """Copy a tree to every device, under a new leading axis."""
    count, sharding = len(devices), _sharding(devices)

    def placed(leaf: Any) -> jax.Array:
        host = _canonical(leaf)
        copies = [jax.device_put(host[None], device) for device in devices]
        return jax.make_array_from_single_device_arrays(
            (count, *host.shape), sharding, copies, dtype=host.dtype
        )

    return jax.tree.map(placed, tree)


def split(tree: PyTree, devices: Devices) -> PyTree:
    """Give every device its entry of the leading axis."""
    sharding = _sharding(devices)
    return jax.tree.map(lambda leaf: jax.device_put(_canonical(leaf), sharding), tree)


def _canonical(leaf: Any) -> np.ndarray:
    """Make a leaf an array of a dtype that JAX has: without x64, 64 bits become 32."""
    host = np.asarray(leaf)
    return host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)


def rows_of_devices(array: np.ndarray, num_devices: int, accumulate: int, axis: int) -> np.ndarray:
    """Deal the rows of global batches to the devices, as a new leading axis.

    The rows of a batch are its microbatches one after another, and each of them is split
    between the devices: so a microbatch holds the same examples whatever their number.
    """
    shape = array.shape
    rows = shape[axis] // (num_devices * accumulate)
    array = array.reshape(*shape[:axis], accumulate, num_devices, rows, *shape[axis + 1 :])
    array = np.moveaxis(array, axis + 1, 0)
    return array.reshape(num_devices, *shape[:axis], accumulate * rows, *shape[axis + 1 :])


def first(tree: PyTree) -> PyTree:
    """Take the copy of the first device, to the host, in memory of its own.

    A view of a device's memory would change under our hands when the memory is donated.
    """

    def one(leaf: jax.Array) -> np.ndarray:
        return np.array(np.asarray(leaf.addressable_shards[0].data)[0], copy=True)

    return jax.tree.map(one, tree)


def of_every_device(tree: PyTree) -> PyTree:
    """Take what every device of this process has, to the host, in memory of its own."""
    return jax.tree.map(lambda leaf: np.array(leaf, copy=True), tree)


def differing(tree: PyTree) -> list[str]:
    """Name the leaves whose copies are not bitwise the same on all devices."""
    found = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        copies = [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards]
        if len(set(copies)) > 1:
            found.append(jax.tree_util.keystr(path, simple=True, separator="/"))
    return found
