"""What orbax prints of its own: every error of its threads, which it raises as well.

A disk that is full makes each of its threads log its traceback, and tensorstore one more for every
array whose event loop is gone. `Checkpoints` raises one sentence instead.
"""

from __future__ import annotations

import functools
import logging
import sys
import traceback
from typing import Any


@functools.cache
def silence() -> None:
    """Keep the errors of orbax's threads from being printed; once, for the rest of the process."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_not_of_orbax)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        # Native code, which no Python frame has called, tells an event loop of orbax that it has
        # failed, and the loop is closed already.
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
    return not any("orbax" in file for file in files)
