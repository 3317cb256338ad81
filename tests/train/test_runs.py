"""Several seeds in one program: each is, bit for bit, what it is when trained alone."""

import dataclasses
import shutil
import signal
import types

import jax
import numpy as np
import optax
import pytest

from calib_jax import losses, metrics, models, train
from calib_jax.core import machine
from calib_jax.train.devices import memory
from calib_jax.train.folder import journal
from calib_jax.train.folder.record import CHECKPOINTS, Record
from tests.train import tasks
from tests.train.test_loop import PLAN, rows_in, same, task_of

OBJECTIVE = losses.objective("adafocal", num_bins=4)
SEEDS = (1, 2, 3)


def run_of(folder, seed, *, objective=OBJECTIVE, change=lambda state: state):
    state = tasks.state_of(objective, seed=seed)
    # The weights, too, differ between the seeds.
    state = state._replace(params=tasks.variables(seed)["params"])
    return train.Run(folder / str(seed), change(state), seed, {"seed": seed}, f"seed {seed}")


def together(folder, seeds=SEEDS, *, plan=PLAN, task=None, devices=2, over="map", runs=None):
    return train.fit_all(
        [run_of(folder, seed) for seed in seeds] if runs is None else runs,
        task_of() if task is None else task,
        plan,
        devices=train.local_devices(devices),
        over=over,
        quiet=True,
    )


def steps_in(folder):
    return {int(path.name) for path in (folder / CHECKPOINTS).iterdir() if path.name.isdigit()}


# The program of several runs has the bits of the program of one when both are optimized, as users'
# programs are.
same_bits = pytest.mark.bitwise


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Each seed in a run of its own."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, {seed: together(folder, [seed])[0] for seed in SEEDS}


def assert_equal(folder, outcomes, alone, seeds=SEEDS):
    other, wanted = alone
    for seed, outcome in zip(seeds, outcomes, strict=True):
        assert outcome.finished
        assert same(outcome.state, wanted[seed].state), seed
        assert rows_in(folder / str(seed)) == rows_in(other / str(seed))
        tables = [
            journal.read_rows(one / str(seed) / journal.LOSS_STATE) for one in (folder, other)
        ]
        assert tables[0] == tables[1]
        assert len(tables[0]) == 3
        assert steps_in(folder / str(seed)) == steps_in(other / str(seed))
        assert outcome.best == wanted[seed].best


@same_bits
def test_three_seeds_in_one_program_are_three_runs(tmp_path, alone):
    assert_equal(tmp_path, together(tmp_path), alone)
    first, second = (alone[1][seed].state for seed in SEEDS[:2])
    assert not same(first.params, second.params)
    assert not same(first.loss_state, second.loss_state)


@same_bits
def test_seeds_that_were_stopped_apart_catch_up(tmp_path, alone, monkeypatch):
    """As when the process is killed between the checkpoints of two of them."""
    add = Record.add

    def add_and_stop(self, result, seconds):
        add(self, result, seconds)
        if self.step >= 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "add", add_and_stop)
        stopped = together(tmp_path)
    assert {one.stopped_by for one in stopped} == {signal.SIGTERM}
    behind = tmp_path / "2" / CHECKPOINTS
    newest = max(steps_in(tmp_path / "2"))
    shutil.rmtree(behind / str(newest))
    shutil.rmtree(tmp_path / "3")
    assert_equal(tmp_path, together(tmp_path), alone)


@same_bits
def test_more_seeds_are_added_to_those_that_are_through(tmp_path, alone):
    together(tmp_path, SEEDS[:2])
    outcomes = together(tmp_path)
    assert [one.already for one in outcomes] == [True, True, False]
    assert_equal(tmp_path, outcomes, alone)


@pytest.mark.slow
def test_side_by_side_is_the_same_but_for_rounding(tmp_path, alone):
    _, wanted = alone
    for seed, outcome in zip(SEEDS, together(tmp_path, over="vmap"), strict=True):
        for a, b in zip(*map(jax.tree.leaves, (outcome.state, wanted[seed].state)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("over", ["map", "vmap", "devices"])
def test_each_run_has_the_plateau_of_its_own_loss(tmp_path, over):
    objective = losses.objective("cross_entropy")
    tx = optax.chain(tasks.sgd(), optax.contrib.reduce_on_plateau(0.5, patience=1))

    def outcomes(folder, seeds, **options):
        runs = [run_of(folder, seed, objective=objective) for seed in seeds]
        runs = [
            run._replace(state=run.state._replace(opt_state=tx.init(run.state.params)))
            for run in runs
        ]
        return together(folder, runs=runs, task=task_of(objective, tx=tx), **options)

    several = outcomes(tmp_path / "several", SEEDS[:2], over=over)
    alone = [outcomes(tmp_path / "alone", [seed])[0] for seed in SEEDS[:2]]
    for one, other in zip(several, alone, strict=True):
        for a, b in zip(*map(jax.tree.leaves, (one.state, other.state)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    best = [float(one.state.opt_state[1].best_value) for one in several]
    assert np.isfinite(best).all()
    assert best[0] != best[1]


@same_bits
def test_devices_train_runs_of_their_own(tmp_path):
    """Three runs on two devices: the first one has two of them."""
    objective = losses.objective("mmce")  # gathers the batch of all devices that share it
    task = task_of(objective)
    runs = [run_of(tmp_path / "all", seed, objective=objective) for seed in SEEDS]
    outcomes = together(tmp_path, task=task, runs=runs, over="devices")
    for seed, outcome in zip(SEEDS, outcomes, strict=True):
        one = [run_of(tmp_path / "one", seed, objective=objective)]
        (wanted,) = together(tmp_path, task=task, runs=one, over="devices")
        assert same(outcome.state, wanted.state), seed


@same_bits
def test_a_run_that_goes_wrong_does_not_stop_the_others(tmp_path, alone, capsys):
    def broken(state):
        return state._replace(params=jax.tree.map(lambda leaf: leaf * np.inf, state.params))

    runs = [run_of(tmp_path, 1), run_of(tmp_path, 2, change=broken), run_of(tmp_path, 3)]
    one, bad, three = train.fit_all(runs, task_of(), PLAN, devices=train.local_devices(2))
    assert not bad.finished
    assert "not finite at step 0 (epoch 0)" in bad.failed
    assert "seed 2: the loss is not finite" in capsys.readouterr().out
    assert rows_in(tmp_path / "2") == []
    assert_equal(tmp_path, [one, three], alone, seeds=(1, 3))


@same_bits
def test_each_seed_has_its_own_patience(tmp_path):
    plan = dataclasses.replace(PLAN, num_epochs=8, patience=1)
    task = task_of(tx=tasks.sgd(0.4))  # so much that it soon gets worse
    many = together(tmp_path / "many", plan=plan, task=task)
    steps = {seed: outcome.step for seed, outcome in zip(SEEDS, many, strict=True)}
    assert len(set(steps.values())) > 1, steps
    for seed, outcome in zip(SEEDS, many, strict=True):
        (one,) = together(tmp_path / "one", [seed], plan=plan, task=task)
        assert one.step == outcome.step
        assert same(one.state, outcome.state)
        assert rows_in(tmp_path / "one" / str(seed)) == rows_in(tmp_path / "many" / str(seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet5", "resnet20"])
@pytest.mark.parametrize("over", ["map", "devices"])
def test_seeds_of_convolutional_networks(tmp_path, name, over):
    """Layouts and fusions are the compiler's, and they must not depend on the number of runs."""
    random = np.random.default_rng(0)
    images = random.normal(size=(48, 32, 32, 3)).astype(np.float32)
    labels = random.integers(10, size=48).astype(np.int32)
    shared = over == "map"
    module = models.named(name)
    if shared and hasattr(module, "axis_name"):
        module = module.clone(axis_name=train.AXIS)
    tx = train.optimizer("sgd", 0.1, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)
    task = train.Task(
        forward=train.linen(module),
        objective=OBJECTIVE,
        tx=tx,
        metrics={name: metrics.named(name) for name in ("error", "nll")},
        train=tasks.InMemory(images[:32], labels[:32]),
        evaluated={"validation": tasks.InMemory(images[32:], labels[32:])},
        num_classes=10,
        reduction="sum",
    )
    init = jax.jit(lambda key: models.named(name).init(key, images[:1], train=False))

    def runs(folder, seeds):
        for seed in seeds:
            state = train.create(init(jax.random.key(seed)), OBJECTIVE, tx, 10, seed)
            yield train.Run(folder / str(seed), state, seed)

    plan = train.Plan(num_epochs=2, batch_size=16)
    options = {"task": task, "plan": plan, "over": over, "devices": 1 if shared else 2}
    many = together(tmp_path, runs=list(runs(tmp_path / "many", (1, 2, 3))), **options)
    for seed, outcome in zip((1, 2, 3), many, strict=True):
        (one,) = together(tmp_path, runs=list(runs(tmp_path / "one", [seed])), **options)
        assert same(outcome.state, one.state), seed


# --------------------------------------------------------------------------------------------
# Memory.


def test_runs_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    state = {"a": np.zeros((250, 1000), np.float32)}  # a megabyte
    monkeypatch.setattr(memory, "free", lambda devices: 3.5e6)
    devices = train.local_devices(2)
    memory.check_states(state, 3, devices)
    memory.check_states(state, 6, devices, over="devices")
    with pytest.raises(memory.DoesNotFit, match=r"of 4 runs takes 4 MB .* 3.5 MB left: .* 3 at"):
        memory.check_states(state, 4, devices)
    with pytest.raises(memory.DoesNotFit, match=r"train at most 6 at once"):
        memory.check_states(state, 7, devices, over="devices")
    monkeypatch.setattr(memory, "free", lambda devices: 0.9e6)
    with pytest.raises(memory.DoesNotFit, match=r"of 1 run takes .*: take a smaller network"):
        memory.check_states(state, 1, devices)


def test_rows_of_many_labels_are_refused_before_training(monkeypatch, tmp_path):
    """Such as a row for each pixel, which would exhaust the memory in the first evaluation."""
    by_name = {name: metrics.named(name) for name in ("nll", "ece", "adaptive_ece", "aurc")}
    task = task_of(evaluated={"validation": tasks.examples(20)}, metrics=by_name)
    rows = 2 * 20 * 3 * 4  # of two metrics: a score, a hit and a weight of 20 examples
    monkeypatch.setattr(memory, "free", lambda devices: 1e12)
    monkeypatch.setattr(machine, "free_memory", lambda: 2 * memory.COPIES * rows)
    together(tmp_path / "few", [1, 2, 3], task=task)
    monkeypatch.setattr(memory, "MANY_LABELS", 20)
    together(tmp_path / "fits", [1, 2], task=task)
    said = r"adaptive_ece, aurc: rows of the 20 labels of validation take .*: measure them after"
    with pytest.raises(memory.DoesNotFit, match=said):
        together(tmp_path / "none", [1, 2, 3], task=task)
    assert not (tmp_path / "none").exists()


def test_files_in_the_memory_of_a_container_are_not_lost_to_it(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    monkeypatch.setattr(machine, "_of_machine", lambda: 1e12)
    files = {"memory.max": "8000\n", "memory.current": "7900\n"}
    files["memory.stat"] = "anon 3900\ninactive_file 3000\nactive_file 1000\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert memory.free(train.local_devices(1)) == 4100
    assert memory.free(train.local_devices(2)) == 2050
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free(train.local_devices(1)) == 1e12


def test_a_step_that_does_not_fit_says_what_would(monkeypatch, tmp_path):
    result = types.SimpleNamespace(
        temp_size_in_bytes=9_000_000,
        output_size_in_bytes=3_000_000,
        alias_size_in_bytes=2_000_000,
        argument_size_in_bytes=4_000_000,
    )
    compiled = types.SimpleNamespace(memory_analysis=lambda: result)
    text = memory.check_step(compiled, 100, 50e6, 2)
    assert text == (
        "a step needs 4 MB of memory for its inputs (network, optimizer, data) and 10 MB more while"
        " it runs; 50 MB are free: batches of up to about 1,000 examples would fit."
    )
    with pytest.raises(memory.DoesNotFit, match=r"smaller batch_size \(about 100 would fit\)"):
        memory.check_step(compiled, 100, 5e6, 2)

    def no_answer():
        raise NotImplementedError("not on this backend")

    text = memory.check_step(types.SimpleNamespace(memory_analysis=no_answer), 100, 5e6, 2)
    assert text == "this device does not report the memory that a step needs."
    monkeypatch.setattr(memory, "free", lambda devices: 1e5)
    with pytest.raises(memory.DoesNotFit, match=r"a step needs .* on a device, which has 100 kB"):
        together(
            tmp_path,
            [1],
            task=task_of(train=tasks.examples(2000)),
            plan=dataclasses.replace(PLAN, batch_size=2000),
        )


def test_the_memory_of_a_machine_is_known():
    free = memory.free(train.local_devices(8))
    assert 1e6 < 8 * free < 1e14
