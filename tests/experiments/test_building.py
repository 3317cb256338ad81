"""Every entry of a config reaches the training."""

import dataclasses
import importlib

import numpy as np
import pytest

from calib_jax import data
from experiments.running import building, initial


def config_of(name, loss="cross_entropy"):
    return importlib.import_module(f"configs.{name}").get_config(loss)


def test_the_papers_recipe():
    """Rate 0.1 until epoch 150, a tenth until 250, a hundredth after; summed, clipped to 2."""
    config = config_of("digits", "focal")
    base = importlib.import_module("configs.base").base("focal")
    config.schedule, config.optimizer = base.schedule, base.optimizer
    rate = building.learning_rate(config, 352)
    steps = [0, 352 * 150 - 1, 352 * 150, 352 * 250]
    assert [float(rate(step)) for step in steps] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    assert base.loss.reduction == "sum"
    assert (base.optimizer.clip_norm, base.optimizer.weight_decay) == (2.0, 5e-4)
    assert (base.num_epochs, base.batch_size) == (350, 128)


class WithoutLabels:
    """A source that knows no label without reading it."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        return self.source[index]


def test_class_counts_reach_the_loss_and_labels_the_order():
    config = config_of("digits", "logit_adjusted")
    config.data.order = "class_balanced"
    config.model.options.hidden = (4,)
    experiment = building.build(config)
    labels = np.asarray(experiment.dataset.train.labels)
    shares = np.bincount(labels, minlength=10) / 500
    np.testing.assert_array_equal(experiment.dataset.class_counts, 500 * shares)
    log_prior = experiment.state().loss_state.log_prior
    np.testing.assert_allclose(log_prior, np.log(shares), rtol=1e-6)
    chosen = experiment.task.examples_of(seed=1, epoch=0)
    assert len(chosen) == 500 > len(set(chosen.tolist()))
    assert experiment.epoch_steps == 10
    weights = np.where(labels == 3, 0.0, 0.5)
    void = dataclasses.replace(experiment.dataset.train, weights=weights)
    masked = dataclasses.replace(experiment.dataset, train=void)
    np.testing.assert_array_equal(
        masked.class_counts, np.where(np.arange(10) == 3, 0, 500 * shares)
    )
    order = building.sampling("class_balanced", masked)(1, 0)
    assert set(labels[order]) == {*range(10)} - {3}
    part = data.subset(WithoutLabels(experiment.dataset.train), np.arange(20))
    blind = dataclasses.replace(experiment.dataset, train=part)
    assert blind.class_counts is None
    with pytest.raises(ValueError, match="logit_adjusted needs the number of training examples of"):
        building.assemble(config, blind)
    config.loss = config_of("digits").loss
    with pytest.raises(ValueError, match="class_balanced needs the labels of digits in memory"):
        building.assemble(config, blind)
    config.data.order = "balanced"
    with pytest.raises(ValueError, match=r"data.order must be one of 'shuffled', 'class_balanced'"):
        building.assemble(config, blind)


def test_a_data_folder_reaches_the_data_sets_that_have_files(tiny_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("CALIB_JAX_DATA_DIR", str(tmp_path))  # which has none
    config = config_of("cifar10_lenet5")
    assert "data_dir" not in config.data.options  # a run may go on on another machine
    assert len(building.build(config, data_dir=str(tiny_folder)).dataset.test) == 20
    with pytest.raises(FileNotFoundError, match="the data set cifar10 is not in"):
        building.build(config)
    assert building.build(config_of("digits"), data_dir=str(tiny_folder)).dataset.name == "digits"


def test_weights_to_begin_with_are_asked_for_only_at_the_beginning():
    config = config_of("digits")
    config.init_from = "nowhere"
    experiment = building.build(config)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        experiment.state(2)
    assert int(experiment.state(2, given=False).step) == 0


class About:
    """The `about` record of the last checkpoint of a run."""

    def __init__(self, **changes):
        self.found = {
            "config": {"patience": changes.pop("patience", 3), "patience_for": "nll"},
            "rows": [{"epoch": 5.0, "num_epochs": 9}],
            **{"done": True, "waited": 3, "best": {"nll": {"step": 20}}},
            **changes,
        }

    def about(self):
        return self.found


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "best_nll"),
        ({"done": False}, "latest"),  # patience has not ended it yet
        ({"waited": 2}, "latest"),
        ({"rows": [{"epoch": 9.0, "num_epochs": 9}]}, "latest"),  # it went through all epochs
        ({"patience": 0}, "latest"),
    ],
)
def test_the_checkpoint_that_a_run_is_measured_by(changes, name):
    assert initial.chosen(About(**changes)) == name
