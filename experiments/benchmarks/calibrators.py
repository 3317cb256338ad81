"""Time the calibrators beside what they replace.

    python -m experiments.benchmarks.calibrators
    python -m experiments.benchmarks.calibrators --peers --shapes=10000x10,50000x1000
    python -m experiments.benchmarks.calibrators --only=grid --out=calibrators.json

Each table has one task; its first row is ours, and the ratio of a row says how many times as long
it takes, in the same rounds. The baselines are written here in NumPy: a bisection for the
temperature's NLL, and for the papers' grid a loop over 100 temperatures that computes the ECE
each time, bin by bin, as the released code does. `--peers` adds scikit-learn, netcal and
probmetrics where they are installed.
"""

import functools
import importlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from calib_jax import calibrators, metrics
from experiments import provenance
from experiments.benchmarks import timing

_SHAPES = flags.DEFINE_list("shapes", ["10000x10", "10000x100"], "Examples x classes.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "How often each is timed.", lower_bound=3)
_PEERS = flags.DEFINE_bool("peers", False, "Also time other libraries that are installed.")
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

# What the ratio to a baseline has to reach.
TARGETS = {
    ("temperature", "bisection in NumPy"): 5.0,
    ("temperature", "probmetrics"): 5.0,
    ("grid", "loop in NumPy"): 20.0,
    ("grid", "loop in torch"): 20.0,
}
Calls = dict[str, Callable[[], Any]]  # each gives what it fitted


def _data(shape: str) -> tuple[np.ndarray, np.ndarray]:
    rows, classes = map(int, shape.split("x"))
    random = np.random.default_rng(0)
    calibrated = 2 * random.standard_normal((rows, classes))
    labels = np.argmax(calibrated + random.gumbel(size=calibrated.shape), axis=-1)
    return (1.5 * calibrated).astype(np.float32), labels


def _softmax(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def _bisection(logits: np.ndarray, labels: np.ndarray) -> float:
    """Halve an interval of log 1/T thirty times by the sign of the NLL's derivative."""
    true = logits[np.arange(len(labels)), labels].mean()
    low, high = -16.0, 16.0
    for _ in range(30):
        middle = (low + high) / 2
        p = _softmax(np.float32(np.exp(middle)) * logits)
        expected = np.einsum("nk,nk->n", p, logits).mean()
        low, high = (low, middle) if expected > true else (middle, high)
    return float(np.exp(-(low + high) / 2))


def _ece(logits: np.ndarray, labels: np.ndarray) -> float:
    p = _softmax(logits)
    confidence, hit = p.max(axis=-1), p.argmax(axis=-1) == labels
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    error = 0.0
    for low, high in itertools.pairwise(edges):
        here = (confidence > low) & (confidence <= high)
        if here.any():
            error += here.mean() * abs(confidence[here].mean() - hit[here].mean())
    return error


def _released_grid(logits: np.ndarray, labels: np.ndarray) -> float:
    best, found, t = 1e7, 1.0, 0.1
    for _ in range(100):
        error = _ece(logits / np.float32(t), labels)
        if error < best:
            best, found = error, t
        t += 0.1
    return found


def _torch_grid(torch: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    edges = torch.linspace(0, 1, 16)
    best, found, t = 1e7, 1.0, 0.1
    for _ in range(100):
        confidence, predicted = torch.max(torch.softmax(z / t, dim=1), 1)
        hit = predicted.eq(y)
        error = torch.zeros(1)
        for low, high in itertools.pairwise(edges):
            here = confidence.gt(low.item()) * confidence.le(high.item())
            share = here.float().mean()
            if share.item() > 0:
                gap = confidence[here].mean() - hit[here].float().mean()
                error += torch.abs(gap) * share
        if error.item() < best:
            best, found = error.item(), t
        t += 0.1
    return found


def _peer(name: str) -> Any:
    """Import another library if it is wanted and there."""
    if not _PEERS.value:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def _quiet(call: Callable[[], Any]) -> Callable[[], Any]:
    """Keep a peer's warnings out of the table."""

    def called() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()

    return called


def _temperature(logits: np.ndarray, labels: np.ndarray) -> Calls:
    z, y = jnp.asarray(logits), jnp.asarray(labels)
    calls: Calls = {
        "calib_jax": lambda: calibrators.temperature.fit(z, y).temperature,
        "bisection in NumPy": lambda: _bisection(logits, labels),
    }
    if (peer := _peer("probmetrics.calibrators")) is not None:
        calls["probmetrics"] = _quiet(lambda: _probmetrics(peer, logits, labels))
    if (netcal := _peer("netcal.scaling")) is not None:
        p = _softmax(logits.astype(np.float64))
        fit = lambda: netcal.TemperatureScaling().fit(p, labels)  # noqa: E731
        calls["netcal"] = _quiet(lambda: 1 / float(np.ravel(fit().temperature)[0]))
    return calls


def _probmetrics(peer: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    fitted = peer.TemperatureScalingCalibrator(opt="bisection").fit(_softmax(logits), labels)
    return 1 / float(fitted.invtemp_)


def _grid(logits: np.ndarray, labels: np.ndarray) -> Calls:
    z, y = jnp.asarray(logits), jnp.asarray(labels)
    fit = functools.partial(calibrators.temperature.fit_grid, objective=metrics.ece)
    calls: Calls = {
        "calib_jax": lambda: fit(z, y).temperature,
        "loop in NumPy": lambda: _released_grid(logits, labels),
    }
    if (torch := _peer("torch")) is not None:
        calls["loop in torch"] = lambda: _torch_grid(torch, logits, labels)
    return calls


def _one_versus_rest(fit: Callable[..., Any], logits: np.ndarray, labels: np.ndarray) -> Any:
    p = _softmax(logits)
    return [fit(p[:, k], labels == k) for k in range(logits.shape[1])]


def _isotonic(logits: np.ndarray, labels: np.ndarray) -> Calls:
    z, y = jnp.asarray(logits), jnp.asarray(labels)
    calls: Calls = {"calib_jax": lambda: calibrators.isotonic.fit(z, y)}
    if (peer := _peer("sklearn.isotonic")) is not None:
        one = lambda p, hit: peer.IsotonicRegression(out_of_bounds="clip").fit(p, hit)  # noqa: E731
        calls["scikit-learn"] = lambda: _one_versus_rest(one, logits, labels)
    if (netcal := _peer("netcal.binning")) is not None:
        p = _softmax(logits.astype(np.float64))
        calls["netcal"] = _quiet(lambda: netcal.IsotonicRegression().fit(p, labels))
    return calls


def _histogram(logits: np.ndarray, labels: np.ndarray) -> Calls:
    z, y = jnp.asarray(logits), jnp.asarray(labels)
    calls: Calls = {"calib_jax": lambda: calibrators.histogram.fit(z, y)}
    if (peer := _peer("sklearn.calibration")) is not None:
        one = lambda p, hit: peer.calibration_curve(hit, p, n_bins=15)  # noqa: E731
        calls["scikit-learn"] = lambda: _one_versus_rest(one, logits, labels)
    if (netcal := _peer("netcal.binning")) is not None:
        p = _softmax(logits.astype(np.float64))
        calls["netcal"] = _quiet(lambda: netcal.HistogramBinning(bins=15).fit(p, labels))
    return calls


def _linear(logits: np.ndarray, labels: np.ndarray) -> Calls:
    """Time all the other fits beside that of the temperature."""
    z, y = jnp.asarray(logits), jnp.asarray(labels)
    names = ["temperature", *(n for n in calibrators.catalogue() if n != "temperature")]
    return {name: functools.partial(calibrators.named(name).fit, z, y) for name in names}


def _models(logits: np.ndarray, labels: np.ndarray) -> Calls:
    """Fit 100 models on a hundredth of the data each: at once, and one after the other."""
    rows = len(labels) // 100
    z = jnp.asarray(logits[: 100 * rows]).reshape(100, rows, -1)
    y = jnp.asarray(labels[: 100 * rows]).reshape(100, rows)
    fit = calibrators.temperature.fit
    at_once = jax.jit(jax.vmap(fit))
    parts = [(z[i], y[i]) for i in range(100)]
    return {
        "one vmap": lambda: at_once(z, y).temperature,
        "100 calls": lambda: [fit(*part).temperature for part in parts],
        "100 bisections in NumPy": lambda: [
            _bisection(np.asarray(a), np.asarray(b)) for a, b in parts
        ],
    }


def _score(logits: np.ndarray, labels: np.ndarray) -> Calls:
    """Start the scoring command on files, and wait for its table."""
    folder = pathlib.Path(tempfile.mkdtemp())
    half = len(labels) // 2
    for name, part in {"test": slice(half), "val": slice(half, None)}.items():
        np.savez(folder / f"{name}.npz", logits=logits[part], labels=labels[part])
    command = [sys.executable, "-m", "experiments.score", f"--predictions={folder / 'test.npz'}"]
    calibrate = ["--calibrate=temperature", f"--fit_on={folder / 'val.npz'}"]

    def run(*more: str) -> int:
        return subprocess.run([*command, *more], capture_output=True, check=True).returncode

    return {"start to table": run, "and after a temperature": lambda: run(*calibrate)}


TASKS: dict[str, Callable[[np.ndarray, np.ndarray], Calls]] = {
    "temperature": _temperature,
    "grid": _grid,
    "isotonic": _isotonic,
    "histogram": _histogram,
    "models": _models,
    "all": _linear,
    "score": _score,
}
_ONLY = flags.DEFINE_multi_enum("only", [], list(TASKS), "Tasks to run; all by default.")


def measure(task: str, shape: str, rounds: int) -> list[dict[str, Any]]:
    """Time one task at one shape."""
    if task == "score":  # of half the rows each; a process takes seconds, not milliseconds
        shape, rounds = "20000x10", 3
    calls = TASKS[task](*_data(shape))
    answers = {name: call() for name, call in calls.items()}
    spent = timing.interleaved(calls, rounds=rounds, label=f"{task} {shape}")
    first = next(iter(calls))
    return [
        {
            "task": task,
            "shape": shape,
            "name": name,
            "rounds": rounds,
            "ms": 1e3 * float(np.median(spent[name])),
            "ratio": timing.ratio(spent[name], spent[first]),
            "target": TARGETS.get((task, name)),
            "temperature": float(answers[name]) if task in ("temperature", "grid") else None,
        }
        for name in calls
    ]


def table(results: list[dict[str, Any]]) -> str:
    """Lay the results of one task and shape out as text."""
    lines = [f"{results[0]['task']} {results[0]['shape']}"]
    for row in results:
        ratio = row["ratio"]
        line = f"  {row['name']:26s} {row['ms']:10.2f} ms {ratio['median']:8.1f}x"
        line += f" [{ratio['low']:.1f}, {ratio['high']:.1f}]"
        if row["target"] is not None:
            line += f"  target {row['target']:.0f}x{' !' if misses(row) else ''}"
        if row["temperature"] is not None:
            line += f"  T = {row['temperature']:.5f}"
        lines.append(line)
    return "\n".join(lines)


def misses(row: dict[str, Any]) -> bool:
    """Tell whether ours is less fast beside a baseline than it should be."""
    return bool(row["target"] is not None and row["ratio"]["median"] < row["target"])


def main(_: list[str]) -> None:
    """Run, print the tables, write the JSON."""
    results = []
    asked = _ONLY.value or list(TASKS)
    for shape in _SHAPES.value:
        for task in asked:
            if task == "score" and shape != _SHAPES.value[0]:
                continue  # its shape is its own
            part = measure(task, shape, _ROUNDS.value)
            print(table(part), flush=True)
            results += part
    aimed = [row for row in results if row["target"] is not None]
    print(f"\n{sum(map(misses, aimed))} of {len(aimed)} rows below their target.")
    if _OUT.value:
        with open(_OUT.value, "w") as file:
            json.dump({"provenance": provenance.describe(), "results": results}, file, indent=1)
        print(f"written to {_OUT.value}")


if __name__ == "__main__":
    app.run(main)
