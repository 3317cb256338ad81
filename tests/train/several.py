"""One of two processes that train together: `several.py PORT PROCESS FOLDER`.

It leaves the states that it ends with beside the folders of the runs, for the test to compare.
"""

import dataclasses
import sys

import jax
import numpy as np
import pytest

from calib_jax import losses, metrics, train
from calib_jax.train.devices.processes import Processes, ProcessZeroFailed
from tests.train import tasks

PROCESSES = 2


def cases(folder):
    """Yield the runs: two seeds resident and shuffled, and one streamed in balanced order."""
    plan = train.Plan(num_epochs=3, batch_size=10, best={"nll": "min"})
    stream = dataclasses.replace(plan, resident_bytes=0, accumulate=2)
    source = tasks.examples(38)
    balanced = train.class_balanced(source.labels, num_samples=40)
    for name, loss, its, seeds, order in (
        ("resident", "adafocal", plan, (1, 2), None),
        ("streamed", "recall", stream, (1,), balanced),
    ):
        objective = losses.objective(loss)
        task = train.Task(
            forward=tasks.forward,
            objective=objective,
            tx=tasks.sgd(),
            metrics={"nll": metrics.named("nll")},
            train=source,
            order=order,
            evaluated={"validation": tasks.examples(30, seed=2)},
            num_classes=tasks.NUM_CLASSES,
        )
        runs = [
            train.Run(folder / name / str(seed), tasks.state_of(objective, seed=seed), seed)
            for seed in seeds
        ]
        yield name, runs, task, its


def trained(folder, devices=None):
    """Train all, and give the states by name and seed."""
    result = {}
    for name, runs, task, plan in cases(folder):
        outcomes = train.fit_all(runs, task, plan, devices=devices, quiet=True)
        for run, outcome in zip(runs, outcomes, strict=True):
            result[f"{name}_{run.seed}"] = outcome.state
    return result


def special():
    """Arrays whose bits a sum of numbers may change."""
    floats = np.array([-0.0, np.nan, -np.nan, np.inf, 1e-45], np.float32)
    return {"floats": floats, "flag": np.array(True), "empty": np.zeros((0, 2))}


def communicated():
    """What each process gets of process 0, and of all."""
    processes = Processes(train.all_devices())
    mine = special() if processes.leads else jax.tree.map(np.zeros_like, special())
    broadcast = processes.broadcast_tree(mine)
    assert processes.broadcast(lambda: b"") == b""
    index = jax.process_index()
    assert processes.broadcast(lambda: bytes([index, 7])) == b"\x00\x07"
    assert processes.largest([index, -index]) == [PROCESSES - 1, 0]
    devices = train.all_devices()
    step = lambda total, part: total + jax.lax.psum(part, train.AXIS)  # noqa: E731
    run = train.data_parallel(step, devices, donate=(0,))
    part = train.replicate(np.float64(index + 1), local := train.local_devices())
    assert train.first(run(run(train.replicate(np.zeros(()), local), part), part)) == 6.0
    with pytest.raises(ProcessZeroFailed if index else ZeroDivisionError, match="integer division"):
        processes.broadcast(lambda: 1 // 0)
    processes.raise_alike(None)
    with pytest.raises(ProcessZeroFailed if index else OSError, match=r"disk|process 0 had an err"):
        processes.raise_alike(None if index else OSError("disk"))
    return broadcast


if __name__ == "__main__":
    import pathlib

    port, process, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, process, initialization_timeout=60)
    np.savez(folder / f"communicated_{process}.npz", **communicated())
    for name, state in trained(folder).items():
        np.savez(folder / f"{name}_of_{process}.npz", *jax.tree.leaves(state))
