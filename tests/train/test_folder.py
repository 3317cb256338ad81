"""The folder of a run: whose it is, what is kept there, and what damage does."""

import contextlib
import dataclasses
import os
import shutil
import sys
import types
from unittest import mock

import jax
import numpy as np
import pytest

from calib_jax import train
from calib_jax.train import checkpoint, log
from calib_jax.train.checkpoint import CHECKPOINTS, Checkpoints
from tests.train import tasks
from tests.train.test_loop import (
    OBJECTIVE,
    PLAN,
    every_checkpoint,  # noqa: F401 (a fixture of every test)
    rows_in,
    run,
    same,
    steps_in,
)

LONGER = dataclasses.replace(PLAN, num_epochs=4)
ABOUT = {"config": {"rate": 0.1}}


def kept(folder, *steps, state=None, remove=()):
    """Save checkpoints of these steps, and return the opened folder."""
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    for step in steps:
        checkpoints.save(
            jax.device_get(state or tasks.state_of(OBJECTIVE)), ABOUT, step, remove=remove
        )
        checkpoints.wait()
    return checkpoints


# --------------------------------------------------------------------------------------------
# Whose folder it is.


@pytest.mark.parametrize("name", ["a[x]", "a\\b", "what?", "all*"])
def test_a_name_that_orbax_takes_for_a_pattern_is_refused(tmp_path, name):
    """With such a name every checkpoint was lost, and the exit code was 0."""
    with pytest.raises(train.AnotherConfig, match="reads as a pattern: choose a folder without"):
        run(tmp_path / name)
    with pytest.raises(train.AnotherConfig, match="reads as a pattern"):
        Checkpoints(tmp_path / name / CHECKPOINTS)
    assert not (tmp_path / name).exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    (tmp_path / CHECKPOINTS).mkdir()
    with pytest.raises(train.AnotherConfig, match="belong to no run, such as checkpoints: choose"):
        run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "thesis.tex"]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".DS_Store").touch()
    assert run(empty).finished
    (empty / ".lock").unlink()  # a copy without hidden files
    assert run(empty).already


def test_one_trainer_a_folder(tmp_path):
    folder = tmp_path / "new" / "run"
    for process in (f"process {os.getpid()}", "process 12345678901234567890"):
        with train.only_one(folder), pytest.raises(train.InUse, match=f"by process {os.getpid()}:"):
            run(folder)
        assert not (folder / ".lock").stat().st_mode & 0o111
        (folder / ".lock").write_text(process)  # of one that has ended
    assert run(folder).finished
    assert (folder / ".lock").read_text() == f"process {os.getpid()}\n"


def test_only_what_the_run_has_written_is_removed(tmp_path):
    """A user's files stay: a folder of digits, partial files, a report."""
    plan = dataclasses.replace(PLAN, keep=1, best={}, num_epochs=4)
    run(tmp_path, plan=dataclasses.replace(plan, num_epochs=2))
    foreign = [
        *(tmp_path / ".mine.abc.partial", tmp_path / "report" / "report.md"),
        *(tmp_path / CHECKPOINTS / "3" / "notes.txt", tmp_path / CHECKPOINTS / "99" / "a.txt"),
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    assert run(tmp_path, plan=plan).finished
    assert all(path.read_text() == "mine" for path in foreign)
    assert steps_in(tmp_path) == [16]


def test_links_are_not_followed_for_writing(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in (log.ROWS, log.TABLE, "config.json", log.ENVIRONMENT):
        (folder / f".{name}.partial").symlink_to(outside)
        (folder / name).symlink_to(outside)
    (folder / ".lock").touch()
    assert run(folder).finished
    assert outside.read_text() == "precious"
    assert len(rows_in(folder)) == 3
    (folder / log.SPOKEN).unlink()
    (folder / log.SPOKEN).symlink_to(outside)
    with pytest.raises(train.CannotWrite, match=r"log.txt cannot be written to: it is a link"):
        run(folder, plan=LONGER)
    assert outside.read_text() == "precious"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / ".lock").touch()
    (other / CHECKPOINTS).symlink_to(elsewhere)
    with pytest.raises(train.CannotWrite, match="checkpoints cannot be written to: it is a link"):
        run(other)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written to"):
        run(tmp_path / "file" / "run")


# --------------------------------------------------------------------------------------------
# Checkpoints.


def test_every_bit_is_restored(tmp_path):
    state = tasks.state_of(OBJECTIVE)
    odd = np.array([-0.0, np.nan, -np.inf, 1e-45], np.float32)
    state = state._replace(params={"odd": odd, "half": np.float16(1)})
    with kept(tmp_path, 4, state=state) as checkpoints:
        saved = checkpoints.restore(state)
        assert same(saved.state, jax.device_get(state))
        assert saved.about == {**ABOUT, "step": 4}
        variables = checkpoints.variables()
    assert variables["params"]["odd"].tobytes() == odd.tobytes()


def damage_array(folder):
    files = [p for p in (folder / "state").rglob("*") if p.is_file() and p.stat().st_size > 200]
    for path in files:
        path.write_bytes(path.read_bytes()[:-100])


def damage_about(folder):
    for path in (folder / "about").rglob("*"):
        if path.is_file():
            path.write_text('{"con')


def damage_state(folder):
    shutil.rmtree(folder / "state")


@pytest.mark.parametrize("damage", [damage_array, damage_about, damage_state])
def test_a_damaged_newest_checkpoint_means_the_one_before(tmp_path, damage):
    whole = run(tmp_path / "whole", plan=LONGER)
    folder = tmp_path / "new" / "run"
    run(folder)
    damage(folder / CHECKPOINTS / "12")
    outcome = run(folder, plan=LONGER)
    assert same(outcome.state, whole.state)
    assert rows_in(folder)[2:] == [
        row | {"num_epochs": 4} for row in rows_in(tmp_path / "whole")[2:]
    ]
    lines = [
        line for line in (folder / "log.txt").read_text().splitlines() if "and skipped" in line
    ]
    assert len(lines) == 1
    assert lines[0].startswith(f"warning: {folder / CHECKPOINTS / '12'} is damaged and skipped: ")
    assert (folder / CHECKPOINTS / "12.damaged").is_dir()


@pytest.mark.parametrize("name", ["20", "012"])
def test_a_checkpoint_whose_name_is_not_its_step_is_refused(tmp_path, name):
    run(tmp_path)
    (tmp_path / CHECKPOINTS / "12").rename(tmp_path / CHECKPOINTS / name)
    with pytest.raises(train.AnotherConfig, match=rf"checkpoints/{name} .* give it th\w+ name"):
        run(tmp_path, plan=LONGER)


def test_a_run_of_another_version_or_network_is_refused(tmp_path):
    kept(tmp_path / "a", 0).close()
    with pytest.raises(train.AnotherConfig, match="a run of another version of calib_jax"):
        run(tmp_path / "a")
    state = tasks.state_of(OBJECTIVE)
    smaller = state._replace(params={"in": state.params["in"]})
    with (
        kept(tmp_path / "b", 0) as checkpoints,
        pytest.raises(train.AnotherConfig, match=r"params/in_bias is float.* there and nothing"),
    ):
        checkpoints.restore(smaller)


def test_reading_disturbs_nothing(tmp_path):
    """While a run writes: its temporary folders stay."""
    kept(tmp_path, 4).close()
    half = tmp_path / CHECKPOINTS / "8.orbax-checkpoint-tmp-1"
    half.mkdir()
    before = sorted(tmp_path.rglob("*"))
    with Checkpoints(tmp_path / CHECKPOINTS, read_only=True) as checkpoints:
        assert checkpoints.steps == [4]
        checkpoints.restore(tasks.state_of(OBJECTIVE))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_checkpoint_leaves_at_once(tmp_path, monkeypatch):
    """If the process is killed meanwhile, the next one removes the rest: it stayed for ever."""
    kept(tmp_path, 4).close()
    remove = shutil.rmtree
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda place, **_: remove(place / "about"))
    kept(tmp_path, 8, remove=[4]).close()
    monkeypatch.undo()
    kept(tmp_path).close()
    assert [path.name for path in (tmp_path / CHECKPOINTS).iterdir()] == ["8"]


def test_a_full_disk_stops_with_one_line(tmp_path, monkeypatch):
    full = types.SimpleNamespace(free=10)
    run(tmp_path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: full)
    with pytest.raises(train.CannotWrite) as caught:
        run(tmp_path, plan=LONGER)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"checkpoint 16 could not be written to {tmp_path / CHECKPOINTS} (")
    assert "checkpoint 12 there is good: make room there, and the same command resumes" in message
    monkeypatch.undo()
    assert run(tmp_path, plan=LONGER).step == 16
    assert [row["step"] for row in rows_in(tmp_path)] == [4, 8, 12, 16]


# --------------------------------------------------------------------------------------------
# Logs.


def test_logs_are_derived_from_the_checkpoint(tmp_path):
    """Whatever is done to them, the next start writes them again."""
    run(tmp_path)
    names = (log.ROWS, log.LOSS_STATE, log.TABLE)
    before = {name: (tmp_path / name).read_bytes() for name in names}
    (tmp_path / log.ROWS).write_text('{"step": 4, "validation_nll": 0.0}\n{"st')
    (tmp_path / log.LOSS_STATE).unlink()
    (tmp_path / log.TABLE).write_bytes(b"\0\0")
    assert run(tmp_path).already
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


ROW = {
    **{"epoch": 1.5, "num_epochs": 3, "step": 6, "train_loss": 0.25, "train_error": None},
    **{"test_nll": 1.0, "test_error": 12.3456, "test_ece": -0.5, "test_brier": 0.1},
    **{"seconds": 2.0, "examples_per_second": 1000.0},
}
LINE = (
    "epoch 1.5/3  step 6 | train loss .2500  error NaN"
    " | test nll 1  error 12.35  ece -0.5000 | 2 s, 1,000 examples/s"
)
TABLES = [
    {"step": 4, "gamma": [9.0]},
    {"step": 6, "gamma": [1.0, -0.25, None], "examples": [12.0, 2.0, 0.5]},
]
COLUMNS = """\
  #    gamma  examples
  0   1.0000        12
  1  -0.2500         2
  2             0.5000"""


def test_a_log_has_lines_tables_writers_and_a_bar_on_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    writer = mock.Mock()
    with contextlib.closing(log.Log(tmp_path, [writer], prefix="\x1b3: ", bar_steps=8)) as shown:
        for step in (4, 6):
            shown.advance(step, 0.5)
            assert shown._bar.n == step
        shown.write([ROW], {log.LOSS_STATE: TABLES})
    assert f"\\x1b3: {LINE}\n" in capsys.readouterr().out
    assert (tmp_path / log.SPOKEN).read_text() == f"{LINE}\n"
    assert not (tmp_path / log.SPOKEN).stat().st_mode & 0o111
    assert log.last_table(tmp_path) == COLUMNS
    assert writer.mock_calls == [mock.call.write(6, ROW), mock.call.close()]
    assert shown._bar.disable
    for of_file in (log.Log(tmp_path), log.Log(tmp_path, bar_steps=8, quiet=True)):
        assert of_file._bar is None


# --------------------------------------------------------------------------------------------
# Writers.


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
    assert len(options["id"]) == 16
    # The same folder is the same run there.
    train.wandb(tmp_path, {})
    assert calls[-1]["id"] == options["id"]
    train.wandb(tmp_path / "other", {})
    assert calls[-1]["id"] != options["id"]
