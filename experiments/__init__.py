"""Binaries that combine the subpackages of calib_jax; run from the checkout."""

import sys
from types import TracebackType


def _in_one_sentence(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a missing required package and the interpreter, other errors with their traceback."""
    sentence = ""
    if isinstance(error, ImportError):
        try:
            from calib_jax.core import packages

            sentence = packages.sentence(error)
        except ImportError as missing:  # core needs packages, too
            sentence = str(missing)
    if sentence:
        print(
            f"error: {sentence}\nThe interpreter is {sys.executable}. Is the environment active"
            " (source .venv/bin/activate)?",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # `python -m experiments.BINARY` is about to import the binary
    sys.excepthook = _in_one_sentence
