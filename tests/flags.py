"""XLA's flags for the tests, which have to be set before JAX is imported."""

import importlib.util
import mmap
import os
import pathlib


def with_default(name: str, value: str) -> str:
    """Return XLA_FLAGS with this flag, unless it is set there or XLA does not have it."""
    flags = os.environ.get("XLA_FLAGS", "")
    return flags if name in flags or not exists(name) else f"{flags} --{name}={value}".strip()


def without(name: str, flags: str) -> str:
    """Return flags without the one of this name."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(f"--{name}="))


def exists(name: str) -> bool:
    """Decide whether the installed XLA has a flag: it ends the process on one that it has not.

    The names of removed flags stay in the library, but only those of flags end in a zero byte.
    """
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None
    assert spec.origin is not None
    libraries = pathlib.Path(spec.origin).parent.glob("*.so")
    largest = max(libraries, key=lambda path: path.stat().st_size)
    with largest.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(name.encode() + b"\0") >= 0
