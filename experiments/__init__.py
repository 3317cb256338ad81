"""Binaries that combine the subpackages of calib_jax; run from the checkout."""

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import NoReturn

OURS = ("", "calib_jax", "configs", "experiments")
# Bytes of address space that JAX reserves on a CPU, and more for the threads of every core.
ADDRESSES, ADDRESSES_OF_A_CORE = 3_000_000_000, 100_000_000


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


def _check_address_space() -> None:
    """End the program at a limit of the address space at which JAX would abort without a reason."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = ADDRESSES + ADDRESSES_OF_A_CORE * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < needed:
        print(
            f"error: the address space is limited to {limit / 1e9:.1f} GB (ulimit -v), and JAX"
            f" needs {needed / 1e9:.1f} GB: run `ulimit -v unlimited` first.",
            file=sys.stderr,
        )
        sys.exit(2)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End at Ctrl-C: an exception within an import of compiled code may crash the process.

    After the imports a binary restores Python's handler, which raises KeyboardInterrupt.
    """
    os.write(2, b"error: interrupted.\n")
    os._exit(128 + number)


if sys.argv[:1] == ["-m"]:  # `python -m experiments.BINARY` is about to import the binary
    _check_address_space()
    sys.excepthook = _in_one_sentence
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's job may ignore it
        signal.signal(signal.SIGINT, leave)
