"""Write files whole or not at all, however the process ends and whoever else writes beside it.

New files get a name of their own, .NAME.RANDOM.partial, and replace the old ones at the end. They
are locked while they are written, so what a killed process left can be told from what another one
is writing, and is removed at the next start.
"""

import contextlib
import glob
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: there nothing is removed
    _HAVE_LOCKS = False
else:
    _HAVE_LOCKS = True

_ENDING = ".partial"


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a new folder whose files replace those of `folder` together when the block ends.

    Other files of the folder stay. Two processes replace theirs one after the other, so that the
    files are all of one of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    temporary = _named(folder, "files")
    try:
        with _made(temporary, temporary.mkdir):
            yield temporary
            with _locked(folder):
                for path in sorted(temporary.rglob("*")):
                    place = folder / path.relative_to(temporary)
                    if path.is_dir():
                        place.mkdir(exist_ok=True)
                    else:
                        path.replace(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the old one when the block ends."""
    remove_leftovers(path.parent, path.name)
    temporary = _named(path.parent, path.name)
    try:
        with _made(temporary, temporary.touch):
            yield temporary
            temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # the name that the user knows
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the files and folders that killed processes left while they wrote them.

    Args:
      folder: the folder that they were written into.
      name: the name of the file whose leftovers are removed; "" for all.
    """
    left = list(folder.glob(f".{glob.escape(name) or '*'}.*{_ENDING}"))
    if not left:
        return
    with contextlib.suppress(OSError), _locked(folder):
        for path in left:
            with contextlib.suppress(OSError), _locked(path, wait=False) as is_ours:
                if is_ours and path.is_dir():
                    shutil.rmtree(path)
                elif is_ours:
                    path.unlink()


def _named(folder: Path, name: str) -> Path:
    return folder / f".{name}.{os.urandom(4).hex()}{_ENDING}"


@contextlib.contextmanager
def _made(temporary: Path, make: Callable[[], None]) -> Iterator[None]:
    """Make a file or a folder and hold its lock; nobody looks for leftovers in between."""
    with contextlib.ExitStack() as stack:
        with _locked(temporary.parent):
            make()
            stack.enter_context(_locked(temporary))
        yield


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock of a file or a folder, and yield whether the system has given it."""
    if not _HAVE_LOCKS:
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except OSError:  # another process holds it, or the file system has no locks
            is_ours = False
        yield is_ours
    finally:
        os.close(descriptor)
