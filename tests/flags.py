"""XLA's flags for the tests, which have to be set before JAX is imported."""

import importlib.util
import mmap
import pathlib


def with_defaults(flags: str, defaults: dict[str, str]) -> str:
    """Return the flags, with those defaults added that they do not set and that XLA has."""
    missing = {name: value for name, value in defaults.items() if name not in flags}
    return " ".join([flags, *(f"--{n}={v}" for n, v in missing.items() if exists(n))]).strip()


def without(flags: str, name: str) -> str:
    """Return the flags but this one."""
    return " ".join(flag for flag in flags.split() if not flag.startswith(f"--{name}="))


def exists(name: str) -> bool:
    """Decide whether the installed XLA has a flag: it ends the process on one that it has not."""
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None
    assert spec.origin is not None
    libraries = pathlib.Path(spec.origin).parent.glob("*.so")
    largest = max(libraries, key=lambda path: path.stat().st_size)
    with largest.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(name.encode()) >= 0
