"""Time the metrics and the bootstrap beside a softmax, NumPy and the libraries installed.

    python -m experiments.benchmarks.metrics
    python -m experiments.benchmarks.metrics --peers --out=metrics.json
    python -m experiments.benchmarks.metrics --shapes=10000x10 --parts=bootstrap

Everything starts from logits. Beside each row stand its value, so that it can be seen to compute
the same thing, and its time as a multiple of one jitted softmax of the same logits. The time to
read the logits once is printed as the limit that no metric can beat. Rows with a target are
marked with '!' where they miss it.
"""

import functools
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from calib_jax import metrics
from experiments import provenance
from experiments.benchmarks import metric_peers, timing

_SHAPES = flags.DEFINE_list(
    "shapes", ["10000x10", "10000x100", "50000x1000"], "Examples x classes, one or more."
)
_PARTS = flags.DEFINE_list("parts", ["metrics", "bootstrap", "pixels"], "What to measure.")
_PEERS = flags.DEFINE_bool("peers", False, "Also time the libraries that are installed.")
_ROUNDS = flags.DEFINE_integer("rounds", 11, "How often each row is timed.", lower_bound=3)
_RESAMPLES = flags.DEFINE_integer("resamples", 1000, "Of each bootstrap.", lower_bound=2)
_PIXELS = flags.DEFINE_integer("pixels", 20_000_000, "How many pixels are streamed.")
_PATIENCE = flags.DEFINE_float(
    "patience",
    20.0,
    "Seconds one call of a peer may take; a slower one is timed once, or on fewer resamples.",
)
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

SEVEN = {
    name: metrics.named(name)
    for name in ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece")
}
BASE = "jitted softmax"


def data(rows: int, classes: int) -> tuple[jax.Array, jax.Array]:
    """Draw logits of an overconfident model: it is calibrated at temperature 1.5."""
    noise, coin = jax.random.split(jax.random.key(0))
    logits = 2 * jax.random.normal(noise, (rows, classes))
    return logits, jax.random.categorical(coin, logits / 1.5)


# --------------------------------------------------------------------------------------------
# Values.


def measure_metrics(shape: str) -> list[dict[str, Any]]:
    """Time single metrics, the seven of them in one pass, and what others offer."""
    logits, labels = data(*map(int, shape.split("x")))
    on_host, true = np.asarray(logits), np.asarray(labels).astype(np.int64)
    softmax = jax.jit(jax.nn.softmax)
    read = jax.jit(jnp.sum)
    calls: dict[str, Callable[[], Any]] = {
        BASE: lambda: softmax(logits),
        "read once (the limit)": lambda: read(logits),
        "NumPy softmax": lambda: metric_peers.softmax(on_host),
        "the seven in one pass": lambda: metrics.values_of(SEVEN, logits, labels),
    }
    for name, metric in {**SEVEN, "smooth_ece": metrics.smooth_ece}.items():
        calls[name] = functools.partial(metric, logits, labels)
    values = {name: calls[name]() for name in [*SEVEN, "smooth_ece"]}

    peers: dict[str, dict[str, metric_peers.Peer]] = {
        "ece": {"NumPy": metric_peers.numpy_ece},
        "adaptive_ece": {"NumPy": metric_peers.numpy_adaptive_ece},
        "classwise_ece": {"NumPy": metric_peers.numpy_classwise_ece},
    }
    if _PEERS.value:
        for task, functions in metric_peers.installed().items():
            peers.setdefault(task, {}).update(functions)
    slow: dict[str, float] = {}
    for task, functions in peers.items():
        for peer, function in functions.items():
            name = f"{task}: {peer}"
            call = functools.partial(_from_logits, function, on_host, true)
            start = time.perf_counter()
            values[name] = call()
            once = time.perf_counter() - start
            if once > _PATIENCE.value / 10:
                slow[name] = once
            else:
                calls[name] = call

    seconds = timing.interleaved(calls, rounds=_ROUNDS.value, label=f"{shape} metrics")
    results = []
    for name in [*calls, *slow]:
        row: dict[str, Any] = {"part": "metrics", "shape": shape, "row": name}
        spent = np.full(_ROUNDS.value, slow[name]) if name in slow else seconds[name]
        row["rounds"] = 1 if name in slow else _ROUNDS.value
        row["ms"] = 1e3 * float(np.median(spent))
        row["to_softmax"] = timing.ratio(spent, seconds[BASE])
        row["value"] = float(values[name]) if name in values else None
        task, _, peer = name.partition(": ")
        if peer:
            row["to_ours"] = timing.ratio(spent, seconds[task])
        if name == "the seven in one pass" and shape == "50000x1000":
            row["target"] = 2.5
            row["misses"] = row["to_softmax"]["median"] > 2.5
        results.append(row)
    return results


def _from_logits(function: metric_peers.Peer, logits: np.ndarray, labels: np.ndarray) -> float:
    return function(metric_peers.softmax(logits), labels)


# --------------------------------------------------------------------------------------------
# Bootstrap.


def measure_bootstrap(shape: str) -> list[dict[str, Any]]:
    """Time resampled values, from logits to samples."""
    logits, labels = data(*map(int, shape.split("x")))
    on_host, true = np.asarray(logits), np.asarray(labels).astype(np.int64)
    resamples = _RESAMPLES.value

    def ours(what: Any, scheme: str) -> Any:
        return metrics.bootstrap(
            what, logits, labels, key=jax.random.key(1), num_resamples=resamples, scheme=scheme
        )

    base = "ECE, NumPy"
    calls: dict[str, Callable[[], Any]] = {
        base: lambda: metric_peers.numpy_bootstrap(metric_peers.softmax(on_host), true, resamples),
        "ECE, poisson": lambda: ours(metrics.ece, "poisson"),
        "ECE, multinomial": lambda: ours(metrics.ece, "multinomial"),
        "the seven, poisson": lambda: ours(SEVEN, "poisson"),
        "the seven, multinomial": lambda: ours(SEVEN, "multinomial"),
    }
    rounds = max(3, _ROUNDS.value // 2)
    seconds = timing.interleaved(calls, rounds=rounds, label=f"{shape} bootstrap")
    if _PEERS.value:
        for name, (function, fixed) in metric_peers.bootstraps().items():
            once = _patient(function, metric_peers.softmax(on_host), true, fixed, resamples)
            seconds[f"ECE, {name}"] = np.full(rounds, once)

    classes = int(shape.split("x")[1])
    several = 3.0 if classes <= 100 else 8.0
    results = []
    for name, spent in seconds.items():
        row: dict[str, Any] = {"part": "bootstrap", "shape": shape, "row": name}
        row["rounds"] = rounds if name in calls else 1
        row["ms"] = 1e3 * float(np.median(spent))
        row["to_numpy"] = timing.ratio(spent, seconds[base])
        if name == "ECE, poisson" or name == "ECE, multinomial":
            row["target"] = f"{1 / 1.5:.2f}x NumPy"
            row["misses"] = row["to_numpy"]["median"] > 1 / 1.5
        if name.startswith("the seven"):
            scheme = name.split(", ")[1]
            row["to_one"] = timing.ratio(spent, seconds[f"ECE, {scheme}"])
            row["target"] = f"{several:.0f}x ECE"
            row["misses"] = row["to_one"]["median"] > several
        if name not in calls:
            row["to_ours"] = timing.ratio(spent, seconds["ECE, multinomial"])
        results.append(row)
    return results


def _patient(
    function: metric_peers.Bootstrap,
    p: np.ndarray,
    labels: np.ndarray,
    fixed: int | None,
    resamples: int,
) -> float:
    """Time a slow bootstrap on as many resamples as patience allows, scaled to all of them."""
    number = fixed or 5
    start = time.perf_counter()
    function(p, labels, number)
    spent = time.perf_counter() - start
    if fixed is None and spent < _PATIENCE.value / 10:
        number = min(resamples, int(number * _PATIENCE.value / spent / 2))
        start = time.perf_counter()
        function(p, labels, number)
        spent = time.perf_counter() - start
    return spent * resamples / number


# --------------------------------------------------------------------------------------------
# Pixels.


def measure_pixels(num_pixels: int, classes: int = 19, batch: int = 2**20) -> list[dict[str, Any]]:
    """Stream pixels, and say how much memory that took and how fast it was."""
    several = {**SEVEN, "mean_iou": metrics.mean_iou}
    stream = metrics.Stream(several)
    logits, labels = data(batch, classes)
    small = metrics.Stream(several)
    small.add(logits, labels)  # compiled
    before = _peak_bytes()
    jax.block_until_ready((logits, labels))
    start = time.perf_counter()
    left = num_pixels
    while left > 0:
        rows = min(batch, left)
        weights = (np.arange(batch) < rows).astype(np.float32)  # one shape, one compilation
        stream.add(logits, labels, weights)
        left -= rows
    values = stream.values()
    spent = time.perf_counter() - start
    read = jax.jit(jnp.sum)
    limit = timing.interleaved({"read": lambda: read(logits)}, rounds=5)["read"]
    return [
        {
            "part": "pixels",
            "shape": f"{num_pixels}x{classes}",
            "row": "the seven and mean IoU, streamed",
            "seconds": spent,
            "pixels_per_second": num_pixels / spent,
            "to_reading_once": spent / (float(np.median(limit)) * num_pixels / batch),
            "batch_bytes": logits.nbytes,
            "peak_bytes_more": _peak_bytes() - before,
            "values": {name: float(value) for name, value in values.items()},
            "notes": stream.notes,
        }
    ]


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --------------------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    """Lay the results of one part and shape out as text."""
    part = results[0]["part"]
    if part == "pixels":
        row = results[0]
        return (
            f"{row['shape']} pixels: {row['row']} in {row['seconds']:.1f} s,"
            f" {row['pixels_per_second'] / 1e6:.1f} million a second, {row['to_reading_once']:.0f}"
            f" times reading them once; {row['peak_bytes_more'] / 1e6:.0f} MB more at the peak,"
            f" with batches of {row['batch_bytes'] / 1e6:.0f} MB.\n  "
            + ", ".join(f"{name} {value:.4f}" for name, value in row["values"].items())
            + "".join(f"\n  {note}" for note in row["notes"])
        )
    base = "to_softmax" if part == "metrics" else "to_numpy"
    head = "softmax" if part == "metrics" else "NumPy"
    lines = [f"{results[0]['shape']} {part:44s} {'':10s} x {head:8s} [middle half]"]
    for row in results:
        ratio = row[base]
        line = (
            f"  {row['row']:44s} {row['ms']:9.2f} ms {ratio['median']:7.2f}x"
            f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        )
        if row.get("value") is not None:
            line += f"  value {row['value']:.7f}"
        if "to_one" in row:
            line += f"  {row['to_one']['median']:.1f}x ECE"
        if "to_ours" in row:
            line += f"  {row['to_ours']['median']:.1f}x ours"
        if "target" in row:
            line += f"  target {row['target']} {'!' if row['misses'] else 'met'}"
        lines.append(line)
    return "\n".join(lines)


def main(_: list[str]) -> None:
    """Run, print the tables, write the JSON."""
    kinds = {"metrics": measure_metrics, "bootstrap": measure_bootstrap}
    unknown = set(_PARTS.value) - {*kinds, "pixels"}
    if unknown:
        raise app.UsageError(
            f"--parts={','.join(sorted(unknown))} is not a part of this benchmark."
        )
    results = []
    for part in _PARTS.value:
        for shape in _SHAPES.value if part in kinds else [None]:
            found = kinds[part](shape) if shape else measure_pixels(_PIXELS.value)
            print(table(found), "\n", flush=True)
            results += found
    misses = [row for row in results if row.get("misses")]
    print(f"{len(misses)} rows miss their target.")
    if _OUT.value:
        report = {"provenance": provenance.describe(), "results": results}
        with open(_OUT.value, "w") as file:
            json.dump(report, file, indent=1)
        print(f"written to {_OUT.value}")


if __name__ == "__main__":
    app.run(main)
