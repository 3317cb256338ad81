"""Arrays as users have them: of other libraries, of wide integers, sharded over a mesh.

On an Explicit mesh, the default of `jax.make_mesh`, JAX must know the sharding of every result, so
scatters, sorts and gathers over a sharded axis raise an error. Public functions therefore compute
with Auto axes, for which the compiler chooses shardings, and reshard their results:

    per example, [*batch]            like the labels
    per class, [*batch, classes]     like the logits
    everything else                  replicated
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard, use_abstract_mesh
from jaxtyping import Float

from calib_jax.core import numerics, rows
from calib_jax.core.names import known_options
from calib_jax.core.types import Array, FunctionOfArrays, Logits, SoftLabels, Weights

_Function = TypeVar("_Function", bound=Callable[..., Any])

_Options = ParamSpec("_Options")

_Value = TypeVar("_Value")


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


# Whether a function takes soft labels; "or_zeros": a row may also be 0 for every class.
TakesSoft: TypeAlias = bool | Literal["or_zeros"]

_TOLERANCE = 1e-3  # for printed digits; sums of rounded half-precision numbers may differ by more


def refuse_integers(name: str, logits: Logits, labels: Any) -> None:
    """Raise an error for integer or boolean labels that have as many axes as the logits."""
    if not (jnp.issubdtype(labels.dtype, jnp.integer) or labels.dtype == bool):
        return
    batch = logits.shape[:-1]
    if logits.ndim == 1:
        way_out = "binary logits need two classes, calib_jax.binary(logits)."
    elif logits.shape[-1] == 1:
        way_out = (
            "binary logits need two classes, calib_jax.binary(logits[..., 0]), and labels[..., 0]."
        )
    elif labels.shape == (*batch, 1):
        way_out = "drop the last axis, labels[..., 0]."
    else:
        way_out = "one-hot labels must be floating point, labels.astype(float)."
    raise TypeError(
        f"{name}: logits {logits.shape} need integer labels of shape {batch} or a distribution over"
        f" the classes for each example, but the labels {labels.shape} are {labels.dtype}:"
        f" {way_out}"
    )


def nan_unless_distributions(
    labels: SoftLabels, weights: Weights | None, allowed: TakesSoft
) -> Array:
    """Replace each row that is no distribution by NaN.

    Args:
      labels: `[*batch, classes]`.
      weights: the weight of each example; rows of weight 0 may have any labels.
      allowed: whether a row may also be 0 for every class.
    """
    rounding = 2 * float(jnp.finfo(labels.dtype).eps)
    entries = labels.astype(numerics.wide(labels.dtype))
    # One sum, because a second pass over the labels would take as long again: NaN marks negative
    # entries, and an entry above 1 beside entries of at least 0 has a sum above 1.
    sums = jnp.sum(jnp.where(entries >= -rounding, entries, jnp.nan), axis=-1)
    right = jnp.abs(sums - 1) <= max(_TOLERANCE, rounding)
    if allowed == "or_zeros":
        right |= jnp.all(entries == 0, axis=-1)
    if weights is not None:
        right |= ~(weights > 0)
    return jnp.where(right[..., None], labels, jnp.nan)


def binary(score: Any) -> Float[Array, "*batch 2"]:
    r"""Convert one logit per example to the logits of two classes: columns [0, z].

    $\mathrm{softmax}([0, z])_1 = \sigma(z)$, so every loss, metric and calibrator accepts these
    logits of a binary model, with labels 0 and 1. A probability p has the logit
    $\log p - \log(1 - p)$.

    Args:
      score: `[*batch]`, the logit of class 1. If the network's output is `[batch, 1]`, pass
        `score[:, 0]`.

    >>> binary(jnp.array([2.0, -1.0]))
    Array([[ 0.,  2.],
           [ 0., -1.]], dtype=float32)
    """
    score = jnp.asarray(as_numbers("binary", "the score", score))
    if not jnp.issubdtype(score.dtype, jnp.floating):
        raise TypeError(f"binary: the score must be floating point, got {score.dtype}.")
    return jnp.stack([jnp.zeros_like(score), score], axis=-1)


def takes_logits(
    *, soft_labels: TakesSoft = False, least_examples: int = 0
) -> Callable[
    [Callable[Concatenate[Any, Any, _Options], _Value]], FunctionOfArrays[_Options, _Value]
]:
    """Validate the arguments of a function of `(logits, labels, ...)` and accept NumPy arrays.

    Logits, labels and, if the function has them, `weights` are converted to arrays; an error is
    raised if shapes or dtypes do not match. With weights, rows of weight 0 are passed with
    label 0 and logits 0. `unchecked` returns the wrapped function, for callers that have validated.

    Args:
      soft_labels: whether labels may also be distributions `[*batch, classes]`; "or_zeros" if
        a row of soft labels may also be 0 for every class.
      least_examples: the examples that a function of a whole batch needs, if it needs a positive
        weight as well.
    """

    def decorate(
        function: Callable[Concatenate[Any, Any, _Options], _Value],
    ) -> FunctionOfArrays[_Options, _Value]:
        name = function.__name__
        signature = inspect.signature(function)
        of_logits, of_labels = [*signature.parameters][:2]

        @functools.wraps(function)
        def checked(logits: Any, labels: Any, *args: Any, **options: Any) -> Any:
            bound = _bound(name, signature, logits, labels, *args, **options)
            return with_auto_axes(of_arguments, logits, labels, bound.arguments)

        def of_arguments(logits: Any, labels: Any, arguments: dict[str, Any]) -> Any:
            weights = arguments.get("weights")
            logits, labels, weights = examples(name, logits, labels, weights, soft_labels)
            if least_examples:
                _enough(name, logits, weights, least_examples, arguments.get("axis_name"))
            arguments |= {of_logits: logits, of_labels: labels}
            if weights is not None:
                arguments["weights"] = weights
            bound = inspect.BoundArguments(signature, arguments)
            return function(*bound.args, **bound.kwargs)

        return mark_checked(checked, function, soft_labels)

    return decorate


def _enough(
    name: str, logits: jax.Array, weights: jax.Array | None, least: int, axis_name: Any
) -> None:
    """Raise an error for a batch over which a mean shows nothing."""
    number = math.prod(logits.shape[:-1])
    if 0 < number < least and axis_name is None:
        raise ValueError(
            f"{name} compares means over a batch of at least {least} examples, got {number}: give"
            " a larger batch, or the axis_name of the devices."
        )
    if number and weights is not None and concrete(weights) and not np.any(np.asarray(weights)):
        raise ValueError(f"{name}: all {number} weights are 0: give an example a positive weight.")


def _bound(
    name: str, signature: inspect.Signature, *args: Any, **options: Any
) -> inspect.BoundArguments:
    """Bind arguments to a signature; errors name the function and its options."""
    try:
        return signature.bind(*args, **options)
    except TypeError as error:
        kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}
        known_options(name, [*kinds][2:], [key for key in options if key not in kinds])
        keywords = [key for key, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
        positional = [key for key in kinds if key not in keywords]
        if len(args) <= len(positional):
            raise TypeError(f"{name}: {error}.") from None
        hint = f": options are keywords, such as {keywords[0]}=" if keywords else ""
        raise TypeError(
            f"{name} takes {len(positional)} positional arguments ({', '.join(positional)}), got"
            f" {len(args)}{hint}."
        ) from None


def examples(
    name: str, logits: Any, labels: Any, weights: Any, soft_labels: TakesSoft
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Validate the examples of a public function; rows of weight 0 become zeros."""
    logits, labels = batch_of(name, logits, labels, bool(soft_labels))
    if logits.shape[-1] == 1:
        raise ValueError(
            f"{name}: logits {logits.shape} have one class, whose probability is always 1. One"
            " logit of a binary model needs two classes: calib_jax.binary(logits[..., 0])."
        )
    weights = weights_for(logits, weights)
    if labels.ndim == logits.ndim:
        labels = nan_unless_distributions(labels, weights, soft_labels)
    if weights is not None:
        logits, labels, weights = rows.present(logits, labels, weights)
    return logits, labels, weights


def mark_checked(checked: Any, function: Any, soft_labels: TakesSoft) -> Any:
    """Store on a checked function the wrapped function, and whether it takes soft labels."""
    checked.unchecked = function
    checked.soft_labels = soft_labels
    return checked


def unchecked(function: _Function) -> _Function:
    """Return the function that a public function wraps; return other functions unchanged."""
    return cast(_Function, getattr(function, "unchecked", function))


def takes_soft_labels(function: Callable[..., Any]) -> TakesSoft:
    """Check whether a function takes soft labels; True for a function without our checks."""
    return cast(TakesSoft, getattr(function, "soft_labels", True))


def classes_of_state(num_classes: int, logits: jax.Array) -> None:
    """Validate that a state has as many classes as the logits."""
    if num_classes != logits.shape[-1]:
        raise ValueError(
            f"the state has {num_classes} classes and the logits {logits.shape[-1]}: make it with"
            f" init({logits.shape[-1]})."
        )


def weights_for(logits: jax.Array, weights: Any) -> jax.Array | None:
    """Convert weights to a floating-point array with one entry per example of the logits."""
    if weights is None:
        return None
    weights = jnp.asarray(as_numbers("", "weights", weights))
    if weights.shape != logits.shape[:-1]:
        raise ValueError(
            f"weights must have shape {logits.shape[:-1]}, one for each example, got"
            f" {weights.shape}."
        )
    if jnp.issubdtype(weights.dtype, jnp.complexfloating):
        raise TypeError(f"weights must be real numbers, got {weights.dtype}.")
    return numerics.at_least_float32(weights)


def batch_of(name: str, logits: Any, labels: Any, soft_labels: bool) -> tuple[jax.Array, jax.Array]:
    """Convert logits and labels to arrays and validate that their shapes and dtypes match.

    Error messages start with `name`. Labels out of range stay out of range: see `as_labels`.
    """
    logits = jnp.asarray(as_numbers(name, "logits", logits))
    labels = as_labels(as_numbers(name, "labels", labels))
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(
            f"{name}: logits must be floating point, got {logits.dtype}: cast them, or check that"
            " logits and labels are not swapped."
        )
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"{name}: logits must have shape [*batch, classes] with at least one class, got"
            f" {logits.shape}."
        )
    if soft_labels and labels.ndim == logits.ndim:
        refuse_integers(name, logits, labels)
        if labels.shape != logits.shape:
            raise ValueError(
                f"{name}: soft labels must have the shape of the logits {logits.shape}, got"
                f" {labels.shape}."
            )
        return logits, labels
    if labels.shape != logits.shape[:-1]:
        hint = ""
        if logits.shape == labels.shape and logits.ndim == 1:
            hint = ": binary logits need two classes, calib_jax.binary(logits)"
        elif logits.ndim > 2 and labels.shape == (logits.shape[0], *logits.shape[2:]):
            hint = ": the classes are the last axis, jnp.moveaxis(logits, 1, -1)"
        raise ValueError(
            f"{name}: logits {logits.shape} need labels of shape {logits.shape[:-1]}, got"
            f" {labels.shape}{hint}."
        )
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"{name}: labels {labels.shape} must be integers, got {labels.dtype}: cast numbers of"
            " classes, labels.astype(int)"
            + ("; soft labels need one more axis, the classes." if soft_labels else ".")
        )
    return logits, labels


def one_per_example(name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Validate that a function returned one value per example; other shapes would broadcast."""
    if np.shape(values) != shape:
        raise ValueError(
            f"{name} must return one value for each example, shape {shape}, got {np.shape(values)}:"
            " sum over the classes alone, and leave the mean over the examples to the training."
        )


def per_example(name: str, value: Any, like: jax.Array) -> Any:
    """Convert an option with one number for each example to an array of the type of the loss.

    A number becomes a Python float, or an array of this type, so that it does not widen the loss.

    Args:
      name: the name of the option, for the error message.
      value: a number, or numbers `[*batch]`.
      like: an array `[*batch]` of the type in which the loss is computed.
    """
    value = as_array(value)
    shape = np.shape(value)
    if not shape:
        if isinstance(value, jax.Array):
            return value.astype(like.dtype)
        return value.item() if isinstance(value, np.generic | np.ndarray) else value
    if shape != like.shape:
        each = f" or have shape {like.shape}, one for each example" if like.ndim else ""
        raise ValueError(f"{name} must be a number{each}, got {shape}.")
    return jnp.asarray(value, like.dtype)
