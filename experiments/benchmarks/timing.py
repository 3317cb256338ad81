"""Time calls in turns, without compilation, and compare them by ratios within one run."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import tqdm

Calls = Mapping[str, Callable[[], Any]]

LEAST_SECONDS = 0.002  # A faster call is repeated within a round until it takes about this long.


def interleaved(
    calls: Calls,
    *,
    rounds: int,
    patience: float = math.inf,
    label: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Time every call once a round, in random order, so that drift affects all calls alike.

    Args:
      calls: functions without arguments. Each runs once before it is timed, so it may compile.
      rounds: how often each call is timed.
      patience: a call that takes more seconds is timed only once.
      label: shown beside the progress bar.
      clock: returns seconds.

    Returns:
      Seconds per call, one for each round.
    """

    def timed(name: str, repeats: int) -> float:
        start = clock()
        for _ in range(repeats):
            result = calls[name]()
        jax.block_until_ready(result)
        return (clock() - start) / repeats

    for name in calls:
        timed(name, 1)
    once = {name: timed(name, 1) for name in calls}
    seconds = {name: [spent] if spent > patience else [] for name, spent in once.items()}
    repeats = {
        name: max(1, int(LEAST_SECONDS / max(spent, 1e-9)))
        for name, spent in once.items()
        if spent <= patience
    }
    order = np.random.default_rng(0)
    for _ in tqdm.trange(rounds, desc=label, leave=False, disable=None):
        for name in order.permutation([*repeats]):
            seconds[name].append(timed(name, repeats[name]))
    return {name: np.asarray(values) for name, values in seconds.items()}


def ratio(seconds: np.ndarray, base: np.ndarray) -> dict[str, float]:
    """Return the median over rounds of the ratio to the base, and its middle half."""
    low, middle, high = np.percentile(seconds / base, [25, 50, 75])
    return {"median": float(middle), "low": float(low), "high": float(high)}


def compared(
    seconds: Mapping[str, np.ndarray],
    base: str,
    *,
    against: Mapping[str, str] = {},
    targets: Mapping[str, dict[str, float]] = {},
    speed: bool = False,
    **more: Any,
) -> list[dict[str, Any]]:
    """Return a row for each call: median time, and the ratio of this time to another call's time.

    Args:
      seconds: the result of `interleaved`.
      base: the other call.
      against: the other call of some calls, by name.
      targets: {"at_most": x} or {"at_least": x} for the ratios of some calls.
      speed: whether ratios are of speed, so that a faster call has a larger one.
      more: further items of every row.
    """
    rows = []
    for name, spent in seconds.items():
        other = against.get(name, base)
        pair = (seconds[other], spent) if speed else (spent, seconds[other])
        row = {"name": name, "rounds": len(spent), "seconds": float(np.median(spent))}
        row |= {"ratio": ratio(*pair), "against": other, "target": targets.get(name)}
        rows.append(more | row)
    return rows
