"""The catalogue of the calibrators, and their files.

A file is an `.npz` of plain arrays, one for each field, named by its path such as "state/code", and
"calibrator", a JSON text with the calibrator's name and the format number. A calibrator of an event
has the same arrays, "event" in the JSON text, which is "probability" or "score", and the array
"scores" if the fit kept the scores. Nothing is pickled.
"""

import functools
import json
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped, jaxtyped

from calib_jax.calibrators.parts.contract import State, fitted_of
from calib_jax.calibrators.parts.event import WAYS, OfProbability, OfScore
from calib_jax.core.checks import Catalogue, check_options
from calib_jax.core.files import reading, writing

_Calibrator = TypeVar("_Calibrator")

_CATALOGUE: Catalogue["Calibrator"] = Catalogue("calibrator")
FORMAT = 1
_ABOUT = "calibrator"
_SCORES = "scores"


def catalogue() -> Mapping[str, "Calibrator"]:
    """List every calibrator by name: modules or classes with `Params`, `fit` and `apply`."""
    return _CATALOGUE


def register(name: str) -> Callable[[_Calibrator], _Calibrator]:
    """Add a calibrator of your own to the catalogue: a module or a class, as a decorator.

    It has `Params`, a NamedTuple of arrays, `fit(logits, labels, weights=None) -> Params`, and
    `apply(params, logits) -> logits`. `save`, `load` and reports then take its name. `load` also
    needs a field `state: State` in `Params`.

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
    return _CATALOGUE.register(name)


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
    fitted = fitted_of(name, named(name).Params, params)
    about: dict[str, Any] = {"format": FORMAT, "name": name}
    if fitted is not params:
        about["event"] = "score" if isinstance(params, OfScore) else "probability"
    arrays = {_ABOUT: np.array(json.dumps(about))}
    if isinstance(params, OfScore) and params.scores is not None:
        arrays[_SCORES] = np.asarray(params.scores)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(fitted):
        arrays[jax.tree_util.keystr(keys, simple=True, separator="/")] = np.asarray(leaf)
    with writing.replacing(Path(path)) as unfinished, open(unfinished, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _of_other_axes(kind: Any, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """List the arrays of other axes than the parameters have; stacked fits have more in front."""
    hints = {field: hint for field, hint in kind.__annotations__.items() if field != "state"}
    hints |= {f"state/{field}": hint for field, hint in State.__annotations__.items()}
    axes = {field: hint.dim_str for field, hint in hints.items() if hasattr(hint, "dim_str")}
    odd = []
    with jaxtyped("context"):
        for field in sorted(axes, key=lambda field: "+" in axes[field]):  # "n+1" after "n"
            of_kind: Any = Shaped[np.ndarray, f"*stack {axes[field]}"]
            if not isinstance(arrays[field], of_kind):
                odd.append(field)
    return odd


def load(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """Load a file written by `save`: return the calibrator's name and its parameters."""
    with reading.npz(path, "a calibrator", "fit it anew and save it") as file:
        about = json.loads(str(file[_ABOUT]))
        if not isinstance(about, dict) or not isinstance(about["name"], str):
            raise ValueError(f"{_ABOUT} does not hold a name")
        name, of_event = about["name"], about.get("event")
        if about["format"] != FORMAT or name not in _CATALOGUE:
            raise ValueError(
                f"it holds {name!r} in format {about['format']}; known are"
                f" {', '.join(_CATALOGUE)} in format {FORMAT}"
            )
        kind = _CATALOGUE[name].Params
        fields = [field for field in kind._fields if field != "state"]
        state_fields = [f"state/{field}" for field in State._fields]
        if of_event is not None and (of_event not in ("probability", "score") or name not in WAYS):
            raise ValueError(f"{name} does not calibrate {of_event!r}")
        by_place = of_event == "score" and WAYS[name] == "place"
        odd = sorted({_ABOUT, *fields, *state_fields, *[_SCORES] * by_place} ^ {*file.names})
        if odd:
            raise ValueError(f"it does not hold what {name} needs: {', '.join(odd)} differ")
        arrays = {field: file[field] for field in file.names if field != _ABOUT}
        for field, array in arrays.items():
            if array.dtype.kind not in "iuf":
                raise ValueError(f"{field} is of {array.dtype}")
        for field in _of_other_axes(kind, arrays):
            raise ValueError(f"{field} has the shape {arrays[field].shape}")
        for field in {_SCORES, "knots", "edges"} & {*arrays}:
            if np.any(np.diff(arrays[field]) < 0):
                raise ValueError(f"{field} do not ascend")
        parts = {field: jnp.asarray(array) for field, array in arrays.items()}
    state = State(*(parts[field] for field in state_fields))
    params = kind(**{field: parts[field] for field in fields}, state=state)
    if of_event == "score":
        return name, OfScore(params, parts.get(_SCORES))
    return name, OfProbability(params) if of_event else params
