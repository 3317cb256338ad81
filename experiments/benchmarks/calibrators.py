"""Time the calibrators against NumPy code and other libraries.

    python -m experiments.benchmarks.calibrators
    python -m experiments.benchmarks.calibrators --peers --shapes=10000x10,50000x1000
    python -m experiments.benchmarks.calibrators --only=grid --out=calibrators.json

The first row of each table is ours, and a ratio is the time of a row divided by ours. The
baselines are the NumPy code of `reference`: a bisection for the temperature, and the released loop
over 100 temperatures. `--peers` adds netcal and probmetrics where they are installed.
"""

import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from calib_jax import calibrators, metrics
from experiments.benchmarks import reference, tables, timing

# Lower bounds on the time of a baseline divided by ours.
TARGETS = {
    ("temperature", "bisection in NumPy"): 5.0,
    ("temperature", "probmetrics"): 5.0,
    ("grid", "loop in NumPy"): 20.0,
}
Calls = dict[str, Callable[[], Any]]  # Each returns the fitted temperature or calibrator.


def _imported(name: str, peers: bool) -> Any:
    """Import another library if it is requested and installed."""
    try:
        return importlib.import_module(name) if peers else None
    except ImportError:
        return None


def _temperature(logits: Any, labels: Any, z: np.ndarray, y: np.ndarray, peers: bool) -> Calls:
    calls: Calls = {
        "calib_jax": lambda: calibrators.temperature.fit(logits, labels).temperature,
        "bisection in NumPy": lambda: reference.temperature(z, y),
    }
    if peer := _imported("probmetrics.calibrators", peers):
        fit = lambda p: peer.TemperatureScalingCalibrator(opt="bisection").fit(p, y)  # noqa: E731
        calls["probmetrics"] = lambda: 1 / fit(reference.softmax(z)).invtemp_
    if netcal := _imported("netcal.scaling", peers):
        p = reference.softmax(z.astype(np.float64))
        calls["netcal"] = lambda: 1 / netcal.TemperatureScaling().fit(p, y).temperature.item()
    return calls


def _grid(logits: Any, labels: Any, z: np.ndarray, y: np.ndarray, peers: bool) -> Calls:
    fit = functools.partial(calibrators.temperature.fit_grid, criterion=metrics.ece)
    return {
        "calib_jax": lambda: fit(logits, labels).temperature,
        "loop in NumPy": lambda: reference.grid(z, y),
    }


def _every(logits: Any, labels: Any, *_: Any) -> Calls:
    """Fit every calibrator, the temperature first."""
    names = ["temperature", *(name for name in calibrators.catalogue() if name != "temperature")]
    return {name: functools.partial(calibrators.named(name).fit, logits, labels) for name in names}


TASKS: dict[str, Callable[..., Calls]] = {
    "temperature": _temperature,
    "grid": _grid,
    "all": _every,
}


def measure(task: str, shape: str, rounds: int, peers: bool = False) -> list[tables.Row]:
    """Time one task at one shape."""
    logits, labels = reference.shaped(shape)
    calls = TASKS[task](logits, labels, np.asarray(logits), np.asarray(labels), peers)
    spent = timing.interleaved(calls, rounds=rounds, label=f"{task} {shape}")
    targets = {name: {"at_least": TARGETS[task, name]} for name in calls if (task, name) in TARGETS}
    rows = timing.compared(spent, next(iter(calls)), targets=targets, task=task, shape=shape)
    for row in rows:
        if task in ("temperature", "grid"):
            row["temperature"] = float(calls[row["name"]]())
    return rows


_TITLES = {"grid": "grid of 100 temperatures", "all": "every fit"}
SECTIONS = {
    task: tables.Section(
        f"{_TITLES.get(task, task).capitalize()},",
        tables.SPEED | {"fitted temperature": tables.number("temperature", ".5f")},
    )
    for task in TASKS
}


def main(
    shapes: tables.Shapes = ("10000x10", "10000x100"),
    only: Annotated[Sequence[str], f"Of {', '.join(TASKS)}; all by default."] = (),
    peers: tables.Peers = False,
    rounds: tables.Rounds = 7,
) -> tables.Report:
    """Measure every task at every shape."""
    tables.check("only", only, TASKS)
    warnings.simplefilter("ignore")  # Other libraries warn at every call.
    results = []
    for shape in shapes:
        for task in only or TASKS:
            results += measure(task, shape, rounds, peers)
    return tables.Report("Calibrators", results, SECTIONS, by=("task", "shape"))


if __name__ == "__main__":
    tables.run(main)
