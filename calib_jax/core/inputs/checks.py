"""Argument checks of the public functions, run once at trace time.

Shapes, dtypes and static options are known while a function is traced, so an error in them
raises an exception here. Array values are unknown then: a label out of range makes its row NaN
(see `calib_jax.core.numerics.valid`).
"""

import functools
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import numerics, rows
from calib_jax.core.display import short
from calib_jax.core.inputs import arrays
from calib_jax.core.inputs.arrays import as_array, as_numbers, gathered, unmasked, with_auto_axes
from calib_jax.core.inputs.arrays import concrete as concrete
from calib_jax.core.inputs.invalid_values import (
    num_classes_of,
    refuse_labels,
    refuse_unchecked_probabilities,
)
from calib_jax.core.inputs.options import known_options
from calib_jax.core.inputs.soft_labels import TakesSoft, nan_unless_distributions, refuse_integers
from calib_jax.core.names import closest
from calib_jax.core.names import nearest as nearest
from calib_jax.core.types import FunctionOfArrays

_MOST_BINS = 100_000

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Options = ParamSpec("_Options")
_Value = TypeVar("_Value")


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
    labels = arrays.as_labels(as_numbers(name, "labels", labels))
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


def flat_rows(
    name: str,
    logits: Any,
    labels: Any,
    weights: Any,
    *,
    is_part: bool = False,
    merges: bool = False,
    stays_sharded: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Validate the arguments and convert them to arrays with one batch axis.

    Outside `jit`, also raise an error for labels beyond 32 bits, which JAX would narrow, and for
    probabilities passed as logits, unless the rows are a part of an input. Weights that cannot
    count copies are scaled, see `rows.counted`, unless the statistics of the rows merge with those
    of other rows. Arrays that are spread over devices are gathered, unless they may stay sharded.
    """
    labels = as_array(labels)
    if not stays_sharded:
        logits, labels, weights = (
            gathered(name, what, values)
            for what, values in (("logits", logits), ("labels", labels), ("weights", weights))
        )
    given_labels = arrays.host_integers(labels)
    logits, labels = batch_of(name, logits, labels, soft_labels=False)
    weights = weights_for(logits, weights)
    if labels.size == 0:
        raise ValueError(f"{name}: there are no examples, the labels have shape {labels.shape}.")
    if concrete(logits, labels, weights):
        if given_labels is not None and np.any((given_labels < -(2**31)) | (given_labels >= 2**31)):
            refuse_labels(name, given_labels, weights, num_classes_of(logits.shape))
        if not is_part:
            refuse_unchecked_probabilities(name, logits, weights)
    flat_weights = None if weights is None else weights.reshape(-1)
    if flat_weights is not None and not (is_part or merges):
        flat_weights = rows.counted(flat_weights)
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), flat_weights


def one_per_example(name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Validate that a function returned one value per example; other shapes would broadcast."""
    if np.shape(values) != shape:
        raise ValueError(
            f"{name} must return one value for each example, shape {shape}, got {np.shape(values)}:"
            " sum over the classes alone, and leave the mean over the examples to the training."
        )


def random_key(key: Any) -> None:
    """Validate a key of `jax.random`; an integer is a seed and raises an error."""
    dtype = getattr(key, "dtype", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (is_key or (dtype == np.uint32 and np.ndim(key))):
        raise TypeError(f"key must be a random key, such as jax.random.key(0), got {key!r}.")
    if np.ndim(key) != (not is_key):
        raise ValueError(f"key must be one random key, got several, {np.shape(key)}: give key[0].")


def needs_key(function: _Function) -> _Function:
    """Wrap a function so that a call without its option `key` raises an error with an example.

    >>> @needs_key
    ... def resampled(logits, *, key): ...
    >>> resampled(0)
    Traceback (most recent call last):
    TypeError: resampled draws random numbers: give key=jax.random.key(0).
    """

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if "key" not in options:
            raise TypeError(
                f"{function.__name__} draws random numbers: give key=jax.random.key(0)."
            )
        return function(*args, **options)

    return cast(_Function, checked)


def whole(name: str, value: Any, bound: int = 1, why: str = "") -> None:
    """Validate that a static number is an integer of at least `bound`."""
    at_least(name, value, bound, why)
    if concrete(value) and (np.ndim(value) or isinstance(value, float) or value != int(value)):
        raise TypeError(f"{name} must be an integer, got {value!r}.")


def num_bins(value: Any) -> None:
    """Validate a number of bins; every bin takes memory, filled or not."""
    whole("num_bins", value)
    if concrete(value) and value > _MOST_BINS:
        raise ValueError(f"num_bins must be at most {_MOST_BINS:,}, got {value}.")


def seed(value: Any, count: int = 1) -> None:
    """Validate a seed, or the first of `count` seeds.

    JAX keys hold 32 bits of a seed, so the seeds 1 and 2^32 + 1 would give the same key.
    """
    whole("seed", value, 0)
    if concrete(value) and int(value) + count > 2**32:
        last = f", the last of {count} seeds," if count > 1 else ""
        raise ValueError(f"seed{last} must be less than 2^32, got {int(value) + count - 1}.")


def function(name: str, value: Any, arguments: str) -> None:
    """Validate that a value is a function; a result of one is a frequent mistake."""
    if not callable(value):
        raise TypeError(f"{name} must be a function of {arguments}, got {short(value)}.")


def _number(name: str, value: Any) -> None:
    """Validate that a value is not text or a missing value, which NumPy cannot compare."""
    if value is None or isinstance(value, str):
        raise TypeError(f"{name} must be a number, got {value!r}.")


def at_least(name: str, value: Any, bound: Any, why: str = "") -> None:
    """Validate that a static number (or array of numbers) is at least `bound` and not NaN."""
    _number(name, value)
    if concrete(value, bound) and not np.all(np.asarray(value) >= bound):
        raise ValueError(f"{name} must be at least {bound}{why}, got {value}.")


def above(name: str, value: Any, bound: float, why: str = "") -> None:
    """Validate that a static number (or array of numbers) is greater than `bound`."""
    _number(name, value)
    if concrete(value) and not np.all(np.asarray(value) > bound):
        raise ValueError(f"{name} must be greater than {bound:g}{why}, got {value}.")


def between(name: str, value: Any, low: float, high: float) -> None:
    """Validate that a static number (or array of numbers) lies in [low, high]."""
    _number(name, value)
    if concrete(value) and not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value}.")


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


def level(value: Any) -> None:
    """Validate the nominal coverage of an interval, a fraction."""
    _number("level", value)
    if concrete(value) and not 0 < value < 1:
        raise ValueError(f"level must be a fraction between 0 and 1, got {value}.")


def ascending(name: str, values: Any) -> None:
    """Validate that static numbers strictly ascend."""
    if concrete(*values) and not np.all(np.diff(np.asarray(values)) > 0):
        raise ValueError(f"{name} must ascend, got {tuple(values)}.")


def same_length(**named: Any) -> None:
    """Validate that named sequences have equal lengths."""
    if len({len(values) for values in named.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in named.items())
        raise ValueError(f"lengths must agree: {sizes}.")


def of_one_kind(array: np.ndarray) -> np.ndarray:
    """Convert a column of objects that are all strings or all integers; return others unchanged."""
    if array.dtype == object:
        for kind, dtype in ((str, str), (int | np.integer, np.int64)):
            if all(isinstance(entry, kind) for entry in array.flat):
                return array.astype(dtype)
    return array


def cluster_ids(clusters: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Validate the clusters of examples of this shape; return them along one axis."""
    # `as_array` takes only columns of numbers.
    clusters = gathered("", "clusters", unmasked("clusters", clusters))
    ids = np.asarray(clusters if hasattr(clusters, "to_numpy") else as_array(clusters))
    if ids.shape != shape:
        raise ValueError(
            f"clusters must have shape {shape}, one for each example, got {ids.shape}."
        )
    ids = of_one_kind(ids)
    if ids.dtype.kind not in "iuUS":
        raise TypeError(f"clusters must be integers or strings, got {ids.dtype}.")
    return ids.reshape(-1)


def one_of(name: str, value: Any, choices: Collection[str]) -> None:
    """Validate that a name is among the choices; the error lists all or the nearest choices."""
    if isinstance(value, str) and value in choices:
        return
    hint = nearest(value, choices) if isinstance(value, str) else "."
    if len(choices) > 10:  # too many to list in one message
        if not isinstance(value, str):
            raise TypeError(f"the name of the {name} must be a string, got {short(value)}.")
        if hint == ".":
            near = closest(value, choices, n=5, cutoff=0)
            hint = f"; the closest of {len(choices)} are {', '.join(map(repr, near))}."
        raise ValueError(f"no {name} is called {value!r}{hint}")
    raise ValueError(
        f"{name} must be one of {', '.join(map(repr, choices))}, got {short(value)}{hint}"
    )
