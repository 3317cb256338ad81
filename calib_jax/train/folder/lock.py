"""A lock that allows one process per folder and is released when the process ends.

The lock is the system's `flock`. Windows and some file systems have none: there a warning reports
that two processes can write into the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from calib_jax.core.files import reading, writing
from calib_jax.train.folder.files import CannotWrite

try:
    import fcntl
except ImportError:  # Windows
    _NO_LOCKS = "this system has no locks of files"
else:
    _NO_LOCKS = ""

TRAINING = ".lock"
EVALUATION = ".lock-evaluation"  # a second lock: a run may be evaluated while it is trained
_HOLDER = "process "  # the prefix of the process id in the lock file
_TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class InUse(RuntimeError):
    """Raised when another process trains in this folder."""


class Claim:
    """A folder that this process has locked.

    Args:
      file: the open lock file.
      path: the path at which it was opened.
    """

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file = file
        self._path = path

    def check(self) -> None:
        """Raise an error if the folder was removed or replaced since it was locked."""
        if not self._is_there():
            raise CannotWrite(
                f"{self._path.parent} was removed or replaced while this process used it, so"
                " nothing more is written there: start again in a folder that stays."
            )

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False


@contextlib.contextmanager
def only_one(folder: Path, name: str = TRAINING) -> Iterator[Claim]:
    """Hold the lock `name` of the folder; the system releases it however the process ends."""
    path = folder / name
    with path.open("a+", errors="replace") as file:
        if why_not := _lock(file, folder):
            warnings.warn(
                f"{folder} cannot be locked ({why_not}): take care that no other process writes"
                " into it.",
                stacklevel=4,
            )
        writing.remove_leftovers(folder)
        file.truncate(0)
        file.write(f"{_HOLDER}{os.getpid()}")
        file.flush()
        yield Claim(file, path)


def was_locked(folder: Path, name: str = TRAINING) -> bool:
    """Return whether this library has ever locked the folder."""
    try:
        return reading.text(folder / name, "a lock").startswith(_HOLDER)
    except (FileNotFoundError, reading.Unreadable):
        return False


def _lock(file: IO[str], folder: Path) -> str:
    """Lock the file; return why locking fails, or raise `InUse` if another process holds it."""
    if _NO_LOCKS:
        return _NO_LOCKS
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _TAKEN:
            return reading.reason(error)
        file.seek(0)
        holder = file.read().strip() or "another process"
        raise InUse(
            f"{folder} is in use by {holder}: wait for it, stop it, or choose another folder."
        ) from None
    return ""
