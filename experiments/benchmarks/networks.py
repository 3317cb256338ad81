"""Compile and run training steps of the papers' networks: parameters, memory, seconds.

    python -m experiments.benchmarks.networks
    python -m experiments.benchmarks.networks --models=resnet18,vit --batch_size=8 --out=FILE

Steps of FLSD-53 with clipping, SGD, momentum and weight decay on random images, with and without
recomputing activations in the backward pass (`remat`). The memory is XLA's plan.
"""

from collections.abc import Sequence
from typing import Annotated

import jax
import numpy as np
from tqdm import tqdm

from calib_jax import losses, train
from experiments.benchmarks import tables, timing
from experiments.benchmarks.training_work import Epochs, Work


def measure(name: str, remat: bool, batch_size: int, rounds: int) -> tables.Row:
    """Compile a step of a network, and time it."""
    work = Work(name, batch_size, 1, {"remat": True} if remat else {})
    step = Epochs(work, losses.objective("flsd53"), feed=train.Streamed)
    seconds = timing.interleaved({name: step}, rounds=rounds)[name]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(step.states[0].params))
    row = {"task": "networks", "network": name, "remat": remat, "image": list(work.shape)}
    row |= {"parameters": parameters, "step_seconds": float(np.median(seconds))}
    return row | step.about


COLUMNS = {
    "network": tables.text("network"),
    "remat": lambda row: "yes" * row["remat"],
    "parameters": tables.number("parameters", ","),
    "s to compile": tables.number("compile_seconds"),
    "s of a step": tables.number("step_seconds"),
    "MB of a step": tables.number("memory", scale=1e-6),
}
SECTIONS = {"networks": tables.Section("A training step", COLUMNS)}


def main(
    models: Annotated[Sequence[str], "Names of calib_jax.models."] = (
        *("resnet50", "resnet110", "wide_resnet26_10", "densenet121"),
    ),
    batch_size: Annotated[int, "Examples of a step."] = 2,
    rounds: tables.Rounds = 3,
) -> tables.Report:
    """Measure every network with and without recomputed activations."""
    forms = [(name, remat) for name in models for remat in (False, True)]
    bar = tqdm(forms, unit="network", disable=None)
    rows = [measure(name, remat, batch_size, rounds) for name, remat in bar]
    return tables.Report("Networks", rows, SECTIONS, setting={"batch_size": batch_size})


if __name__ == "__main__":
    tables.run(main)
