"""Steps of training in float64 beside plain PyTorch: the papers' losses with their recipe.

A network of two layers trains for 200 steps on random data with each loss, once with our training
step and once by `torch_losses.py`. Both start from the same parameters and read the same batches.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses, train
from configs import losses as fragments
from experiments.benchmarks import tables
from experiments.papers import device_check
from experiments.running import cli

EPOCHS, STEPS, BATCH, MILESTONES = 20, 10, 40, (10, 15)
AFTER = (1, 10, 200)  # steps after which the parameters are compared
FEATURES, HIDDEN, CLASSES = 20, 32, 5
# Options where the released code, whose formula PyTorch computes, differs from our config, or where
# the config's value would have no effect on 40 examples of this task.
OPTIONS: dict[str, dict[str, Any]] = {
    "adafocal": {"binning": "released"},
    "bootstrapped": {"count": 20},
    "entropy_regularized": {"gamma": 1.0},
    "focal_entropy_regularized": {"gamma": 1.0},
    "margin_smoothing": {"margin": 1.0},
    "mmce_weighted": {"double_normalization": True},
    "recall": {"counters": "released"},
}
NAMES = (
    *("adafocal", "bootstrapped", "brier", "brier_exp", "bsce", "bsce_adaptive_gra", "bsce_gra"),
    *("class_weighted", "cross_entropy", "cross_entropy_brier_weight", "cross_entropy_exp", "dca"),
    *("dfl_gra", "dual_focal", "dual_focal_exp", "entropy_regularized", "fl_gra", "flsd53"),
    *("flsd532", "flsd53_gra", "flsd53_text", "focal", "focal_entropy_regularized", "focal_exp"),
    *("focal_of_mean", "inverse_focal", "label_smoothing", "ldam", "logit_adjusted", "logit_norm"),
    *("lovasz", "margin_smoothing", "max_suppression", "mdca", "mmce", "mmce_gra"),
    *("mmce_weighted", "ohem", "recall", "soft_ece", "soft_iou", "tlbs"),
)


Parameters = dict[str, np.ndarray]


def task() -> dict[str, np.ndarray]:
    """Draw data of overlapping classes, the initial parameters and the order of the examples."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(CLASSES, FEATURES))
    shares = np.arange(1, CLASSES + 1) / 15
    count = STEPS * BATCH
    labels = random.choice(CLASSES, size=2 * count, p=shares)
    inputs = centers[labels] + 2 * random.normal(size=(2 * count, FEATURES))
    order = [random.permutation(count).reshape(STEPS, BATCH) for _ in range(EPOCHS)]
    return {
        "inputs": inputs[:count],
        "labels": labels[:count],
        "held_out": inputs[count:],
        "held_out_labels": labels[count:],
        "counts": np.bincount(labels[:count], minlength=CLASSES).astype(float),
        "order": np.stack(order),
        "milestones": np.array(MILESTONES),
        "after": np.array(AFTER),
        "in_kernel": random.normal(size=(FEATURES, HIDDEN)) / FEATURES**0.5,
        "in_bias": random.normal(size=HIDDEN) / 10,
        "out_kernel": random.normal(size=(HIDDEN, CLASSES)) / HIDDEN**0.5,
        "out_bias": random.normal(size=CLASSES) / 10,
    }


def forward(params: Any, model_state: Any, inputs: Any, **_: Any) -> tuple[Any, Any, None]:
    """Apply the two layers."""
    hidden = jax.nn.relu(inputs @ params["in_kernel"] + params["in_bias"][None])
    return hidden @ params["out_kernel"] + params["out_bias"][None], model_state, None


def ours(name: str, given: dict[str, np.ndarray]) -> tuple[Parameters, Parameters]:
    """Train with our step; return the parameters after each number of steps in `AFTER`.

    The second training starts from parameters that are changed in the last digit.
    """
    fragment = fragments.load(name)
    objective = losses.objective(name, **(dict(fragment.options) | OPTIONS.get(name, {})))
    rate = train.of_steps(train.schedule("multi_step", 0.1, milestones=MILESTONES), STEPS)
    tx = train.optimizer("sgd", rate, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)
    step = jax.jit(train.make_train_step(forward, objective, tx, reduction=fragment.reduction))
    params = {key: given[key] for key in given if key.endswith(("_kernel", "_bias"))}

    def run(params: Parameters) -> Parameters:
        start = {"params": jax.tree.map(jnp.asarray, params)}
        state = train.create(start, objective, tx, CLASSES, 0, class_counts=given["counts"])
        found: Parameters = {}
        for epoch, batches in enumerate(given["order"]):
            for number, rows in enumerate(batches, start=STEPS * epoch + 1):
                labels = jnp.asarray(given["labels"][rows], jnp.int32)
                index = jnp.asarray(rows)
                batch = train.Batch(given["inputs"][rows], labels, jnp.ones(BATCH), index)
                state, _ = step(state, batch)
                if number in AFTER:
                    found |= {f"{number}/{key}": np.asarray(w) for key, w in state.params.items()}
            if objective.clock == "validation":
                logits, *_ = forward(state.params, {}, jnp.asarray(given["held_out"]))
                labels = jnp.asarray(given["held_out_labels"])
                evidence = objective.evidence(state.loss_state, logits, labels, None)
                now = losses.Progress(STEPS * (epoch + 1), epoch + 1, EPOCHS)
                state = state._replace(loss_state=objective.update(state.loss_state, evidence, now))
        return found

    return run(params), run({key: array * (1 + 2**-52) for key, array in params.items()})


def theirs(
    names: Collection[str], given: dict[str, np.ndarray], python: str
) -> tuple[dict[str, np.ndarray], str]:
    """Train in PyTorch, in a process of another Python; return the parameters and the version."""
    root = str(pathlib.Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    reductions = {name: fragments.load(name).reduction for name in names}
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{name}.npz" for name in ("task", "out")]
        np.savez(files[0], losses=np.array(json.dumps(reductions)), **given)  # type: ignore[arg-type]
        command = [python or sys.executable, "-m", "experiments.benchmarks.torch_losses", *files]
        ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False)
        if ended.returncode:
            raise cli.Failed("PyTorch did not train: give --torch_python=PYTHON that has torch.")
        with np.load(files[1]) as results:
            return dict(results), str(results["version"])


def distances(only: Collection[str], python: str = "") -> list[tables.Row]:
    """Return the largest distances of the parameters, relative to the largest parameter."""
    given, names = task(), [name for name in NAMES if not only or name in only]
    if not names:
        return []
    results, version = theirs(names, given, python)
    rows = []
    for name in names:
        with device_check.float64_on_the_processor():
            params, moved = ours(name, given)
        expected = {key: results[f"{name}/{key}"] for key in params}
        row: tables.Row = {"name": name, "torch": version}
        for after in AFTER:
            row[str(after)] = _apart(params, expected, after)
        row["moved"] = _apart(moved, params, AFTER[-1])
        rows.append(row)
    return rows


def _apart(one: Parameters, other: Parameters, after: int) -> float:
    """Return the largest distance after some steps, relative to the largest parameter."""
    keys = [key for key in one if key.startswith(f"{after}/")]
    size = max(float(np.max(np.abs(other[key]))) for key in keys)
    return max(float(np.max(np.abs(one[key] - other[key]))) for key in keys) / size
