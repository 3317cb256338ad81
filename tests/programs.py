"""Compiled programs that processes share, a bound on their memory, and their number."""

import atexit
import contextlib
import ctypes
import functools
import gc
import itertools
import os
import pathlib
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import api, compilation_cache, lru_cache
from jax._src.interpreters import mlir

# JAX makes a context of MLIR for each program, which takes 5 ms and 1.4 MB for as long as the
# program is kept. A context keeps the constants of all its programs, so it is not kept forever.
PROGRAMS_OF_A_CONTEXT = 200
make_context = mlir.make_ir_context
here = threading.local()


def kept_in(folder: pathlib.Path) -> str:
    """Return the folder of the programs for this processor; remove those older than a week.

    It is a temporary one where the folder cannot be written.
    """
    # Imported late: conftest must install the checks of annotations first.
    from calib_jax.core.files.writing import processor

    place = folder / processor()
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        temporary = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return temporary
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):  # another run removes it, too
            if time.time() - path.stat().st_mtime > 7 * 86_400:
                path.unlink()
    return str(place)


def share(folder: str) -> None:
    """Read compiled programs from a folder, and write those that are not there, however small."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    lru_cache.LRUCache.put = _put_whole
    # The programs are small and many: a better compression takes longer than to write them.
    compilation_cache.compress_executable = functools.partial(zlib.compress, level=1)
    # A process that ends need not free each program.
    atexit.unregister(api.clean_up)
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


# JAX keeps every program that it compiles, each of 0.2 MB or more, so a worker of pytest grows with
# each test. To drop them costs seconds, since common ones have to be loaded again, so they are
# dropped only after a growth.
MOST, GROWTH = 2.7e9, 0.3e9
# Linux gives a process 65,530 mappings of memory by default, and a program takes several. XLA
# crashes when there are none left.
MAPPINGS = 45_000

limit = MOST
calls = itertools.count()


def resident_bytes() -> float:
    """Return how much memory this process holds, or 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def mappings() -> int:
    """Return the number of memory mappings, or 0 where the system does not say."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def drop_many_programs() -> None:
    """Drop all compiled programs if they take too much memory or too many mappings."""
    global limit
    # Mappings take milliseconds to count.
    crowded = next(calls) % 100 == 0 and mappings() > MAPPINGS
    if resident_bytes() <= limit and not crowded:
        return
    jax.clear_caches()
    gc.collect()
    # glibc returns freed memory to the system only on request.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
    limit = max(MOST, resident_bytes() + GROWTH)


_COMPILED = "/jax/core/compile/backend_compile_duration"
_counts: list[int] = []


def _count(event: str, *_: Any, **__: Any) -> None:
    if event == _COMPILED:
        for index in range(len(_counts)):
            _counts[index] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list whose one entry is the number of programs compiled so far in the block."""
    total = [0]
    _counts.append(0)
    try:
        yield total
    finally:
        total[0] = _counts.pop()
