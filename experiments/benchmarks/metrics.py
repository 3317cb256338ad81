"""Time the metrics and the bootstrap against a softmax, NumPy and installed libraries.

    python -m experiments.benchmarks.metrics
    python -m experiments.benchmarks.metrics --peers --out=metrics.json
    python -m experiments.benchmarks.metrics --shapes=10000x10 --parts=bootstrap
    python -m experiments.benchmarks.metrics --shapes=500000x19 --parts=stream --blocks=20

Every call starts from logits. Metrics are compared with one jitted softmax of the logits, other
implementations with ours, and the bootstrap with NumPy. The part "stream" adds the rows of a shape
to a `metrics.Stream` as many times as there are blocks, and measures the memory of the process.
"""

import functools
import resource
import time
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import inference, metrics
from calib_jax.report.chosen_metrics import DEFAULT_METRICS, chosen_metrics
from experiments.benchmarks import libraries, reference, tables, timing

PATIENCE = 2.0  # A call of a peer that takes more seconds is timed once.
SEVEN = {
    name: metrics.named(name)
    for name in ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece")
}
SOFTMAX, TOGETHER = "jitted softmax", "the seven in one pass"


def measure_metrics(
    sample: reference.Sample, rounds: int, peers: bool, **_: Any
) -> list[tables.Row]:
    """Time single metrics, seven in one pass, and other implementations."""
    logits, labels, z, y = sample
    softmax, read = jax.jit(jax.nn.softmax), jax.jit(jnp.sum)
    calls: dict[str, Any] = {
        SOFTMAX: lambda: softmax(logits),
        "read once (the limit)": lambda: read(logits),
        "NumPy softmax": lambda: reference.softmax(z),
        TOGETHER: lambda: metrics.values_of(SEVEN, logits, labels),
    }
    ours = {**SEVEN, "smooth_ece": metrics.smooth_ece}
    calls |= {name: functools.partial(metric, logits, labels) for name, metric in ours.items()}
    against = {}
    targets = {TOGETHER: {"at_most": 2.5}} if z.shape == (50_000, 1000) else {}
    for task, functions in libraries.metrics(peers).items():
        for peer, function in functions.items():
            against[f"{task}: {peer}"] = task
            fast = task == "classwise_ece" and peer != "NumPy"
            targets[f"{task}: {peer}"] = {"at_least": 10.0 if fast else 1.0}
            calls[f"{task}: {peer}"] = lambda function=function: function(reference.softmax(z), y)
    seconds = timing.interleaved(calls, rounds=rounds, patience=PATIENCE, label="metrics")
    rows = timing.compared(seconds, SOFTMAX, against=against, targets=targets)
    for row in rows:
        row |= {"task": "peers"} if row["name"] in against else {}
        if row["name"] in ours or row["name"] in against:
            row["value"] = float(calls[row["name"]]())
    return rows


def measure_bootstrap(
    sample: reference.Sample, rounds: int, resamples: int, **_: Any
) -> list[tables.Row]:
    """Time the bootstrap, from logits to resampled values."""
    logits, labels, z, y = sample
    base = "ECE, NumPy"
    calls: dict[str, Any] = {base: lambda: reference.bootstrap(reference.softmax(z), y, resamples)}
    against, targets = {}, {}
    options = {"key": jax.random.key(1), "num_resamples": resamples}
    for scheme in ("poisson", "multinomial"):
        ece, all_seven = f"ECE, {scheme}", f"the seven, {scheme}"
        for name, statistic in ((ece, metrics.ece), (all_seven, SEVEN)):
            calls[name] = functools.partial(
                inference.bootstrap, statistic, logits, labels, scheme=scheme, **options
            )
        against[all_seven], targets[ece] = ece, {"at_most": 1 / 3}
        targets[all_seven] = {"at_most": 3.0 if logits.shape[1] <= 100 else 8.0}
    seconds = timing.interleaved(
        calls, rounds=max(3, rounds // 2), patience=20.0, label="bootstrap"
    )
    return timing.compared(seconds, base, against=against, targets=targets)


def measure_estimates(
    sample: reference.Sample, rounds: int, resamples: int, **_: Any
) -> list[tables.Row]:
    """Time values, valid intervals, noise floors and p-values, on the clock and in core seconds."""
    bounded = {name: SEVEN[name] for name in ("ece", "mce", "adaptive_ece")}
    options = {"key": jax.random.key(1), "num_resamples": resamples}
    calls: dict[str, Any] = {
        name: functools.partial(inference.estimates, chosen, *sample[:2], **options)
        for name, chosen in (
            ("the seven", SEVEN),
            ("bounds of the top label", bounded),
            ("bounds of all classes", {"classwise_ece": SEVEN["classwise_ece"]}),
        )
    }
    seconds, spent = (
        timing.interleaved(calls, rounds=max(3, rounds // 2), label="estimates", clock=clock)
        for clock in (time.perf_counter, time.process_time)
    )
    return [
        {
            "name": name,
            "seconds": float(np.median(seconds[name])),
            "core_seconds": float(np.median(spent[name])),
        }
        for name in calls
    ]


def measure_stream(sample: reference.Sample, blocks: int, **_: Any) -> list[tables.Row]:
    """Fold blocks of rows into a stream; measure rows per second and the peak of the memory.

    A first block compiles and goes beyond the row limit, so ranking metrics use histograms.
    """
    stream = metrics.Stream(chosen_metrics(DEFAULT_METRICS, 15), row_limit=len(sample.y) - 1)
    stream.update(sample.z, sample.y)  # compiles
    jax.block_until_ready(stream.compute())
    start, spent = time.perf_counter(), time.process_time()
    for _number in range(blocks):
        stream.update(sample.z, sample.y)
    values = jax.block_until_ready(stream.compute())
    seconds, spent = time.perf_counter() - start, time.process_time() - spent
    num_rows = blocks * len(sample.y)
    return [
        {
            "name": f"{len(values)} metrics, {num_rows:,} rows",
            "rows_per_second": num_rows / seconds,
            "rows_per_core_second": num_rows / spent,
            "block_megabytes": sample.z.nbytes / 1e6,
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        }
    ]


_ESTIMATES = {
    "": tables.text("name"),
    "s": tables.number("seconds", ".2f"),
    "s of a core": tables.number("core_seconds", ".2f"),
}
_STREAM = {
    "": tables.text("name"),
    "rows/s": tables.number("rows_per_second"),
    "rows/s of a core": tables.number("rows_per_core_second"),
    "MB of a block": tables.number("block_megabytes"),
    "MB at the peak": tables.number("peak_megabytes"),
}
_VALUE = {"value": tables.number("value", ".7f")}
SECTIONS = {
    "metrics": tables.Section("Metrics,", tables.SPEED | _VALUE),
    "peers": tables.Section("Other implementations,", tables.SPEED | _VALUE),
    "bootstrap": tables.Section("Bootstrap,", tables.SPEED),
    "estimates": tables.Section("Values with valid intervals and p-values,", _ESTIMATES),
    "stream": tables.Section("Stream of blocks,", _STREAM),
}
MEASURES: tables.Measures = {
    "metrics": measure_metrics,
    "bootstrap": measure_bootstrap,
    "estimates": measure_estimates,
    "stream": measure_stream,
}


def main(
    shapes: tables.Shapes = ("10000x10", "10000x100", "50000x1000"),
    parts: Annotated[Sequence[str], f"Of {', '.join(MEASURES)}; all by default."] = (),
    peers: tables.Peers = False,
    rounds: tables.Rounds = 11,
    resamples: Annotated[int, "Of each bootstrap, and draws of a noise bound."] = 1000,
    blocks: Annotated[int, "Of the rows of the shape, in a stream."] = 20,
) -> tables.Report:
    """Measure every part at every shape."""
    options = {"rounds": rounds, "peers": peers, "resamples": resamples, "blocks": blocks}
    results = tables.measured(MEASURES, shapes, parts, **options)
    setting = {"libraries": libraries.versions()} if peers else {}
    return tables.Report("Metrics", results, SECTIONS, ("task", "shape"), setting)


if __name__ == "__main__":
    tables.run(main)
