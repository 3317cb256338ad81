"""Compile and run a training step of the papers' networks: parameters, memory, seconds.

    python -m experiments.benchmarks.networks
    python -m experiments.benchmarks.networks --models=resnet18,vit --batch_size=8 --out=FILE

A step of FLSD-53 with clipping, SGD, momentum and weight decay on random images, with and without
recomputing activations in the backward pass (`remat`). The memory is XLA's plan.
"""

import time
from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from tqdm import tqdm

from calib_jax import losses, train
from experiments.benchmarks import programs, tables
from experiments.benchmarks.training_work import Work


def measure(name: str, remat: bool, batch_size: int, steps: int) -> tables.Row:
    """Compile a step of a network, and time it."""
    work, objective = (
        Work(name, batch_size, 1, {"remat": True} if remat else {}),
        losses.objective("flsd53"),
    )
    inputs, labels = map(jnp.asarray, work.source().examples)
    batch = train.Batch(inputs, labels, jnp.ones(batch_size), jnp.arange(batch_size))
    state, step = work.state(objective), work.step(objective)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    began = time.perf_counter()
    traced = jax.jit(step, donate_argnums=0).trace(state, batch)
    tracing = time.perf_counter() - began
    compiled = traced.lower().compile()
    compiling = time.perf_counter() - began - tracing
    seconds, mean_losses = [], []
    for _ in range(steps):
        began = time.perf_counter()
        state, measured = compiled(state, batch)
        mean_losses.append(float(measured["loss"]))
        seconds.append(time.perf_counter() - began)
    return {
        "task": "networks",
        "network": name,
        "remat": remat,
        "image": list(work.shape),
        "parameters": parameters,
        "trace_seconds": tracing,
        "compile_seconds": compiling,
        "step_seconds": min(seconds),
        "memory_bytes": programs.memory(compiled),
        "losses": mean_losses,
    }


COLUMNS = {
    "network": tables.text("network"),
    "remat": lambda row: "yes" * row["remat"],
    "parameters": tables.number("parameters", ","),
    "s to trace": tables.number("trace_seconds"),
    "s to compile": tables.number("compile_seconds"),
    "s of a step": tables.number("step_seconds"),
    "MB of a step": tables.number("memory_bytes", scale=1e-6),
    "first and last loss": lambda row: f"{row['losses'][0]:.3f}, {row['losses'][-1]:.3f}",
}


SECTIONS = {"networks": tables.Section("A training step", COLUMNS)}


def main(
    models: Annotated[Sequence[str], "Names of calib_jax.models."] = (
        *("resnet50", "resnet110", "wide_resnet26_10", "densenet121"),
    ),
    batch_size: Annotated[int, "Examples of a step."] = 2,
    steps: Annotated[int, "Timed steps; the fastest counts."] = 3,
) -> tables.Report:
    """Measure every network with and without recomputed activations."""
    forms = [(name, remat) for name in models for remat in (False, True)]
    bar = tqdm(forms, unit="network", disable=None)
    rows = [measure(name, remat, batch_size, steps) for name, remat in bar]
    return tables.Report("Networks", rows, SECTIONS, setting={"batch_size": batch_size})


if __name__ == "__main__":
    tables.run(main)
