"""Read the free memory of this machine, as reported by Linux."""

import math
import os
from pathlib import Path

# Sources of the free memory: the machine and the limit of a container.
MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")


def free_memory() -> float:
    """Return the bytes that this process can still allocate; infinite if they are unknown."""
    return min(_of_machine(), _of_container())


def _of_machine() -> float:
    try:
        lines = dict(line.split(":", 1) for line in MACHINE.read_text().splitlines())
        return 1024 * float(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return math.inf


def _of_container() -> float:
    try:
        most = float((CONTAINER / "memory.max").read_text())  # "max" (no limit) raises ValueError
        used = float((CONTAINER / "memory.current").read_text())
        lines = (CONTAINER / "memory.stat").read_text().splitlines()
        stat = {name: float(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return math.inf
    # The file cache counts as used, but the kernel frees it on demand.
    files = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    return max(0.0, most - used + files)
