"""Import paths, MODULE:NAME: user objects named in a config or an option.

The module is searched in the current folder and among the installed packages.
"""

import ast
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


def name_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """Parse NAME:key=value:key=value; a value that is not a Python literal is a string.

    >>> name_and_options("cifar10_c:corruption=fog:severity=3")
    ('cifar10_c', {'corruption': 'fog', 'severity': 3})
    >>> name_and_options("my_package.sets:mine:size=9")
    ('my_package.sets:mine', {'size': 9})
    """
    name, *pairs = text.split(":")
    if pairs and pairs[0].isidentifier():
        name, *pairs = f"{name}:{pairs[0]}", *pairs[1:]
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"{text!r} must look like NAME or NAME:key=value:key=value.")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = value
    return name, options


def object_at(kind: str, path: str) -> Any:
    """Import the object at a path; error messages call it `kind`.

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
    """Build the error for a user module that raises during import."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place, line = frame.filename, frame.lineno
    if isinstance(error, SyntaxError) and error.filename:
        place, line = error.filename, error.lineno
    reason = " ".join(str(error).split())
    return ValueError(
        f"the module {name} cannot be imported ({pathlib.Path(place).name}, line {line}):"
        f" {type(error).__name__}: {reason}."
    )
