"""The options of every public name: their defaults are published numbers, recorded in a file.

python -m tests.options     # records them anew
"""

import dataclasses
import importlib
import inspect
import json
import pathlib
from typing import Any

FILE = pathlib.Path(__file__).parent / "golden" / "options.json"
ROOMS = ("losses", "metrics", "inference", "calibrators", "models", "data", "train", "report")
PLAIN = (bool, int, float, str, tuple, dict)


def options_of(value: Any) -> dict[str, str]:
    """Return the defaults of a function or class that are plain values."""
    if inspect.ismodule(value):  # a calibrator
        value = value.fit
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # a constant, a type, an exception
        return {}
    return {p.name: repr(p.default) for p in parameters if isinstance(p.default, PLAIN)}


def fields_of(network: Any) -> dict[str, str]:
    """Return the fields of a network that are plain values: its architecture."""
    fields = ((field.name, getattr(network, field.name)) for field in dataclasses.fields(network))
    return {name: repr(value) for name, value in fields if isinstance(value, PLAIN)}


def options_in(room: str) -> dict[str, dict[str, str]]:
    """Return the defaults of the public names and of the members of the catalogue of a room."""
    package = importlib.import_module(f"calib_jax.{room}")
    catalogue = package.catalogue() if hasattr(package, "catalogue") else {}
    if room == "train":
        catalogue = package.OPTIMIZERS | package.SCHEDULES
    public = {name: getattr(package, name) for name in package.__all__}
    found = {name: options_of(value) for name, value in (public | catalogue).items()}
    if room == "models":
        found |= {f"{name}()": fields_of(package.named(name)) for name in catalogue}
    return {name: options for name, options in found.items() if options}


def assert_recorded(room: str) -> None:
    """Compare the defaults of a room with the recorded ones; names may come and go."""
    now = options_in(room)
    for name, recorded in json.loads(FILE.read_text(encoding="utf-8"))[room].items():
        options = now.get(name, {})
        assert {k: options[k] for k in recorded if k in options} == {
            k: recorded[k] for k in recorded if k in options
        }, name


if __name__ == "__main__":
    record = {room: options_in(room) for room in ROOMS}
    FILE.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
