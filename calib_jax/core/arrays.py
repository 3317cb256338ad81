"""The door of the public functions: arrays as users have them, with their shapes and dtypes.

`takes_logits` and `batch_of` convert arrays of other libraries and check shapes and dtypes, which
are known while a function is traced. Values are judged elsewhere, see `calib_jax.core.values`.

On an Explicit mesh, the default of `jax.make_mesh`, JAX must know the sharding of every result, so
scatters, sorts and gathers over a sharded axis raise an error. Public functions therefore compute
with Auto axes, for which the compiler chooses shardings, and reshard their results: those per
example like the labels, those per class like the logits, and everything else is replicated.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard, use_abstract_mesh
from jaxtyping import Float

from calib_jax.core import checks, numerics
from calib_jax.core.types import Array, Batch, FunctionOfArrays, Logits, SoftLabels, Weights

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Options = ParamSpec("_Options")
_Value = TypeVar("_Value")
_Declared: TypeAlias = Callable[Concatenate[Any, Any, _Options], _Value]

# Whether a function takes soft labels; "or_zeros": a row may also be 0 for every class.
TakesSoft: TypeAlias = bool | Literal["or_zeros"]

_REPLICATED = PartitionSpec()
_TOLERANCE = 1e-3  # of the sum of soft labels, for printed digits


def as_array(value: Any) -> Any:
    """Convert an array of another library to NumPy or JAX; return anything else unchanged.

    PyTorch tensors and CuPy arrays that NumPy cannot read become JAX arrays. pandas and polars
    tables and columns become NumPy arrays. Masked values raise an error. Gradients do not flow
    back into the other library.

    >>> as_array([1.0, 2.0])
    [1.0, 2.0]
    >>> class Column:
    ...     def __array__(self, dtype=None, copy=None): return np.arange(3)
    >>> as_array(Column())
    array([0, 1, 2])
    """
    is_foreign = hasattr(value, "__array__") and not hasattr(value, "__jax_array__")
    if isinstance(value, jax.Array | np.generic) or not is_foreign:
        return value
    if np.ma.is_masked(value):  # the numbers behind the mask would count as values
        raise ValueError(
            "an array has masked values: leave these examples out, or give them weight 0 and fill"
            " the values, array.filled(0)."
        )
    for method in ("detach", "resolve_neg"):  # PyTorch, whose DLPack export drops a lazy sign
        value = getattr(value, method)() if hasattr(value, method) else value
    try:
        array = np.asarray(value)
    except (TypeError, RuntimeError):  # bfloat16 of PyTorch, or an array of a GPU
        return jnp.from_dlpack(value)
    if array.dtype == object:
        return np.array(array.tolist())
    # The type of a dtype has the byte order of the machine.
    kind = np.float64 if array.dtype == np.longdouble else array.dtype.type
    return array.astype(kind, copy=False)


def as_numbers(name: str, what: str, values: Any) -> Any:
    """Convert as `as_array` does; raise an error for anything but an array of numbers.

    Args:
      name: the name of the caller, for the error message; may be empty.
      what: a description of the values, for the error message.
      values: an array, or nested lists.
    """
    values = as_array(values)
    if isinstance(values, jax.Array) or hasattr(values, "__jax_array__"):
        return jnp.asarray(values)
    try:
        of_jax = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values))
        array: Any = jnp.asarray(values) if of_jax else np.asarray(values)
        if array.dtype.kind in "bui" or jnp.issubdtype(array.dtype, jnp.floating):
            return array
        given = f"{array.dtype}" if array.ndim else checks.short(values)
    except ValueError:
        given = f"lists of different lengths in a {type(values).__name__}"
    hint = " (np.unique(labels, return_inverse=True) numbers them)" * (what == "labels")
    raise TypeError(f"{name}: {what} must be real numbers{hint}, got {given}.".removeprefix(": "))


def as_floats(name: str, what: str, values: Any) -> Array:
    """Convert as `as_numbers` does, and to float32 or float64.

    JAX would drop the upper half of 64-bit integers, so they are converted first.
    """
    values = as_numbers(name, what, values)
    return on_device(values, numerics.wide(values.dtype))


def as_labels(array: Any) -> Array:
    """Convert an array of labels to one of int32; values that do not fit are clipped.

    JAX narrows 64-bit integers by dropping their upper half, which turns the label 2**32 + 1 into
    the label 1. A clipped label stays out of range. Narrower types are widened, so that a product
    with a label cannot overflow. Values that are not integers are returned for the caller to
    reject.
    """
    is_integer = jnp.issubdtype(array.dtype, jnp.integer)
    if is_integer and not np.can_cast(array.dtype, np.int32):
        array = array.clip(max(jnp.iinfo(array.dtype).min, -(2**31)), 2**31 - 1)
    return on_device(array, np.int32 if is_integer else None)


def on_device(array: Any, dtype: Any = None) -> Array:
    """Return an array of the device; `jnp.asarray` may compile a program for each NumPy shape."""
    on_host = isinstance(array, np.ndarray)
    return jax.device_put(np.array(array, dtype)) if on_host else jnp.asarray(array, dtype)


def batch_of(
    name: str,
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    soft_labels: TakesSoft = False,
    least_classes: int = 1,
) -> Batch:
    """Convert logits, labels and weights to arrays, and validate their shapes and dtypes.

    Error messages start with `name`. Labels out of range stay out of range: see `as_labels`.
    """
    logits = on_device(as_numbers(name, "logits", logits))
    labels = as_labels(as_numbers(name, "labels", labels))
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(
            f"{name}: logits must be floating point, got {logits.dtype}: cast them, or check that"
            " logits and labels are not swapped."
        )
    if logits.ndim == 0 or logits.shape[-1] < least_classes:
        raise ValueError(
            f"{name}: logits {logits.shape} need at least {least_classes} classes on the last axis."
            " Convert the one logit of a binary model: calib_jax.binary(logits[..., 0])."
        )
    batch = logits.shape[:-1]
    is_soft = soft_labels and labels.shape == logits.shape
    if labels.shape == batch and not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(
            f"{name}: labels {labels.shape} must be integers, got {labels.dtype}: cast numbers of"
            " classes, labels.astype(int)."
        )
    if labels.shape != batch and not (is_soft and jnp.issubdtype(labels.dtype, jnp.floating)):
        hint = ""
        if logits.ndim == 1 or logits.shape[-1] == 1:
            hint = ": binary logits need two classes, calib_jax.binary(logits)"
        elif logits.ndim > 2 and labels.shape == (logits.shape[0], *logits.shape[2:]):
            hint = ": the classes are the last axis, jnp.moveaxis(logits, 1, -1)"
        elif labels.shape == (*batch, 1):
            hint = ": drop the last axis, labels[..., 0]"
        elif is_soft:
            hint = ": one-hot labels must be floating point, labels.astype(float)"
        raise ValueError(
            f"{name}: logits {logits.shape} need labels of shape {batch}, got {labels.shape}{hint}."
        )
    if weights is None:
        return logits, labels, None
    weights = as_numbers("", "weights", weights)
    if weights.shape != batch:
        raise ValueError(
            f"weights must have shape {batch}, one for each example, got {weights.shape}."
        )
    # JAX would drop the upper half of 64-bit integers.
    return logits, labels, on_device(weights, numerics.wide(weights.dtype, logits.dtype))


def takes_logits(
    *, soft_labels: TakesSoft = False, constants: tuple[str, ...] = ()
) -> Callable[[_Declared[_Options, _Value]], FunctionOfArrays[_Options, _Value]]:
    """Convert and validate the arguments of a function of `(logits, labels, ...)`; compile it.

    With weights, rows of weight 0 are passed with label 0 and logits 0. Floats and arrays are
    arguments of the compiled program, so one program serves many values; texts, integers and
    tuples of numbers are its constants. `unchecked` returns the wrapped function, for callers that
    have validated.

    Args:
      soft_labels: whether labels may also be distributions `[*batch, classes]`; "or_zeros" if
        a row of soft labels may also be 0 for every class.
      constants: options whose floats are constants of the program, too.
    """

    def decorate(function: _Declared[_Options, _Value]) -> FunctionOfArrays[_Options, _Value]:
        name = function.__name__
        signature = inspect.signature(function)
        known = [*signature.parameters][2:]

        def is_constant(option: str, value: Any) -> bool:
            if isinstance(value, tuple):
                return all(isinstance(entry, int | float) for entry in value)
            is_float = isinstance(value, float) and option in constants
            return value is None or is_float or isinstance(value, str | int)

        def program(logits: Any, labels: Any, weights: Any, more: Any, fixed: Any) -> Any:
            logits, labels, weights = masked(logits, labels, weights, soft_labels)
            more = more | {"weights": weights} if "weights" in known else more
            return cast(Any, function)(logits, labels, **more, **dict(fixed))

        compiled = jax.jit(program, static_argnames="fixed", inline=True)

        @functools.wraps(function)
        def checked(logits: Any, labels: Any, *args: Any, **options: Any) -> Any:
            if options.keys() - known:
                checks.known_options(name, known, options)
            if args:
                given = signature.bind(logits, labels, *args, **options)
                options = dict([*given.arguments.items()][2:])
            weights = options.pop("weights", None)
            data = batch_of(name, logits, labels, weights, soft_labels=soft_labels, least_classes=2)
            fixed = {k: v for k, v in options.items() if is_constant(k, v)}
            more = {k: options[k] for k in options if k not in fixed}
            more = {k: jnp.asarray(v) if isinstance(v, list) else v for k, v in more.items()}
            is_new = any(callable(value) for value in more.values())  # perhaps in every call
            run: Any = program if is_new else compiled
            return with_auto_axes(run, *data, more, tuple(fixed.items()))

        return mark_checked(checked, function, soft_labels)

    return decorate


def masked(logits: Logits, labels: Array, weights: Weights | None, soft: TakesSoft) -> Batch:
    """Set rows of weight 0 to zeros, and soft labels that are no distribution to NaN.

    Soft labels get the type of the loss, float32 or that of the logits, and so do not widen it.
    """
    if labels.ndim == logits.ndim:
        labels = _only_distributions(labels, soft).astype(numerics.wide(logits.dtype))
    return (logits, labels, None) if weights is None else numerics.present(logits, labels, weights)


def _only_distributions(labels: SoftLabels, allowed: TakesSoft) -> Array:
    """Replace each row that is no distribution by NaN."""
    rounding = 2 * float(jnp.finfo(labels.dtype).eps)
    entries = labels.astype(numerics.wide(labels.dtype))
    # One sum, because a second pass over the labels would take as long again: NaN marks negative
    # entries, and an entry above 1 beside entries of at least 0 has a sum above 1.
    sums = jnp.sum(jnp.where(entries >= -rounding, entries, jnp.nan), axis=-1)
    right = jnp.abs(sums - 1) <= max(_TOLERANCE, rounding)
    if allowed == "or_zeros":
        right |= jnp.all(entries == 0, axis=-1)
    return jnp.where(right[..., None], labels, jnp.nan)


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


# --------------------------------------------------------------------------------------------
# Meshes.


def _explicit_sharding(value: Any) -> NamedSharding | None:
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
    of_logits, of_labels = _explicit_sharding(logits), _explicit_sharding(labels)
    sharding = of_logits or of_labels
    if sharding is None:
        return function(logits, labels, *others)
    mesh = sharding.mesh
    auto = mesh.abstract_mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    shape = np.shape(logits)
    per_class = of_logits.spec if of_logits else _REPLICATED
    per_example = PartitionSpec(*(of_labels.spec if of_labels else per_class)[: len(shape) - 1])
    specs: Mapping[Any, Any] = {shape: per_class, shape[:-1]: per_example} if per_row else {}

    def entering(leaf: Any) -> Any:
        return leaf if _explicit_sharding(leaf) is None else reshard(leaf, _REPLICATED)

    def leaving(leaf: Any) -> Any:
        return reshard(leaf, NamedSharding(mesh, specs.get(np.shape(leaf), _REPLICATED)))

    with use_abstract_mesh(auto):
        results = function(*jax.tree.map(entering, (logits, labels, *others)))
    return jax.tree.map(leaving, results)


def gathered(values: Any) -> Any:
    """Gather an array that is spread over devices, inside `jit` too; return others unchanged."""
    if isinstance(values, jax.core.Tracer):
        sharding = _explicit_sharding(values)
        return values if sharding is None else reshard(values, sharding.update(spec=_REPLICATED))
    if not isinstance(values, jax.Array) or len(values.sharding.device_set) == 1:
        return values
    return jnp.asarray(np.asarray(values))  # JAX raises for arrays of several processes
