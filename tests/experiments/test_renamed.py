"""Folders written under old names of config keys: they resume, and are read by every binary."""

import contextlib
import functools
import json
import shutil

import jax
import numpy as np
import pytest

from calib_jax import train
from experiments import building, cli, finished, initial, renamed, run_report
from tests.experiments.test_building import config_of


def small(**changes):
    config = config_of("digits")
    config.num_epochs, config.model.options.hidden = 2, (8,)
    config.update_from_flattened_dict(changes)
    return config


def in_old_form(config):
    """The config as it was saved before the keys were renamed."""
    old = cli.plain(config)
    old["optimiser"] = old.pop("optimizer")
    return old


@pytest.fixture(scope="module")
def old_folder(tmp_path_factory):
    """A run of two epochs whose config.json and checkpoints have the old keys."""
    folder = tmp_path_factory.mktemp("old")
    experiment = building.build(small())
    (run,) = experiment.runs({1: folder})
    run = run._replace(config=in_old_form(experiment.config))
    (outcome,) = train.fit_all([run], experiment.task, experiment.plan, free=["run"], quiet=True)
    assert outcome.finished
    assert "optimiser" in json.loads((folder / "config.json").read_text())
    return folder


def resumed(config, folder):
    experiment = building.build(config)
    return train.fit_all(
        experiment.runs({1: folder}),
        experiment.task,
        experiment.plan,
        free=["run"],
        current=renamed.current,
        quiet=True,
    )


@pytest.mark.thorough
def test_an_old_folder_resumes_bit_for_bit(old_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(old_folder, folder)
    shutil.rmtree(folder / "checkpoints" / "20")  # as if it had been killed in its second epoch
    (outcome,) = resumed(small(), folder)
    assert (outcome.finished, outcome.already) == (True, False)
    weights = []
    for place in (folder, old_folder):
        with contextlib.closing(train.Checkpoints(place / "checkpoints", read_only=True)) as kept:
            weights.append(kept.variables())
    jax.tree.map(np.testing.assert_array_equal, *weights)
    assert not list(folder.glob("*.damaged*"))


def test_another_value_is_still_another_config(old_folder):
    changed = small(**{"optimizer.learning_rate": 0.2})
    message = r"\(optimizer.learning_rate: 0.1 before, 0.2 now\)"
    with pytest.raises(train.AnotherConfig, match=message):
        resumed(changed, old_folder)


def test_other_binaries_read_an_old_folder(old_folder):
    with contextlib.closing(initial.opened(str(old_folder))) as checkpoints:
        assert initial.config_of(checkpoints).optimizer.learning_rate == 0.1
    assert "sgd with learning rate 0.1" in run_report.page(old_folder, [{"epoch": 2.0}], "", [])
    assert finished._config(old_folder)["optimizer"]["name"] == "sgd"


def test_every_old_key_becomes_the_key_of_today():
    seen = set()
    for loss in ("recall", "mmce_weighted"):
        config = cli.plain(config_of("cifar100_resnet50", loss))
        assert renamed.current(config) == config
        old = cli.plain(config_of("cifar100_resnet50", loss))
        for key, new in renamed.KEYS.items():
            *path, last = key.split(".")
            part = functools.reduce(lambda part, name: part[name], path, old)
            if new in part:
                part[last] = part.pop(new)
                seen.add(key)
        assert renamed.current(old) == config != old
    assert seen == set(renamed.KEYS)


def test_former_names_of_a_loss_and_options_without_effect():
    loss = {
        "name": "entropy_regularised",
        "options": {"scale": 1.0, "gamma": 0.0},
        "reduction": "sum",
    }
    assert renamed.current({"loss": loss})["loss"] == {**loss, "name": "entropy_regularized"}
    loss = {"name": "recall", "options": {"normalised": False, "weighting": "loss"}}
    options = renamed.current({"loss": loss})["loss"]["options"]
    assert options == {"normalized": False, "alpha": 1.0, "counters": "recall"}
    loss = {"name": "focal", "options": {"weighting": "loss", "gamma": 2.0}, "reduction": "sum"}
    assert renamed.current({"warm_up_loss": loss})["warm_up_loss"] == loss
