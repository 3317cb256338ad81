"""A folder of compiled programs, so that the next process does not compile them again."""

import contextlib
import os
import pathlib
import zlib

import jax

# Programs that compile faster are not stored.
_LEAST_SECONDS = 0.1
_ZSTD = b"\x28\xb5\x2f\xfd"  # first bytes of zstandard; JAX uses zlib without zstandard


def user_folder() -> pathlib.Path:
    """Return the folder of compiled programs in the user's cache folder."""
    above = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(above) / "calib_jax" / "compiled"


def keep_programs(folder: pathlib.Path | str | None = None) -> pathlib.Path | None:
    """Store compiled programs in a folder, and reuse the programs already stored there.

    Args:
      folder: by default JAX's configured folder, or else `user_folder`. "" stores nothing.

    Returns:
      the folder in use; None if nothing is stored, including when the folder cannot be written.
    """
    if folder is None and (configured := getattr(jax.config, "jax_compilation_cache_dir", None)):
        configured = pathlib.Path(configured)  # the path of a bucket is not a local folder
        if configured.is_dir():
            _remove_truncated(configured)
        return configured
    if folder == "":
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    try:
        folder = user_folder() if folder is None else pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    if not os.access(folder, os.W_OK):
        return None
    _remove_truncated(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    return folder


def _remove_truncated(folder: pathlib.Path) -> None:
    """Remove the entries that a killed process wrote only in part; JAX would never replace them.

    Only entries that are newer than the last check are read.
    """
    mark = folder / ".checked"
    with contextlib.suppress(OSError):
        last = mark.stat().st_mtime_ns if mark.exists() else 0
        mark.touch()
        for path in folder.glob("*-cache"):
            if path.stat().st_mtime_ns >= last and not _is_whole(path.read_bytes()):
                path.unlink()


def _is_whole(entry: bytes) -> bool:
    """Check that an entry can be decompressed; True for a compression that is not installed."""
    try:
        if entry.startswith(_ZSTD):
            import zstandard

            zstandard.ZstdDecompressor().decompress(entry)
        else:
            zlib.decompress(entry)
    except ImportError:
        return True
    except (zlib.error, ValueError, RuntimeError):
        return False
    except Exception as error:  # zstandard raises its own exception type
        return type(error).__name__ != "ZstdError"
    return True
