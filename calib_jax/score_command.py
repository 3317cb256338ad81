"""The start of the command calib-score, which ends quietly on Ctrl-C during its imports, too."""

import gc
import os
import signal
import sys
from typing import Any, NoReturn


def main() -> int:
    """Import the command, run it, and return its exit code."""
    # A second thread of OpenBLAS waits in a busy loop, and its products here are small. Imports and
    # traced programs leave little garbage.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000)
    # An exception in the middle of an import of compiled code may crash the process.
    before = signal.signal(signal.SIGINT, _leave)
    from calib_jax.report import command

    signal.signal(signal.SIGINT, before)
    return command.main()


def _leave(*_: Any) -> NoReturn:
    os.write(sys.stderr.fileno(), b"interrupted.\n")
    os._exit(128 + signal.SIGINT)
