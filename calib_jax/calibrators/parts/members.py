"""The catalogue of the calibrators, and their files."""

import functools
import os
import types
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from calib_jax.calibrators.parts import contract, storage
from calib_jax.calibrators.parts.event import OfProbability, OfScore
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.names import check_options

_Calibrator = TypeVar("_Calibrator")

_CATALOGUE: Catalogue["Calibrator"] = Catalogue("calibrator")
_PARTS = ("Params", "fit", "apply")


def catalogue() -> Mapping[str, "Calibrator"]:
    """List every calibrator by name: modules or classes with `Params`, `fit` and `apply`."""
    return _CATALOGUE


def register(name: str) -> Callable[[_Calibrator], _Calibrator]:
    """Add a calibrator of your own to the catalogue: a module or a class, as a decorator.

    It has `Params`, a NamedTuple of arrays, `fit(logits, labels, weights=None) -> Params`, and
    `apply(params, logits) -> logits`. `save`, `load` and reports then take its name. `load` also
    needs a field `state: State` in `Params`, and shapes in the annotations of the others.

    >>> import jax.numpy as jnp
    >>> from typing import NamedTuple
    >>> @register("halved")
    ... class Halved:
    ...     class Params(NamedTuple):
    ...         factor: float
    ...     def fit(logits, labels, weights=None): return Halved.Params(0.5)
    ...     def apply(params, logits): return params.factor * logits
    >>> calibrator = named("halved")
    >>> calibrator.apply(calibrator.fit(None, None), jnp.array([2.0, 4.0]))
    Array([1., 2.], dtype=float32)
    """

    def enter(calibrator: _Calibrator) -> _Calibrator:
        missing = [part for part in _PARTS if not hasattr(calibrator, part)]
        if missing:
            raise TypeError(
                f"register: the calibrator {name!r} has no {' and no '.join(missing)}."
                f" Define {', '.join(_PARTS)}."
            )
        return _CATALOGUE.register(name)(calibrator)

    return enter


@runtime_checkable
class Calibrator(Protocol):
    """The parts of a calibrator, which is a module or a class."""

    Params: type[Any]
    fit: Callable[..., Any]
    apply: Callable[..., Any]


def named(name: str, **options: Any) -> Calibrator:
    """Return the calibrator with the given name, whose `fit` has these options.

    >>> named("histogram", num_bins=20).fit.keywords
    {'num_bins': 20}
    >>> named("temprature")
    Traceback (most recent call last):
    ValueError: no calibrator is called 'temprature'; did you mean 'temperature'?
    """
    _CATALOGUE.check_name(name)
    member = _CATALOGUE[name]
    if not options:
        return member
    check_options(name, member.fit, options)
    fit = functools.partial(member.fit, **options)
    made: Any = types.SimpleNamespace(Params=member.Params, fit=fit, apply=member.apply)
    return made


def save(path: str | os.PathLike[str], name: str, params: Any) -> None:
    """Save a fitted calibrator as plain arrays and JSON.

    Args:
      path: the path of the file, conventionally `.npz`; an existing file is replaced.
      name: the name of the calibrator.
      params: the parameters that its `fit` returned.
    """
    fitted = params.fitted if isinstance(params, OfProbability | OfScore) else params
    if not isinstance(fitted, named(name).Params):
        raise TypeError(
            f"save: {name!r} needs the parameters of {name}, and these are"
            f" {contract.owner_of(fitted)}; give the name they belong to."
        )
    storage.write(path, name, params)


def load(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """Load a file written by `save`: return the calibrator's name and its parameters."""
    return storage.read(path, {name: member.Params for name, member in _CATALOGUE.items()})
