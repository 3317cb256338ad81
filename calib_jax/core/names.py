"""Public names of subpackages, and errors that suggest the known name nearest to a wrong one."""

import difflib
import importlib
import sys
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any


def closest(name: str, choices: Collection[str], n: int = 1, cutoff: float = 0.5) -> list[str]:
    """Return the choices nearest to a name; ignore case, and treat - and _ as equal.

    >>> closest("Label-Smoothing", ["brier", "label_smoothing"])
    ['label_smoothing']
    """
    by_folded: dict[str, str] = {}
    for choice in choices:
        by_folded.setdefault(_folded(choice), choice)
    matches = difflib.get_close_matches(_folded(name), list(by_folded), n=n, cutoff=cutoff)
    return [by_folded[match] for match in matches]


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def nearest(name: str, choices: Collection[str]) -> str:
    """Return the end of an error message: the choice nearest to `name`, if any is similar."""
    matches = closest(name, choices)
    return f"; did you mean {matches[0]!r}?" if matches else "."


def no_attribute(owner: str, name: str, public: Collection[str]) -> AttributeError:
    """Build the error for a name that a subpackage or an object does not have.

    >>> raise no_attribute("calib_jax.losses", "focl", ["focal"])
    Traceback (most recent call last):
    AttributeError: calib_jax.losses has no 'focl'; did you mean 'focal'?
    """
    # Libraries probe many private names, such as __wrapped__, and none has a public one nearby.
    end = "." if name.startswith("_") else nearest(name, public)
    return AttributeError(f"{owner} has no {name!r}{end}")


def export(
    package: str,
    lazy: Mapping[str, str] | None = None,
    advice: Callable[[str], str] | None = None,
    modules: Collection[str] = (),
    unlisted: Collection[str] = (),
) -> None:
    """Set `__all__`, `__dir__` and `__getattr__` of a subpackage from the names that it imports.

    Every name without a leading underscore is public, except other modules than `modules`, and
    `TYPE_CHECKING`.

    Args:
      package: the subpackage; it calls this function after its imports.
      lazy: the subpackage from which a further public name is imported when it is used.
      advice: returns the end of the error "SUBPACKAGE has no ..." for some names; "" for others.
      modules: the names of the modules that are public.
      unlisted: public names that `dir` and `__all__` leave out.
    """
    members, lazy = vars(sys.modules[package]), lazy or {}
    public = sorted(
        {name for name, value in members.items() if not isinstance(value, ModuleType)}
        - {name for name in members if name.startswith("_") or name == "TYPE_CHECKING"}
        | {*lazy, *modules}
    )

    def get(name: str) -> Any:
        if name in lazy:
            return getattr(importlib.import_module(lazy[name]), name)
        if advice is not None and (end := advice(name)):
            raise AttributeError(f"{package} has no {end}")
        raise no_attribute(package, name, public)

    listed = [name for name in public if name not in unlisted]
    members |= {"__all__": listed, "__dir__": lambda: listed, "__getattr__": get}
