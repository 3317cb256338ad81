"""Public names, options and short texts; errors suggest the known name nearest to a wrong one."""

import ast
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Any


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
