"""Resumed runs: config keys that may change and keys that may not, and whose folder it may be."""

import pathlib
import shutil

import pytest

from calib_jax import losses, train
from experiments.running import building, cli, training
from tests.experiments.test_configs import config_of
from tests.train.test_loop import run as fit


def small(loss="cross_entropy", **changes):
    config = config_of("digits", loss)
    config.num_epochs, config.model.options.hidden = 2, (8,)
    config.data.options.training_size = 100
    config.update_from_flattened_dict(changes)
    return config


def fitted(folder, config):
    config.run.num_devices = 1
    experiment = building.build(config)
    (outcome,) = training.fit(experiment, {config.seed: pathlib.Path(folder)}, quiet=True)
    return outcome


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A finished run of two epochs of two steps, at a constant rate."""
    folder = tmp_path_factory.mktemp("short")
    assert fitted(folder, small()).finished
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.order": "class_balanced"}, "data.order: shuffled before, class_balanced now"),
        ({"seed": 2}, "seed: 1 before, 2 now"),
        ({"num_epochs": 1}, "num_epochs: 2 before, 1 now"),
        ({"schedule.name": "cosine"}, "schedule.name: constant before, cosine now"),
        ({"best.nll": "max"}, "best.nll: min before, max now"),
    ],
)
def test_what_determines_the_steps_done_is_refused(short, changes, message):
    with pytest.raises(
        cli.Refused, match=rf"another config \({message}\): choose another fol.* old"
    ):
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
    keys = training.free(building.build(new))(cli.plain(old), cli.plain(new), step)
    assert bool(train.differences(cli.plain(old), cli.plain(new), free=keys)) != may


def test_the_losses_that_depend_on_the_length():
    """All others have the same state after the first epochs of a short and of a long run."""
    depends = {
        name for name in losses.catalogue() if training.depends_on_length(losses.objective(name), 5)
    }
    assert depends == {"flsc531", "flsc532"}


OF_OTHERS = {
    "a network of transformers": ("config.json", "model.safetensors"),
    "a project with event files": ("runs/Nov26/events.out.tfevents.1", "report.md"),
    "checkpoints of lightning": ("checkpoints/epoch=3-step=100.ckpt",),
    "numbered checkpoints": ("checkpoints/1000/model.pt", "config.json"),
    "folders of seeds": ("seed_1/events", "seed_2/events"),
    "sources": ("main.c", ".git/HEAD"),
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_folder_of_another_program_is_refused(tmp_path, name):
    for file in OF_OTHERS[name]:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    with pytest.raises(ValueError, match="holds files that belong to no run, such as"):
        training.named(str(tmp_path))


@pytest.mark.slow
def test_folders_of_runs_are_ours_also_as_copies_and_with_more_files(tmp_path):
    fit(tmp_path / "run")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy, ignore=shutil.ignore_patterns(".*"))
    for folder in (tmp_path / "run", copy):
        (folder / "notes.txt").write_text("mine")
        assert training.named(str(folder)) == folder
