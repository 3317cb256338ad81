"""Fitted calibrators as files: plain arrays and a line of JSON, nothing that could run.

The file is an `.npz`: the arrays by the names of their fields ("state/code"), and "calibrator",
a JSON text with the calibrator's name and the number of this format. Nothing is unpickled.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

FORMAT = 1
_ABOUT = "calibrator"


def write(path: str | os.PathLike[str], name: str, params: Any) -> None:
    """Write parameters under exactly this path; a file that was there is replaced as a whole."""
    about = json.dumps({"format": FORMAT, "name": name})
    path = Path(path)
    unfinished = path.with_name(path.name + ".unfinished")
    with open(unfinished, "wb") as file:
        arrays: dict[str, Any] = {_ABOUT: np.array(about)} | _flat(params)
        np.savez_compressed(file, **arrays)
    os.replace(unfinished, path)


def read(path: str | os.PathLike[str], kinds: Mapping[str, Any]) -> tuple[str, Any]:
    """Read a name and its parameters, or say in one sentence why not.

    Args:
      path: of the file.
      kinds: the type of the parameters for every name that is known.
    """
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        about = json.loads(str(arrays.pop(_ABOUT)))
        name, number = about["name"], about["format"]
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile):
        raise ValueError(
            f"{path} is damaged, or not a calibrator written by calibrators.save."
        ) from None
    if number != FORMAT or name not in kinds:
        raise ValueError(
            f"{path} holds {name!r} in format {number}; known are {', '.join(kinds)} in format"
            f" {FORMAT}."
        )
    params, wanted = _nested(kinds[name], arrays, "")
    odd = sorted(wanted ^ set(arrays))
    if odd:
        raise ValueError(f"{path} does not hold what {name} needs: {', '.join(odd)} differ.")
    return name, params


def _flat(params: Any, prefix: str = "") -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for field, value in params._asdict().items():
        if hasattr(value, "_asdict"):
            found |= _flat(value, f"{prefix}{field}/")
        else:
            found[prefix + field] = np.asarray(value)
    return found


def _nested(kind: Any, arrays: Mapping[str, np.ndarray], prefix: str) -> tuple[Any, set[str]]:
    """Build a NamedTuple from the arrays; also list the names it looked for."""
    values: dict[str, Any] = {}
    wanted: set[str] = set()
    for field, inner in kind.__annotations__.items():
        if hasattr(inner, "_fields"):
            values[field], names = _nested(inner, arrays, f"{prefix}{field}/")
            wanted |= names
        else:
            key = prefix + field
            values[field] = jnp.asarray(arrays[key]) if key in arrays else None
            wanted.add(key)
    return kind(**values), wanted
