"""A folder of compiled programs, so that the next process does not compile them again."""

import os
import pathlib

import jax

# Programs that compile faster are not stored.
_LEAST_SECONDS = 0.1


def keep_programs(folder: pathlib.Path | str | None = None) -> pathlib.Path | None:
    """Store compiled programs in a folder, and reuse the programs already stored there.

    Args:
      folder: by default JAX's configured folder, or else one in the user's cache folder.
        "" stores nothing.

    Returns:
      the folder in use; None if nothing is stored, including when the folder cannot be written.
    """
    configured = getattr(jax.config, "jax_compilation_cache_dir", None)
    if folder is None and configured:
        return pathlib.Path(configured)
    if folder == "":
        jax.config.update("jax_compilation_cache_dir", None)
        return None
    try:
        if folder is None:
            above = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
            folder = pathlib.Path(above, "calib_jax", "compiled")
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    return folder
