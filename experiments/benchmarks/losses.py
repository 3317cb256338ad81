"""Time every loss beside optax's cross-entropy.

    python -m experiments.benchmarks.losses
    python -m experiments.benchmarks.losses --shapes=8192x100 --dtypes=float32 --only=focal,bsce_gra
    python -m experiments.benchmarks.losses --out=losses.json

For each loss: forward, forward + backward (of the sum), as ratios to
`optax.softmax_cross_entropy_with_integer_labels` in the same round, and the temporary memory
XLA plans for the backward pass, as a ratio as well. A row above its target is marked with '!'
and says what it spends its time on.
"""

import functools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from calib_jax import losses
from experiments import provenance
from experiments.benchmarks import timing

_SHAPES = flags.DEFINE_list(
    "shapes", ["8192x100", "1024x1000", "256x10"], "Batch x classes, one or more."
)
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Of the logits.")
_ONLY = flags.DEFINE_list("only", [], "Names of rows to run; all by default.")
_ROUNDS = flags.DEFINE_integer("rounds", 31, "How often each loss is timed.", lower_bound=3)
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

BASE = "optax cross-entropy"

# What a row above its target spends its time on.
WHY = {
    "bsce": "a norm other than 1 and 2 takes one more exponential a class, and its gradient",
    "bsce_gra": "a norm other than 1 and 2 takes one more exponential a class",
    "tempered_bsce": "a second softmax, at the temperature",
    "tempered_dual_focal": "a second softmax, and the runner-up's as below",
    "tempered_focal": "a second softmax, at the temperature",
    "tempered_flsd53": "a second softmax, at the temperature",
    "consistency": "a second softmax, of the calibrated logits",
    "dual_focal": "finding the runner-up takes passes over the classes; the median of three most",
    "dfl_gra": "finding the runner-up takes passes over the classes; the median of three most",
    "dual_focal_exp": "finding the runner-up takes passes over the classes",
    "tlbs": "finding the prediction, the first of equals, takes a pass over the classes",
    "recall_precision": "a second view of the probabilities, from the predicted class",
    "entropy_regularised": "the entropy's gradient is dense: its own passes over the classes",
    "focal_entropy_regularised": "the entropy's gradient is dense: its own passes over the classes",
    "mmce": "ranks the batch: a sort, sums over ties and their gradients, slow on a CPU",
    "mmce_weighted": "ranks the batch: a sort, sums over ties and their gradients, slow on a CPU",
    "mmce_gra": "ranks the batch: a sort and sums over ties, slow on a CPU",
    "ece_weighted": "ranks the batch: a sort, slow on a CPU",
    "soft_ece": "a sigmoid for every class and a softmax over the bins",
}


class Row(NamedTuple):
    """One line of the table: an objective with options, and the ratio it has to stay below."""

    objective: str
    options: dict[str, Any]
    target: float


def _rows() -> dict[str, Row]:
    """List every objective, and the weightings and norms that have a target of their own."""
    both: list[dict[str, Any]] = [{"weighting": "loss"}, {"weighting": "gradient"}]
    of_p_alone: dict[str, list[dict[str, Any]]] = {
        "cross_entropy": [{}],
        "focal": both,
        "inverse_focal": both,
        "flsd53": both,
        "flsd532": both,
        "adafocal": both,
        "recall": both,
        "flsc531": [{}],
        "flsc532": [{}],
        "fl_gra": [{}],
        "flsd53_gra": [{}],
    }
    norms: dict[str, list[dict[str, Any]]] = {"bsce_gra": [{"beta": 1.0}, {"beta": 2.0}]}
    rest: dict[str, list[dict[str, Any]]] = {
        "bsce": [{"beta": 1.0}, {"beta": 1.5}, {"beta": 2.0}],
        "bsce_gra": [{"beta": 1.5}],
        "dual_focal": [{"runner_up": which} for which in ("below", "wrong", "second")],
        "dfl_gra": [{"runner_up": which} for which in ("below", "wrong", "second")],
    }
    rows: dict[str, Row] = {}

    def add(table: Mapping[str, list[dict[str, Any]]], target: float) -> None:
        for name, variants in table.items():
            for options in variants:
                label = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
                rows[label] = Row(name, options, target)

    add(of_p_alone, 1.3)
    add(norms, 1.3)
    add(rest, 2.0)
    named = {row.objective for row in rows.values()}
    add({name: [{}] for name in losses.catalogue() if name not in named}, 2.0)
    return rows


def _optax(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def _function(row: Row, num_classes: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    objective = losses.objective(row.objective, **row.options)
    state = objective.init(num_classes)
    return lambda logits, labels: objective.value(state, logits, labels, None)


def _data(batch: int, classes: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    noise, choice, coin = jax.random.split(jax.random.key(0), 3)
    logits = 2 * jax.random.normal(noise, (batch, classes))
    guess = jax.random.randint(choice, (batch,), 0, classes)
    labels = jnp.where(jax.random.bernoulli(coin, 0.6, (batch,)), jnp.argmax(logits, -1), guess)
    return logits.astype(dtype), labels


def measure(shape: str, dtype: str, rows: Mapping[str, Row], rounds: int) -> list[dict[str, Any]]:
    """Time the rows at one shape and dtype."""
    batch, classes = map(int, shape.split("x"))
    logits, labels = _data(batch, classes, dtype)
    functions = {BASE: _optax} | {name: _function(row, classes) for name, row in rows.items()}
    forward, backward, memory = {}, {}, {}
    for name, function in functions.items():
        total = lambda z, y, function=function: jnp.sum(function(z, y))  # noqa: E731
        f = jax.jit(function).lower(logits, labels).compile()
        b = jax.jit(jax.value_and_grad(total)).lower(logits, labels).compile()
        forward[name] = functools.partial(f, logits, labels)
        backward[name] = functools.partial(b, logits, labels)
        plan = b.memory_analysis()
        memory[name] = plan.temp_size_in_bytes + plan.output_size_in_bytes if plan else 0

    label = f"{shape} {dtype}"
    spent_forward = timing.interleaved(forward, rounds=rounds, label=f"{label} forward")
    spent = timing.interleaved(backward, rounds=rounds, label=f"{label} forward + backward")
    results = []
    for name in functions:
        results.append(
            {
                "loss": name,
                "shape": shape,
                "dtype": dtype,
                "target": rows[name].target if name in rows else None,
                "why": WHY.get(rows[name].objective, "") if name in rows else "",
                "rounds": rounds,
                "forward_ms": 1e3 * float(np.median(spent_forward[name])),
                "forward_backward_ms": 1e3 * float(np.median(spent[name])),
                "forward_ratio": timing.ratio(spent_forward[name], spent_forward[BASE]),
                "forward_backward_ratio": timing.ratio(spent[name], spent[BASE]),
                "memory_bytes": memory[name],
                "memory_ratio": memory[name] / memory[BASE],
            }
        )
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Lay results of one shape and dtype out as text."""
    head = f"{results[0]['shape']} {results[0]['dtype']}"
    lines = [f"{head:44s}  forward        forward + backward            target  memory"]
    for row in results:
        both = row["forward_backward_ratio"]
        miss = row["target"] is not None and both["median"] > row["target"]
        target = "" if row["target"] is None else f"{row['target']:.1f}"
        lines.append(
            f"  {row['loss']:42s}"
            f"  {row['forward_ms']:6.3f} ms {row['forward_ratio']['median']:5.2f}x"
            f"  {row['forward_backward_ms']:6.3f} ms {both['median']:5.2f}x"
            f" [{both['low']:.2f}, {both['high']:.2f}]  {target:>4s} {'!' if miss else ' '}"
            f"  {row['memory_ratio']:5.2f}x" + (f"  {row['why']}" if miss else "")
        )
    return "\n".join(lines)


def lookup(num_examples: int = 8192) -> dict[str, float]:
    """Compare the vectorised choice of gamma with a loop over examples, one `item()` each."""
    p = np.random.default_rng(0).uniform(size=num_examples).astype(np.float32)
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    gammas = np.linspace(-2, 5, 15, dtype=np.float32)
    on_device = jnp.asarray(p)

    def loop_flsd() -> list[float]:
        return [5.0 if value.item() < 0.2 else 3.0 for value in p]

    def loop_adafocal() -> list[float]:
        chosen = []
        for value in p:
            here = value.item()
            index = 0
            while index < len(gammas) - 1 and here >= edges[index + 1].item():
                index += 1
            chosen.append(gammas[index].item())
        return chosen

    flsd = jax.jit(lambda p: jnp.where(p < 0.2, 5.0, 3.0))
    bins = jax.jit(
        lambda p: jnp.asarray(gammas)[
            jnp.searchsorted(edges[1:-1], p, side="right", method="compare_all")
        ]
    )
    np.testing.assert_array_equal(flsd(on_device), loop_flsd())
    np.testing.assert_array_equal(bins(on_device), loop_adafocal())
    ours = timing.interleaved(
        {"flsd": lambda: flsd(on_device), "adafocal": lambda: bins(on_device)}, rounds=11
    )
    ratios = {}
    for name, loop in {"flsd": loop_flsd, "adafocal": loop_adafocal}.items():
        start = time.perf_counter()
        loop()
        ratios[name] = (time.perf_counter() - start) / float(np.median(ours[name]))
    return ratios


def main(_: list[str]) -> None:
    """Run, print the tables, write the JSON."""
    rows = _rows()
    if _ONLY.value:
        rows = {label: row for label, row in rows.items() if row.objective in _ONLY.value}
        if not rows:
            raise app.UsageError(f"--only={','.join(_ONLY.value)} names no objective.")
    results = []
    for shape in _SHAPES.value:
        for dtype in _DTYPES.value:
            part = measure(shape, dtype, rows, _ROUNDS.value)
            print(table(part), flush=True)
            results += part
    misses = [row for row in results if row["target"] and _misses(row)]
    print(f"\n{len(misses)} of {len(results)} rows above their target.")
    ratios = lookup()
    print(
        "gamma of 8,192 examples: a loop over them takes "
        + ", ".join(f"{value:,.0f} times ({name})" for name, value in ratios.items())
        + " the vectorised lookup."
    )
    if _OUT.value:
        report = {"provenance": provenance.describe(), "results": results, "lookup": ratios}
        with open(_OUT.value, "w") as file:
            json.dump(report, file, indent=1)
        print(f"written to {_OUT.value}")


def _misses(row: dict[str, Any]) -> bool:
    return bool(row["forward_backward_ratio"]["median"] > row["target"])


if __name__ == "__main__":
    app.run(main)
