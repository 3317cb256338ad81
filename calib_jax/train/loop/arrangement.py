"""Place several runs of one experiment on the devices and train them in one program.

    "map"      runs one after another, each on all devices: bitwise equal to each run alone
    "vmap"     runs batched in every operation: for GPUs that one run does not saturate
    "devices"  each device trains its own runs, one after another, without collectives: bitwise
               equal to each run alone on that device

A single run is a map over one run and executes the same program. The number of runs is an argument
of the program, so that the compiler cannot specialise for one run.

On the devices every array has two leading axes, `[devices, slots, ...]`. With "map" and "vmap"
every device holds a copy of all runs. With "devices" the runs are split between the devices, and
the last slots may hold unused copies.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core.inputs import checks
from calib_jax.core.types import PyTree
from calib_jax.train.devices import parallel
from calib_jax.train.devices.parallel import Devices, Program

ARRANGEMENTS = ("map", "vmap", "devices")


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The placement of runs on devices.

    Attributes:
      devices: the devices of all processes, as a tuple, so that programs are cached by arrangement.
      num_runs: the number of runs.
      over: one of `ARRANGEMENTS`.
    """

    devices: Devices
    num_runs: int = 1
    over: str = "map"

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        checks.at_least("num_runs", self.num_runs, 1)
        checks.one_of("over", self.over, ARRANGEMENTS)
        if self.splits_runs and len(self.local) < len(self.devices):
            raise ValueError(
                'over="devices" needs all devices in one process: use over="map", or start each'
                " process alone, with its own folder."
            )

    @property
    def splits_runs(self) -> bool:
        """Whether the runs, and not the batches, are split between the devices."""
        return self.over == "devices"

    @functools.cached_property
    def local(self) -> Devices:
        """The devices of this process."""
        return parallel.of_this_process(self.devices)

    @property
    def sharing(self) -> int:
        """The number of devices that share a batch."""
        return 1 if self.splits_runs else len(self.devices)

    @property
    def axis_name(self) -> str | None:
        """The axis name of the devices that share a batch; None for one device.

        With an axis of one device, XLA's CPU compiler would copy all gradients to sum them.
        """
        return parallel.AXIS if self.sharing > 1 else None

    @property
    def slots(self) -> int:
        """The number of runs on a device."""
        return -(-self.num_runs // len(self.devices)) if self.splits_runs else self.num_runs

    # ------------------------------------------------------------------------------------------
    # Transfers between host and devices.

    def place(self, trees: Sequence[PyTree], *, idle: PyTree = None) -> PyTree:
        """Place one tree per run on the devices.

        Args:
          trees: one tree per run.
          idle: the tree for unused slots; a copy of the last run's tree by default.
        """
        if not self.splits_runs:
            return parallel.replicate(_stacked(trees, 0), self.local)
        left = len(self.devices) * self.slots - self.num_runs
        filled = [*trees, *(trees[-1] if idle is None else idle for _ in range(left))]
        shape = (len(self.devices), self.slots)
        per_device = jax.tree.map(
            lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), _stacked(filled, 0)
        )
        return parallel.split(per_device, self.local)

    def place_shares(self, trees: Sequence[PyTree]) -> PyTree:
        """Place trees that differ between the devices that share a batch.

        Args:
          trees: one tree per run, with a leading axis over the devices of this process that share
            the batch.
        """
        if not self.splits_runs:
            return parallel.split(_stacked(trees, 1), self.local)
        return self.place([jax.tree.map(lambda leaf: leaf[0], tree) for tree in trees])

    def fetch(self, placed: PyTree) -> list[PyTree]:
        """Copy one tree per run to the host."""
        if not self.splits_runs:
            whole = parallel.first(placed)
        else:
            whole = jax.tree.map(np.concatenate, parallel.of_every_device(placed))
        return [
            jax.tree.map(lambda leaf, run=run: leaf[run], whole) for run in range(self.num_runs)
        ]

    # ------------------------------------------------------------------------------------------
    # Programs.

    def program(
        self, function: Callable[..., tuple[PyTree, PyTree]], *, per_run: int, donate: bool = False
    ) -> Program:
        """Build a program over all runs from a function of one run.

        Args:
          function: `(carry, *per_run, *shared) -> (carry, result)`; the device axis is named
            `parallel.AXIS` if `sharing` is more than one.
          per_run: the number of arguments after the first that differ between runs.
          donate: whether to donate the buffers of the carry.

        Returns:
          The function over trees from `place` and `place_shares`; the result has the leading axes.
        """

        def of_device(count: Any, carry: PyTree, *arguments: Any) -> tuple[PyTree, PyTree]:
            of_runs, shared = arguments[:per_run], arguments[per_run:]
            if self.over == "vmap":
                axes = (0, *(0 for _ in of_runs), *(None for _ in shared))
                return jax.vmap(function, in_axes=axes)(carry, *of_runs, *shared)
            return _one_after_another(function, count, self.slots, carry, of_runs, shared)

        # With over="devices" a collective over `parallel.AXIS` raises an unknown-axis error.
        axis_name = "separate" if self.splits_runs else parallel.AXIS
        donated = (1,) if donate else ()
        run = self.on_devices(of_device, axis_name=axis_name, donate=donated)
        return run.bind(parallel.replicate(np.int32(self.slots), self.local))

    def program_of_one(
        self, function: Callable[..., tuple[PyTree, PyTree]], *, donate: bool = False
    ) -> Program:
        """Build a program that advances one run and leaves the carries of the others unchanged.

        Args:
          function: `(carry, *arguments) -> (carry, result)`.
          donate: whether to donate the buffers of the carries.

        Returns:
          `(carries, number, *arguments) -> (carries, result)`, with one of `numbers`.
        """

        def of_device(carries: PyTree, run: Any, *arguments: Any) -> tuple[PyTree, PyTree]:
            carry, result = function(_taken(carries, run), *arguments)
            return _put(carries, run, carry), result

        return self.on_devices(of_device, donate=(0,) if donate else ())

    def on_devices(self, function: Callable[..., PyTree], **options: Any) -> Program:
        """Build a program from a function of one device, with options of `data_parallel`."""
        return parallel.data_parallel(function, self.devices, **options)

    @functools.cached_property
    def numbers(self) -> list[PyTree]:
        """The index of each run, on the devices."""
        return [parallel.replicate(np.int32(run), self.local) for run in range(self.num_runs)]


def _one_after_another(
    function: Callable[..., tuple[PyTree, PyTree]],
    count: Any,
    slots: int,
    carry: PyTree,
    of_runs: tuple[Any, ...],
    shared: tuple[Any, ...],
) -> tuple[PyTree, PyTree]:
    """Map over runs; update the carries in place, so that only one set of carries is allocated."""
    first = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (carry, of_runs)
    )
    shapes = jax.eval_shape(function, first[0], *first[1], *shared)[1]
    empty = jax.tree.map(lambda shape: jnp.zeros((slots, *shape.shape), shape.dtype), shapes)

    def of_run(run: Any, so_far: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        carries, results = so_far
        carry, result = function(_taken(carries, run), *_taken(of_runs, run), *shared)
        return _put(carries, run, carry), _put(results, run, result)

    return lax.fori_loop(0, count, of_run, (carry, empty))


def _taken(trees: PyTree, run: Any) -> PyTree:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, run, keepdims=False), trees)


def _put(trees: PyTree, run: Any, tree: PyTree) -> PyTree:
    put = lambda leaf, entry: lax.dynamic_update_index_in_dim(leaf, entry, run, 0)  # noqa: E731
    return jax.tree.map(put, trees, tree)


def _stacked(trees: Sequence[PyTree], axis: int) -> PyTree:
    return jax.tree.map(lambda *leaves: np.stack(leaves, axis=axis), *trees)
