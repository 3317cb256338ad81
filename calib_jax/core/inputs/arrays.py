"""Arrays as users have them: of other libraries, of wide integers, sharded over a mesh.

On an Explicit mesh, the default of `jax.make_mesh`, JAX must know the sharding of every result, so
scatters, sorts and gathers over a sharded axis raise an error. Public functions therefore compute
with Auto axes, for which the compiler chooses shardings, and reshard their results:

    per example, [*batch]            like the labels
    per class, [*batch, classes]     like the logits
    everything else                  replicated
"""

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard, use_abstract_mesh

from calib_jax.core.types import Array

_CPU = 1  # kDLCPU of the DLPack protocol


def as_array(value: Any) -> Any:
    """Convert an array of another library to NumPy or JAX; return anything else unchanged.

    NumPy arrays in another byte order become native, longdouble arrays become float64, and arrays
    of Python numbers become integers or float64, because JAX reads none of them. Masked values
    raise an error. PyTorch tensors and CuPy arrays stay on their device if JAX can use it, and are
    copied to the host otherwise. pandas and polars tables and columns become NumPy arrays.
    Gradients do not flow back into the other library.

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
    for method in ("detach", "resolve_neg"):  # PyTorch, whose DLPack export drops a lazy sign
        value = getattr(value, method)() if hasattr(value, method) else value
    if not hasattr(value, "__dlpack_device__"):
        return _numbers(np.asarray(value))
    if value.__dlpack_device__()[0] == _CPU:
        try:
            return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
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
    caller = f"{name}: " if name else ""
    no_array = values is None or callable(values) or isinstance(values, Mapping)
    if no_array and not hasattr(values, "__jax_array__"):  # a variable of Flax is callable
        called = getattr(values, "name", None) or getattr(values, "__name__", "")
        given = "None" if values is None else f"the {type(values).__name__} {called}".strip()
        raise TypeError(
            f"{caller}{what} must be an array, got {given}: give the array in its place."
        )
    try:
        no_integers = on_host(values) and host_integers(values) is None
    except ValueError:  # NumPy's message has no names
        raise ValueError(
            f"{caller}{what} must be one array, got a {type(values).__name__} that is none: lists"
            " of different lengths, or a sparse array."
        ) from None
    if no_integers:
        dtype = np.asarray(values).dtype
        if dtype.kind in "OSUMmV" and not jnp.issubdtype(dtype, jnp.number):  # bfloat16 has kind V
            hint = " (np.unique(labels, return_inverse=True) numbers them)" * (what == "labels")
            raise TypeError(f"{caller}{what} must be numbers{hint}, got {dtype}.")
    return values


def on_host(values: Any) -> bool:
    """Check whether values are from NumPy or Python, which JAX has not narrowed yet."""
    return not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values))


def host_integers(values: Any) -> np.ndarray | None:
    """Convert NumPy or Python integers to a NumPy array unchanged; None for anything else.

    Python integers beyond 64 bits become an array of objects.
    """
    if not on_host(values):
        return None
    array = np.asarray(values)
    if np.issubdtype(array.dtype, np.integer):
        return array
    is_int = array.dtype == object and all(isinstance(entry, int) for entry in array.flat)
    return array if is_int else None


def as_labels(labels: Any) -> Array:
    """Convert labels to an array of int32; values that do not fit are clipped.

    JAX narrows 64-bit integers by dropping their upper half, which turns the label 2**32 + 1 into
    the label 1. A clipped label stays out of range. Narrower types are widened, so that a product
    with a label cannot overflow. Values that are not integers are returned for the caller to
    reject.
    """
    given = host_integers(labels)
    array: Any = jnp.asarray(labels) if given is None else given
    if not (given is not None or jnp.issubdtype(array.dtype, jnp.integer)):
        return array
    if not np.can_cast(array.dtype, np.int32):
        xp: Any = jnp if given is None else np
        info = np.iinfo(np.int32)
        array = xp.minimum(array, info.max)
        if array.dtype.kind != "u":
            array = xp.maximum(array, info.min)
        array = array.astype(np.int32)
    return jnp.asarray(array, np.int32)


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
    """Convert other byte orders, longdouble and Python numbers to types that JAX reads."""
    of_objects = array.dtype == object and array.size
    if of_objects and all(isinstance(entry, numbers.Real) for entry in array.flat):
        integers = all(isinstance(entry, numbers.Integral) for entry in array.flat)
        array = np.array(array.tolist()) if integers else array.astype(np.float64)
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
    array = _native(array)
    if array.dtype.kind in "OUST" and host_integers(array) is None:
        example = next(entry for entry in array.flat if not isinstance(entry, numbers.Real))
        raise TypeError(
            f"a column or table must hold numbers, got {example!r}. Give classes as 0, 1, ..."
        )
    return array


def concrete(*values: Any) -> bool:
    """Check whether the values can be read, that is, none is traced."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def explicit_sharding(value: Any) -> NamedSharding | None:
    """Return the sharding of an array on a mesh with Explicit axes, None for anything else."""
    traced = isinstance(value, jax.core.Tracer)
    sharding = jax.typeof(value).sharding if traced else getattr(value, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.explicit_axes else None


def with_auto_axes(
    function: Callable[..., Any], logits: Any, labels: Any, *others: Any, per_row: bool = True
) -> Any:
    """Call `function(logits, labels, *others)`, on an Explicit mesh with Auto axes.

    The arguments may be trees. A function among them that closes over arrays of an Explicit mesh
    raises an error; a `jax.tree_util.Partial` of these arrays is a tree.

    Args:
      function: returns a tree of arrays.
      logits, labels, others: its arguments.
      per_row: whether results per example and per class are sharded like the labels and the
        logits; otherwise all results are replicated.
    """
    of_logits, of_labels = explicit_sharding(logits), explicit_sharding(labels)
    sharding = of_labels if of_logits is None else of_logits
    if sharding is None:
        return function(logits, labels, *others)
    mesh = sharding.mesh
    auto = mesh.abstract_mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    shape = np.shape(logits)
    per_class = PartitionSpec() if of_logits is None else jax.typeof(logits).sharding.spec
    per_example = per_class if of_labels is None else jax.typeof(labels).sharding.spec
    rows = PartitionSpec(*per_example[: len(shape) - 1])
    specs = {shape: per_class, shape[:-1]: rows} if per_row else {}

    def entering(leaf: Any) -> Any:
        return leaf if explicit_sharding(leaf) is None else reshard(leaf, PartitionSpec())

    def leaving(leaf: Any) -> Any:
        return reshard(leaf, NamedSharding(mesh, specs.get(np.shape(leaf), PartitionSpec())))

    with use_abstract_mesh(auto):
        results = function(*jax.tree.map(entering, (logits, labels, *others)))
    return jax.tree.map(leaving, results)


def gathered(name: str, what: str, values: Any) -> Any:
    """Gather an array that is spread over devices; return anything else unchanged.

    Args:
      name: the name of the caller, for the error message.
      what: a description of the values, for the error message.
      values: an array, which inside `jit` is replicated.
    """
    if isinstance(values, jax.core.Tracer):
        sharding = explicit_sharding(values)
        return (
            values if sharding is None else reshard(values, sharding.update(spec=PartitionSpec()))
        )
    if not isinstance(values, jax.Array) or len(values.sharding.device_set) == 1:
        return values
    refuse_part(name, what, values)
    return jnp.asarray(np.asarray(values))


def refuse_part(name: str, what: str, values: Any) -> None:
    """Raise an error for an array of which this process holds only a part."""
    if not (getattr(values, "is_fully_addressable", True) or values.is_fully_replicated):
        raise ValueError(
            f"{name}: the {what} {values.shape} are spread over processes, and this process holds"
            " only a part of them. Gather them first:\n"
            f"jax.experimental.multihost_utils.process_allgather({what}, tiled=True)."
        )
