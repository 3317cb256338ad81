"""Time the calibrators against NumPy code and other libraries.

    python -m experiments.benchmarks.calibrators
    python -m experiments.benchmarks.calibrators --peers --shapes=10000x10,50000x1000
    python -m experiments.benchmarks.calibrators --parts=grid --out=calibrators.json

The parts are the temperature, the papers' grid of 100 temperatures, and the fit of every
calibrator. The first row of each table is ours, and a ratio is the time of a row divided by ours.
The baselines are the NumPy code of `reference`. `--peers` adds netcal and probmetrics where they
are installed.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from calib_jax import calibrators, metrics
from experiments.benchmarks import libraries, reference, tables, timing

# Lower bounds on the time of a baseline divided by ours.
TARGETS: dict[str, dict[str, dict[str, float]]] = {
    "temperature": {
        "bisection in NumPy": {"at_least": 5.0},
        "Brent in SciPy": {"at_least": 4.0},
        "probmetrics": {"at_least": 5.0},
    },
    "grid": {"loop in NumPy": {"at_least": 20.0}},
    "all": {},
}


def _temperature(
    logits: Any, labels: Any, z: np.ndarray, y: np.ndarray, peers: bool
) -> timing.Calls:
    calls: dict[str, Callable[[], Any]] = {
        "calib_jax": lambda: calibrators.temperature.fit(logits, labels).temperature,
        "bisection in NumPy": lambda: reference.temperature(z, y),
        "Brent in SciPy": lambda: reference.temperature_by_scipy(z, y),
    }
    if peers and libraries.installed("probmetrics"):
        from probmetrics.calibrators import TemperatureScalingCalibrator as Bisection

        calls["probmetrics"] = lambda: (
            1 / Bisection(opt="bisection").fit(reference.softmax(z), y).invtemp_
        )
    if peers and libraries.installed("netcal"):
        from netcal.scaling import TemperatureScaling

        p = reference.softmax(z.astype(np.float64))
        calls["netcal"] = lambda: 1 / TemperatureScaling().fit(p, y).temperature.item()
    return calls


def _grid(logits: Any, labels: Any, z: np.ndarray, y: np.ndarray, peers: bool) -> timing.Calls:
    fit = functools.partial(calibrators.temperature.fit_grid, criterion=metrics.ece)
    return {
        "calib_jax": lambda: fit(logits, labels).temperature,
        "loop in NumPy": lambda: reference.grid(z, y),
    }


def _every(logits: Any, labels: Any, *_: Any) -> timing.Calls:
    """Fit every calibrator, the temperature first."""
    names = ["temperature", *(name for name in calibrators.catalogue() if name != "temperature")]
    return {name: functools.partial(calibrators.named(name).fit, logits, labels) for name in names}


TASKS: dict[str, Callable[..., timing.Calls]] = {
    "temperature": _temperature,
    "grid": _grid,
    "all": _every,
}


def measure(
    task: str, sample: reference.Sample, *, rounds: int, peers: bool = False
) -> list[tables.Row]:
    """Time the calls of one task."""
    calls = TASKS[task](*sample, peers)
    spent = timing.interleaved(calls, rounds=rounds, label=task)
    rows = timing.compared(spent, next(iter(calls)), targets=TARGETS[task])
    if task != "all":
        for row in rows:
            row["temperature"] = float(calls[row["name"]]())
    return rows


COLUMNS = tables.SPEED | {"fitted temperature": tables.number("temperature", ".5f")}
SECTIONS = {task: tables.Section(f"{task.capitalize()},", COLUMNS) for task in TASKS}


def main(
    shapes: tables.Shapes = ("10000x10", "10000x100"),
    parts: Annotated[Sequence[str], f"Of {', '.join(TASKS)}; all by default."] = (),
    peers: tables.Peers = False,
    rounds: tables.Rounds = 7,
) -> tables.Report:
    """Measure every task at every shape."""
    warnings.simplefilter("ignore")  # Other libraries warn at every call.
    measures = {task: functools.partial(measure, task) for task in TASKS}
    results = tables.measured(measures, shapes, parts, rounds=rounds, peers=peers)
    setting = {"libraries": libraries.versions()} if peers else {}
    return tables.Report("Calibrators", results, SECTIONS, ("task", "shape"), setting)


if __name__ == "__main__":
    tables.run(main)
