"""Write files whole or not at all, however the process ends.

New files begin in a folder of a unique name, .RANDOM.partial, and replace the old files at the end.
What killed processes left is removed after a day. Compiled programs are kept in a folder, too.
"""

import contextlib
import os
import platform
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import jax


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the old file when the block ends.

    The new file has the mode of the old one. A link stays, and the file behind it is replaced.
    """
    place = Path(os.path.realpath(path))
    try:
        with _temporary(place.parent) as folder:
            new = folder / place.name
            new.touch()
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
        with _temporary(folder) as new:
            yield new
            for path in sorted(filter(Path.is_file, new.rglob("*"))):
                place = folder / path.relative_to(new)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"the report cannot be written to {folder}: {reason}.") from error


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Yield a new folder in a folder, and remove it at the end."""
    for left in folder.glob(".*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 86_400:  # a day
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(".partial", ".", folder, ignore_cleanup_errors=True) as new:
        yield Path(new)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name the kind of processor by its instructions, all of which a compiled program may use.

    Several machines may share the home folder of a user. A program that was compiled on a newer one
    could crash on an older one, and JAX does not distinguish them. On Linux the name depends on the
    flags of the processor, elsewhere on `platform.processor()`, which may be coarser.

    Args:
      cpuinfo: the file in which Linux lists the flags of the processor.
    """
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    abilities = (line for line in lines if line.startswith(("flags", "Features")))
    return f"{zlib.crc32((next(abilities, '') or platform.processor()).encode()):08x}"


def keep_programs(folder: str | None = None) -> Path | None:
    """Store compiled programs in a folder, so that the next process does not compile them again.

    Args:
      folder: by default JAX's configured folder, or else one in the user's cache folder, for
        programs of this `processor`. "" stores nothing.

    Returns:
      the folder in use; None if nothing is stored, including when the folder cannot be written.
    """
    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    if folder is None and configured:
        return Path(configured)
    if folder == "":
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        place = Path(folder or f"{cache}/calib_jax/compiled/{processor()}").expanduser()
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # others are not stored
    return place
