"""Compile and run a training step of the papers' networks: parameters, memory, seconds.

    python -m experiments.benchmarks.networks
    python -m experiments.benchmarks.networks --models=resnet18,vit --batch_size=8 --out=FILE

Random images of the size that the network is for. A step is that of the papers' recipe (FLSD-53
summed over the batch, clipping, SGD with momentum and weight decay), with and without recomputing
activations in the backward pass (`remat`). The memory is XLA's own estimate of what the step needs
beside its arguments and results.
"""

import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from tqdm import tqdm

from calib_jax import losses, models, train
from experiments import provenance

_MODELS = flags.DEFINE_list(
    "models",
    ["resnet50", "resnet110", "wide_resnet26_10", "densenet121"],
    "Names of calib_jax.models.",
)
_CLASSES = flags.DEFINE_integer("num_classes", 10, "Classes.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch_size", 2, "Examples of a step.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 3, "Timed steps; the fastest counts.", lower_bound=1)
_REMAT = flags.DEFINE_bool("remat", True, "Also the form that recomputes activations.")
_OUT = flags.DEFINE_string("out", None, "Write all numbers, with their provenance, to this JSON.")

Row = dict[str, Any]


def measured(name: str, remat: bool) -> Row:
    """Compile a step of a network, and time it."""
    options = {"num_classes": _CLASSES.value} | ({"remat": True} if remat else {})
    module = models.named(name, **options)
    shape = module.example_shape() if hasattr(module, "example_shape") else (32, 32, 3)
    random = np.random.default_rng(0)
    batch = train.Batch(
        jnp.asarray(random.normal(size=(_BATCH.value, *shape)), jnp.float32),
        jnp.asarray(random.integers(_CLASSES.value, size=_BATCH.value)),
        jnp.ones(_BATCH.value),
        jnp.arange(_BATCH.value),
    )
    objective = losses.objective("flsd53")
    tx = train.optimisers.sgd(0.01, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)
    step = train.make_train_step(train.linen(module), objective, tx, reduction="sum")
    variables = jax.jit(module.init, static_argnames="train")(
        jax.random.key(0), batch.inputs, train=False
    )
    state = train.create(variables, objective, tx, _CLASSES.value, 0)
    began = time.perf_counter()
    traced = jax.jit(step, donate_argnums=0).trace(state, batch)
    tracing = time.perf_counter() - began
    compiled = traced.lower().compile()
    compiling = time.perf_counter() - began - tracing
    memory = train.memory.plan_of(compiled)
    seconds, loss = [], []
    for _ in range(_STEPS.value):
        began = time.perf_counter()
        state, found = compiled(state, batch)
        loss.append(float(found["loss"]) / _BATCH.value)
        seconds.append(time.perf_counter() - began)
    return {
        "network": name,
        "remat": remat,
        "image": list(shape),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(variables["params"])),
        "trace_seconds": tracing,
        "compile_seconds": compiling,
        "step_seconds": min(seconds),
        "temporary_bytes": None if memory is None else memory.temp_size_in_bytes,
        "losses": loss,
    }


def main(_: Any) -> None:
    """Measure every network, one after the other."""
    rows = []
    forms = [(name, remat) for name in _MODELS.value for remat in (False, True)[: 1 + _REMAT.value]]
    print(f"batch {_BATCH.value}; seconds to trace, to compile, of a step; memory of a step")
    for name, remat in tqdm(forms, unit="network", disable=None):
        row = measured(name, remat)
        rows.append(row)
        memory = (row["temporary_bytes"] or float("nan")) / 1e6
        tqdm.write(
            f"{name:<24s}{'remat' if remat else '':<6s}{row['parameters']:>12,} parameters"
            f"{row['trace_seconds']:7.1f}{row['compile_seconds']:8.1f}{row['step_seconds']:8.2f} s"
            f"{memory:10,.0f} MB   loss {row['losses'][0]:.3f} -> {row['losses'][-1]:.3f}"
        )
    if _OUT.value:
        about = {"batch_size": _BATCH.value, "num_classes": _CLASSES.value, "steps": _STEPS.value}
        found = {"provenance": provenance.describe(), "setting": about, "results": rows}
        with open(_OUT.value, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    app.run(main)
