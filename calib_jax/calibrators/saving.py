"""Parameters as files: plain arrays and a name, no pickle."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax.calibrators.catalogue import catalogue, named


def save(path: str | os.PathLike[str], name: str, params: Any) -> None:
    """Write a calibrator's parameters to an .npz file.

    Args:
      path: where to; an existing file is replaced.
      name: the calibrator's name.
      params: what its `fit` returned.
    """
    named(name)
    arrays: dict[str, Any] = {
        f"param_{field}": np.asarray(value) for field, value in params._asdict().items()
    }
    about = json.dumps({"calibrator": name, "fields": list(params._fields)})
    with open(path, "wb") as file:
        np.savez(file, about=np.array(about), **arrays)


def load(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """Read a calibrator's name and parameters from a file that `save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            name = about["calibrator"]
            fields = {field: jnp.asarray(arrays[f"param_{field}"]) for field in about["fields"]}
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}.") from None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} holds no parameters that calibrators.save wrote.") from error
    if name not in catalogue():
        raise ValueError(f"{path} is of a calibrator {name!r}, which there is not here.")
    return name, catalogue()[name].Params(**fields)
