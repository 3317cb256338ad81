"""Statistics that merge over parts of the data, over steps and over devices.

A metric over 50,000 examples is not an average of metrics over batches. This module averages no
values: statistics are merged with `+`, reduced over devices with `all_reduce`, and divided
once at the end. There are two kinds:

    Sums   totals (counts, totals per bin):               merged by addition, psum over devices
    Rows   one row per example (equal-mass bins):         concatenated, gathered over devices

Rows grow with the data, so they are not part of the carry of a scan.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core.types import AxisName

_Stat = TypeVar("_Stat", bound="Stat")


@runtime_checkable
class Stat(Protocol):
    """A statistic that merges by `a + b`, and over devices by `a.all_reduce(axis_name)`."""

    def __add__(self: _Stat, other: _Stat) -> _Stat: ...

    def all_reduce(self: _Stat, axis_name: AxisName) -> _Stat:
        """Merge the statistics of all devices."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums:
    """Named totals.

    float32 counts exactly up to 16.8 million, and the number of pixels may exceed that: sum in
    float32 inside a step, and add `sums.host()`, which is float64, between steps.

    >>> part = Sums({"hits": np.array([3.0]), "count": np.array([4.0])})
    >>> (part + part)["hits"]
    array([6.])
    """

    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __add__(self, other: "Sums") -> "Sums":
        _check_alike(self, other)
        return jax.tree.map(_add, self, other)

    def all_reduce(self, axis_name: AxisName) -> "Sums":
        """Add the totals of all devices."""
        return self if axis_name is None else lax.psum(self, axis_name)

    def host(self) -> "Sums":
        """Copy the totals to the host as float64, so that long sums keep their last digit."""
        return jax.tree.map(lambda value: np.asarray(value, np.float64), self)


def _add(a: Any, b: Any) -> Any:
    if np.shape(a) != np.shape(b):  # such as 1 bin and 15, which would broadcast
        raise ValueError(
            f"totals of the shapes {np.shape(a)} and {np.shape(b)} do not merge: add statistics of"
            " the same options and classes."
        )
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.asarray(np.asarray(a, np.float64) + np.asarray(b, np.float64))
    return a + b


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """Named columns with one row per example.

    >>> part = Rows({"confidence": np.array([0.5, 0.75])})
    >>> (part + part)["confidence"].shape
    (4,)
    """

    columns: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __add__(self, other: "Rows") -> "Rows":
        _check_alike(self, other)
        return jax.tree.map(_concatenate, self, other)

    def all_reduce(self, axis_name: AxisName) -> "Rows":
        """Gather the rows of all devices, in the order of the devices."""
        return gather(self, axis_name)


def _concatenate(a: Any, b: Any) -> Any:
    both_on_host = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return (np if both_on_host else jnp).concatenate([a, b])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joint:
    """A named collection of statistics of different kinds."""

    parts: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def __add__(self, other: "Joint") -> "Joint":
        _check_alike(self, other)
        return type(self)({name: part + other.parts[name] for name, part in self.parts.items()})

    def all_reduce(self, axis_name: AxisName) -> "Joint":
        """Call `all_reduce` of every part."""
        parts: Mapping[str, Stat] = self.parts
        return type(self)({name: part.all_reduce(axis_name) for name, part in parts.items()})


def _check_alike(one: Any, other: Any) -> None:
    """Raise an error for statistics of different kinds or names, which do not merge."""
    structures: Any = jax.tree.structure(one), jax.tree.structure(other)
    if type(one) is not type(other) or structures[0] != structures[1]:
        raise ValueError(
            f"{type(one).__name__} and {type(other).__name__} of other names do not merge: add"
            " statistics of the same metrics."
        )


def _is_part(stat: Any) -> bool:
    return isinstance(stat, Sums | Rows)


def merged_scan(stat_of: Callable[[Any], Any], parts: Any) -> Any:
    """Merge the statistics of all parts in one scan: totals are carried, rows are stacked.

    Args:
      stat_of: a function that computes the statistic of a part.
      parts: arrays whose leading axis counts the parts.
    """

    def add(sums: list[Sums], part: Any) -> tuple[list[Sums], list[Rows]]:
        part_sums, part_rows = _sums_and_rows(stat_of(part))
        # Without the barrier XLA adds the rows of a part to the carry one by one, which makes one
        # long float32 sum of the sums of all parts.
        part_sums = jax.tree.map(lax.optimization_barrier, part_sums)
        return jax.tree.map(jnp.add, sums, part_sums), part_rows

    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts)
    shapes = jax.eval_shape(stat_of, first)
    # `zeros_like` of the sums varies over the same devices, as a checked `shard_map` requires.
    sums, stacked = lax.scan(add, jax.tree.map(jnp.zeros_like, _sums_and_rows(shapes)[0]), parts)
    rows = jax.tree.map(lambda column: column.reshape(-1, *column.shape[2:]), stacked)
    left, right = iter(sums), iter(rows)
    return jax.tree.map(
        lambda shape: next(left if isinstance(shape, Sums) else right), shapes, is_leaf=_is_part
    )


def _sums_and_rows(stats: Any) -> tuple[list[Sums], list[Rows]]:
    parts = jax.tree.leaves(stats, is_leaf=_is_part)
    return [part for part in parts if isinstance(part, Sums)], [
        part for part in parts if isinstance(part, Rows)
    ]


def merged(parts: Sequence[Any]) -> Any:
    """Merge statistics on the host: totals in float64, rows as one NumPy array per column.

    >>> hits = [Sums({"hit": np.float32(2)}), Sums({"hit": np.float32(1)})]
    >>> merged(hits)["hit"]
    array(3.)
    """

    def merge(*stats: Any) -> Any:
        if isinstance(stats[0], Sums):
            return functools.reduce(operator.add, (stat.host() for stat in stats))
        return jax.tree.map(lambda *columns: np.concatenate(columns), *stats)

    return jax.tree.map(merge, *parts, is_leaf=_is_part)


NOTHING = Sums({})  # the evidence of a stateless objective


def gather(rows: Any, axis_name: AxisName) -> Any:
    """Concatenate the rows of all devices; gradients flow back to the device of each row.

    Under `shard_map` with its default check the result is replicated, like a `psum`.
    """
    if axis_name is None:
        return rows
    leaves = jax.tree.leaves(rows)
    checked = any(axis_name in jax.typeof(leaf).manual_axis_type.varying for leaf in leaves)
    to = "invarying" if checked else "varying"
    return lax.all_gather(rows, axis_name, axis=0, tiled=True, to=to)


def varying(tree: Any, like: Any) -> Any:
    """Cast leaves to vary over the devices over which a leaf of `like` varies.

    Under `shard_map` with its default check the carry of a loop keeps its type, so a carry that
    begins with constants, or becomes a sum over devices, must be cast. Elsewhere this is a no-op.
    """

    def axes_of(leaf: Any) -> frozenset[Any]:
        return jax.typeof(leaf).manual_axis_type.varying

    axes = frozenset().union(*map(axes_of, jax.tree.leaves(like)))

    def cast(leaf: Any) -> Any:
        missing = tuple(axis for axis in axes if axis not in axes_of(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree) if axes else tree


def total(values: Any, axis_name: AxisName) -> Any:
    """Sum a tree of totals over all devices."""
    return values if axis_name is None else lax.psum(values, axis_name)
