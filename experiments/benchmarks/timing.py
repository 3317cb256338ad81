"""Timing that can be believed: ratios taken within one run, interleaved, compile time apart."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import tqdm

PACKAGES = ("calib_jax", "jax", "jaxlib", "optax", "numpy")


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    least_seconds: float = 0.002,
    label: str = "",
) -> dict[str, np.ndarray]:
    """Time every call once a round, in an order that changes, so that drift meets all alike.

    Args:
      calls: functions without arguments whose result can be waited for; already compiled.
      rounds: how often each is timed.
      least_seconds: a call is repeated within a round until it lasts about this long.
      label: shown beside the progress bar.

    Returns:
      Seconds a call, one for each round.
    """
    repeats = {}
    for name, call in calls.items():
        jax.block_until_ready(call())
        start = time.perf_counter()
        jax.block_until_ready(call())
        spent = time.perf_counter() - start
        repeats[name] = max(1, int(least_seconds / max(spent, 1e-9)))

    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = np.random.default_rng(0)
    names = list(calls)
    for _ in tqdm.trange(rounds, desc=label, leave=False, disable=None):
        for name in order.permutation(names):
            start = time.perf_counter()
            for _ in range(repeats[name]):
                result = calls[name]()
            jax.block_until_ready(result)
            seconds[name].append((time.perf_counter() - start) / repeats[name])
    return {name: np.asarray(values) for name, values in seconds.items()}


def ratio(seconds: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Give the median over rounds of the ratio to the base, and the middle half of it."""
    low, middle, high = np.percentile(seconds / base, [25, 50, 75])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def provenance() -> dict[str, Any]:
    """Say where, when and with what a result was made."""
    return {
        "command": "python -m " + " ".join([_module(), *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "device": f"{jax.devices()[0].device_kind}, {len(jax.devices())} device(s)",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else sys.argv[0]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.processor()
    except OSError:
        return platform.processor()
