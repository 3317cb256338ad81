"""Binaries that combine the subpackages of calib_jax; run from the checkout."""

import sys
from types import TracebackType

OURS = ("", "calib_jax", "configs", "experiments")


def _in_one_sentence(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a missing package and the interpreter; print other errors with their traceback."""
    missing = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and missing not in OURS:
        print(
            f"error: the package {missing} is not installed: python -m pip install --editable .\n"
            f"The interpreter is {sys.executable}. Is the environment active (source"
            " .venv/bin/activate)?",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # `python -m experiments.BINARY` is about to import the binary
    sys.excepthook = _in_one_sentence
