"""The loop: its clocks, what it keeps, how it stops, and that stopping changes nothing."""

import contextlib
import copy
import dataclasses
import itertools
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calib_jax import data, losses, metrics, models, train
from calib_jax.core import Examples, InMemory
from calib_jax.core.statistics import NOTHING
from calib_jax.train import log, loop
from calib_jax.train.checkpoint import CHECKPOINTS, listed
from calib_jax.train.programs import Measured, label_out_of_range
from calib_jax.train.state import not_finite
from tests.train import tasks

METRICS = {name: metrics.named(name) for name in ("error", "nll")}
TIMES = {"seconds", "evaluation_seconds", "examples_per_second"}
OBJECTIVE = losses.objective("adafocal", num_bins=4)
PLAN = train.Plan(num_epochs=3, batch_size=10, best={"nll": "min"})  # 4 steps an epoch


def task_of(objective=OBJECTIVE, **changes):
    task = train.Task(
        forward=tasks.forward,
        objective=objective,
        tx=tasks.sgd(),
        metrics=METRICS,
        train=tasks.examples(38),
        evaluated={"validation": tasks.examples(30, seed=2)},
        num_classes=tasks.NUM_CLASSES,
    )
    return dataclasses.replace(task, **changes)


PROGRAMS = {}
SHARE_OF_SAVING = loop.SHARE_OF_SAVING


def programs_of(plan, devices):
    """Compile what most tests run once; a test with an own task or objective compiles its own.

    Plans that differ in length, or in which checkpoints they keep, share programs.
    """
    others = {"best": {}, "patience": 0, "keep": 1, "keep_every_epochs": 0, "eval_every_steps": 0}
    others |= {"checkpoint_every_epochs": 1, "checkpoint_every_minutes": 0}
    same = dataclasses.replace(plan, num_epochs=3, **others)
    key = str(same), devices, jax.config.jax_enable_x64
    if key not in PROGRAMS:
        PROGRAMS[key] = train.Programs(task_of(), same, train.local_devices(devices))
    return with_plan(PROGRAMS[key], plan)


def with_plan(programs, plan):
    programs = copy.copy(programs)
    programs.plan, programs.total_steps = plan, plan.num_epochs * programs.epoch_steps
    programs._eval_steps = plan.eval_every_steps or programs.epoch_steps
    return programs


def run(folder, objective=OBJECTIVE, plan=PLAN, *, task=None, devices=1, **options):
    """Train; a signal gives an outcome, and a loss that is not finite raises."""
    if task is None and objective is OBJECTIVE:
        options = {"programs": programs_of(plan, devices)} | options
    task = task_of(objective) if task is None else task
    state = tasks.state_of(objective, task.tx, averaged=plan.average > 0)
    options = {"devices": train.local_devices(devices), "quiet": True, "check": False} | options
    outcome = train.fit(folder, state, task, plan, **options)
    if outcome.failed:
        raise train.NonFinite(outcome.failed)
    return outcome


@pytest.fixture(autouse=True)
def every_checkpoint(monkeypatch):
    """Save as often as the plan allows, whatever share of the time that takes."""
    monkeypatch.setattr(loop, "SHARE_OF_SAVING", math.inf)


def rows_in(folder):
    rows = log.read_rows(folder / log.ROWS)
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def steps_in(folder):
    with train.Checkpoints(folder / CHECKPOINTS, read_only=True) as checkpoints:
        return checkpoints.steps


def same(one, other):
    """Bit for bit."""
    one, other = jax.tree.leaves(one), jax.tree.leaves(other)
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


# --------------------------------------------------------------------------------------------
# The files of a run.


def test_a_run_leaves_rows_and_checkpoints(tmp_path):
    task = task_of()
    task = task_of(evaluated={**task.evaluated, "test": tasks.examples(20, seed=3)})
    writer, config = mock.Mock(), {"rate": 0.1}
    writers = [lambda *given: writer if given == (tmp_path, config) else None]
    outcome = run(tmp_path, task=task, devices=2, config=config, profile=2, writers=writers)
    assert outcome.finished
    assert any((tmp_path / "profile").rglob("*.xplane.pb"))  # a trace changes nothing
    assert not outcome.already
    assert outcome.step == 12
    rows = rows_in(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert {f"{part}_{name}" for part in ("validation", "test") for name in METRICS} <= set(rows[0])
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    sent = [values for _, values in (call.args for call in writer.write.mock_calls)]
    assert sent == log.read_rows(tmp_path / log.ROWS)
    writer.close.assert_called_once_with()
    table = (tmp_path / log.TABLE).read_text().splitlines()
    assert table[0].split(",") == list(log.read_rows(tmp_path / log.ROWS)[0])
    assert len(table) == 4
    assert (tmp_path / "config.json").read_text() == '{\n "rate": 0.1\n}\n'
    lines = (tmp_path / log.SPOKEN).read_text().splitlines()
    assert sum(line.startswith("epoch ") for line in lines) == 3
    assert len(lines) == 4  # and where the trace is
    best = min(rows, key=lambda row: row["validation_nll"])
    assert outcome.best["nll"] == {
        "step": best["step"], "epoch": best["epoch"], "value": best["validation_nll"]
    }  # fmt: skip
    assert steps_in(tmp_path) == sorted({8, 12, best["step"]})
    logits, _, _ = tasks.forward(outcome.state.params, {}, task.evaluated["test"].inputs, train=0)
    for name, metric in METRICS.items():
        value = float(metric(logits, task.evaluated["test"].labels))
        assert rows[-1][f"test_{name}"] == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_seeds_share_programs_and_are_bit_for_bit_the_runs_alone(tmp_path):
    traced = []

    def forward(*args, **options):
        traced.append(1)
        return tasks.forward(*args, **options)

    task, counts = task_of(forward=forward), []
    programs = train.Programs(task, PLAN, train.local_devices(1))
    for seed in (1, 2):
        plan = dataclasses.replace(PLAN, seed=seed)
        shared = run(tmp_path / f"shared_{seed}", plan=plan, task=task, programs=programs)
        counts.append(len(traced))
    assert counts[0] == counts[1]
    alone = run(tmp_path / "alone", plan=plan)
    assert same(shared.state, alone.state)
    assert rows_in(tmp_path / "shared_2") == rows_in(tmp_path / "alone")


def test_the_row_of_an_evaluation():
    """The same value and NaN are no better; the totals begin anew after each row."""
    programs = copy.copy(programs_of(PLAN, 1))
    programs.plan = dataclasses.replace(PLAN, best={"nll": "min", "error": "max"}, patience=1)
    programs.task = task_of(learning_rate=lambda step: 0.5**step)
    programs.table = lambda *given: {}
    record, ends = loop.Record({}, {}), []
    totals = {"loss": 3.0, "hit": 1.5, "weight": 2.0, "gradient_norm": 6.0, "examples": 8.0}
    for step, nll, error in ((4, 2.0, 0.5), (8, 2.0, 0.6), (12, math.nan, 0.6)):
        record.step = step
        loop._add(record, {name: np.array([each]) for name, each in totals.items()}, 4.0)
        measured = {"validation_nll": nll, "validation_error": error}
        result = Measured(measured, NOTHING, {"validation": [step]})
        better = loop._note(record, programs, result, (), 0.25)
        ends.append((better, record.waited, record.done))
    assert ends == [(True, 0, False), (True, 1, True), (False, 2, True)]
    assert [best["step"] for best in record.best.values()] == [4, 8]
    assert (record.totals, record.steps, record.seconds) == ({}, 0, 0.0)
    assert record.rows[0] == {
        **{"epoch": 1.0, "num_epochs": 3, "step": 4, "train_loss": 1.5, "train_error": 0.25},
        **{"train_gradient_norm": 6.0, "learning_rate": 0.125, "examples_per_second": 2.0},
        **{"validation_nll": 2.0, "validation_error": 0.5},
        **{"seconds": 4.0, "evaluation_seconds": 0.25},
    }
    assert [row["validation"] for row in record.tables[log.GRADIENT_NORMS]] == [[4], [8], [12]]


def test_evaluation_looks_at_the_last_layer_and_refuses_wrong_labels_and_probabilities():
    objective = losses.objective("cross_entropy")
    tx, device = tasks.sgd(), train.local_devices(1)

    def forward(params, model_state, inputs, **options):
        return inputs @ params["head"]["kernel"], model_state, inputs

    def evaluated(logits, labels):
        source = {"validation": InMemory(logits.astype(np.float32), labels.astype(np.int32))}
        look = train.LastLayer(objective)
        task = task_of(objective, forward=forward, evaluated=source, last_layer=look)
        state = train.create({"params": {"head": {"kernel": jnp.eye(5)}}}, objective, tx, 5, 0)
        return train.Programs(task, PLAN, device).evaluate(train.replicate(state, device))

    rows, labels = np.eye(5)[np.arange(20) % 5], np.arange(20) % 5
    found = evaluated(4 * rows, labels)
    assert found.row["weight_norm"] == pytest.approx(np.sqrt(5))
    assert found.row["validation_feature_norm"] == pytest.approx(4)
    assert sum(found.norms["validation"]) == 20
    with pytest.raises(ValueError, match="on the validation set look like probabilities"):
        evaluated(rows, labels)
    with pytest.raises(ValueError, match="validation example 0 has the label -1, and the classes"):
        evaluated(4 * rows, labels - (np.arange(20) == 0))
    examples = Examples(None, np.array([0, 4, 5, -1]))
    assert label_out_of_range("test", examples, [6, 7, 8, 9], 5).startswith("the test example 8 ")


# --------------------------------------------------------------------------------------------
# Clocks.


def test_the_validation_clock_makes_the_next_epochs_state(tmp_path):
    """After each epoch the gammas are the update of those before by the validation evidence."""
    run(tmp_path, plan=dataclasses.replace(PLAN, keep=9))
    task, state = task_of(), OBJECTIVE.init(tasks.NUM_CLASSES)
    source = task.evaluated["validation"]
    of, update = jax.jit(OBJECTIVE.evidence), jax.jit(OBJECTIVE.update)
    with train.Checkpoints(tmp_path / CHECKPOINTS, read_only=True) as checkpoints:
        for step in (4, 8, 12):
            saved = checkpoints.restore(tasks.state_of(OBJECTIVE), step).state
            logits, _, _ = tasks.forward(saved.params, {}, source.inputs, train=False)
            evidence = of(state, logits, source.labels, None)
            state = update(state, evidence, losses.Progress(step, step // 4, 3))
            np.testing.assert_allclose(saved.loss_state.gamma, state.gamma, rtol=1e-4)
            np.testing.assert_allclose(saved.loss_state.edges, state.edges, rtol=1e-4)
            table = log.read_rows(tmp_path / log.LOSS_STATE)[step // 4 - 1]
            np.testing.assert_allclose(table["gamma"], state.gamma, rtol=1e-4)
            edges = [*table["from"], table["to"][-1]]
            np.testing.assert_allclose(edges, state.edges, rtol=1e-4)


def test_the_epoch_clock_serves_the_next_epoch(tmp_path):
    """FLSc-531 with milestones 1 and 2; a warm-up by another loss does not shift its epochs."""
    objective = losses.objective("flsc531", milestones=(1, 2))
    cross_entropy = losses.objective("cross_entropy")
    task = task_of(objective, warm_up_objective=cross_entropy)
    warm = dataclasses.replace(PLAN, keep=9, warm_up_epochs=2)
    programs = train.Programs(task, warm, train.local_devices(1))
    for warm_up, wanted in ((0, [3.0, 1.0, 1.0]), (2, [5.0, 1.0, 1.0])):
        folder, plan = tmp_path / str(warm_up), dataclasses.replace(warm, warm_up_epochs=warm_up)
        run(folder, objective, plan, task=task, programs=with_plan(programs, plan))
        with train.Checkpoints(folder / CHECKPOINTS, read_only=True) as checkpoints:
            template = tasks.state_of(objective)
            states = [checkpoints.restore(template, step).state for step in (4, 8, 12)]
        assert [float(state.loss_state.gamma) for state in states] == wanted
    run(tmp_path / "plain", cross_entropy, task=task_of(cross_entropy))
    warmed, plain = rows_in(tmp_path / "2"), rows_in(tmp_path / "plain")
    assert warmed[:2] == plain[:2]
    assert warmed[2]["train_loss"] != plain[2]["train_loss"]
    with_state = task_of(objective, warm_up_objective=losses.objective("logit_adjusted"))
    with pytest.raises(ValueError, match="warm_up_objective must have no state"):
        run(tmp_path / "c", objective, warm, task=with_state)


def test_evaluation_by_steps(tmp_path):
    run(tmp_path, plan=dataclasses.replace(PLAN, eval_every_steps=5))
    assert [row["step"] for row in rows_in(tmp_path)] == [5, 10, 12]


def saved_by(monkeypatch):
    """The steps of the checkpoints that are written from now on."""
    steps, save = [], train.Checkpoints.save
    counted = lambda self, state, about, step, **more: (  # noqa: E731
        steps.append(step) or save(self, state, about, step, **more)
    )
    monkeypatch.setattr(train.Checkpoints, "save", counted)
    return steps


def test_every_kth_epoch_is_kept(tmp_path, monkeypatch):
    """Also where checkpoints are written less often."""
    plan = dataclasses.replace(
        PLAN, num_epochs=6, best={}, keep=1, checkpoint_every_epochs=4, keep_every_epochs=2
    )
    steps = saved_by(monkeypatch)
    run(tmp_path, plan=plan)
    assert steps == steps_in(tmp_path) == [8, 16, 24]


def test_the_best_checkpoints_by_min_and_by_max(tmp_path):
    plan = dataclasses.replace(PLAN, num_epochs=5, keep=1, best={"nll": "min", "error": "max"})
    outcome = run(tmp_path, plan=plan)
    rows = rows_in(tmp_path)
    for name, best in (("nll", min), ("error", max)):
        row = best(rows, key=lambda row, name=name: row[f"validation_{name}"])
        assert outcome.best[name]["step"] == row["step"]
        assert outcome.best[name]["value"] == row[f"validation_{name}"]
    chosen = {int(outcome.best[name]["step"]) for name in plan.best}
    assert len({*chosen, 20}) > 1  # else nothing is chosen
    assert set(steps_in(tmp_path)) == {*chosen, 20}
    with train.Checkpoints(tmp_path / CHECKPOINTS, read_only=True) as checkpoints:
        for step in chosen:
            assert int(checkpoints.restore(outcome.state, step).state.step) == step


def test_rare_checkpoints_change_nothing(tmp_path, monkeypatch):
    """States that are not due wait in memory; the best and the last are written at the end."""
    best = {"nll": "min", "error": "max"}
    plan = dataclasses.replace(PLAN, num_epochs=5, keep=3, keep_every_epochs=2, best=best)
    often = run(tmp_path / "often", plan=plan)
    monkeypatch.setattr(loop, "SHARE_OF_SAVING", 0.0)
    steps = saved_by(monkeypatch)
    rare = run(tmp_path / "rare", plan=plan)
    assert same(rare.state, often.state)
    assert rows_in(tmp_path / "rare") == rows_in(tmp_path / "often")
    wanted = sorted({8, 16, 20, *(int(best["step"]) for best in rare.best.values())})
    assert steps == steps_in(tmp_path / "rare") == wanted


@dataclasses.dataclass(frozen=True)
class Unreadable(tasks.OnDisk):
    """A source with random views whose disk fails after some of them."""

    reads: int
    draws: list = dataclasses.field(default_factory=list)

    def drawn(self, index, draw):
        self.draws.append(draw)
        if len(self.draws) > self.reads:
            raise OSError("the disk does not answer")
        return self[index]


def test_an_unreadable_example_loses_no_evaluation(tmp_path, monkeypatch):
    """After a failure the evaluations in memory are saved, unless the run's folder failed."""
    monkeypatch.setattr(loop, "SHARE_OF_SAVING", 0.0)
    task = task_of(train=Unreadable(tasks.examples(38), reads=10))  # 4 an epoch
    with pytest.raises(OSError, match="the disk does not answer"):
        run(tmp_path, task=task, plan=dataclasses.replace(PLAN, threads=1, seed=5))
    assert set(task.train.draws) == {(5, epoch, 0) for epoch in range(3)}
    assert steps_in(tmp_path)[-1] == 8
    assert [row["step"] for row in rows_in(tmp_path)] == [4, 8]


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    """The wall clock goes back by a year, and forward by a century."""
    plain = run(tmp_path / "plain")
    jumps = itertools.cycle([-3e7, 3e9, 0.0])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    jumped = run(tmp_path / "jumped")
    assert same(jumped.state, plain.state)
    assert rows_in(tmp_path / "jumped") == rows_in(tmp_path / "plain")
    assert steps_in(tmp_path / "jumped") == steps_in(tmp_path / "plain")


def test_chunks_take_eight_seconds(tmp_path, monkeypatch):
    """By a clock that steps move: at most 64 times as many as before, and at least one."""
    now, shown, traced = [0.0], {}, []
    objective = losses.objective("cross_entropy")
    task = task_of(objective, train=tasks.examples(80))
    plan = dataclasses.replace(PLAN, num_epochs=1, batch_size=1)
    programs = train.Programs(task, plan, train.local_devices(1))
    run_steps = programs.run

    def timed(state, seed, step, stop):
        now[0] += (stop - step) * (10 if step > 64 else 0.85 if step else 0.01)
        return run_steps(state, seed, step, stop)

    @contextlib.contextmanager
    def trace(place):
        traced.append(len(shown))
        yield

    programs.run = timed
    monkeypatch.setattr(loop.jax.profiler, "trace", trace)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(log.Log, "advance", lambda self, step, loss: shown.update({step: loss}))
    for profile, wanted in (
        (0, [1, 65, 74, 75, 76, 77, 78, 79, 80]),
        (7, [1, 8, 17, 26, 35, 44, 53, 62, 71, 80]),
    ):
        shown.clear()
        folder = tmp_path / str(profile)
        run(folder, objective, plan, task=task, programs=programs, profile=profile)
        assert [*shown] == wanted
    assert traced == [1]
    params = jax.device_get(tasks.variables()["params"])
    inputs, label = (each[0] for each in task.train[train.shuffled(80, plan.seed, 0)[:1]][:2])
    logits = np.tanh(inputs @ params["in"] + params["in_bias"]) @ params["out"] + params["out_bias"]
    assert shown[1] == pytest.approx(np.log(np.exp(logits).sum()) - logits[label], rel=1e-5)
    (row,) = log.read_rows(tmp_path / "0" / log.ROWS)
    assert row["seconds"] == pytest.approx(0.01 + 64 * 0.85 + 15 * 10)
    assert row["evaluation_seconds"] == 0


def test_a_checkpoint_is_due_when_it_is_paid_for(monkeypatch):
    """It may cost a tenth of the time; the first one is assumed to cost 0.1 seconds."""
    now = [0.0]
    monkeypatch.setattr(loop, "SHARE_OF_SAVING", SHARE_OF_SAVING)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    wait = lambda: now.append(now.pop() + 2)  # noqa: E731
    checkpoints = mock.Mock(spec=train.Checkpoints, steps=[], wait=wait)
    record, programs = loop.Record({}, {}), programs_of(PLAN, 1)
    files = loop.Files(checkpoints, mock.Mock(spec=log.Log), record, programs)

    def at(moment):
        now[0] = moment
        return files.is_due(), files.is_late()

    due, late = (True, False), (True, True)
    assert [at(moment) for moment in (0.99, 1, 600, 600.1)] == [(False, False), due, due, late]
    files.keep(())
    files.save()  # until 602.1
    files.flush()
    assert [at(moment) for moment in (642, 642.2)] == [(False, False), due]


def test_patience_ends_a_run(tmp_path):
    """Waiting begins anew where a run goes on with another metric to watch."""
    task = task_of(tx=optax.sgd(0.0))  # nothing ever gets better
    short = dataclasses.replace(PLAN, num_epochs=2, best={"nll": "min", "error": "min"}, patience=2)
    programs = train.Programs(task, short, train.local_devices(1))
    for watched, last in (("nll", 3), ("error", 4)):
        folder = tmp_path / watched
        assert run(folder, plan=short, task=task, programs=with_plan(programs, short)).finished
        plan = dataclasses.replace(short, num_epochs=9, patience_for=watched)
        longer = {"plan": plan, "task": task, "programs": with_plan(programs, plan)}
        assert run(folder, **longer).finished
        assert [row["epoch"] for row in rows_in(folder)] == list(range(1, last + 1))
        again = run(folder, **longer)
        assert (again.already, again.finished) == (True, True)
        text = (folder / log.SPOKEN).read_text()
        ended = f"after epoch {last}: {watched} has not improved in 2 evaluations, since epoch 1.\n"
        assert text.count(f"ended {ended}") == 1
        assert text.count("going on from step 8 of 36 in") == 1
        assert text.endswith("holds a finished run of 9 epochs: nothing to do.\n")
    plan = dataclasses.replace(short, num_epochs=9, patience=1)
    for already in (False, True):
        once = run(tmp_path / "1", plan=plan, task=task, programs=with_plan(programs, plan))
        assert (once.already, once.step) == (already, 8)
    plan = dataclasses.replace(plan, patience_for="error")  # waits anew, also after such an end
    assert run(tmp_path / "1", plan=plan, task=task, programs=with_plan(programs, plan)).step == 12


# --------------------------------------------------------------------------------------------
# Stopping and going on.


def stopping_after_chunks(monkeypatch, size):
    """Send a signal after every chunk of so many steps, or fewer."""
    next_stop, add = train.Programs.next_stop, loop._add
    stop = lambda self, step: min(step + size, next_stop(self, step))  # noqa: E731
    monkeypatch.setattr(train.Programs, "next_stop", stop)

    def add_and_stop(*given):
        add(*given)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "_add", add_and_stop)


@pytest.mark.parametrize(
    ("objective", "average"),
    [
        (OBJECTIVE, 0.0),
        pytest.param(losses.objective("recall", alpha=0.5), 0.8, marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_is_bit_for_bit_the_same(tmp_path, monkeypatch, objective, average):
    """A signal after every step, within epochs and at their ends."""
    plan = dataclasses.replace(PLAN, average=average)
    whole = run(tmp_path / "whole", objective, plan)
    stopping_after_chunks(monkeypatch, 3)
    starts = 0
    while not (outcome := run(tmp_path / "parts", objective, plan)).finished:
        assert outcome.stopped_by == signal.SIGTERM
        starts += 1
    assert starts >= 2
    assert same(whole.state, outcome.state)
    assert rows_in(tmp_path / "whole") == rows_in(tmp_path / "parts")
    for name in (log.LOSS_STATE, log.TABLE):
        texts = [tmp_path / folder / name for folder in ("whole", "parts")]
        columns = [text.read_text().splitlines()[0].split(",") for text in texts if text.exists()]
        assert len(columns) != 1
        assert columns[:1] == columns[1:]
    assert whole.best == outcome.best


KILLED = """
import math, os, pathlib, sys, time
from tests import programs
programs.share(os.environ["CALIB_JAX_TEST_PROGRAMS"])  # with this process
from calib_jax.train import log, loop
from tests.train.test_loop import run

def advance(self, step, loss):
    print(step, flush=True)
    time.sleep(60 * (step == 12))

log.Log.advance = advance
loop.SHARE_OF_SAVING = math.inf
run(pathlib.Path(sys.argv[1]))
"""


def test_killed_in_the_last_epoch_is_bit_for_bit_the_same(tmp_path):
    """The checkpoint of step 4 has been saved, and that of step 8 may be half written."""
    whole = run(tmp_path / "whole")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "killed"],
        stdout=subprocess.PIPE,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        cwd=pathlib.Path(__file__).parents[2],
    ) as process:
        while process.stdout.readline().strip() != b"12":
            assert process.poll() is None
        process.kill()
    assert 0 < steps_in(tmp_path / "killed")[-1] < 12
    outcome = run(tmp_path / "killed")
    assert same(whole.state, outcome.state)
    assert rows_in(tmp_path / "whole") == rows_in(tmp_path / "killed")


@pytest.mark.slow
def test_from_eight_devices_to_two_and_back(tmp_path, monkeypatch, x64):
    """Stopped after every few steps, and gone on with on another number of devices."""
    whole = run(tmp_path / "whole", devices=8)
    stopping_after_chunks(monkeypatch, 3)
    used = []
    for devices in itertools.cycle((8, 2)):
        used.append(devices)
        if (outcome := run(tmp_path / "parts", devices=devices)).finished:
            break
    assert used[:3] == [8, 2, 8]
    for a, b in zip(*map(jax.tree.leaves, (outcome.state, whole.state)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_a_signal_ends_the_program_after_the_state_is_saved(tmp_path, monkeypatch):
    stopping_after_chunks(monkeypatch, 3)
    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        run(tmp_path, check=True)
    assert steps_in(tmp_path) == [1]
    assert (
        "stopped by SIGTERM after step 1 of 12; nothing is lost"
        in (tmp_path / "log.txt").read_text()
    )


@dataclasses.dataclass(frozen=True)
class Shifted(tasks.OnDisk):
    """A source whose random views are its examples, each moved by its own draw."""

    seen: list

    def drawn(self, index, draw):
        self.seen.append(draw)
        result = self.source[index]
        shift = [np.random.default_rng([*draw, int(one)]).normal() for one in index]
        return result._replace(inputs=result.inputs + np.asarray(shift)[:, None])


@pytest.mark.slow
def test_random_views_are_those_of_seed_and_epoch_also_when_stopped(tmp_path, monkeypatch):
    source = Shifted(tasks.examples(38), [])
    task = task_of(train=data.subset(source, np.arange(38)))
    plan = dataclasses.replace(PLAN, seed=5, num_epochs=2)
    whole = run(tmp_path / "whole", task=task, plan=plan)
    assert set(source.seen) == {(5, 0, 0), (5, 1, 0)}  # and evaluation draws none
    plain = run(tmp_path / "plain", plan=plan)
    assert not same(whole.state.params, plain.state.params)
    stopping_after_chunks(monkeypatch, 3)
    while not (outcome := run(tmp_path / "parts", task=task, plan=plan)).finished:
        pass
    assert same(whole.state, outcome.state)


def test_a_second_ctrl_c_ends_the_process(monkeypatch):
    codes = []
    monkeypatch.setattr(loop.os, "_exit", codes.append)
    with loop.interruptions() as received:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert (received, codes) == ([signal.SIGTERM, signal.SIGTERM, signal.SIGINT], [])
        signal.raise_signal(signal.SIGINT)
    assert codes == [130]


def test_a_slow_epoch_is_saved_by_the_timer(tmp_path, monkeypatch):
    now, add = [0.0], loop._add

    def add_a_minute(*given):
        now[0] += 60
        add(*given)

    monkeypatch.setattr(loop, "_add", add_a_minute)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    options = {"checkpoint_every_epochs": 0, "checkpoint_every_minutes": 2.5, "best": {}}
    run(tmp_path, plan=dataclasses.replace(PLAN, keep=9, **options))
    assert 2 <= len(steps_in(tmp_path)) <= 4


def test_another_config_or_data_is_refused_by_its_keys(tmp_path):
    config = {"rate": 0.1, "places": (1, 2), "nothing": float("nan"), "run": {"keep": 2}}
    run(tmp_path, config=config, free=["run"])
    changed = {**config, "rate": 0.2, "run": {"keep": 3}}
    with pytest.raises(train.AnotherConfig, match=r"another config \(rate: 0.1 before, 0.2 now\)"):
        run(tmp_path, config=changed, free=["run"])
    assert run(tmp_path, config={**changed, "rate": 0.1}, free=["run"]).already
    text = (tmp_path / log.SPOKEN).read_text()
    assert text.count("changed from step 12 on: run.keep: 2 before, 3 now.\n") == 1
    assert train.differences({"a": 1}, {}) == ["a: 1 before, nothing now"]
    assert listed(list("abcde")) == "a; b; c; d; e"
    assert listed(list("abcdef")) == "a; b; c; d; e; and 1 more keys"
    labels = np.roll(tasks.examples(38).labels, 1)
    task = task_of(train=InMemory(tasks.examples(38).inputs, labels))
    plan = dataclasses.replace(PLAN, batch_size=20)
    for change, key in (
        ({"task": task}, "training set.crc of the labels"),
        ({"task": task_of(train=tasks.examples(40))}, "training set.crc of the labels"),
        ({"objective": losses.objective("focal", gamma=2.0)}, "loss: "),
        ({"plan": plan}, "batch_size: 10 before, 20 now"),
        ({"plan": dataclasses.replace(PLAN, seed=3)}, "seed: 0 before, 3 now"),
        ({"same": {"data": 2}}, "data: nothing before, 2 now"),
    ):
        with pytest.raises(train.AnotherConfig, match=re.escape(key)):
            run(tmp_path, config=config, **change)


def test_another_commit_is_a_warning_that_names_both(tmp_path):
    run(tmp_path, environment={"commit": "abc"})
    longer = dataclasses.replace(PLAN, num_epochs=4)
    run(tmp_path, plan=longer, environment={"commit": "def"})
    text = (tmp_path / "log.txt").read_text()
    assert "warning: the code of commit abc trained this run so far, and that of commit def" in text
    assert len(log.read_rows(tmp_path / log.ENVIRONMENT)) == 2


# --------------------------------------------------------------------------------------------
# Refusals.


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    """The batch with the bad example is named."""
    inputs, labels, _ = task_of().train.examples
    inputs = np.array(inputs)
    inputs[17] = np.nan
    order = train.in_batches(train.shuffled(38, 0, 0), 10)
    step = int(np.argwhere((order.examples == 17) & (order.weights > 0))[0, 0])
    with pytest.raises(train.NonFinite) as caught:
        run(tmp_path, task=task_of(train=InMemory(inputs, labels)))
    assert f"not finite at step {step} (epoch 0)" in str(caught.value)
    named = re.search(r"the training examples ([\d, ]+)", str(caught.value))[1]
    of_step = order.examples[step][order.weights[step] > 0]
    assert [int(each) for each in named.split(",")] == of_step.tolist()
    assert "there is no checkpoint yet" in str(caught.value)
    measured = {"loss": np.array([1, 1, np.nan]), "gradient_norm": np.array([1, np.inf, 1])}
    told = programs_of(PLAN, 1).failure((), 0, 4, measured)
    assert "the gradient of the loss is not finite at step 5 (epoch 1)" in told
    partly = tasks.state_of(OBJECTIVE)._replace(params={"a": np.array([1, np.nan])})
    assert not_finite(train.replicate(partly, train.local_devices(1))) == "params/a"


def test_parameters_that_are_not_finite_are_neither_measured_nor_saved(tmp_path):
    """The update overflows in the last step, whose own loss is finite."""
    rate = lambda now: jnp.where(now == 11, jnp.inf, 0.01)  # noqa: E731
    with pytest.raises(train.NonFinite) as caught:
        run(tmp_path, task=task_of(tx=optax.sgd(rate)))
    message = str(caught.value)
    assert "the state is not finite after 12 steps (first params/" in message
    assert f"the last good checkpoint is {tmp_path / CHECKPOINTS / '8'}:" in message
    assert [row["step"] for row in rows_in(tmp_path)] == [4, 8]
    assert steps_in(tmp_path)[-1] == 8


@pytest.mark.parametrize("clock", ["step", "epoch", "validation"])
def test_an_update_that_changes_the_type_of_the_state_is_refused(tmp_path, clock):
    objective = losses.make_objective(
        lambda state, logits, labels, weights, *, axis_name: losses.cross_entropy(logits, labels),
        init=lambda num_classes: {"rounds": jnp.zeros((), jnp.int32)},
        update=lambda state, stat, progress: {"rounds": state["rounds"] + 0.5},
        clock=clock,
    )
    refused = r"update must keep the types .* got .*float32\[\].* for .*int32\[\]"
    with pytest.raises(TypeError, match=refused):
        run(tmp_path, objective)


def test_plans_and_tasks_are_checked():
    for name, value, message in (
        ("forward", models.linear(), r"forward must be a function, got Perceptron: give train"),
        ("metrics", {"nll": "nll"}, r"metrics\['nll'\] must be what metrics.named"),
        ("train", np.eye(3), r"train must be a source of examples, got ndarray:\ngive"),
    ):
        with pytest.raises(TypeError, match=message):
            task_of(**{name: value})
    train.Plan(num_epochs=1, batch_size=1, resident_bytes=0, checkpoint_every_minutes=0)
    with pytest.raises(ValueError, match="average must lie in"):
        train.Plan(num_epochs=1, batch_size=1, average=1.5)
    with pytest.raises(ValueError, match="average must lie in"):
        train.make_train_step(tasks.forward, OBJECTIVE, tasks.sgd(), average=1.5)
    with pytest.raises(ValueError, match="patience_for must be one of 'ece'"):
        train.Plan(num_epochs=1, batch_size=8, best={"ece": "min"}, patience=1)
    with pytest.raises(TypeError, match="warm_up_objective must be what losses"):
        train.Programs(task_of(), dataclasses.replace(PLAN, warm_up_epochs=1))
    several = task_of(metrics={"nll": metrics.reliability})
    with pytest.raises(ValueError, match="best needs metrics of one number, and nll has several"):
        run("unused", task=several)
