"""Conversion of arrays of other libraries, for every function that takes logits or labels."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import rows

_CPU = 1  # kDLCPU of the DLPack protocol


def as_array(value: Any) -> Any:
    """Convert an array of another library to NumPy or JAX; return anything else unchanged.

    NumPy arrays in another byte order become native, and longdouble arrays become float64, because
    JAX reads neither. Masked values raise an error. PyTorch tensors and CuPy arrays stay on their
    device if JAX can use it, and are copied to the host otherwise. pandas and polars tables and
    columns become NumPy arrays. Gradients do not flow back into the other library.

    >>> as_array([1.0, 2.0])
    [1.0, 2.0]
    >>> class Column:
    ...     def __array__(self, dtype=None, copy=None): return np.arange(3)
    >>> as_array(Column())
    array([0, 1, 2])
    """
    if isinstance(value, np.ndarray):
        return _native(unmasked("an array", value))
    if isinstance(value, jax.Array | np.generic) or hasattr(value, "__jax_array__"):
        return value
    if not (hasattr(value, "__array__") or hasattr(value, "__dlpack__")):
        return value
    value = value.detach() if hasattr(value, "detach") else value  # PyTorch
    if not hasattr(value, "__dlpack_device__"):
        return _numbers(np.asarray(value))
    if value.__dlpack_device__()[0] == _CPU:
        try:
            return np.asarray(value)
        except (TypeError, RuntimeError, AttributeError):  # for example for bfloat16 in PyTorch
            return jnp.from_dlpack(value)
    return _from_device(value)


def as_numbers(name: str, what: str, values: Any) -> Any:
    """Convert as `as_array` does; raise an error for text, structures and objects.

    Args:
      name: the name of the caller, for the error message; may be empty.
      what: a description of the values, for the error message.
      values: an array, or nested lists.
    """
    values = as_array(values)
    if rows.on_host(values) and rows.host_integers(values) is None:
        dtype = np.asarray(values).dtype
        if dtype.kind in "OSUMmV" and not jnp.issubdtype(dtype, jnp.number):  # bfloat16 has kind V
            hint = " (np.unique(labels, return_inverse=True) numbers them)" * (what == "labels")
            caller = f"{name}: " if name else ""
            raise TypeError(f"{caller}{what} must be numbers{hint}, got {dtype}.")
    return values


def unmasked(what: str, values: Any) -> Any:
    """Return the values of a masked array without its mask; raise an error if any is masked.

    A plain array has no mask, so the numbers behind masked entries would count as values.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if np.ma.is_masked(values):
        count = np.ma.count_masked(values)
        raise ValueError(
            f"{what} has {count:,} of {values.size:,} values masked: leave these examples out, or"
            " give them weight 0 and fill the values, array.filled(0)."
        )
    return np.asarray(values.data)


def _native(array: np.ndarray) -> np.ndarray:
    """Convert an array to the byte order of this machine, and longdouble to float64."""
    if not array.dtype.isnative and array.dtype.kind in "biufc":
        array = array.astype(array.dtype.newbyteorder("="))
    return array.astype(np.float64) if array.dtype == np.longdouble != np.float64 else array


def _from_device(value: Any) -> Any:
    """Convert an array on an accelerator; keep it on that device if JAX can use it."""
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
    if jnp.issubdtype(array.dtype, jnp.floating):  # DLPack keeps float64 even without x64
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
