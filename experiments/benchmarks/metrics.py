"""Time the metrics and the bootstrap against a softmax, NumPy and installed libraries.

    python -m experiments.benchmarks.metrics
    python -m experiments.benchmarks.metrics --peers --out=metrics.json
    python -m experiments.benchmarks.metrics --shapes=10000x10 --parts=bootstrap

Every call starts from logits. Metrics are compared with one jitted softmax of the logits, other
implementations with ours, and the bootstrap with NumPy.
"""

import functools
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from experiments.benchmarks import metric_peers, reference, tables, timing

PATIENCE = 2.0  # A call of a peer that takes more seconds is timed once.
SEVEN = {
    name: metrics.named(name)
    for name in ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece")
}
SOFTMAX, TOGETHER = "jitted softmax", "the seven in one pass"


def measure_metrics(shape: str, rounds: int, peers: bool) -> list[tables.Row]:
    """Time single metrics, seven in one pass, and other implementations."""
    logits, labels = reference.shaped(shape)
    on_host, true = np.asarray(logits), np.asarray(labels).astype(np.int64)
    softmax, read = jax.jit(jax.nn.softmax), jax.jit(jnp.sum)
    values: dict[str, Any] = {}
    calls: dict[str, Any] = {
        SOFTMAX: lambda: softmax(logits),
        "read once (the limit)": lambda: read(logits),
        "NumPy softmax": lambda: reference.softmax(on_host),
        TOGETHER: lambda: metrics.values_of(SEVEN, logits, labels),
    }
    for name, metric in {**SEVEN, "smooth_ece": metrics.smooth_ece}.items():
        calls[name] = functools.partial(metric, logits, labels)
        values[name] = calls[name]()
    beside = {}
    for task, functions in metric_peers.functions(peers).items():
        for peer, function in functions.items():
            beside[f"{task}: {peer}"] = task

            def call(name: str = f"{task}: {peer}", function: metric_peers.Peer = function) -> None:
                values[name] = function(reference.softmax(on_host), true)

            calls[f"{task}: {peer}"] = call
    seconds = timing.interleaved(calls, rounds=rounds, patience=PATIENCE, label=f"{shape} metrics")
    targets = {
        name: {"at_least": 10.0}
        for name, task in beside.items()
        if task == "classwise_ece" and "NumPy" not in name
    }
    targets |= {TOGETHER: {"at_most": 2.5}} if shape == "50000x1000" else {}
    rows = timing.compared(seconds, SOFTMAX, against=beside, targets=targets, shape=shape)
    for row in rows:
        row["task"] = "peers" if row["name"] in beside else "metrics"
        row["value"] = float(values[row["name"]]) if row["name"] in values else None
    return rows


def measure_bootstrap(shape: str, rounds: int, peers: bool, resamples: int) -> list[tables.Row]:
    """Time the bootstrap, from logits to resampled values."""
    logits, labels = reference.shaped(shape)
    on_host, true = np.asarray(logits), np.asarray(labels).astype(np.int64)
    base = "ECE, NumPy"

    def ours(what: Any, scheme: str) -> Any:
        return functools.partial(
            metrics.bootstrap,
            *(what, logits, labels),
            key=jax.random.key(1),
            num_resamples=resamples,
            scheme=scheme,
        )

    calls: dict[str, Any] = {
        base: lambda: reference.bootstrap(reference.softmax(on_host), true, resamples)
    }
    against, targets = {}, {}
    for scheme in ("poisson", "multinomial"):
        one, all_seven = f"ECE, {scheme}", f"the seven, {scheme}"
        calls |= {one: ours(metrics.ece, scheme), all_seven: ours(SEVEN, scheme)}
        against[all_seven], targets[one] = one, {"at_most": 1 / 1.5}
        targets[all_seven] = {"at_most": 3.0 if logits.shape[1] <= 100 else 8.0}
    slow = metric_peers.bootstraps() if peers else {}
    for name, (function, number) in slow.items():
        p = reference.softmax(on_host)
        calls[name] = functools.partial(function, p, true, number)
        against[name], targets[name] = "ECE, multinomial", {"at_least": 20.0}
    seconds = timing.interleaved(
        calls, rounds=max(3, rounds // 2), patience=10 * PATIENCE, label=f"{shape} bootstrap"
    )
    # A slow bootstrap computed few resamples: scale its time to all of them.
    seconds |= {name: seconds[name] * resamples / number for name, (_, number) in slow.items()}
    return timing.compared(
        seconds, base, against=against, targets=targets, task="bootstrap", shape=shape
    )


_VALUE = {"value": tables.number("value", ".7f")}
SECTIONS = {
    "metrics": tables.Section("Metrics,", tables.SPEED | _VALUE),
    "peers": tables.Section("Other implementations,", tables.SPEED | _VALUE),
    "bootstrap": tables.Section("Bootstrap,", tables.SPEED),
}
PARTS = ("metrics", "bootstrap")


def main(
    shapes: tables.Shapes = ("10000x10", "10000x100", "50000x1000"),
    parts: Annotated[Sequence[str], "Of metrics and bootstrap."] = PARTS,
    peers: tables.Peers = False,
    rounds: tables.Rounds = 11,
    resamples: Annotated[int, "Of each bootstrap."] = 1000,
) -> tables.Report:
    """Measure every part at every shape."""
    tables.check("parts", parts, PARTS)
    results = []
    for shape in shapes:
        if "metrics" in parts:
            results += measure_metrics(shape, rounds, peers)
        if "bootstrap" in parts:
            results += measure_bootstrap(shape, rounds, peers, resamples)
    return tables.Report("Metrics", results, SECTIONS, by=("task", "shape"))


if __name__ == "__main__":
    tables.run(main)
