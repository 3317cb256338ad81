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
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core.types import AxisName

_Stat = TypeVar("_Stat")


class _Named:
    """A statistic with one field, a mapping; it merges with statistics of the same names."""

    def __getitem__(self, name: str) -> Any:
        (parts,) = vars(self).values()
        return parts[name]

    def __add__(self: _Stat, other: _Stat) -> _Stat:
        return cast(_Stat, _merge(self, other))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sums(_Named):
    """Named totals.

    float32 counts exactly up to 16.8 million, and the number of pixels may exceed that: sum in
    float32 inside a step, and add `sums.host()`, which is float64, between steps.

    >>> part = Sums({"hits": np.array([3.0]), "count": np.array([4.0])})
    >>> (part + part)["hits"]
    array([6.])
    """

    values: dict[str, Any]

    def all_reduce(self, axis_name: AxisName) -> "Sums":
        """Add the totals of all devices."""
        return total(self, axis_name)

    def host(self) -> "Sums":
        """Copy the totals to the host as float64, so that long sums keep their last digit."""
        return jax.tree.map(lambda value: np.asarray(value, np.float64), self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows(_Named):
    """Named columns with one row per example.

    >>> part = Rows({"confidence": np.array([0.5, 0.75])})
    >>> (part + part)["confidence"].shape
    (4,)
    """

    columns: dict[str, Any]

    def all_reduce(self, axis_name: AxisName) -> "Rows":
        """Gather the rows of all devices, in the order of the devices."""
        return gather(self, axis_name)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joint(_Named):
    """A named collection of statistics of different kinds."""

    parts: dict[str, Any]

    def all_reduce(self, axis_name: AxisName) -> "Joint":
        """Call `all_reduce` of every part."""
        return jax.tree.map(lambda part: part.all_reduce(axis_name), self, is_leaf=_is_part)


def _is_part(stat: Any) -> bool:
    return isinstance(stat, Sums | Rows)


def _merge(*stats: Any) -> Any:
    """Add the totals and concatenate the rows of statistics of the same names."""
    kinds: list[Any] = [(type(stat), jax.tree.structure(stat)) for stat in stats]
    for kind in kinds:
        if kind != kinds[0]:
            raise ValueError(
                f"{kinds[0][0].__name__} and {kind[0].__name__} of other names do not merge: add"
                " statistics of the same metrics."
            )

    def merge(*parts: Any) -> Any:
        if isinstance(parts[0], Sums):
            return jax.tree.map(lambda *totals: functools.reduce(_add, totals), *parts)
        return jax.tree.map(_concatenated, *parts)

    return jax.tree.map(merge, *stats, is_leaf=_is_part)


def _add(a: Any, b: Any) -> Any:
    if np.shape(a) != np.shape(b):  # such as 1 bin and 15, which would broadcast
        raise ValueError(
            f"totals of the shapes {np.shape(a)} and {np.shape(b)} do not merge: add statistics of"
            " the same options and classes."
        )
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.asarray(np.asarray(a, np.float64) + np.asarray(b, np.float64))
    return a + b


def _concatenated(*columns: Any) -> Any:
    on_host = all(isinstance(column, np.ndarray) for column in columns)
    return (np if on_host else jnp).concatenate(columns)


def merged(parts: Sequence[Any]) -> Any:
    """Merge statistics on the host: totals in float64, rows as one NumPy array per column.

    >>> hits = [Sums({"hit": np.float32(2)}), Sums({"hit": np.float32(1)})]
    >>> merged(hits)["hit"]
    array(3.)
    """

    def on_host(part: Any) -> Any:
        return part.host() if isinstance(part, Sums) else jax.device_get(part)

    return _merge(*jax.tree.map(on_host, list(parts), is_leaf=_is_part))


def merged_scan(stat_of: Callable[[Any], Any], parts: Any) -> Any:
    """Merge the statistics of all parts in one scan: totals are carried, rows are stacked.

    Args:
      stat_of: a function that computes the statistic of a part.
      parts: arrays whose leading axis counts the parts.
    """

    def only(kind: type, stats: Any) -> Any:
        kept = lambda part: part if isinstance(part, kind) else type(part)({})  # noqa: E731
        return jax.tree.map(kept, stats, is_leaf=_is_part)

    def add(sums: Any, part: Any) -> tuple[Any, Any]:
        stats = stat_of(part)
        # Without the barrier XLA adds the rows of a part to the carry one by one, which makes one
        # long float32 sum of the sums of all parts.
        part_sums = jax.tree.map(lax.optimization_barrier, only(Sums, stats))
        return jax.tree.map(jnp.add, sums, part_sums), only(Rows, stats)

    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), parts)
    # `zeros_like` of the sums varies over the same devices, as a checked `shard_map` requires.
    zeros = jax.tree.map(jnp.zeros_like, only(Sums, jax.eval_shape(stat_of, first)))
    sums, stacked = lax.scan(add, zeros, parts)
    rows = jax.tree.map(lambda column: column.reshape(-1, *column.shape[2:]), stacked)
    return jax.tree.map(lambda a, b: a if isinstance(a, Sums) else b, sums, rows, is_leaf=_is_part)


NOTHING = Sums({})  # the evidence of a stateless objective


def gather(rows: Any, axis_name: AxisName) -> Any:
    """Concatenate the rows of all devices; gradients flow back to the device of each row.

    Under `shard_map` with its default check the result is replicated, like a `psum`.
    """
    if axis_name is None:
        return rows
    to = "invarying" if axis_name in _varying_axes(rows) else "varying"
    return lax.all_gather(rows, axis_name, axis=0, tiled=True, to=to)


def varying(tree: Any, like: Any) -> Any:
    """Cast leaves to vary over the devices over which a leaf of `like` varies.

    Under `shard_map` with its default check the carry of a loop keeps its type, so a carry that
    begins with constants, or becomes a sum over devices, must be cast. Elsewhere this is a no-op.
    """
    axes = _varying_axes(like)

    def cast(leaf: Any) -> Any:
        missing = tuple(axes - _varying_axes(leaf))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree) if axes else tree


def _varying_axes(tree: Any) -> frozenset[Any]:
    axes_of = (jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(tree))
    return frozenset().union(*axes_of)


def total(values: Any, axis_name: AxisName) -> Any:
    """Sum a tree of totals over all devices."""
    return values if axis_name is None else lax.psum(values, axis_name)
