"""NumPy for eager operations that only move data.

XLA compiles a program for each shape of each eager operation, which takes 15 ms. A quarter of the
tests' programs are reshapes, broadcasts, slices and the like, whose results are the bytes of their
arguments. Arithmetic, and whatever is inside `jit`, stays with XLA.
"""

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive, primitives

# A copy of a large array costs more than its program saves.
MOST_BYTES = 1_000_000
_enabled = True


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Compute all eager operations by XLA, so that compiled programs can be counted."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def move_data_by_numpy() -> None:
    """Replace the eager evaluation of the primitives in `_BY_NUMPY`."""
    for primitive, by_numpy in _BY_NUMPY.items():
        primitive.def_impl(functools.partial(_evaluate, by_numpy, primitive.impl))


def _evaluate(
    by_numpy: Callable[..., Any], by_xla: Callable[..., Any], *args: Any, **params: Any
) -> Any:
    """Compute by NumPy where plain arrays on the default device allow the same result."""
    if not _enabled or params.get("sharding") is not None or not all(map(_is_plain, args)):
        return by_xla(*args, **params)
    if not jax.sharding.get_abstract_mesh().empty:
        return by_xla(*args, **params)
    try:
        result = by_numpy(*map(np.asarray, args), **params)
    except (TypeError, ValueError, IndexError):  # JAX raises its own error
        result = None
    # The copy keeps the result apart from the buffers of the arguments, which may be donated.
    return (
        by_xla(*args, **params) if result is None else jax.device_put(np.array(result, order="C"))
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        plain = jax.dtypes.canonicalize_dtype(value.dtype) == value.dtype
    elif isinstance(value, jax.Array):
        # Internal attributes, which random keys lack: a committed array decides on the device of
        # the result, and a weak type on the types of later results.
        plain = not getattr(value, "_committed", True) and not getattr(value, "weak_type", True)
    else:
        return False
    return plain and value.dtype.kind in "biuf" and value.nbytes <= MOST_BYTES


def _broadcast_in_dim(x: Any, *sizes: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    if sizes:
        return None
    aligned = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        aligned[axis] = size
    return np.broadcast_to(x.reshape(aligned), shape)


def _reshape(x: Any, *sizes: Any, new_sizes: Any, dimensions: Any, **_: Any) -> Any:
    return None if sizes or dimensions is not None else x.reshape(new_sizes)


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    strides = strides or (1,) * x.ndim
    if any(map(operator.gt, limit_indices, x.shape)) or min(start_indices, default=0) < 0:
        return None
    return x[tuple(map(slice, start_indices, limit_indices, strides))]


def _dynamic_slice(x: Any, *starts: Any, slice_sizes: Any) -> Any:
    """Slice; a start that is too far moves back, as in XLA."""
    if len(starts) != x.ndim or any(map(operator.gt, slice_sizes, x.shape)):
        return None
    bounds = zip(starts, x.shape, slice_sizes, strict=True)
    begins = [(min(max(int(start), 0), whole - size), size) for start, whole, size in bounds]
    return x[tuple(slice(begin, begin + size) for begin, size in begins)]


def _iota(*sizes: Any, dtype: Any, shape: Any, dimension: Any, **_: Any) -> Any:
    if sizes or np.dtype(dtype).kind not in "iu" or 4 * math.prod(shape) > MOST_BYTES:
        return None
    aligned = [1] * len(shape)
    aligned[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(aligned), shape)


def _select(which: Any, *cases: Any) -> Any:
    if which.dtype != bool or len(cases) != 2 or which.shape not in ((), cases[0].shape):
        return None
    return _of_one_type(lambda no, yes: np.where(which, yes, no), *cases)


def _concatenate(*parts: Any, dimension: int) -> Any:
    if len({part.dtype for part in parts}) > 1:
        return None
    return np.concatenate(parts, dimension)


def _of_one_type(function: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function of arrays that have one shape and one type; NumPy would broadcast others."""
    same = len({(array.shape, array.dtype) for array in arrays}) == 1
    return function(*arrays) if same else None


def _convert(x: Any, *, new_dtype: Any, weak_type: bool, **_: Any) -> Any:
    """Convert where no value changes, and integers to floating-point numbers, which round alike."""
    wider = np.dtype(new_dtype).kind in "biuf" and np.can_cast(x.dtype, new_dtype)
    to_float = x.dtype.kind in "biu" and new_dtype in (np.float32, np.float64)
    return x.astype(new_dtype) if not weak_type and (wider or to_float) else None


_BY_NUMPY: dict[Primitive, Callable[..., Any]] = {
    primitives.broadcast_in_dim_p: _broadcast_in_dim,
    primitives.reshape_p: _reshape,
    primitives.slice_p: _slice,
    primitives.dynamic_slice_p: _dynamic_slice,
    primitives.iota_p: _iota,
    primitives.select_n_p: _select,
    primitives.convert_element_type_p: _convert,
    primitives.squeeze_p: lambda x, *, dimensions: x.squeeze(dimensions),
    primitives.transpose_p: lambda x, *, permutation: x.transpose(permutation),
    primitives.concatenate_p: _concatenate,
    primitives.and_p: functools.partial(_of_one_type, np.bitwise_and),
    primitives.or_p: functools.partial(_of_one_type, np.bitwise_or),
    primitives.not_p: np.bitwise_not,
}
# `jnp.asarray` of a NumPy array; older releases of JAX have no primitive for it.
if stage_p := getattr(jax._src.lax.lax, "stage_p", None):
    _BY_NUMPY[stage_p] = lambda x: x
