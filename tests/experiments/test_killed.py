"""Killed at random moments and started again: bit for bit what an undisturbed run gives."""

import json
import random

import jax
import numpy as np
import pytest

from calib_jax import train
from calib_jax.train.folder.checkpoint import Checkpoints
from configs import digits
from experiments.running import building
from tests.experiments.processes import run, start, stop_after

TIMES = {"seconds", "evaluation_seconds", "examples_per_second"}


def arguments(loss, folder, epochs):
    return (
        f"--config=configs/digits.py:{loss}",
        f"--workdir={folder}",
        f"--config.num_epochs={epochs}",
        "--config.model.options.hidden=(32,)",
        *(["--config.loss.options.alpha=0.5"] if loss == "recall" else []),
    )


def end_of(folder, loss):
    """The last checkpoint, the rows without times, and the test logits."""
    config = digits.get_config(loss)
    config.model.options.hidden = (32,)
    experiment = building.build(config)
    checkpoints = Checkpoints(folder / "checkpoints", read_only=True)
    try:
        state = checkpoints.restore(experiment.template()).state
    finally:
        checkpoints.close()
    logits, *_ = train.predict(
        experiment.task.forward,
        state,
        experiment.dataset.test,
        prepare=experiment.dataset.prepare,
        devices=train.local_devices(1),
    )
    rows = []
    for name in ("metrics.jsonl", "loss_state.jsonl"):
        if (folder / name).exists():
            lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
            rows += [{k: v for k, v in row.items() if k not in TIMES} for row in lines]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)], rows, logits.tobytes()


def killed_and_resumed(tmp_path, loss, *, times, epochs, seed):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, output = run("train", *arguments(loss, whole, epochs))
    assert code == 0, output
    chance, killed = random.Random(seed), 0
    while killed < times:
        rows = (parts / "metrics.jsonl").read_text().count("\n") if killed else 0
        process = start("train", *arguments(loss, parts, epochs))
        code, output = stop_after(process, parts, rows + 1, seconds=chance.uniform(0, 0.3))
        if code == 0:  # it was through before the signal came
            break
        assert code == -9, output
        killed += 1
    code, output = run("train", *arguments(loss, parts, epochs))
    assert code == 0, output
    state, rows, logits = end_of(whole, loss)
    other_state, other_rows, other_logits = end_of(parts, loss)
    assert state == other_state
    assert rows == other_rows
    assert logits == other_logits
    return killed


@pytest.mark.parametrize(
    ("loss", "times"),
    [
        pytest.param("adafocal", 2, marks=pytest.mark.slow),
        pytest.param("recall", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(tmp_path, loss, times):
    assert killed_and_resumed(tmp_path, loss, times=times, epochs=60, seed=0) == times


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross_entropy", "adafocal", "recall"])
def test_killed_twenty_times_and_resumed(tmp_path, loss):
    assert killed_and_resumed(tmp_path, loss, times=20, epochs=400, seed=1) == 20
