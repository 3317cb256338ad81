"""Files of fitted calibrators: plain arrays and a JSON text, without pickles.

The file is an `.npz`. It holds one array per field, named by its path such as "state/code", and
"calibrator", a JSON text with the calibrator's name and the format number. A calibrator of an event
has the same arrays, "event" in the JSON text, which is "probability" or "score", and the array
"scores" if the fit kept the scores.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from calib_jax.calibrators.parts import event
from calib_jax.calibrators.parts.contract import Code, State
from calib_jax.core.files import reading, writing
from calib_jax.core.types import Array

FORMAT = 1
_ABOUT = "calibrator"
_SCORES = "scores"


def write(path: str | os.PathLike[str], name: str, params: Any) -> None:
    """Write parameters to exactly this path; replace an existing file atomically."""
    about: dict[str, Any] = {"format": FORMAT, "name": name}
    scores = of_event = None
    if isinstance(params, event.OfProbability | event.OfScore):
        of_event = "score" if isinstance(params, event.OfScore) else "probability"
        about["event"] = of_event
        scores = getattr(params, _SCORES, None)
        params = params.fitted
    arrays: dict[str, Any] = {_ABOUT: np.array(json.dumps(about))}
    if scores is not None:
        arrays[_SCORES] = np.asarray(scores)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        arrays[jax.tree_util.keystr(keys, simple=True, separator="/")] = np.asarray(leaf)
    with writing.replacing(Path(path)) as unfinished, open(unfinished, "wb") as file:
        np.savez_compressed(file, **arrays)


def read(path: str | os.PathLike[str], kinds: Mapping[str, Any]) -> tuple[str, Any]:
    """Read the name of a calibrator and its parameters, and validate them.

    Args:
      path: the path of the file.
      kinds: a mapping from the name of each calibrator to the type of its parameters.
    """
    with reading.npz(path, "a calibrator", "fit it anew and save it") as file:
        name, of_event = _name(file[_ABOUT], kinds)
        fields = _fields(kinds[name])
        if of_event == "score" and event.MEMBERS[name].way == "place":
            fields[_SCORES] = Float[Array, " scores"]
        odd = sorted({*fields, _ABOUT} ^ set(file.names))
        if odd:
            raise ValueError(f"it does not hold what {name} needs: {', '.join(odd)} differ")
        arrays = {field: file[field] for field in fields}
        _check(arrays, fields)
        scores = jnp.asarray(arrays.pop(_SCORES)) if _SCORES in arrays else None
        if scores is not None and jnp.any(scores[..., 1:] < scores[..., :-1]):
            raise ValueError("the scores are not sorted")
        leaves = {field: jnp.asarray(array) for field, array in arrays.items()}
        state = State(*(leaves.pop(f"state/{field}") for field in State._fields))
        params = kinds[name](**leaves, state=state)
        if of_event:
            of_score = of_event == "score"
            params = event.OfScore(params, scores) if of_score else event.OfProbability(params)
        return name, params


def _name(about: np.ndarray, kinds: Mapping[str, Any]) -> tuple[str, str]:
    """Read from the JSON text the calibrator's name, and which event it calibrates, or ""."""
    description = json.loads(str(about)) if about.dtype.kind == "U" and about.ndim == 0 else None
    if not (isinstance(description, dict) and isinstance(description.get("name"), str)):
        raise ValueError(f"{_ABOUT} does not hold a name")
    if description.get("format") != FORMAT or description["name"] not in kinds:
        raise ValueError(
            f"it holds {description['name']!r} in format {description.get('format')}; known are"
            f" {', '.join(kinds)} in format {FORMAT}"
        )
    name, of_event = str(description["name"]), description.get("event", "")
    member = event.MEMBERS.get(name)
    events = ["", "probability", "score"][: 1 if member is None else 2 + member.scores]
    if of_event not in events:
        raise ValueError(f"{name} does not calibrate {of_event!r}")
    return name, of_event


def _fields(kind: Any) -> dict[str, Any]:
    """Return the annotations of the arrays of parameters, by path."""
    own = {name: inner for name, inner in kind.__annotations__.items() if name != "state"}
    return own | {f"state/{name}": inner for name, inner in State.__annotations__.items()}


def _check(arrays: Mapping[str, np.ndarray], fields: Mapping[str, Any]) -> None:
    """Check shapes and dtypes against the annotations, and that parameters are finite.

    Stacked fits have leading axes, the same for all arrays.
    """
    code = arrays["state/code"]
    sizes: dict[str, int] = {}
    for field, array in arrays.items():
        kinds = "iu" if fields[field].dtype is Integer else "f"
        if array.dtype.kind not in kinds:
            raise ValueError(f"{field} is of {array.dtype}")
        shape = array.shape[code.ndim :]
        axes = fields[field].dim_str.split()
        right = array.shape[: code.ndim] == code.shape and len(axes) == len(shape)
        for axis, size in zip(axes, shape, strict=False):
            axis, _, more = axis.partition("+")
            size -= int(more or 0)
            wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis, size)
            right = right and size == wanted and size > 0
        if not right:
            raise ValueError(f"{field} has shape {array.shape}, and not [{', '.join(axes)}]")
    if not np.all((code >= min(Code)) & (code <= max(Code))):
        raise ValueError(f"{code.max()} is no state")
    usable = code != Code.UNUSABLE
    for field, array in arrays.items():
        if not field.startswith("state/") and not np.isfinite(array[usable]).all():
            raise ValueError(f"{field} is not finite")
