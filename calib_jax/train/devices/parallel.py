"""Data parallelism over several devices; no other file calls `jax.pmap` or `jax.shard_map`.

A step is written for one device with an `axis_name`, and `data_parallel` runs it on all devices,
with `jax.pmap` or with `jit(shard_map)`; the results of both are bitwise equal. A third engine is
`jit(shard_map)` with its default check (`check_vma`), and equal to these up to rounding: the
gradients of batch norm over devices and of gathered rows (MMCE) differ, because the check knows
which values are replicated. It sums their cotangents over devices before they are multiplied by
local derivatives, where the other engines sum the products. Under the check, a loop must begin with
values that vary over devices as its results do (`core.statistics.varying`).
State and resident data are replicated; batches are split between the devices. Arrays placed here
have the sharding of pmap's results. With another sharding the second call would compile again and
donate no buffers.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from calib_jax.core.inputs import checks
from calib_jax.core.types import PyTree

AXIS = "devices"
ENGINES = ("pmap", "shard_map", "checked_shard_map")

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


class Program:
    """A function that runs on every device, on its entry of the leading axis.

    Args:
      run: the function over all devices.
      bound: its first arguments, the same in all calls.
      sharding: the sharding of arguments over all processes; None passes them as they are.
    """

    def __init__(
        self, run: Any, bound: tuple[Any, ...] = (), sharding: NamedSharding | None = None
    ) -> None:
        self._run = run
        self._bound = bound
        self._sharding = sharding

    def bind(self, *arguments: Any) -> Program:
        """Bind the first arguments of all calls."""
        return Program(self._run, self._all(arguments), self._sharding)

    def _all(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._sharding is not None:
            arguments = _over_all_processes(arguments, self._sharding)
        return (*self._bound, *arguments)

    def __call__(self, *arguments: Any) -> Any:
        """Run on all devices, without waiting."""
        return self._run(*self._all(arguments))

    def compiled(self, *arguments: Any) -> Any:
        """Compile for arguments of these shapes without running; later calls reuse the result."""
        return self._run.lower(*self._all(arguments)).compile()


def data_parallel(
    step: Callable[..., Any],
    devices: Devices,
    *,
    axis_name: str = AXIS,
    donate: Sequence[int] = (),
    engine: str = "pmap",
) -> Program:
    """Map a function over devices, each with its entry of the leading axis.

    Args:
      step: the function that runs on each device.
      devices: the devices; each process passes the entries of its own devices.
      axis_name: the name of the device axis inside the step.
      donate: the positions of arguments whose buffers are donated.
      engine: "pmap", "shard_map" for `jit(shard_map)`, or "checked_shard_map" for the same with its
        default check.
    """
    checks.one_of("engine", engine, ENGINES)
    if engine == "pmap":
        return Program(
            jax.pmap(step, axis_name=axis_name, devices=devices, donate_argnums=tuple(donate))
        )
    sharding, over = _sharding(devices), PartitionSpec(axis_name)

    def on_device(*arguments: Any) -> Any:
        """Remove the leading axis, which has one entry on a device, and add it to the results."""
        entries = jax.tree.map(lambda leaf: jnp.squeeze(leaf, 0), arguments)
        return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), step(*entries))

    mapped = jax.shard_map(
        on_device,
        mesh=Mesh(np.array(devices), (axis_name,)),
        in_specs=over,
        out_specs=over,
        check_vma=engine == "checked_shard_map",
    )
    # With the sharding of the inputs the results can be the next inputs without a new compilation.
    run = jax.jit(
        mapped, in_shardings=sharding, out_shardings=sharding, donate_argnums=tuple(donate)
    )
    return Program(run, sharding=None if sharding.is_fully_addressable else sharding)


def _over_all_processes(tree: PyTree, sharding: NamedSharding) -> PyTree:
    """Join the entries of this process's devices to an array over the devices of all processes."""

    def joined(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.sharding == sharding:
            return leaf
        shards = [shard.data for shard in leaf.addressable_shards]
        shape = (sharding.num_devices, *leaf.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    return jax.tree.map(joined, tree)


def _sharding(devices: Devices) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))


def replicate(tree: PyTree, devices: Devices) -> PyTree:
    """Copy a tree to every device, with a new leading axis."""
    count, sharding = len(devices), _sharding(devices)

    def placed(leaf: Any) -> jax.Array:
        host = canonical(leaf)
        copies = [jax.device_put(host[None], device) for device in devices]
        return jax.make_array_from_single_device_arrays(
            (count, *host.shape), sharding, copies, dtype=host.dtype
        )

    return jax.tree.map(placed, tree)


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

    Integers that do not fit are clipped, so that a label out of range stays so.
    """
    host = np.asarray(leaf)
    dtype = jax.dtypes.canonicalize_dtype(host.dtype)
    if host.dtype != dtype and host.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        host = np.clip(host, limits.min, limits.max)
    return host.astype(dtype, copy=False)


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

    def copy(leaf: jax.Array) -> np.ndarray:
        return np.array(np.asarray(leaf.addressable_shards[0].data)[0], copy=True)

    return jax.tree.map(copy, tree)


def of_every_device(tree: PyTree) -> PyTree:
    """Copy the values of every device of this process to the host."""
    return jax.tree.map(lambda leaf: np.array(leaf, copy=True), tree)


def differing(tree: PyTree) -> list[str]:
    """List the leaves whose copies are not bitwise equal on all devices."""
    paths = []
    for path, leaf in jax.tree.leaves_with_path(tree):
        copies = [np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards]
        if len(set(copies)) > 1:
            paths.append(jax.tree_util.keystr(path, simple=True, separator="/"))
    return paths
