"""The required packages: a missing or old one raises an error with the pip command.

This file imports the standard library alone, because setup.py runs it.
"""

import importlib.metadata
import importlib.util
import re

# The name on PyPI and the oldest version of every required package, by the name of its import.
PACKAGES = {
    "absl": ("absl-py", "2.3.1"),
    "chex": ("chex", "0.1.91"),
    "flax": ("flax", "0.12"),
    "jax": ("jax", "0.10"),
    "jaxtyping": ("jaxtyping", "0.3.2"),
    "matplotlib": ("matplotlib", "3.9"),
    "ml_collections": ("ml_collections", "1.1"),
    "numpy": ("numpy", "2.0"),
    "optax": ("optax", "0.2.6"),
    "orbax": ("orbax-checkpoint", "0.11.25"),
    "scipy": ("scipy", "1.14"),
    "tqdm": ("tqdm", "4.66"),
    # tfds.data_source reads with these; it does not need TensorFlow.
    "array_record": ("array_record", "0.8"),
    "importlib_resources": ("importlib_resources", "6.0"),
    "PIL": ("Pillow", "10.3"),
    "tensorflow_datasets": ("tensorflow-datasets", "4.9.9"),
}
_usable: set[str] = set()


class PackageNeeded(ImportError):
    """Raised when a required package is missing or too old; the message has the pip command."""


def require(*packages: str) -> None:
    """Raise `PackageNeeded` if a package of `PACKAGES` is missing or too old, without importing it.

    >>> require("jax", "numpy")
    """
    unchecked = [package for package in packages if package not in _usable]
    problems = {package: problem for package in unchecked if (problem := _problem(package))}
    if problems:
        raise PackageNeeded(_sentence(problems))
    _usable.update(unchecked)


def sentence(error: ImportError) -> str:
    """Return the sentence for an error about a required package, or "" for another error.

    >>> sentence(ModuleNotFoundError("No module named 'tqdm'", name="tqdm.auto"))
    "tqdm is not installed: python -m pip install 'tqdm>=4.66'"
    """
    if isinstance(error, PackageNeeded):
        return str(error)
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in PACKAGES:
        return _sentence({package: "is not installed"})
    return ""


def _sentence(problems: dict[str, str]) -> str:
    what = ", ".join(f"{PACKAGES[package][0]} {problem}" for package, problem in problems.items())
    wanted = (f"'{name}>={oldest}'" for name, oldest in map(PACKAGES.__getitem__, problems))
    return f"{what}: python -m pip install {' '.join(wanted)}"


def _problem(package: str) -> str:
    """Describe what is wrong with an installed package; "" if it can be used."""
    if importlib.util.find_spec(package) is None:
        return "is not installed"
    name, oldest = PACKAGES[package]
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""  # it can be imported, but its version is unknown
    return f"{version} is too old" if _release(version) < _release(oldest) else ""


def _release(version: str) -> list[int]:
    """Return the numbers of a version.

    >>> _release("0.11.25rc1")
    [0, 11, 25]
    """
    numbers = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in numbers[0].split(".")] if numbers else []
