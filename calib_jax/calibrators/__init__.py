"""Calibrators: pairs of `fit(logits, labels, weights=None)` and `apply(params, logits)`.

    params = calibrators.temperature.fit(logits, labels)
    calibrated = calibrators.temperature.apply(params, other_logits)
    params.state.name, params.state.nll_before, params.state.nll_after
    calibrators.catalogue()                              every calibrator by name
    calibrators.named("isotonic").fit(logits, labels)
    calibrators.save("t.npz", "temperature", params);  name, params = calibrators.load("t.npz")

Every file of this subpackage that defines `Params`, `fit` and `apply` is a calibrator (see
`contract.py`). `register` adds one of your own.
"""

import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from calib_jax.calibrators import contract, storage
from calib_jax.calibrators.contract import Code as Code
from calib_jax.calibrators.contract import State as State
from calib_jax.calibrators.label_shift import PriorEstimate as PriorEstimate
from calib_jax.calibrators.label_shift import estimate_prior as estimate_prior
from calib_jax.calibrators.label_shift import with_prior as with_prior
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.names import no_attribute

_Calibrator = TypeVar("_Calibrator")

_CATALOGUE: Catalogue[Any] = Catalogue("calibrator")
_PARTS = ("Params", "fit", "apply")
_BY_ITS_OWN_NAME = "scikit_learn"  # it needs a package that the others do without


def catalogue() -> Mapping[str, Any]:
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


def named(name: str) -> Any:
    """Return the calibrator with the given name.

    >>> named("temprature")
    Traceback (most recent call last):
    ValueError: no calibrator is called 'temprature'; did you mean 'temperature'?
    """
    _CATALOGUE.check_name(name)
    return _CATALOGUE[name]


def save(path: str | os.PathLike[str], name: str, params: Any) -> None:
    """Save a fitted calibrator as plain arrays and JSON.

    Args:
      path: the path of the file, conventionally `.npz`; an existing file is replaced.
      name: the name of the calibrator.
      params: the parameters that its `fit` returned.
    """
    if not isinstance(params, named(name).Params):
        raise TypeError(
            f"save: {name!r} needs the parameters of {name}, and these are"
            f" {contract.owner_of(params)}; give the name they belong to."
        )
    storage.write(path, name, params)


def load(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """Load a file written by `save`: return the calibrator's name and its parameters."""
    return storage.read(path, {name: member.Params for name, member in _CATALOGUE.items()})


for _file in pkgutil.iter_modules(__path__):
    if _file.name == _BY_ITS_OWN_NAME:
        continue
    _module = importlib.import_module(f"{__name__}.{_file.name}")
    if all(hasattr(_module, part) for part in _PARTS):
        register(_file.name)(_module)

__all__ = sorted(
    [
        "Code",
        "State",
        "catalogue",
        "PriorEstimate",
        "estimate_prior",
        "with_prior",
        "load",
        "named",
        "register",
        "save",
        *_CATALOGUE,
    ]
)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # With this function, type checkers accept names that are added at run time.
    raise no_attribute(__name__, name, __all__)
