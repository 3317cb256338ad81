"""One of two processes that train together: `several.py PORT PROCESS FOLDER`.

It leaves the states that it ends with beside the folders of the runs, for the test to compare.
"""

import dataclasses
import sys

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from calib_jax import losses, metrics, train
from calib_jax.train.pmap import Processes, ProcessZeroFailed
from tests.train import tasks

PROCESSES = 2


def trained(folder, devices=None):
    """Train resident and shuffled, and streamed in balanced order; return the states by name."""
    plan = train.Plan(num_epochs=3, batch_size=10, best={"nll": "min"}, seed=1)
    stream = dataclasses.replace(plan, resident_bytes=0, accumulate=2)
    source = tasks.examples(38)
    balanced = train.class_balanced(source.labels, num_samples=40)
    states = {}
    for name, loss, its, order in (
        ("resident", "adafocal", plan, None),
        ("streamed", "recall", stream, balanced),
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
        state = tasks.state_of(objective, seed=1)
        outcome = train.fit(folder / name, state, task, its, devices=devices, quiet=True)
        states[name] = outcome.state
    return states


def special():
    """Arrays whose bits a sum of numbers may change."""
    floats = np.array([-0.0, np.nan, -np.nan, np.inf, 1e-45], np.float32)
    return {"floats": floats, "flag": np.array(True), "empty": np.zeros((0, 2))}


def communicated():
    """The values that each process gets from process 0, and from all."""
    processes = Processes(train.all_devices())
    mine = special() if processes.leads else jax.tree.map(np.zeros_like, special())
    broadcast = processes.broadcast_tree(mine)
    assert processes.broadcast(lambda: b"") == b""
    index = jax.process_index()
    assert processes.broadcast(lambda: bytes([index, 7])) == b"\x00\x07"
    assert processes.largest(index, -index) == [PROCESSES - 1, 0]
    rows = NamedSharding(jax.sharding.Mesh(jax.devices(), ("rows",)), PartitionSpec("rows"))
    weights = jax.make_array_from_callback((2,), rows, lambda place: np.ones(2)[place])
    assert metrics.accuracy(np.eye(2), [0, 0], weights) == 0.5  # no process can read the weights
    with pytest.raises(ProcessZeroFailed if index else ZeroDivisionError, match="integer division"):
        processes.broadcast(lambda: 1 // 0)
    return broadcast


if __name__ == "__main__":
    import pathlib

    port, process, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", PROCESSES, process, initialization_timeout=60)
    np.savez(folder / f"communicated_{process}.npz", **communicated())
    for name, state in trained(folder).items():
        np.savez(folder / f"{name}_of_{process}.npz", *jax.tree.leaves(state))
