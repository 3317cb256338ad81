"""Compiled programs in a folder, shared by processes that write it at the same time."""

import os
import pathlib
import tempfile

import jax
from jax._src import lru_cache


def share(folder: str) -> None:
    """Read compiled programs from a folder, and write those that are not there, however small."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    lru_cache.LRUCache.put = _put_whole


def _put_whole(cache: lru_cache.LRUCache, key: str, value: bytes) -> None:
    """Write a program whole or not at all, since other processes read while this one writes."""
    path = pathlib.Path(os.fspath(cache.path), f"{key}-cache")
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(value)
    os.replace(file.name, path)
