"""Options: the keyword arguments of a function, or the fields of a dataclass."""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from calib_jax.core.names import nearest

_Class = TypeVar("_Class")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """List the options of a function with their defaults.

    Options are keyword-only or have a default. `weights` has a default, too, but holds data.
    """
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
        or (
            parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            and parameter.default is not parameter.empty
            and name != "weights"
        )
    }


def takes_options_of(
    *functions: Callable[..., Any], without: Collection[str] = ()
) -> Callable[[_Function], _Function]:
    """Replace `**options` in a function's signature by the keyword options of other functions.

    The options and their defaults are then written once, and `help` and `check_options` see them.

    Args:
      *functions: the functions that receive the options.
      without: options that the function does not pass on.

    >>> def focal(logits, *, gamma=3.0, weighting="loss"): ...
    >>> @takes_options_of(focal, without=["weighting"])
    ... def sharper(logits, *, scale=1.0, **options): ...
    >>> inspect.signature(sharper)
    <Signature (logits, *, scale=1.0, gamma=3.0)>
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        parameters = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }
        for source in functions:
            for name, parameter in inspect.signature(source).parameters.items():
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in without:
                    parameters.setdefault(name, parameter)
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(parameters.values())
        )
        return function

    return decorate


def check_options(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Validate that `function` has every option; the error suggests the nearest name."""
    known_options(name, options_of(function), options)


def known_options(name: str, known: Collection[str], options: Iterable[str]) -> None:
    """Validate that the options are known; the error suggests the nearest name or lists all."""
    for option in options:
        if option not in known:
            hint = nearest(option, known)
            if len(known) <= 10 or hint == ".":
                hint = f" (it has {', '.join(sorted(known)) or 'none'}){hint}"
            raise TypeError(f"{name!r} has no option {option!r}{hint}")


def names_options(made: type[_Class]) -> type[_Class]:
    """Decorate a dataclass: an unknown keyword raises an error that suggests the nearest field.

    >>> import dataclasses
    >>> @names_options
    ... @dataclasses.dataclass
    ... class Length:
    ...     num_epochs: int
    >>> Length(epochs=3)
    Traceback (most recent call last):
    TypeError: 'Length' has no option 'epochs' (it has num_epochs); did you mean 'num_epochs'?
    """
    initialize: Callable[..., None] = made.__init__
    known = [*inspect.signature(made).parameters]

    @functools.wraps(initialize)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        known_options(made.__name__, known, options)
        initialize(self, *args, **options)

    type.__setattr__(made, "__init__", checked)
    return made
