"""Write files whole or not at all, however the process ends and whatever other processes write.

New files have a unique name, .NAME.RANDOM.partial, and replace the old files at the end. They are
locked while they are written. The lock distinguishes the leftovers of a killed process from the
files of a running process; leftovers are removed at the next start.
"""

import contextlib
import errno
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks, so nothing is removed there
    _HAVE_LOCKS = False
else:
    _HAVE_LOCKS = True

_ENDING = ".partial"
_LONGEST = 50  # letters of a name in the name of its new file


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a new folder; at the end of the block its files replace the files of `folder` together.

    Other files of the folder stay. If two processes replace files, one waits for the other, so all
    files come from one process. An `OSError` in the block names the folder and the reason.
    """
    temporary = _named(folder, "files")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with _made(temporary, temporary.mkdir):
            yield temporary
            with _locked(folder):
                paths = sorted(temporary.rglob("*"))
                places = [folder / path.relative_to(temporary) for path in paths]
                for path, place in zip(paths, places, strict=True):
                    if place.exists() and place.is_dir() != path.is_dir():
                        raise OSError(errno.EEXIST, f"{place.name} there is in the way")
                for path, place in zip(paths, places, strict=True):
                    if path.is_dir():
                        place.mkdir(exist_ok=True)
                    else:
                        path.replace(place)
    except OSError as error:
        # `plots.save` puts the system's reason into a separate sentence.
        context = error.__context__ if isinstance(error.__context__, OSError) else error
        reason = error.strerror or context.strerror or str(error)
        raise OSError(f"the report cannot be written to {folder}: {reason}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the old file when the block ends.

    The new file has the mode of the old one. A link stays, and the file behind it is replaced.
    """
    place = Path(os.path.realpath(path))
    remove_leftovers(place.parent, place.name[:_LONGEST])
    temporary = _named(place.parent, place.name[:_LONGEST])
    try:
        with _made(temporary, functools.partial(temporary.touch, exist_ok=False)):
            yield temporary
            if place.exists():
                shutil.copymode(place, temporary)
            temporary.replace(place)
    except OSError as error:
        error.filename = str(path)  # the name that the user passed
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove the files and folders that killed processes left while writing.

    Args:
      folder: the folder that the processes wrote into.
      name: the name of the file whose leftovers are removed; "" for all.
    """
    ours = re.compile(rf"\.{re.escape(name) or '.*'}\.[0-9a-f]{{16}}{re.escape(_ENDING)}")
    left = [path for path in folder.glob(f".*{_ENDING}") if ours.fullmatch(path.name)]
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
    return folder / f".{name}.{os.urandom(8).hex()}{_ENDING}"


@contextlib.contextmanager
def _made(temporary: Path, make: Callable[[], None]) -> Iterator[None]:
    """Create a file or folder and lock it; no process searches for leftovers in between."""
    with contextlib.ExitStack() as stack:
        with _locked(temporary.parent):
            make()
            stack.enter_context(_locked(temporary))
        yield


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Request the lock of a file or folder, and yield whether the system granted it."""
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
