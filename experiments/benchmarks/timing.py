"""Timing that can be believed: ratios taken within one run, interleaved, compile time apart."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import tqdm


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
