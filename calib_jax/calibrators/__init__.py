"""Calibrators: pairs of `fit(logits, labels, weights=None)` and `apply(params, logits)`.

    params = calibrators.temperature.fit(logits, labels)
    calibrated = calibrators.temperature.apply(params, other_logits)
    params.state.name, params.state.nll_before, params.state.nll_after
    calibrators.catalogue()                              every calibrator by name
    calibrators.named("isotonic").fit(logits, labels)
    calibrators.named("histogram", num_bins=20).fit(logits, labels)
    calibrators.isotonic.fit(metrics.Stated(confidence, correct))     also of an event
    calibrators.save("t.npz", "temperature", params);  name, params = calibrators.load("t.npz")

Every file of this subpackage that defines `Params`, `fit` and `apply` is a calibrator (see
`contract.py`). `register` adds a calibrator of yours.
"""

import functools
import os
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from calib_jax.calibrators import (
    bbq,
    beta,
    bias_corrected_temperature,
    dirichlet,
    enir,
    ensemble_temperature,
    histogram,
    isotonic,
    matrix,
    platt,
    sms,
    svs,
    temperature,
    vector,
    venn_abers,
)
from calib_jax.calibrators.label_shift import PriorEstimate, estimate_prior, with_prior
from calib_jax.calibrators.parts import contract, storage
from calib_jax.calibrators.parts.contract import Code, State
from calib_jax.calibrators.parts.event import OfProbability, OfScore, Scored
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.inputs import checks
from calib_jax.core.names import no_attribute

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
    checks.check_options(name, member.fit, options)
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


__all__ = [
    "Code",
    "OfProbability",
    "OfScore",
    "PriorEstimate",
    "Scored",
    "State",
    "bbq",
    "beta",
    "bias_corrected_temperature",
    "catalogue",
    "dirichlet",
    "enir",
    "ensemble_temperature",
    "estimate_prior",
    "histogram",
    "isotonic",
    "load",
    "matrix",
    "named",
    "platt",
    "register",
    "save",
    "sms",
    "svs",
    "temperature",
    "vector",
    "venn_abers",
    "with_prior",
]

for _name in __all__:
    if isinstance(globals()[_name], types.ModuleType):  # all public modules are calibrators
        register(_name)(globals()[_name])


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
