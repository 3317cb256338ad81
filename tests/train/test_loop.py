"""The loop: its clocks, what it keeps, how it stops, and that stopping changes nothing."""

import contextlib
import dataclasses
import itertools
import json
import pathlib
import re
import signal
import sys
import types

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from calib_jax import data, losses, metrics, models, train
from calib_jax.core import InMemory
from calib_jax.train.folder import journal, record
from calib_jax.train.folder.changes import AnotherConfig
from calib_jax.train.folder.lock import InUse, only_one
from calib_jax.train.folder.record import CHECKPOINTS, Record
from calib_jax.train.loop import loop, timetable
from calib_jax.train.loop.start import NonFinite
from calib_jax.train.step.state import all_finite
from tests.selection import first_case
from tests.train import tasks

METRICS = {name: metrics.named(name) for name in ("error", "nll")}
TIMES = {"seconds", "evaluation_seconds", "examples_per_second"}
OBJECTIVE = losses.objective("adafocal", num_bins=4)


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


PLAN = train.Plan(num_epochs=3, batch_size=10, best={"nll": "min"})  # 4 steps an epoch


def run(folder, objective=OBJECTIVE, plan=PLAN, *, task=None, devices=1, **options):
    task = task_of(objective) if task is None else task
    state = tasks.state_of(objective, task.tx, averaged=plan.average > 0)
    runs = [train.Run(folder, state, plan.seed, options.pop("config", {}))]
    options |= {"devices": train.local_devices(devices), "quiet": True}
    (outcome,) = train.fit_all(runs, task, plan, **options)
    if outcome.failed:
        raise train.NonFinite(outcome.failed)
    return outcome


def rows_in(folder):
    rows = journal.read_rows(folder / journal.ROWS)
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def same(one, other):
    """Bit for bit."""
    one, other = jax.tree.leaves(one), jax.tree.leaves(other)
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


# --------------------------------------------------------------------------------------------
# What a run leaves.


def test_a_run_leaves_rows_and_checkpoints(tmp_path):
    task = task_of()
    task = task_of(evaluated={**task.evaluated, "test": tasks.examples(20, seed=3)})
    outcome = run(tmp_path, task=task, devices=2, config={"rate": 0.1})
    assert outcome.finished
    assert not outcome.already
    assert outcome.step == 12
    rows = rows_in(tmp_path)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert {f"{part}_{name}" for part in ("validation", "test") for name in METRICS} <= set(rows[0])
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    table = (tmp_path / journal.TABLE).read_text().splitlines()
    assert table[0].split(",") == list(journal.read_rows(tmp_path / journal.ROWS)[0])
    assert len(table) == 4
    assert json.loads((tmp_path / "config.json").read_text()) == {"rate": 0.1}
    best = min(rows, key=lambda row: row["validation_nll"])
    assert outcome.best["nll"] == {
        "step": best["step"], "epoch": best["epoch"], "value": best["validation_nll"]
    }  # fmt: skip
    kept = {int(path.name) for path in (tmp_path / CHECKPOINTS).iterdir() if path.name.isdigit()}
    assert kept == {8, 12, best["step"]}


@pytest.mark.slow
def test_rows_say_what_the_state_says(tmp_path):
    """The last row is that of the final parameters, computed without the loop."""
    outcome = run(tmp_path, devices=1)
    row, task = rows_in(tmp_path)[-1], task_of()
    for part, source in task.evaluated.items():
        logits, _, _ = tasks.forward(outcome.state.params, {}, source.inputs, train=False)
        for name, metric in METRICS.items():
            value = float(metric(logits, source.labels))
            assert row[f"{part}_{name}"] == pytest.approx(value, rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_the_training_loss_is_the_mean_over_examples(tmp_path):
    """Without learning, that of the epoch is that of all examples, whatever the batches."""
    objective = losses.objective("focal")
    task = task_of(objective, tx=optax.sgd(0.0))
    run(tmp_path, objective, task=task)
    logits, _, _ = tasks.forward(tasks.variables()["params"], {}, task.train.inputs, train=True)
    wanted = float(jnp.mean(objective.value((), logits, task.train.labels)))
    hits = float(jnp.mean(jnp.argmax(logits, -1) == task.train.labels))
    for row in rows_in(tmp_path):
        assert row["train_loss"] == pytest.approx(wanted, rel=1e-5)
        assert row["train_error"] == pytest.approx(1 - hits, rel=1e-5)


def test_predictions_come_in_the_order_of_the_source(tmp_path):
    outcome = run(tmp_path)
    source = tasks.examples(21, seed=2)
    logits, labels, _ = train.predict(tasks.forward, outcome.state, source, batch_size=8)
    wanted, _, _ = tasks.forward(outcome.state.params, {}, source.inputs, train=False)
    np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(labels, source.labels)


@pytest.mark.slow
def test_streamed_training_leaves_the_same_rows(tmp_path):
    """Too large for the device: read batch by batch, measured on the host."""
    metric = {name: metrics.named(name) for name in ("nll", "ece", "adaptive_ece")}
    for name, limit in (("resident", 2**30), ("streamed", 0)):
        plan = dataclasses.replace(PLAN, num_epochs=2, resident_bytes=limit, eval_batch_size=7)
        run(tmp_path / name, plan=plan, task=task_of(metrics=metric), devices=2)
    for one, other in zip(*(rows_in(tmp_path / n) for n in ("resident", "streamed")), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


# --------------------------------------------------------------------------------------------
# Clocks.


def test_the_validation_clock_makes_the_next_epochs_state(tmp_path):
    """After each epoch the gammas are the update of those before by the validation evidence."""
    plan = dataclasses.replace(PLAN, keep=9)
    run(tmp_path, plan=plan, devices=1)
    task, state = task_of(), OBJECTIVE.init(tasks.NUM_CLASSES)
    checkpoints = train.Checkpoints(tmp_path / CHECKPOINTS, read_only=True)
    source = task.evaluated["validation"]
    for step in (4, 8, 12):
        saved = checkpoints.restore(tasks.state_of(OBJECTIVE), step).state
        logits, _, _ = tasks.forward(saved.params, {}, source.inputs, train=False)
        evidence = OBJECTIVE.evidence(state, logits, source.labels, None)
        progress = losses.Progress(step, step // 4, 3)
        state = OBJECTIVE.update(state, evidence, progress)
        np.testing.assert_allclose(saved.loss_state.gamma, state.gamma, rtol=1e-4)
        np.testing.assert_allclose(saved.loss_state.edges, state.edges, rtol=1e-4)
        table = journal.read_rows(tmp_path / journal.LOSS_STATE)[step // 4 - 1]
        np.testing.assert_allclose(table["gamma"], state.gamma, rtol=1e-4)
        assert sum(table["examples"]) == pytest.approx(30, rel=1e-5)
    checkpoints.close()


@pytest.mark.parametrize(
    ("warm_up", "gammas"), [(0, [5.0, 3.0, 1.0, 1.0]), (2, [5.0, 3.0, 1.0, 1.0])]
)
def test_the_epoch_clock_serves_the_next_epoch(tmp_path, warm_up, gammas):
    """FLSc-531 with milestones 1 and 2; a warm-up does not shift its epochs."""
    objective = losses.objective("flsc531", milestones=(1, 2))
    task = task_of(objective, warm_up_objective=losses.objective("cross_entropy"))
    plan = dataclasses.replace(PLAN, keep=9, warm_up_epochs=warm_up)
    run(tmp_path, objective, plan, task=task)
    checkpoints = train.Checkpoints(tmp_path / CHECKPOINTS, read_only=True)
    template = tasks.state_of(objective)
    result = [checkpoints.restore(template, step).state.loss_state.gamma for step in (4, 8, 12)]
    checkpoints.close()
    wanted = gammas[1:] if not warm_up else [5.0, 1.0, 1.0]
    assert [float(gamma) for gamma in result] == wanted


def test_a_warm_up_trains_with_another_loss(tmp_path):
    objective = losses.objective("focal", gamma=5.0)
    cross_entropy = losses.objective("cross_entropy")
    task = task_of(objective, warm_up_objective=cross_entropy)
    outcome = run(tmp_path / "a", objective, dataclasses.replace(PLAN, warm_up_epochs=1), task=task)
    first = dataclasses.replace(PLAN, num_epochs=1)
    plain = run(tmp_path / "b", cross_entropy, first, task=task_of(cross_entropy))
    assert rows_in(tmp_path / "a")[0] | {"num_epochs": 1} == rows_in(tmp_path / "b")[0]
    assert not same(outcome.state.params, plain.state.params)


def test_a_warm_up_needs_a_loss_without_state(tmp_path):
    plan = dataclasses.replace(PLAN, warm_up_epochs=1)
    objective = losses.objective("focal")
    for warm_up, error, message in (
        (losses.objective("logit_adjusted"), ValueError, "warm_up_objective must have no state"),
        (None, TypeError, "objective must be what"),
    ):
        with pytest.raises(error, match=message):
            run(tmp_path, objective, plan, task=task_of(objective, warm_up_objective=warm_up))


def test_evaluation_by_steps(tmp_path):
    plan = dataclasses.replace(PLAN, eval_every_steps=5)
    run(tmp_path, plan=plan)
    assert [row["step"] for row in rows_in(tmp_path)] == [5, 10, 12]


def test_every_kth_epoch_is_kept(tmp_path):
    """Also where checkpoints are written less often."""
    plan = dataclasses.replace(
        PLAN, num_epochs=6, best={}, keep=1, checkpoint_every_epochs=4, keep_every_epochs=2
    )
    run(tmp_path, plan=plan)
    kept = {int(path.name) for path in (tmp_path / CHECKPOINTS).iterdir() if path.name.isdigit()}
    assert kept == {8, 16, 24}


def test_patience_ends_a_run(tmp_path):
    task = task_of(tx=optax.sgd(0.0))  # nothing ever gets better
    plan = dataclasses.replace(PLAN, num_epochs=9, patience=2)
    outcome = run(tmp_path, plan=plan, task=task)
    assert outcome.finished
    assert [row["epoch"] for row in rows_in(tmp_path)] == [1, 2, 3]
    assert run(tmp_path, plan=plan, task=task).already


# --------------------------------------------------------------------------------------------
# Stopping and going on.


def finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def minute_by_minute(monkeypatch, size=1):
    """Make chunks of so many steps, each of which takes a minute."""
    now = [0.0]

    def begin(self):
        self.size, self.steps, self.seconds = size, 0, 0.0
        now[0] += 60

    monkeypatch.setattr(timetable.Chunk, "begin", begin)
    monkeypatch.setattr(timetable.Chunk, "adapt", lambda self, seconds: None)
    clock = types.SimpleNamespace(monotonic=lambda: now[0])
    for module in (loop, record):
        monkeypatch.setattr(module, "time", clock)


def stopping_after_chunks(monkeypatch, size):
    """Send a signal after every chunk of so many steps."""
    chunks = timetable.Chunk.__init__

    def of_size(self):
        chunks(self)
        self.size = size

    monkeypatch.setattr(timetable.Chunk, "__init__", of_size)
    monkeypatch.setattr(timetable.Chunk, "adapt", lambda self, seconds: None)
    add = Record.add

    def add_and_stop(self, result, seconds):
        add(self, result, seconds)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Record, "add", add_and_stop)


@pytest.mark.parametrize(
    ("name", "options", "size", "average"),
    [
        ("adafocal", {}, 3, 0.0),
        pytest.param("recall", {"alpha": 0.5}, 4, 0.8, marks=pytest.mark.slow),
    ],
)
def test_stopped_and_resumed_is_bit_for_bit_the_same(
    tmp_path, monkeypatch, name, options, size, average
):
    """A signal after every chunk of a few steps, within epochs or at their ends."""
    objective = losses.objective(name, **options)
    plan = dataclasses.replace(PLAN, average=average)
    whole = run(tmp_path / "whole", objective, plan)
    stopping_after_chunks(monkeypatch, size)
    starts = 0
    while not (outcome := run(tmp_path / "parts", objective, plan)).finished:
        assert outcome.stopped_by == signal.SIGTERM
        starts += 1
    assert starts >= 2
    assert same(whole.state, outcome.state)
    assert rows_in(tmp_path / "whole") == rows_in(tmp_path / "parts")
    assert whole.best == outcome.best


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


@dataclasses.dataclass(frozen=True)
class Shifted:
    """A source whose random views are its examples, each moved by its own draw."""

    source: object
    seen: list

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index]

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


def test_what_was_evaluated_is_kept_when_the_next_epoch_cannot_be_read(tmp_path):
    class Broken(Shifted):
        def drawn(self, index, draw):
            if draw.epoch == 2:
                raise OSError("an image that cannot be read")
            return super().drawn(index, draw)

    task = task_of(train=Broken(tasks.examples(38), []))
    with pytest.raises(OSError, match="an image that cannot be read"):
        run(tmp_path, task=task)
    assert [row["epoch"] for row in rows_in(tmp_path)] == [1, 2]
    again = train.Checkpoints(tmp_path / CHECKPOINTS, read_only=True)
    assert again.steps[-1] == 8
    again.close()


@pytest.mark.slow
def test_the_time_of_an_epoch_is_that_of_all_its_parts(tmp_path, monkeypatch):
    """Else the examples per second of one that was stopped would be those of a miracle."""
    ticks = itertools.count(step=10.0)
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: next(ticks)))
    stopping_after_chunks(monkeypatch, 2)
    plan = dataclasses.replace(PLAN, num_epochs=1)
    assert not run(tmp_path, plan=plan).finished
    assert run(tmp_path, plan=plan).finished
    (row,) = journal.read_rows(tmp_path / journal.ROWS)
    assert row["seconds"] == 20.0  # every look at the clock is ten seconds after the last one
    assert row["examples_per_second"] == pytest.approx(38 / 20)


@first_case
@pytest.mark.parametrize(
    "init",
    [lambda num_classes: np.full(num_classes, 2.0), lambda num_classes: 1.0],
    ids=["an array of NumPy", "a number"],
)
def test_a_run_resumes_whose_state_came_from_numpy(tmp_path, monkeypatch, init):
    def value(state, logits, labels, weights, *, axis_name):
        return jnp.mean(state) * losses.cross_entropy(logits, labels)

    objective = losses.make_objective(
        value, init=init, update=lambda state, stat, progress: state + 1, clock="epoch"
    )
    task = task_of(objective)
    start = {"params": jax.tree.map(np.float64, tasks.variables()["params"])}
    state = train.create(start, objective, task.tx, tasks.NUM_CLASSES, seed=0)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    by_hand = state._replace(loss_state=init(tasks.NUM_CLASSES), params=start["params"])
    devices = train.local_devices(1)
    with monkeypatch.context() as patch:
        stopping_after_chunks(patch, 4)
        for _ in range(2):  # `fit` saves, and then ends the program as the signal would
            with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
                train.fit(tmp_path, state, task, PLAN, devices=devices, quiet=True)
    if isinstance(by_hand.loss_state, np.ndarray):
        state = by_hand
    outcome = train.fit(tmp_path, state, task, PLAN, devices=devices, quiet=True)
    assert outcome.finished
    np.testing.assert_array_equal(outcome.state.loss_state, init(tasks.NUM_CLASSES) + 3)


@pytest.mark.parametrize("clock", ["step", "epoch", "validation"])
def test_an_update_that_changes_the_type_of_the_state_is_refused(tmp_path, clock):
    objective = losses.make_objective(
        lambda state, logits, labels, weights, *, axis_name: losses.cross_entropy(logits, labels),
        init=lambda num_classes: {"rounds": jnp.zeros((), jnp.int32)},
        update=lambda state, stat, progress: {"rounds": state["rounds"] + 0.5},
        clock=clock,
    )
    refused = r"update must keep the types .* got float32\[\] for int32\[\] at state\['rounds'\]"
    with pytest.raises(TypeError, match=refused):
        run(tmp_path, objective)


def test_a_network_of_another_number_of_outputs_is_refused(tmp_path):
    for num_classes in (4, 6):
        task = task_of(losses.objective("cross_entropy"), num_classes=num_classes)
        with pytest.raises(ValueError, match=f"has 5 outputs and the task {num_classes} classes"):
            run(tmp_path, task.objective, task=task)


def test_a_network_without_logits_is_refused(tmp_path):
    def forward(*args, **options):
        logits, state, aux = tasks.forward(*args, **options)
        return {"logits": logits}, state, aux

    with pytest.raises(TypeError, match=r"must return logits \[\*batch, classes\], got a dict"):
        run(tmp_path, task=task_of(forward=forward))


def test_a_softmax_at_the_end_is_found_after_the_first_epoch(tmp_path):
    """Softmax takes any numbers, so the training would go on, and its predictions be refused."""

    def forward(*args, **options):
        logits, state, aux = tasks.forward(*args, **options)
        return jax.nn.softmax(logits), state, aux

    with pytest.raises(ValueError, match="on the validation set look like probabilities"):
        run(tmp_path, task=task_of(forward=forward))


def test_a_finished_run_says_so(tmp_path, capsys):
    first = run(tmp_path)
    again = train.fit(
        tmp_path, tasks.state_of(OBJECTIVE), task_of(), PLAN, devices=train.local_devices(2)
    )
    assert again.already
    assert same(first.state, again.state)
    assert "holds a finished run of 3 epochs: nothing to do" in capsys.readouterr().out


def test_rows_after_the_checkpoint_come_once(tmp_path):
    """Killed between the row and the next checkpoint, or between checkpoint and row."""
    plan = dataclasses.replace(PLAN, checkpoint_every_epochs=3, best={})
    run(tmp_path / "whole", plan=plan)
    rows = rows_in(tmp_path / "whole")
    folder = tmp_path / "killed"
    log = journal.Journal(folder)
    folder.mkdir()
    for row in journal.read_rows(tmp_path / "whole" / journal.ROWS)[:2]:
        log.write(row)
    with (folder / journal.ROWS).open("a") as file:
        file.write('{"step": 9, "cut o')
    run(folder, plan=plan)
    assert rows_in(folder) == rows
    lines = journal.json_lines(journal.read_rows(folder / journal.ROWS)[:2])
    first = lines.splitlines(keepends=True)[0]
    tables = {journal.LOSS_STATE: journal.json_lines([{"step": 8, "gamma": [1.0]}])}
    for logged, steps in (({journal.ROWS: first}, [4]), ({journal.ROWS: lines, **tables}, [4, 8])):
        assert log.rewind(logged) == []
        assert [row["step"] for row in rows_in(folder)] == steps
    assert journal.read_rows(folder / journal.LOSS_STATE)[-1] == {"step": 8, "gamma": [1.0]}
    log.rewind()
    for name in (journal.ROWS, journal.LOSS_STATE):
        assert journal.read_rows(folder / name) == []


def test_another_config_is_refused_by_its_keys(tmp_path):
    config = {"rate": 0.1, "loss": {"name": "focal"}, "run": {"keep": 2}}
    run(tmp_path, config=config, free=["run"])
    changed = {**config, "rate": 0.2, "run": {"keep": 3}}
    with pytest.raises(AnotherConfig, match=r"another config \(rate: 0.1 before, 0.2 now\)"):
        run(tmp_path, config=changed, free=["run"])
    assert run(tmp_path, config={**changed, "rate": 0.1}, free=["run"]).already


def test_a_config_with_tuples_and_nan_resumes(tmp_path):
    config = {"milestones": (1, 2), "nothing": float("nan")}
    run(tmp_path, config=config)
    assert run(tmp_path, config=config).already


def test_another_loss_or_number_of_examples_is_refused_without_a_config(tmp_path):
    run(tmp_path)
    objective = losses.objective("focal", gamma=2.0)
    for other in (task_of(objective), task_of(train=tasks.examples(40))):
        with pytest.raises(AnotherConfig, match=r"a run with (loss=.*|training_examples=38), and"):
            run(tmp_path, other.objective, task=other)


def test_other_data_or_another_optimizer_is_refused_without_a_config(tmp_path):
    run(tmp_path)
    examples = tasks.examples(38)
    inputs, labels = examples.inputs.copy(), examples.labels.copy()
    inputs[7] += 0.5
    labels[7] = 1 - min(labels[7], 1)
    for change, message in (
        ({"train": InMemory(inputs, examples.labels)}, "other inputs of the training examples"),
        ({"train": InMemory(examples.inputs, labels)}, "other labels of the training examples"),
        (
            {"train": InMemory(examples.inputs, examples.labels, 1.0 + np.arange(38))},
            "other weights of the training examples",
        ),
        ({"tx": tasks.sgd(0.2)}, r"another optimizer \(scale.step_size: -0.05 before, -0.2 now\)"),
    ):
        with pytest.raises(AnotherConfig, match=f"holds a run with {message}: choose another"):
            run(tmp_path, task=task_of(**change))
    again = InMemory(examples.inputs.astype(np.float32), examples.labels)  # rounded
    assert run(tmp_path, task=task_of(train=again)).already


@pytest.mark.slow
def test_another_batch_size_or_seed_is_refused_without_a_config(tmp_path):
    run(tmp_path)
    for change in ({"batch_size": 20}, {"accumulate": 2}, {"drop_last": True}, {"seed": 3}):
        ((name, value),) = change.items()
        plan = dataclasses.replace(PLAN, **change)
        message = f"a run with {name}={getattr(PLAN, name)}, and not {value}: choose another folder"
        with pytest.raises(AnotherConfig, match=message):
            run(tmp_path, plan=plan)
    longer = dataclasses.replace(PLAN, num_epochs=4)
    assert run(tmp_path, plan=longer).step == 16


def test_a_config_decides_which_of_its_values_may_change(tmp_path):
    run(tmp_path, config={"batch_size": 10}, free=["batch_size"])
    plan = dataclasses.replace(PLAN, batch_size=20)
    assert run(tmp_path, plan=plan, config={"batch_size": 20}, free=["batch_size"]).already


def test_a_run_of_another_version_is_refused(tmp_path):
    kept = train.Checkpoints(tmp_path / CHECKPOINTS)
    about = {"config": {}, "ledger": {"steps": 0, "table": {}}}
    kept.save(jax.device_get(tasks.state_of(OBJECTIVE, tasks.sgd())), about, 0)
    kept.wait()
    kept.close()
    with pytest.raises(AnotherConfig, match="a run of another version of calib_jax"):
        run(tmp_path)


def test_starts_are_noted_after_one_that_was_cut_off(tmp_path):
    whole = '{"step": 0}\n'
    (tmp_path / journal.ENVIRONMENT).write_text(whole + '{"step": 4, "versi')
    journal.Journal(tmp_path).begin(4, {"cores": 2})
    result = (tmp_path / journal.ENVIRONMENT).read_text()
    assert result == whole + '{"step": 4, "cores": 2}\n'


def test_one_trainer_a_folder(tmp_path):
    with only_one(tmp_path), pytest.raises(InUse, match=r"is in use by process \d+"):
        run(tmp_path)
    assert run(tmp_path).finished


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    """The batch with the bad example is named, and the checkpoint before it."""
    inputs, labels, _ = task_of().train.examples
    inputs = np.array(inputs)
    inputs[17] = np.nan
    task = task_of(train=tasks.InMemory(inputs, labels))
    order = train.in_batches(train.shuffled(38, 0, 0), 10)
    step = int(np.argwhere((order.examples == 17) & (order.weights > 0))[0, 0])
    with pytest.raises(NonFinite) as caught:
        run(tmp_path, task=task)
    assert f"not finite at step {step} (epoch 0)" in str(caught.value)
    assert re.search(r"examples [\d, ]*\b17[,;]", str(caught.value))
    assert "there is no checkpoint yet" in str(caught.value)


def test_a_loss_that_diverges_names_the_last_good_checkpoint(tmp_path):
    rate = lambda step: jnp.where(step < 5, 0.01, jnp.inf)  # noqa: E731
    task = task_of(tx=optax.sgd(rate))
    with pytest.raises(NonFinite, match=r"the last good checkpoint is .*checkpoints/4"):
        run(tmp_path, task=task)
    again = train.Checkpoints(tmp_path / CHECKPOINTS, read_only=True)
    assert again.steps == [4]
    again.close()


@pytest.mark.slow
def test_a_failed_run_is_not_saved_when_the_timer_is_due(tmp_path, monkeypatch):
    """The chunk that finds a NaN is the one in which ten minutes are over."""

    class Broken(Shifted):
        def drawn(self, index, draw):
            result = super().drawn(index, draw)
            bad = (np.asarray(index) == BAD) & (draw.epoch == 1)
            return result._replace(inputs=np.where(bad[:, None], np.nan, result.inputs))

    BAD = train.shuffled(38, 0, 1)[10]  # in step 5
    sources = {name: Cls(tasks.examples(38), []) for name, Cls in (("a", Shifted), ("b", Broken))}
    plan = dataclasses.replace(
        PLAN, keep=1, best={}, checkpoint_every_epochs=9, checkpoint_every_minutes=2.5
    )
    whole = run(tmp_path / "whole", plan=plan, task=task_of(train=sources["a"]))
    minute_by_minute(monkeypatch)  # steps 3, 6 and 9 are late
    with pytest.raises(NonFinite, match=r"not finite at step 5 .*checkpoints/3: ") as caught:
        run(tmp_path / "b", plan=plan, task=task_of(train=sources["b"]))
    assert pathlib.Path(re.search(r"checkpoint is (\S+):", str(caught.value))[1]).is_dir()
    with contextlib.closing(train.Checkpoints(tmp_path / "b" / CHECKPOINTS)) as kept:
        assert kept.steps == [3]
        assert finite(kept.restore(tasks.state_of(OBJECTIVE)).state.params)
    repaired = run(tmp_path / "b", plan=plan, task=task_of(train=sources["a"]))
    assert same(repaired.state, whole.state)
    assert rows_in(tmp_path / "b") == rows_in(tmp_path / "whole")


@pytest.mark.parametrize("step", [7, 11])
def test_parameters_that_are_not_finite_are_neither_measured_nor_saved(tmp_path, step):
    """The update overflows in the last step of an epoch, whose own loss is finite."""
    rate = lambda now: jnp.where(now == step, jnp.inf, 0.01)  # noqa: E731
    with pytest.raises(NonFinite) as caught:
        run(tmp_path, task=task_of(tx=optax.sgd(rate)))
    message = str(caught.value)
    assert f"the state is not finite after {step + 1} steps (first params/" in message
    assert f"the last good checkpoint is {tmp_path / CHECKPOINTS / str(step - 3)}:" in message
    assert [row["step"] for row in rows_in(tmp_path)] == list(range(4, step, 4))
    with contextlib.closing(train.Checkpoints(tmp_path / CHECKPOINTS)) as kept:
        assert kept.steps[-1] == step - 3


@first_case
@pytest.mark.parametrize("over", ["map", "devices"])
def test_only_flags_are_fetched_while_all_values_are_finite(tmp_path, monkeypatch, over):
    """Values are fetched to be saved, and otherwise only from a run that is not finite."""
    fetch, sizes = train.Arrangement.fetch, []

    def counted(self, placed):
        sizes.append(max((leaf.size for leaf in jax.tree.leaves(placed)), default=0))
        return fetch(self, placed)

    minute_by_minute(monkeypatch)
    monkeypatch.setattr(train.Arrangement, "fetch", counted)
    objective = losses.objective("focal")
    plan = dataclasses.replace(PLAN, num_epochs=2, best={}, checkpoint_every_minutes=99)
    run(tmp_path / "a", objective, plan, over=over, task=task_of(objective, evaluated={}))
    kernel = tasks.NUM_FEATURES * 16
    assert len(sizes) > 8
    assert sum(size >= kernel for size in sizes) == 3  # two checkpoints, and the outcome
    rate = lambda now: jnp.where(now == 5, jnp.inf, 0.01)  # noqa: E731
    task = task_of(objective, evaluated={}, tx=optax.sgd(rate))
    with pytest.raises(NonFinite, match=r"not finite after 6 steps \(first params/"):
        run(tmp_path / "b", objective, plan, over=over, task=task)


def test_the_runs_with_finite_values_are_flagged():
    def state(value, dtype=jnp.float32):
        params = {"a": jnp.ones((3, 2), int), "b": jnp.zeros((3, 4), dtype).at[1, 2].set(value)}
        step = jnp.zeros(3, jnp.int32)
        return train.TrainState(step, params, {"mean": jnp.zeros(3)}, jnp.nan, jnp.inf, step)

    assert [*all_finite(state(1.0))] == [True, True, True]
    for value in (jnp.nan, jnp.inf, -jnp.inf):
        assert [*all_finite(state(value))] == [True, False, True]
        assert [*all_finite(state(value, jnp.bfloat16))] == [True, False, True]
    statistics = state(1.0)._replace(average=(jnp.array([[1.0], [2.0], [jnp.nan]]), {}))
    assert [*all_finite(statistics)] == [True, True, False]


def test_a_state_that_begins_with_nan_is_not_saved_when_it_is_stopped(tmp_path, monkeypatch):
    state = tasks.state_of(OBJECTIVE)
    state = state._replace(params={**state.params, "in": state.params["in"] * np.nan})
    monkeypatch.setattr(loop, "Programs", lambda *given: signal.raise_signal(15))
    with pytest.raises(
        NonFinite, match=r"the state is not finite after 0 steps \(first params/in\)"
    ):
        train.fit(tmp_path, state, task_of(), PLAN, quiet=True)
    with contextlib.closing(train.Checkpoints(tmp_path / CHECKPOINTS)) as kept:
        assert kept.steps == []


def test_epochs_that_are_pieces_are_saved_by_the_timer_too(tmp_path, monkeypatch):
    """Short epochs that are saved rarely: a power cut costs ten minutes, not all of them."""
    minute_by_minute(monkeypatch, size=4)  # a chunk is an epoch
    plan = dataclasses.replace(
        PLAN, num_epochs=6, keep=9, best={}, checkpoint_every_epochs=0, checkpoint_every_minutes=1.5
    )
    run(tmp_path, plan=plan)
    with contextlib.closing(train.Checkpoints(tmp_path / CHECKPOINTS)) as kept:
        assert kept.steps == [8, 16, 24]


def test_a_label_out_of_range_is_named(tmp_path):
    inputs, labels, _ = task_of().train.examples
    labels = np.array(labels)
    labels[17] = 12
    with pytest.raises(NonFinite) as caught:
        run(tmp_path, task=task_of(train=tasks.InMemory(inputs, labels)))
    message = str(caught.value)
    assert message.startswith(
        "the training example 17 has the label 12, and the classes are 0 to 4; there is no"
        " checkpoint yet: mend its label, or leave the example out"
    )
    assert "weight 0" in message
    assert "learning rate" not in message


def test_what_needs_an_evaluation_is_refused_without_one(tmp_path):
    with pytest.raises(ValueError, match="the objective learns from the validation set after"):
        task_of(evaluated={})
    examples = tasks.examples(3)
    empty = tasks.InMemory(examples.inputs[:0], examples.labels[:0])
    with pytest.raises(ValueError, match=r"evaluated\['test'\] has no examples: leave it out"):
        task_of(evaluated={"validation": examples, "test": empty})
    plain = losses.objective("focal")
    with pytest.raises(ValueError, match=r"plan.best names nll, which the task does not measure"):
        run(tmp_path, plain, task=task_of(plain, evaluated={}))
    with pytest.raises(ValueError, match=r"plan.best names brier, which the task does not meas"):
        run(tmp_path, plan=dataclasses.replace(PLAN, best={"nll": "min", "brier": "min"}))
    assert list(tmp_path.iterdir()) == []


def test_a_source_and_a_state_that_are_none_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user

    class Pairs:
        """A data set of torch that takes an array of numbers."""

        def __len__(self):
            return 9

        def __getitem__(self, index):
            return np.zeros((len(index), 4)), np.zeros(len(index), int)

    with pytest.raises(TypeError, match="must return Examples, got tuple from Pairs: return"):
        run(tmp_path, task=task_of(train=Pairs()))
    with pytest.raises(ValueError, match="a training set needs at least one example"):
        run(tmp_path, task=task_of(train=tasks.examples(0)))
    with pytest.raises(TypeError, match=r"return \(logits, model_state, aux\), got a"):
        run(tmp_path, task=task_of(forward=lambda params, *_, **__: params["out"]))
    with pytest.raises(TypeError, match="state must be a TrainState, got dict: give"):
        train.fit(tmp_path, {"params": {}}, task_of(), PLAN)
    with pytest.raises(ValueError, match="must have the collection 'params', got head: give all"):
        train.create({"head": {}}, OBJECTIVE, tasks.sgd(), 5, 0)


def test_plans_are_checked():
    with pytest.raises(TypeError, match="'Plan' has no option 'epochs'; did you mean 'num_epochs'"):
        train.Plan(epochs=3, batch_size=1)
    with pytest.raises(TypeError, match=r"train must be a source of examples, got ndarray:\ngive"):
        task_of(train=np.eye(3))
    for name, value, message in (
        ("forward", models.linear(), r"forward must be a function, got Perceptron: give train"),
        ("objective", "focal", r"objective must be what losses.objective\(NAME\) .* got 'focal'"),
        ("tx", "sgd", "tx must be what train.optimizer"),
        ("metrics", {"nll": "nll"}, r"metrics\['nll'\] must be what metrics.named"),
        ("metrics", [metrics.nll], r"metrics must map names to metrics, got \["),
        (
            "evaluated",
            [tasks.examples(3)],
            r"evaluated must map names to sources of examples, got list",
        ),
        ("augment", "flip", "augment must be a function or None, got 'flip'"),
        ("prepare", 255, "prepare must be a function, got 255"),
        ("order", np.arange(3), r"order must be a function or None, got array\(\[0, 1, 2\]"),
    ):
        with pytest.raises(TypeError, match=message):
            task_of(**{name: value})
    with pytest.raises(ValueError, match="num_epochs must be at least 1, got 0"):
        train.Plan(num_epochs=0, batch_size=1)
    # Steps never reached the end of 1.5 epochs of 5 steps, and the loop did not end.
    with pytest.raises(TypeError, match=r"num_epochs must be an integer, got 1\.5"):
        train.Plan(num_epochs=1.5, batch_size=1)
    with pytest.raises(TypeError, match=r"warm_up_epochs must be an integer, got 0\.5"):
        train.Plan(num_epochs=1, batch_size=1, warm_up_epochs=0.5)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        train.Plan(num_epochs=1, batch_size=1, seed=-1)
    with pytest.raises(ValueError, match=r"best\['nll'\] must be one of 'min', 'max', got 'low'"):
        train.Plan(num_epochs=1, batch_size=1, best={"nll": "low"})
    with pytest.raises(
        TypeError, match="best must map names of metrics to 'min' or 'max', got 'nll"
    ):
        train.Plan(num_epochs=1, batch_size=1, best="nll")
    with pytest.raises(ValueError, match="patience_for must be one of 'ece', got 'nll'"):
        train.Plan(num_epochs=1, batch_size=1, best={"ece": "min"}, patience=1)
    with pytest.raises(ValueError, match="patience needs a metric to watch: give best="):
        train.Plan(num_epochs=1, batch_size=1, patience=1)
    with pytest.raises(ValueError, match=r"accumulate=9 makes more parts than .* examples, 8"):
        train.Plan(num_epochs=1, batch_size=8, accumulate=9)
    with pytest.raises(ValueError, match="warm_up_reduction must be one of 'sum', 'mean'"):
        task_of(warm_up_reduction="avg")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written to"):
        run(tmp_path / "file" / "run")


@first_case
@pytest.mark.parametrize("name", ["adafocal_seq_0", "adafocal_seq_1"])
def test_gammas_follow_the_recorded_sequence(tmp_path, name, x64):
    """Ten epochs of a network that says what the released one said on its validation data."""
    folder = pathlib.Path(__file__).parents[1] / "golden"
    groups = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["groups"]
    given = next(g["hyperparameters"] for g in groups if g["name"] == name)
    with np.load(folder / "losses.npz") as arrays:
        recorded = {
            key: arrays[f"{name}/{key}"]
            for key in ("gammas", "lower", "upper", "val_conf", "val_pred", "val_label")
        }
    hit = recorded["val_pred"] == recorded["val_label"]
    num_classes = 10  # as there: a confidence may be as low as 1/10
    others = (1 - recorded["val_conf"]) / (num_classes - 1)
    message = np.repeat(others[..., None], num_classes, axis=-1)
    np.put_along_axis(message, np.where(hit, 0, 1)[..., None], recorded["val_conf"][..., None], -1)
    message = np.moveaxis(
        np.log(np.maximum(message, 1e-300)), 0, 1
    )  # [examples, updates, classes]; all are of class 0

    def forward(params, model_state, inputs, *, train, rng=None, weights=None):
        """Count epochs, which have one step each; evaluate with what was said in this one."""
        epoch = model_state["epoch"]
        logits = inputs[:, epoch - 1] + 0 * params["bias"][None]
        return logits, {"epoch": epoch + 1} if train else model_state, None

    objective = losses.objective(
        "adafocal",
        num_bins=given["num_bins"],
        gamma_initial=given["gamma_initial"],
        rate=given["lambda"],
        switch=given["switch_pt"],
        gamma_min=given["gamma_min"],
        gamma_max=given["gamma_max"],
        binning="released",
    )
    validation = tasks.InMemory(message, np.zeros(len(message), np.int32))
    task = task_of(
        objective,
        forward=forward,
        train=tasks.InMemory(message[:4], np.zeros(4, np.int32)),
        evaluated={"validation": validation},
        num_classes=num_classes,
    )
    updates = len(recorded["val_conf"])
    plan = train.Plan(num_epochs=updates, batch_size=4, eval_batch_size=300)
    variables = {"params": {"bias": jnp.zeros(num_classes)}, "epoch": jnp.zeros((), int)}
    state = train.create(variables, objective, task.tx, num_classes, 0)
    train.fit(tmp_path, state, task, plan, devices=train.local_devices(1), quiet=True)
    tables = journal.read_rows(tmp_path / journal.LOSS_STATE)
    assert len(tables) == updates == 10
    for table, gammas, lower, upper in zip(
        tables, *(recorded[key][1:] for key in ("gammas", "lower", "upper")), strict=True
    ):
        np.testing.assert_allclose(table["gamma"], gammas, rtol=1e-6)
        np.testing.assert_allclose(table["from"], lower, rtol=1e-6)
        np.testing.assert_allclose(table["to"], upper, rtol=1e-6)


@pytest.mark.parametrize(
    ("writer", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")]
)
def test_a_writer_without_its_package_says_what_to_install(writer, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"pip install 'calib_jax\[{writer}\]'"):
        run(tmp_path, writers=[train.WRITERS[writer]])
