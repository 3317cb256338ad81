"""Calibrators: pairs of `fit(logits, labels, weights=None)` and `apply(params, logits)`.

    params = calibrators.temperature.fit(logits, labels)
    calibrated = calibrators.temperature.apply(params, other_logits)
    params.state.name, params.state.nll_before, params.state.nll_after
    calibrators.catalogue()                              every calibrator by name
    calibrators.named("isotonic").fit(logits, labels)
    calibrators.save("t.npz", "temperature", params);  name, params = calibrators.load("t.npz")

Every file of this subpackage that defines `Params`, `fit` and `apply` is a calibrator. To add a
calibrator, add one file (see `contract.py`).
"""

import importlib
import os
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from calib_jax.calibrators import contract, storage
from calib_jax.calibrators.contract import Code as Code
from calib_jax.calibrators.contract import State as State
from calib_jax.core import checks

_FILES = {
    found.name: importlib.import_module(f"{__name__}.{found.name}")
    for found in pkgutil.iter_modules(__path__)
}
_CALIBRATORS = {
    name: file
    for name, file in sorted(_FILES.items())
    if all(hasattr(file, part) for part in ("Params", "fit", "apply"))
}


def catalogue() -> Mapping[str, Any]:
    """List every calibrator by name: modules with `Params`, `fit` and `apply`."""
    return MappingProxyType(_CALIBRATORS)


def named(name: str) -> Any:
    """Return the calibrator with the given name.

    >>> named("temprature")
    Traceback (most recent call last):
    ValueError: calibrator must be one of ...; did you mean 'temperature'?
    """
    checks.one_of("calibrator", name, _CALIBRATORS)
    return _CALIBRATORS[name]


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
    return storage.read(path, {name: file.Params for name, file in _CALIBRATORS.items()})


__all__ = sorted(["Code", "State", "catalogue", "load", "named", "save", *_CALIBRATORS])


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # With this function, type checkers accept names that are added at run time.
    raise AttributeError(f"calib_jax.calibrators has no {name!r}{checks.nearest(name, __all__)}")
