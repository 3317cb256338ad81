"""Time calls in turns, without compilation; compare them by ratios; print and write the rows."""

import json
import math
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments.running import cli, environment

Calls = Mapping[str, Callable[[], Any]]
Row = dict[str, Any]

LEAST_SECONDS = 0.002  # A faster call is repeated within a round until it takes about this long.
OUT = flags.DEFINE_string("json", None, "JSON file of the rows with their provenance.")
SHAPES = flags.DEFINE_list("shapes", [], "EXAMPLESxCLASSES; each command has its own.")
ROUNDS = flags.DEFINE_integer("rounds", 11, "How often each call is timed.", lower_bound=1)


def interleaved(
    calls: Calls,
    *,
    rounds: int,
    patience: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """Time every call once a round, in random order, so that drift affects all calls alike.

    Args:
      calls: functions without arguments. Each runs once before it is timed, so it may compile.
      rounds: how often each call is timed.
      patience: a call that takes more seconds is timed only once.
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
    for _ in range(rounds):
        for name in order.permutation([*repeats]):
            seconds[name].append(timed(name, repeats[name]))
    return {name: np.asarray(values) for name, values in seconds.items()}


def compared(seconds: Mapping[str, np.ndarray], base: str, **more: Any) -> list[Row]:
    """Return a row for each call: median time, and the ratio to the base with its middle half.

    >>> compared({"a": np.ones(3), "b": np.full(3, 2.0)}, "a")[1]["ratio"]
    2.0
    """
    rows = []
    for name, spent in seconds.items():
        low, middle, high = np.percentile(spent / seconds[base], [25, 50, 75])
        row = {"name": name, "ms": 1e3 * float(np.median(spent)), "ratio": float(middle)}
        rows.append(more | row | {"low": float(low), "high": float(high), "to": base})
    return rows


def shape_of(text: str) -> tuple[int, int]:
    """Read a shape such as "8192x100".

    >>> shape_of("8192x100")
    (8192, 100)
    """
    if not (sizes := re.fullmatch(r"(\d+)x(\d+)", text)):
        raise cli.Refused(f"a shape must be EXAMPLESxCLASSES, such as 8192x100, got {text!r}.")
    return int(sizes[1]), int(sizes[2])


def report(rows: Sequence[Row]) -> None:
    """Print the rows as a table, and write them with their provenance to --json."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_cell(row.get(name)) for name in columns] for row in rows]
    table = [columns, *body]
    widths = [max(len(row[column]) for row in table) for column in range(len(columns))]
    for row in table:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    if OUT.value:
        content = {"provenance": environment.published(), "rows": list(rows)}
        text = json.dumps(content, indent=1) + "\n"
        path = pathlib.Path(OUT.value)
        cli.refusing(path.parent.mkdir, parents=True, exist_ok=True)
        cli.refusing(path.write_text, text, encoding="utf-8")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)
