"""The start of the command calib-score, which imports the rest only when it is called.

Ctrl-C and a closed pipe (`calib-score run.npz | head`) end it quietly, during the imports, too.
"""

import os
import signal
import sys
from typing import Any, NoReturn


def main() -> int:
    """Run the command, and return its exit code."""
    # An exception in the middle of an import of compiled code may crash the process.
    before = signal.signal(signal.SIGINT, _leave)
    from calib_jax.report import command

    signal.signal(signal.SIGINT, before)
    try:
        code = command.main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        _leave()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        return 128 + 13  # SIGPIPE, which Windows lacks
    return code


def _leave(*_: Any) -> NoReturn:
    os.write(sys.stderr.fileno(), b"interrupted.\n")
    os._exit(128 + signal.SIGINT)
