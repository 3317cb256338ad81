"""Handle Ctrl-C and SIGTERM: record the signal, save a checkpoint and stop training.

A second Ctrl-C exits the process immediately. Saved checkpoints stay valid, because each is written
atomically. The handler does not raise, because an exception would unwind through running threads of
JAX and orbax and can crash the interpreter. Only an interactive session gets a KeyboardInterrupt.
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
    """The signal that was received, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def name(self) -> str:
        """The name of the received signal, such as SIGTERM."""
        if self.signal is None:
            return "nothing"
        return "Ctrl-C" if self.signal == signal.SIGINT else signal.Signals(self.signal).name

    def record(self, number: int, frame: FrameType | None) -> None:
        """Record a signal; exit immediately at a second Ctrl-C."""
        if self.signal == signal.SIGINT == number:
            if hasattr(sys, "ps1"):
                raise KeyboardInterrupt
            end_at_once()
        self.signal = number


def end_at_once(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    """Exit with the status of a process ended by Ctrl-C, without running exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the signal may have interrupted a write
            stream.flush()
    os._exit(128 + signal.SIGINT)


@contextlib.contextmanager
def recorded_signals() -> Iterator[Interruption]:
    """Record Ctrl-C and SIGTERM instead of exiting; do nothing outside the main thread."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interruption.record)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
