"""Being asked to stop: Ctrl-C and SIGTERM are noted, and training ends where nothing is lost.

A second Ctrl-C ends the process where it is. What was saved is whole, since a checkpoint appears
at once or not at all. An exception instead would unwind through threads of JAX and of orbax that
are at work, which can crash the interpreter; only an interactive session gets one, to live on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


class Interruption:
    """Whether a signal came, and which."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """What came, as people know it."""
        if self.signal is None:
            return "nothing"
        return "Ctrl-C" if self.signal == signal.SIGINT else signal.Signals(self.signal).name

    def note(self, number: int, frame: FrameType | None) -> None:
        """Remember a signal; a second Ctrl-C does not wait."""
        if self.signal == signal.SIGINT == number:
            if hasattr(sys, "ps1"):
                raise KeyboardInterrupt
            end_at_once()
        self.signal = number


def end_at_once(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """End the process as one that Ctrl-C has ended, without the handlers of its exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be in use where the signal came
            stream.flush()
    os._exit(128 + signal.SIGINT)


@contextlib.contextmanager
def noted() -> Iterator[Interruption]:
    """Note Ctrl-C and SIGTERM instead of dying of them; outside the main thread nothing changes."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interruption.note)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
