"""Suppress the tracebacks that orbax prints for errors it also raises.

When the disk is full, each orbax thread logs its traceback, and tensorstore prints one more for
every array whose event loop is closed. `Checkpoints` raises one short error instead.
"""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from typing import Any


@functools.cache
def silence() -> None:
    """Suppress the printed errors of orbax's threads, for the rest of the process."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_of_orbax)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Native code without a calling Python frame reports a failure to an orbax event loop that
        # is already closed.
        trace = unraisable.exc_traceback
        begins = "" if trace is None else trace.tb_frame.f_code.co_name
        late = str(unraisable.exc_value) == "Event loop is closed"
        if not (late and begins == "call_soon_threadsafe"):
            before(unraisable)

    sys.unraisablehook = hook


def _not_of_orbax(record: logging.LogRecord) -> bool:
    if record.levelno < logging.ERROR:
        return True
    raised: Any = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
    files = [record.pathname, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised))]
    # A failed read leaves tasks behind; asyncio logs their errors without a frame of orbax.
    return not any("orbax" in file for file in files) and "tensorstore" not in record.getMessage()
