"""Run every benchmark of speed, and put all rows with a target on one page.

    python -m experiments.benchmarks.all --page=experiments/results/speed.md
    python -m experiments.benchmarks.all --peers --only=metrics,calibrators --rounds=5

The limit of a row is the time in which this machine reads the arguments and writes the results
once, or executes the floating-point operations of the row, whichever is longer. The bandwidth and
the peak are measured at the start: the sum of 256 MB, and a product of two large matrices.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import calibrators, losses, metrics, tables, timing, training

_GOAL_CPU_SECONDS = 6.0  # of the first call of calib-score on a fresh machine

_COMMAND = "from calib_jax import score_command; raise SystemExit(score_command.main())"


class Machine(NamedTuple):
    """The bandwidth and the peak that this machine reached, in bytes and operations per second."""

    bytes: float
    operations: float


def measured_machine() -> Machine:
    """Measure the bandwidth of the memory and the peak of float32 operations."""
    column, matrix = jnp.ones(2**26), jnp.ones((2048, 2048))
    read, product = jax.jit(jnp.sum), jax.jit(jnp.matmul)
    calls = {"read": lambda: read(column), "product": lambda: product(matrix, matrix)}
    spent = timing.interleaved(calls, rounds=7, label="machine")
    return Machine(4 * column.size / min(spent["read"]), 2 * 2048**3 / min(spent["product"]))


def limit(row: tables.Row, machine: Machine) -> float | None:
    """Compute the seconds that the machine needs at least, if the work of the row is known."""
    if row.get("flops"):
        return float(row["flops"]) * row.get("steps", 1) / machine.operations
    if "shape" not in row:
        return None
    rows, classes = map(int, row["shape"].split("x"))
    if row["task"] == "bootstrap":  # three sums over the rows of every resample
        return 6 * rows * row["resamples"] / machine.operations
    # A loss also writes the gradient of the logits.
    passes = {"float32": 2.0, "bfloat16": 1.0}.get(row["task"], 1.0)
    return 4 * passes * rows * classes / machine.bytes


def first_call(rounds: int) -> list[tables.Row]:
    """Measure the processor time of `calib-score` with an empty cache of programs."""
    random = np.random.default_rng(0)
    seconds, spent = list[float](), list[float]()
    for _ in range(min(rounds, 3)):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "model.npz")
            logits = random.standard_normal((1000, 10)).astype(np.float32)
            np.savez(file, logits=logits, labels=random.integers(0, 10, 1000))
            before, began = _of_children(), time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", _COMMAND, file],
                env=os.environ | {"XDG_CACHE_HOME": folder},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            seconds.append(time.perf_counter() - began)
            spent.append(_of_children() - before)
    row = {"task": "first call", "name": "calib-score", "seconds": float(np.median(seconds))}
    row |= {"ratio": timing.ratio(np.asarray(spent), np.ones(len(spent)))}
    return [row | {"against": "a CPU second", "target": {"at_most": _GOAL_CPU_SECONDS}}]


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _benchmarks(rounds: int, peers: bool) -> dict[str, Callable[[], list[tables.Row]]]:
    options: dict[str, Any] = {"rounds": rounds, "peers": peers}
    return {
        "losses": lambda: losses.main(rounds=rounds).results,
        "metrics": lambda: metrics.main(parts=("metrics", "bootstrap"), **options).results,
        "calibrators": lambda: calibrators.main(**options).results,
        "first call": lambda: first_call(rounds),
        "training": lambda: training.main(rounds=rounds).results,
    }


BENCHMARKS = tuple(_benchmarks(1, False))


def _limit_cell(row: tables.Row) -> str:
    if not row.get("limit") or not row.get("seconds"):
        return ""
    return f"{1e3 * row['limit']:.3g} ({row['limit'] / row['seconds']:.0%})"


COLUMNS: dict[str, tables.Cell] = {
    **{"": tables.text("name"), "part": tables.text("task"), "shape": tables.text("shape")},
    **{"ms": tables.number("seconds", scale=1e3), "ratio": tables.ratio},
    **{"to": tables.text("against"), "target": tables.target},
    "limit in ms (share of it reached)": _limit_cell,
}
SECTIONS = {name: tables.Section(name.capitalize(), COLUMNS) for name in BENCHMARKS}


def main(
    only: Annotated[Sequence[str], f"Of {', '.join(BENCHMARKS)}; all by default."] = (),
    peers: tables.Peers = False,
    rounds: tables.Rounds = 7,
) -> tables.Report:
    """Run the benchmarks, and select the rows that have a target."""
    tables.check("only", only, BENCHMARKS)
    machine, results = measured_machine(), list[tables.Row]()
    for name, run in _benchmarks(rounds, peers).items():
        if only and name not in only:
            continue
        for row in run():
            if row.get("target") and row.get("ratio"):
                limits = {"limit": limit({"resamples": 1000} | row, machine)}
                results.append(row | limits | {"benchmark": name})
    setting = {
        "memory": f"{machine.bytes / 1e9:.3g} GB/s",
        "peak": f"{machine.operations / 1e9:.3g} GFLOP/s in float32",
    }
    return tables.Report("Speed", results, SECTIONS, ("benchmark",), setting)


if __name__ == "__main__":
    tables.run(main)
