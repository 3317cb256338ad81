"""Time the metrics and the bootstrap against a softmax, NumPy and installed libraries.

    python -m experiments.benchmarks.metrics
    python -m experiments.benchmarks.metrics --shapes=10000x10 --nopeers --json=metrics.json

Every call starts from logits. The targets: seven metrics in one pass take at most 2.5 times one
jitted softmax at 50,000 x 1,000; 1,000 resamples of the ECE a third of NumPy's time.
"""

import functools
from typing import Any

import jax
from absl import flags

from calib_jax import inference, metrics
from experiments.benchmarks import libraries, reference, timing
from experiments.running import cli

flags.adopt_module_key_flags(timing)  # --json, --rounds, --shapes
_PEERS = flags.DEFINE_bool("peers", True, "Also time the libraries that are installed.")
_RESAMPLES = flags.DEFINE_integer("resamples", 1000, "Of each bootstrap.", lower_bound=1)

SHAPES = ("10000x10", "10000x100")
PATIENCE = 2.0  # A call of a peer that takes more seconds is timed once.
SOFTMAX, TOGETHER = "jitted softmax", "the seven in one pass"
SEVEN = {
    name: metrics.named(name)
    for name in ("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece")
}


def measure_metrics(sample: reference.Sample, rounds: int, peers: bool) -> list[timing.Row]:
    """Time single metrics, seven in one pass, and other implementations."""
    logits, labels, z, y = sample
    softmax = jax.jit(jax.nn.softmax)
    calls: dict[str, Any] = {
        SOFTMAX: lambda: softmax(logits),
        TOGETHER: lambda: metrics.values_of(SEVEN, logits, labels),
    }
    ours = {**SEVEN, "smooth_ece": metrics.smooth_ece}
    calls |= {name: functools.partial(metric, logits, labels) for name, metric in ours.items()}
    against = {}
    for task, functions in libraries.metrics(peers).items():
        for peer, function in functions.items():
            against[f"{task}: {peer}"] = task
            calls[f"{task}: {peer}"] = lambda of=function: of(reference.softmax(z), y)
    seconds = timing.interleaved(calls, rounds=rounds, patience=PATIENCE)
    rows = timing.compared({k: v for k, v in seconds.items() if k not in against}, SOFTMAX)
    for name, task in against.items():
        (_, row) = timing.compared({task: seconds[task], name: seconds[name]}, task)
        rows.append(row | {"value": float(calls[name]()), "ours": float(calls[task]())})
    return rows


def measure_bootstrap(sample: reference.Sample, rounds: int, resamples: int) -> list[timing.Row]:
    """Time the bootstrap of the ECE and of the seven metrics, and values with their intervals."""
    logits, labels, z, y = sample
    base = f"{resamples} resamples of the ECE, NumPy"
    options: dict[str, Any] = {"key": jax.random.key(1), "num_resamples": resamples}
    calls: dict[str, Any] = {
        base: lambda: reference.bootstrap(reference.softmax(z), y, resamples),
        "of the ECE": lambda: inference.bootstrap(metrics.ece, logits, labels, **options),
        "of the seven": lambda: inference.bootstrap(SEVEN, logits, labels, **options),
        "estimates of the seven": lambda: inference.estimates(SEVEN, logits, labels, **options),
    }
    seconds = timing.interleaved(calls, rounds=max(3, rounds // 2), patience=20.0)
    return timing.compared(seconds, base)


def main() -> None:
    """Measure all shapes."""
    rows: list[timing.Row] = []
    for shape in timing.SHAPES.value or SHAPES:
        sample = reference.drawn(*timing.shape_of(shape))
        measured = measure_metrics(sample, timing.ROUNDS.value, _PEERS.value)
        measured += measure_bootstrap(sample, timing.ROUNDS.value, _RESAMPLES.value)
        rows += [{"shape": shape} | row for row in measured]
    timing.report(rows)


if __name__ == "__main__":
    cli.run(main)
