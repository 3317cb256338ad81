"""Config keys that may change when a run resumes, and keys that may not."""

import pathlib

import jax
import numpy as np
import pytest

from calib_jax import losses, train
from calib_jax.train import log
from experiments.running import building, cli, resuming, training
from tests.experiments.test_building import config_of


def small(loss="cross_entropy", **changes):
    config = config_of("digits", loss)
    config.num_epochs, config.model.options.hidden = 2, (8,)
    config.data.options.training_size = 100
    config.update_from_flattened_dict(changes)
    return config


def fitted(folder, config):
    config.run.num_devices = 1
    experiment = building.build(config)
    (outcome,) = training.fit(experiment, {1: pathlib.Path(folder)}, environment={}, quiet=True)
    return outcome


def same(one, other):
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A finished run of two epochs of two steps, at a constant rate."""
    folder = tmp_path_factory.mktemp("short")
    assert fitted(folder, small()).finished
    return folder


@pytest.fixture
def run(short, tmp_path):
    import shutil

    shutil.copytree(short, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_more_epochs_are_one_long_run(run, tmp_path):
    longer = fitted(run, small(num_epochs=5))
    assert (longer.finished, longer.already, longer.step) == (True, False, 10)
    whole = fitted(tmp_path / "whole", small(num_epochs=5))
    assert same(longer.state, whole.state)
    assert longer.best == whole.best
    rows = [log.read_rows(folder / log.ROWS) for folder in (run, tmp_path / "whole")]
    times = {"seconds", "evaluation_seconds", "examples_per_second", "num_epochs"}
    first, second = ([{k: v for k, v in row.items() if k not in times} for row in r] for r in rows)
    assert first == second
    assert "num_epochs: 2 before, 5 now" in (run / log.SPOKEN).read_text()
    assert fitted(run, small(num_epochs=5)).already
    assert '"num_epochs": 5' in (run / "config.json").read_text()


@pytest.mark.slow
def test_other_metrics_bins_and_tests(run):
    changes = {
        "metrics": ("brier",),
        "num_bins": 10,
        "evaluate_test": True,
        "patience": 9,
        "patience_for": "brier",
        "num_epochs": 3,
    }
    config = small(**changes)
    with config.unlocked():
        config.best = {"nll": "min", "brier": "min"}
    outcome = fitted(run, config)
    assert outcome.finished
    assert set(outcome.best) == {"nll", "brier"}
    rows = log.read_rows(run / log.ROWS)
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert "validation_ece" in rows[0]
    assert "validation_ece" not in rows[-1]
    assert {"validation_brier", "test_brier"} <= set(rows[-1])
    table = (run / log.TABLE).read_text().splitlines()
    assert {"test_brier", "validation_ece"} <= set(table[0].split(","))
    assert {line.count(",") for line in table} == {table[0].count(",")}
    row = dict(zip(table[0].split(","), table[-1].split(","), strict=True))
    assert float(row["test_brier"]) == rows[-1]["test_brier"]
    assert row["validation_ece"] == ""


@pytest.mark.slow
def test_more_patience_goes_on_and_another_metric_waits_anew(tmp_path):
    """With a learning rate of 0 nothing improves after the first evaluation."""
    changes = {"optimizer.learning_rate": 0.0, "num_epochs": 9, "patience_for": "nll"}
    assert fitted(tmp_path, small(patience=2, **changes)).step == 3 * 2
    assert fitted(tmp_path, small(patience=2, **changes)).already
    assert fitted(tmp_path, small(patience=3, **changes)).step == 4 * 2
    anew = fitted(tmp_path, small(patience=3, **changes | {"patience_for": "ece"}))
    assert anew.step == 7 * 2  # three more evaluations without a better ECE
    assert fitted(tmp_path, small(patience=0, **changes)).step == 9 * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.order": "class_balanced"}, "data.order: shuffled before, class_balanced now"),
        ({"batch_size": 25}, "batch_size: 50 before, 25 now"),
        ({"num_epochs": 1}, "num_epochs: 2 before, 1 now"),
        ({"schedule.name": "cosine"}, "schedule.name: constant before, cosine now"),
        ({"best.nll": "max"}, "best.nll: min before, max now"),
    ],
)
def test_what_determines_the_steps_done_is_refused(short, changes, message):
    with pytest.raises(cli.Refused, match=rf"another config \({message}\): choose another"):
        fitted(short, small(**changes))


@pytest.mark.parametrize(
    ("before", "now", "step", "may"),
    [
        ({}, {"num_epochs": 9}, 4, True),
        ({"schedule.name": "cosine"}, {"num_epochs": 9}, 4, False),
        ({"schedule.name": "multi_step"}, {"num_epochs": 9}, 4, True),
        ({"schedule.name": "multi_step"}, {"schedule.milestones": (2, 3)}, 4, True),
        ({"schedule.name": "multi_step"}, {"schedule.milestones": (1, 3)}, 4, False),
        ({"schedule.name": "multi_step"}, {"schedule.milestones": (1, 3)}, 2, True),
        ({"schedule.name": "multi_step"}, {"schedule.factor": 0.5}, 4, True),
        ({"schedule.warm_up_epochs": 1}, {"schedule.warm_up_epochs": 2}, 4, False),
        ({}, {"optimizer.learning_rate": 0.2}, 4, False),
        ({"loss": "flsc531"}, {"num_epochs": 9}, 4, False),
        ({"loss": "adafocal"}, {"num_epochs": 9}, 4, True),
        ({"loss": "adafocal", "eval_every_steps": 3}, {"num_epochs": 9}, 4, False),
        ({"loss": "adafocal", "eval_every_steps": 3}, {"num_epochs": 9}, 6, True),
        ({"loss": "recall"}, {"num_epochs": 9}, 4, True),
    ],
)
def test_the_length_is_free_where_the_steps_done_do_not_depend_on_it(before, now, step, may):
    before = dict(before)
    loss = before.pop("loss", "cross_entropy")
    old, new = small(loss, **before), small(loss, **before | now)
    keys = resuming.free(building.build(new))(cli.plain(old), cli.plain(new), step)
    assert bool(train.differences(cli.plain(old), cli.plain(new), free=keys)) != may


def test_the_losses_that_depend_on_the_length():
    """All others have the same state after the first epochs of a short and of a long run."""
    depends = {
        name for name in losses.catalogue() if resuming.depends_on_length(losses.objective(name), 5)
    }
    assert depends == {"flsc531", "flsc532"}
