"""Former public names: using one raises an error that contains the present name.

A subpackage, a catalogue and a function each have one line for it:

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__, {"mmce": "mmce_penalty"})

    Catalogue("network", renamed={"resnet_18": "resnet18"})

    @former_options(renamed={"slope": "slope_penalty"})
    def fit(logits, labels, *, slope_penalty=0.0): ...
"""

import difflib
import functools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NONE: Mapping[str, str] = MappingProxyType({})


def closest(name: str, choices: Collection[str], n: int = 1, cutoff: float = 0.5) -> list[str]:
    """Return the choices nearest to a name; upper and lower case are equal, and so are - and _.

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
    """Return the end of an error message: the choice nearest to `name`, if one is similar."""
    matches = closest(name, choices)
    return f"; did you mean {matches[0]!r}?" if matches else "."


def no_attribute(
    package: str, name: str, public: Collection[str], renamed: Mapping[str, str] = _NONE
) -> AttributeError:
    """Build the error for a name that a subpackage does not have.

    Args:
      package: the subpackage, its `__name__`.
      name: the name that was asked for.
      public: the public names, of which the nearest is suggested.
      renamed: the present name of each former one.

    >>> raise no_attribute("calib_jax.losses", "mmce", ["focal"], {"mmce": "mmce_penalty"})
    Traceback (most recent call last):
    AttributeError: calib_jax.losses.mmce is called mmce_penalty now.
    >>> raise no_attribute("calib_jax.losses", "focl", ["focal"])
    Traceback (most recent call last):
    AttributeError: calib_jax.losses has no 'focl'; did you mean 'focal'?
    """
    if name in renamed:
        return AttributeError(f"{package}.{name} is called {renamed[name]} now.")
    return AttributeError(f"{package} has no {name!r}{nearest(name, public)}")


def former_options(
    *, renamed: Mapping[str, str] = _NONE, removed: Mapping[str, str] = _NONE
) -> Callable[[_Function], _Function]:
    """Decorate a function so that its former keyword options raise a TypeError.

    Args:
      renamed: the present name of each renamed option.
      removed: why each removed option is gone, or what to use instead.

    >>> @former_options(renamed={"slope": "slope_penalty"}, removed={"eps": "it had no effect"})
    ... def fit(*, slope_penalty=0.0): return slope_penalty
    >>> fit(slope=1.0)
    Traceback (most recent call last):
    TypeError: fit: the option 'slope' is called 'slope_penalty' now.
    >>> fit(eps=1e-6)
    Traceback (most recent call last):
    TypeError: fit: the option 'eps' was removed: it had no effect.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            check_former_options(function.__name__, checked, options)
            return function(*args, **options)

        checked.__former_options__ = (renamed, removed)  # type: ignore[attr-defined]
        return cast(_Function, checked)

    return decorate


def check_former_options(name: str, function: Any, options: Mapping[str, Any]) -> None:
    """Raise a TypeError, which starts with `name`, for a former option of a decorated function."""
    renamed, removed = getattr(function, "__former_options__", (_NONE, _NONE))
    for option in options:
        if option in renamed:
            raise TypeError(f"{name}: the option {option!r} is called {renamed[option]!r} now.")
        if option in removed:
            raise TypeError(f"{name}: the option {option!r} was removed: {removed[option]}.")
