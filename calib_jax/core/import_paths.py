"""Import paths, MODULE:NAME: user objects named in a config or an option.

The module is searched in the current folder and among the installed packages.
"""

import ast
import importlib
import os
import sys
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
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module is the user's, and may raise anything
        reason = " ".join(str(error).split())
        raise ValueError(
            f"the module {module_name} of the {kind} cannot be imported from {os.getcwd()}:"
            f" {type(error).__name__}: {reason}."
        ) from error
    if not hasattr(module, name):
        raise ValueError(f"the module {module_name} has no {name!r}{nearest(name, dir(module))}")
    return getattr(module, name)
