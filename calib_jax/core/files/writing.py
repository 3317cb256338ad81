"""Write files whole or not at all, however the process ends.

New files have a unique name, .NAME.RANDOM.partial, and replace the old files at the end. What
killed processes left is removed after a day.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_A_DAY = 86_400  # seconds


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the old file when the block ends.

    The new file has the mode of the old one. A link stays, and the file behind it is replaced.
    """
    place = Path(os.path.realpath(path))
    try:
        with _temporary(place.parent, place.name) as new:
            new.touch(exist_ok=False)
            yield new
            if place.exists():
                shutil.copymode(place, new)
            new.replace(place)
    except OSError as error:
        error.filename = str(path)  # the name that the user passed
        raise


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a new folder; at the end of the block its files replace the files of `folder`.

    Other files of the folder stay. An `OSError` in the block names the folder and the reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _temporary(folder, "files") as new:
            new.mkdir()
            yield new
            for path in sorted(new.rglob("*")):
                place = folder / path.relative_to(new)
                if path.is_dir():
                    place.mkdir(exist_ok=True)
                else:
                    path.replace(place)
    except OSError as error:
        # `plots.save` puts the system's reason into a separate sentence.
        context = error.__context__ if isinstance(error.__context__, OSError) else error
        reason = error.strerror or context.strerror or str(error)
        raise OSError(f"the report cannot be written to {folder}: {reason}.") from error


@contextlib.contextmanager
def _temporary(folder: Path, name: str) -> Iterator[Path]:
    """Yield a new name in a folder, and remove what has this name at the end."""
    for left in folder.glob(".*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _A_DAY:
                _remove(left)
    new = folder / f".{name[:50]}.{os.urandom(8).hex()}.partial"
    try:
        yield new
    finally:
        _remove(new)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
