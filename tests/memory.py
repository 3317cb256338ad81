"""A bound on the compiled programs that a process of the tests keeps."""

import ctypes
import gc
import itertools
import os

import jax

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
