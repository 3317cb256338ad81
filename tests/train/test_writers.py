"""Writers get every logged row, also of a resumed run; a trace of steps changes nothing."""

import dataclasses
import sys
import types

import pytest

from calib_jax import train
from calib_jax.train import log
from tests.train.test_loop import PLAN, run


class Kept:
    """A writer that keeps what it receives."""

    def __init__(self):
        self.rows, self.closed = [], 0

    def write(self, step, values):
        self.rows.append((step, dict(values)))

    def close(self):
        self.closed += 1


@pytest.mark.slow
def test_a_writer_gets_the_rows_of_the_log(tmp_path):
    opened = []

    def make(folder, config):
        opened.append((folder, config, Kept()))
        return opened[-1][-1]

    for epochs in (1, 2):
        plan = dataclasses.replace(PLAN, num_epochs=epochs)
        run(tmp_path, plan=plan, writers=[make], config={"a": 1}, free=["a"])
    rows = log.read_rows(tmp_path / log.ROWS)
    received = [row for *_, writer in opened for _, row in writer.rows]
    assert received == rows
    assert [step for *_, writer in opened for step, _ in writer.rows] == [4, 8]
    assert [(folder, config, writer.closed) for folder, config, writer in opened] == [
        (tmp_path, {"a": 1}, 1)
    ] * 2


def test_tensorboard_and_wandb_receive_numbers_by_name(tmp_path, monkeypatch):
    """The packages are stand-ins with the calls of the real ones."""
    calls = []

    def keep(name):
        return lambda *args, **options: calls.append((name, args, options))

    events = types.SimpleNamespace(
        add_scalar=keep("add_scalar"), flush=keep("flush"), close=keep("close")
    )
    board = types.SimpleNamespace(SummaryWriter=lambda folder: calls.append(folder) or events)
    run_there = types.SimpleNamespace(log=keep("log"), finish=keep("finish"))
    cloud = types.SimpleNamespace(init=lambda **options: calls.append(options) or run_there)
    monkeypatch.setitem(sys.modules, "tensorboardX", board)
    monkeypatch.setitem(sys.modules, "wandb", cloud)
    writer = train.tensorboard(tmp_path, {})
    writer.write(3, {"loss": 0.5})
    writer.close()
    assert calls == [
        str(tmp_path / "tensorboard"),
        ("add_scalar", ("loss", 0.5, 3), {}),
        ("flush", (), {}),
        ("close", (), {}),
    ]
    calls.clear()
    writer = train.wandb(tmp_path, {"seed": 1}, project="digits")
    writer.write(3, {"loss": 0.5})
    writer.close()
    assert calls[1:] == [("log", ({"loss": 0.5},), {"step": 3}), ("finish", (), {})]
    options = calls[0]
    assert (options["project"], options["config"]) == ("digits", {"seed": 1})
    # The same folder is the same run there.
    train.wandb(tmp_path, {})
    assert calls[-1]["id"] == options["id"]
    train.wandb(tmp_path / "other", {})
    assert calls[-1]["id"] != options["id"]
