"""Import paths, MODULE:NAME: objects of the user's own, by the text of a config or an option.

The module is looked for in the current folder and among the installed packages.
"""

import importlib
import os
import pathlib
import sys
import traceback
from typing import Any

from calib_jax.core.names import nearest


def is_path(name: str) -> bool:
    """Check whether a name is an import path, MODULE:NAME, and not a name of a catalogue.

    >>> is_path("my_package.losses:mine"), is_path("focal")
    (True, False)
    """
    return ":" in name


def object_at(kind: str, path: str) -> Any:
    """Import the object of a path; `kind` is the word for it in error messages.

    >>> object_at("loss", "math:tanh")(0)
    0.0
    """
    module_name, _, name = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise ValueError(f"the {kind} {path!r} must look like my_package.module:name.")
    module = _module(kind, module_name)
    if not hasattr(module, name):
        raise ValueError(
            f"the module {module_name} ({getattr(module, '__file__', None)}) has no"
            f" {name!r}{nearest(name, dir(module))}"
        )
    return getattr(module, name)


def _module(kind: str, name: str) -> Any:
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise ValueError(
            f"there is no module {error.name!r} for the {kind}, neither in {here} nor among the"
            " installed packages."
        ) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ValueError:
    """Build the error for a module of the user's that raises when it is imported."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place, line = frame.filename, frame.lineno
    if isinstance(error, SyntaxError) and error.filename:
        place, line = error.filename, error.lineno
    reason = " ".join(str(error).split())
    return ValueError(
        f"the module {name} cannot be imported ({pathlib.Path(place).name}, line {line}):"
        f" {type(error).__name__}: {reason}."
    )
