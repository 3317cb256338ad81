"""Checks of options, run once at trace time: numbers, seeds, keys, names; and catalogues.

An error for an unknown name suggests the nearest known one.
"""

import ast
import difflib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar, cast

import jax
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Member = TypeVar("_Member")
_Entry = TypeVar("_Entry")


def concrete(*values: Any) -> bool:
    """Check whether the values can be read, that is, none is traced."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def random_key(key: Any) -> None:
    """Validate a key of `jax.random`; an integer is a seed and raises an error."""
    dtype = getattr(key, "dtype", None)
    is_key = dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)
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
    _require("level", value, lambda part: (part > 0) & (part < 1), "be a fraction between 0 and 1")


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


# --------------------------------------------------------------------------------------------
# Names: choices, options, public names, and short texts for errors.


def closest(name: str, choices: Collection[str], n: int = 1, cutoff: float = 0.5) -> list[str]:
    """Return the choices nearest to a name; ignore case, and treat - and _ as equal.

    >>> closest("Label-Smoothing", ["brier", "label_smoothing"])
    ['label_smoothing']
    """

    def folded(text: str) -> str:
        return text.casefold().replace("-", "_")

    by_folded = {folded(choice): choice for choice in choices}
    matches = difflib.get_close_matches(folded(name), [*by_folded], n=n, cutoff=cutoff)
    return [by_folded[match] for match in matches]


def nearest(name: str, choices: Collection[str]) -> str:
    """Return the end of an error message: the choice nearest to `name`, if any is similar."""
    matches = closest(name, choices)
    return f"; did you mean {matches[0]!r}?" if matches else "."


def export(
    package: str,
    advice: Callable[[str], str] = lambda name: "",
    modules: Collection[str] = (),
    unlisted: Collection[str] = (),
) -> None:
    """Set `__all__`, `__dir__` and `__getattr__` of a subpackage from the names that it imports.

    An error for a name that the subpackage does not have suggests the nearest public name.

    Every name without a leading underscore is public, except other modules than `modules`, and
    `TYPE_CHECKING`.

    Args:
      package: the subpackage; it calls this function after its imports.
      advice: returns the end of the error "SUBPACKAGE has no ..." for some names; "" for others.
      modules: the names of the modules that are public.
      unlisted: public names that `dir` and `__all__` leave out.
    """
    members = vars(sys.modules[package])
    public = sorted(
        {name for name, value in members.items() if not isinstance(value, ModuleType)}
        - {name for name in members if name.startswith("_") or name == "TYPE_CHECKING"}
        | {*modules}
    )

    def get(name: str) -> Any:
        # Libraries probe many private names, such as __wrapped__, and none has a public one nearby.
        hint = "." if name.startswith("_") else nearest(name, public)
        raise AttributeError(f"{package} has no {advice(name) or repr(name) + hint}")

    listed = [name for name in public if name not in unlisted]
    members |= {"__all__": listed, "__dir__": lambda: listed, "__getattr__": get}


def one_of(name: str, value: Any, choices: Collection[str]) -> None:
    """Validate that a name is among the choices; the error names the nearest, or all of a few."""
    if isinstance(value, str) and value in choices:
        return
    hint = nearest(value, choices) if isinstance(value, str) else "."
    if len(choices) > 10:
        raise ValueError(f"no {name} is called {short(value)}{hint}")
    listed = ", ".join(map(repr, choices))
    raise ValueError(f"{name} must be one of {listed}, got {short(value)}{hint}")


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """List the options of a function with their defaults.

    Options are keyword-only or have a default. `weights` has a default, too, but holds data.
    """
    return {
        name: each.default
        for name, each in inspect.signature(function).parameters.items()
        if each.kind is each.KEYWORD_ONLY
        or (each.kind is each.POSITIONAL_OR_KEYWORD and each.default is not each.empty)
        if name != "weights"
    }


def check_options(name: str, function: Callable[..., Any], options: Iterable[str]) -> None:
    """Validate that `function` has every option; the error suggests the nearest name."""
    known_options(name, options_of(function), options)


def known_options(name: str, known: Collection[str], options: Iterable[str]) -> None:
    """Validate that the options are known; the error suggests the nearest name and lists all."""
    for option in options:
        if option not in known:
            listed = ", ".join(sorted(known)) or "none"
            hint = nearest(option, known)
            raise TypeError(f"{name!r} has no option {option!r} (it has {listed}){hint}")


def short_repr(record: Any) -> str:
    """Format a dataclass or a named tuple in a few lines: arrays by dtype and shape.

    No value of an array is read, so the arrays may be on a device, traced or donated.

    >>> import numpy as np
    >>> from calib_jax import metrics
    >>> metrics.Stated(np.full(9, 0.5), [True] * 9)
    Stated(confidence=float64[9], correct=<list of 9>)
    """
    fields: Mapping[str, Any] = record._asdict() if hasattr(record, "_asdict") else vars(record)
    shown = ", ".join(f"{name}={short(value)}" for name, value in fields.items())
    return f"{type(record).__name__}({shown})"


def short(value: Any) -> str:
    """Format a value in one line: arrays by dtype and shape, other long values by length.

    >>> import numpy as np
    >>> short(np.zeros((2, 3)))
    'float64[2,3]'
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if hasattr(value, "_asdict"):
        return short_repr(value)
    if isinstance(value, dict | list | tuple):
        entries = value.values() if isinstance(value, dict) else value
        if len(value) > 8 or not all(isinstance(each, int | float | str) for each in entries):
            return f"<{type(value).__name__} of {len(value)}>"
    return repr(value)


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


# --------------------------------------------------------------------------------------------
# Import paths, MODULE:NAME: user objects named in a config or an option. The module is searched in
# the current folder and among the installed packages.


def is_path(name: str) -> bool:
    """Check whether a name is an import path, MODULE:NAME, and not a name of a catalogue.

    >>> is_path("my_package.losses:mine"), is_path("focal")
    (True, False)
    """
    return ":" in name


def name_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """Parse NAME:key=value:key=value; a value that is not a Python literal is a string.

    >>> name_and_options("cifar10_c:corruption=fog:severity=3")
    ('cifar10_c', {'corruption': 'fog', 'severity': 3})
    >>> name_and_options("my_package.sets:mine:size=9")
    ('my_package.sets:mine', {'size': 9})
    """
    name, *pairs = text.split(":")
    if pairs and pairs[0].isidentifier():
        name, *pairs = f"{name}:{pairs[0]}", *pairs[1:]
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{text!r} must look like NAME or NAME:key=value:key=value.")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return name, options


def object_at(kind: str, path: str) -> Any:
    """Import the object at a path; error messages call it `kind`.

    >>> object_at("loss", "math:tanh")(0)
    0.0
    """
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the module {module_name} of the {kind} cannot be imported from {os.getcwd()}:"
            f" {type(error).__name__}: {reason}."
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"the module {module_name} has no {name!r}{nearest(name, dir(module))}")
    return getattr(module, name)
