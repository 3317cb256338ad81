"""Checks of options, run once at trace time: numbers, seeds, keys, names; and catalogues."""

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.arrays import concrete
from calib_jax.core.names import check_options, nearest, short

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Member = TypeVar("_Member")
_Entry = TypeVar("_Entry")


def random_key(key: Any) -> None:
    """Validate a key of `jax.random`; an integer is a seed and raises an error."""
    dtype = getattr(key, "dtype", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (is_key or (dtype == np.uint32 and np.ndim(key))):
        raise TypeError(f"key must be a random key, such as jax.random.key(0), got {key!r}.")
    if np.ndim(key) != (not is_key):
        raise ValueError(f"key must be one random key, got several, {np.shape(key)}: give key[0].")


def needs_key(function: _Function) -> _Function:
    """Wrap a function that draws: validate `key`, `level` and `num_resamples` of its options.

    >>> @needs_key
    ... def resampled(logits, *, key): ...
    >>> resampled(0)
    Traceback (most recent call last):
    TypeError: resampled draws random numbers: give key=jax.random.key(0).
    """
    resamples = inspect.signature(function).parameters.get("num_resamples")
    name, default = function.__name__, resamples and resamples.default

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        if "key" not in options:
            raise TypeError(f"{name} draws random numbers: give key=jax.random.key(0).")
        random_key(options["key"])
        level(options.get("level", 0.5))
        if options.get("num_resamples", default) is not default:
            whole("num_resamples", options["num_resamples"])
        return function(*args, **options)

    return cast(_Function, checked)


def _require(name: str, value: Any, holds: Callable[[Any], Any], what: str) -> None:
    """Raise an error unless a condition holds for a static number, or an array of numbers."""
    if value is None or isinstance(value, str):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if concrete(value) and not np.all(holds(np.asarray(value))):
        raise ValueError(f"{name} must {what}, got {value}.")


def at_least(name: str, value: Any, bound: Any, why: str = "") -> None:
    """Validate that a static number (or array of numbers) is at least `bound` and not NaN."""
    if concrete(bound):
        _require(name, value, lambda given: given >= bound, f"be at least {bound}{why}")


def above(name: str, value: Any, bound: float, why: str = "") -> None:
    """Validate that a static number (or array of numbers) is greater than `bound`."""
    _require(name, value, lambda given: given > bound, f"be greater than {bound:g}{why}")


def between(name: str, value: Any, low: float, high: float) -> None:
    """Validate that a static number (or array of numbers) lies in [low, high]."""
    what = f"lie in [{low:g}, {high:g}]"
    _require(name, value, lambda given: (given >= low) & (given <= high), what)


def level(value: Any) -> None:
    """Validate the nominal coverage of an interval, a fraction."""
    what = "be a fraction between 0 and 1"
    _require("level", value, lambda given: (given > 0) & (given < 1), what)


def whole(name: str, value: Any, bound: int = 1, why: str = "") -> None:
    """Validate that a static number is an integer of at least `bound`."""
    at_least(name, value, bound, why)
    if concrete(value) and (np.ndim(value) or isinstance(value, float) or value != int(value)):
        raise TypeError(f"{name} must be an integer, got {value!r}.")


def num_bins(value: Any) -> None:
    """Validate a number of bins; every bin takes memory, filled or not."""
    whole("num_bins", value)
    between("num_bins", value, 1, 100_000)


def seed(value: Any, count: int = 1) -> None:
    """Validate a seed, or the first of `count` seeds.

    JAX keys hold 32 bits of a seed, so the seeds 1 and 2^32 + 1 would give the same key.
    """
    whole("seed", value, 0)
    if concrete(value) and int(value) + count > 2**32:
        last = f", the last of {count} seeds," if count > 1 else ""
        raise ValueError(f"seed{last} must be less than 2^32, got {int(value) + count - 1}.")


def ascending(name: str, values: Any) -> None:
    """Validate that static numbers strictly ascend."""
    if concrete(*values) and not np.all(np.diff(np.asarray(values)) > 0):
        raise ValueError(f"{name} must ascend, got {tuple(values)}.")


def same_length(**named: Any) -> None:
    """Validate that named sequences have equal lengths."""
    if len({len(values) for values in named.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in named.items())
        raise ValueError(f"lengths must agree: {sizes}.")


def one_of(name: str, value: Any, choices: Collection[str]) -> None:
    """Validate that a name is among the choices; the error names the nearest, or all of a few."""
    if isinstance(value, str) and value in choices:
        return
    hint = nearest(value, choices) if isinstance(value, str) else "."
    if len(choices) > 10:
        raise ValueError(f"no {name} is called {short(value)}{hint}")
    listed = ", ".join(map(repr, choices))
    raise ValueError(f"{name} must be one of {listed}, got {short(value)}{hint}")


class Catalogue(dict[str, _Member]):
    """A table from names to members; an error for an unknown name suggests the nearest name.

    >>> pets = Catalogue("pet")
    >>> @pets.register("cat")
    ... def cat(*, lives=9): return lives
    >>> pets.make("cat", lives=7)
    7
    >>> pets
    Catalogue(pet: cat)
    >>> pets.make("cta")
    Traceback (most recent call last):
    ValueError: pet must be one of 'cat', got 'cta'; did you mean 'cat'?
    """

    def __init__(self, kind: str) -> None:
        """Create an empty catalogue; `kind` is the word for a member in error messages."""
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable[[_Entry], _Entry]:
        """Register a member under a name; raise ValueError if the name is taken."""

        def enter(member: _Entry) -> _Entry:
            if name in self:
                raise ValueError(f"the {self.kind} {name!r} exists already: choose another name.")
            self[name] = cast(_Member, member)
            return member

        return enter

    def make(self, name: str, /, **options: Any) -> Any:
        """Validate the options and call the factory registered under `name` with them."""
        factory: Any = self[name]
        check_options(name, factory, options)
        return factory(**options)

    def __missing__(self, name: Any) -> Any:
        """Raise ValueError for a name without a member."""
        one_of(self.kind, name, self)

    def __repr__(self) -> str:
        return f"Catalogue({self.kind}: {', '.join(self)})"
