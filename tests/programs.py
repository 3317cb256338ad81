"""Compiled programs in a folder that several processes share, and cheaper contexts of MLIR."""

import os
import pathlib
import tempfile
import threading

import jax
from jax._src import lru_cache
from jax._src.interpreters import mlir

# JAX makes a context of MLIR for each program, which takes 5 ms and 1.4 MB for as long as the
# program is kept. A context keeps the constants of all its programs, so it is not kept forever.
PROGRAMS_OF_A_CONTEXT = 200
make_context = mlir.make_ir_context
here = threading.local()


def share(folder: str) -> None:
    """Read compiled programs from a folder, and write those that are not there, however small."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    lru_cache.LRUCache.put = _put_whole
    # Nobody reads which line of a file an operation of a program comes from.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    mlir.make_ir_context = _shared_context


def _shared_context() -> mlir.ir.Context:
    """Return the context of the thread; build a new one after `PROGRAMS_OF_A_CONTEXT` programs."""
    count = getattr(here, "count", 0)
    if count % PROGRAMS_OF_A_CONTEXT == 0:
        here.context = make_context()
    here.count = count + 1
    return here.context


def _put_whole(cache: lru_cache.LRUCache, key: str, value: bytes) -> None:
    """Write a program whole or not at all, since other processes read while this one writes."""
    path = pathlib.Path(os.fspath(cache.path), f"{key}-cache")
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(value)
    os.replace(file.name, path)
