"""Arrays of other libraries: converted here for every function that takes logits or labels."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CPU = 1  # kDLCPU of the DLPack protocol


def as_array(value: Any) -> Any:
    """Convert an array of another library to one of NumPy or JAX; return anything else unchanged.

    Tensors of PyTorch and arrays of CuPy stay on their device if JAX can use it, and are copied to
    the host otherwise. Tables and columns of pandas and polars become NumPy arrays. Gradients of
    the other library end here.

    >>> as_array([1.0, 2.0])
    [1.0, 2.0]
    >>> class Column:
    ...     def __array__(self, dtype=None, copy=None): return np.arange(3)
    >>> as_array(Column())
    array([0, 1, 2])
    """
    if isinstance(value, jax.Array | np.ndarray | np.generic) or hasattr(value, "__jax_array__"):
        return value
    if not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        return value
    value = value.detach() if hasattr(value, "detach") else value  # PyTorch
    if not hasattr(value, "__dlpack_device__"):
        return _numbers(np.asarray(value))
    if value.__dlpack_device__()[0] == _CPU:
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError, AttributeError):  # for example bfloat16 of PyTorch
            return jnp.from_dlpack(value)
    return _from_device(value)


def _from_device(value: Any) -> Any:
    """Convert an array on an accelerator, on that device if JAX can use it."""
    try:
        array = jnp.from_dlpack(value)
    except (TypeError, RuntimeError, ValueError, BufferError) as error:
        for method in ("cpu", "get"):  # PyTorch, CuPy
            if hasattr(value, method):
                return as_array(getattr(value, method)())
        device = value.__dlpack_device__()
        raise TypeError(
            f"JAX cannot read an array of type {type(value).__name__} on the DLPack device"
            f" {tuple(map(int, device))}.\nCopy it to the host first."
        ) from error
    if jnp.issubdtype(array.dtype, jnp.floating):  # DLPack brings float64 without x64, too
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    return array


def _numbers(array: np.ndarray) -> np.ndarray:
    """Validate that a column or table holds numbers."""
    if array.dtype == object and all(isinstance(entry, numbers.Real) for entry in array.flat):
        integers = all(isinstance(entry, numbers.Integral) for entry in array.flat)
        return array if integers else array.astype(np.float64)
    if array.dtype.kind in "OUST":
        example = next(entry for entry in array.flat if not isinstance(entry, numbers.Real))
        raise TypeError(
            f"a column or table must hold numbers, got {example!r}. Give classes as 0, 1, ..."
        )
    return array
