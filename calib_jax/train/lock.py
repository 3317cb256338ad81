"""A lock that allows one training process per folder and is released when the process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class InUse(RuntimeError):
    """Raised when another process trains in this folder."""


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder; the system releases it however the process ends."""
    with (folder / ".lock").open("a+", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise InUse(
                f"{folder} is in use by {holder}: wait for it, stop it, or choose another folder."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
