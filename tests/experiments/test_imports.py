"""Members of the user's own by import path: how they are built, and what is refused."""

import importlib
import inspect
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags

from calib_jax import metrics
from experiments.running import building, cli, imports
from tests.data.tiny import own_texts
from tests.experiments.processes import UNDRAWN, finish, refused
from tests.experiments.test_configs import config_of

SOURCE = '''
"""A package of the user's own, which leaves a file behind whenever it is imported."""

import pathlib

import flax.linen as nn
import flax.nnx as nnx
import jax.numpy as jnp

from calib_jax import data, losses, metrics

pathlib.Path(__file__).with_name("imported").touch()


def certainty(logits, labels, *, power=2.0):
    """A loss function: (1 - p) ** power."""
    return (1 - jnp.exp(-losses.cross_entropy(logits, labels))) ** power


def factory(*, gamma=1.0):
    """A factory of an objective."""
    return losses.objective("focal", gamma=gamma)


class Small(nn.Module):
    num_classes: int
    width: int = 4

    @nn.compact
    def __call__(self, x, *, train, mask=None):
        x = nn.relu(nn.Dense(self.width)(x.reshape(len(x), -1)))
        return nn.Dense(self.num_classes, name="head")(x)


class Newer(nnx.Module):
    """A network of flax.nnx whose call takes only the inputs."""

    def __init__(self, num_classes, width=4, *, rngs):
        self.first = nnx.Linear(64, width, use_bias=False, rngs=rngs)
        self.head = nnx.Linear(width, num_classes, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.first(x.reshape(len(x), -1))))


def fewer(size=100):
    """A data set."""
    return data.named("digits", training_size=size)


@metrics.metric(metrics.error.prepare, lambda sums: 100 * metrics.error.finish(sums))
def percent_wrong(logits, labels=None, weights=None, *, excluded_class=None):
    """Compute the error in percent."""
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder of a user, as the current one."""
    (tmp_path / "own.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own", None)
    metrics.catalogue().pop("percent_wrong", None)


PATHS = {
    "loss.name": "own:certainty",
    "warm_up_loss.name": "own:factory",
    "model.name": "own:Small",
    "data.name": "own:fewer",
    "metrics": ("ece,own:percent_wrong",),
}


def test_members_are_built_from_the_current_folder(package):
    config = config_of("digits")
    config.model.options, config.data.options = {}, {}
    config.update_from_flattened_dict(PATHS)
    experiment = building.build(config)
    assert experiment.module.width == 4
    assert len(experiment.dataset.train) == 100
    logits, labels = jnp.array([[1.0, 0.0], [0.0, 3.0]]), jnp.array([0, 0])
    p = np.exp([1.0, 0.0]) / (np.exp([1.0, 0.0]) + np.exp([0.0, 3.0]))
    value = experiment.task.objective.value((), logits, labels, jnp.ones(2))
    np.testing.assert_allclose(value, (1 - p) ** 2, rtol=1e-6)
    chosen = experiment.task.metrics
    assert list(chosen) == ["ece", "percent_wrong", "error", "nll"]
    assert float(chosen["percent_wrong"](logits, labels)) == 50.0
    config.model.name = "own:Newer"
    shapes = [leaf.shape for leaf in jax.tree.leaves(building.build(config).template().params)]
    assert shapes == [(64, 4), (4, 10)]
    config.data.update(name="own_texts", options={"csv_file": str(own_texts(package))})
    assert building.build(config).template().params["head"]["kernel"].shape == (4, 3)


def parsed(monkeypatch, *arguments):
    values = flags.FlagValues()
    imports.define_config("", values)
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    values(sys.argv)
    return values["config"].value


@pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")  # of ml_collections
@pytest.mark.parametrize("by_name", [True, False])
def test_options_in_the_config_are_those_that_the_flags_set(package, monkeypatch, by_name):
    file = inspect.getfile(importlib.import_module("configs.digits"))
    named = [f"--config={file}:focal", "--config.loss.name=own:certainty"]
    config = parsed(
        monkeypatch,
        *(named if by_name else [f"--config={file}:own:certainty"]),
        "--config.loss.options.power=4",
        "--config.model.name=own:Small",
    )
    assert config.loss.to_dict() == {
        "name": "own:certainty",
        "options": {"power": 4},
        "reduction": "mean",
    }
    assert config.model.to_dict() == {"name": "own:Small", "options": {}}
    assert config.data.name == "digits"


SETTINGS = {
    "optimizer.name=adam": "adam",
    "optimizer.b2=0.98": 0.98,
    'optimizer.groups=(("*/bias", {"weight_decay": 0.0}),)': (("*/bias", {"weight_decay": 0.0}),),
    "schedule.name=linear": "linear",
    "schedule.start=1": 1.0,
    "schedule.warm_up_steps=5": 5,
}


@pytest.mark.filterwarnings("ignore:.*load_module:DeprecationWarning")  # of ml_collections
def test_flags_add_the_keys_of_optimizers_and_schedules_that_the_config_lacks(monkeypatch):
    file = inspect.getfile(importlib.import_module("configs.digits"))
    plain = parsed(monkeypatch, f"--config={file}:focal")
    assert cli.plain(plain) == cli.plain(config_of("digits", "focal"))
    given = [f"--config.{setting}" for setting in SETTINGS]
    config = parsed(monkeypatch, f"--config={file}:focal", *given)
    added = {"optimizer": {"b2", "groups"}, "schedule": {"start", "warm_up_steps"}}
    for section, keys in added.items():
        assert {*config[section]} - {*plain[section]} == keys
    values = {setting.partition("=")[0]: value for setting, value in SETTINGS.items()}
    flat = config.to_dict()
    assert {key: flat[key.split(".")[0]][key.split(".")[1]] for key in values} == values
    assert [float(building.learning_rate(config, 10)(step)) for step in (0, 5)] == pytest.approx(
        [config.optimizer.learning_rate * config.schedule.warm_up_factor, 0.1], rel=1e-3
    )
    building.optimizer(config, 0.1)
    config = parsed(monkeypatch, f"--config={file}:focal", "--config.optimizer.b3=0.9")
    with pytest.raises(ValueError, match="key of config"):
        building.optimizer(config, 0.1)
    nesterov = parsed(monkeypatch, f"--config={file}", "--config.optimizer.nesterov")
    assert nesterov.optimizer.nesterov is True


@pytest.mark.parametrize("key", PATHS)
def test_code_that_a_folder_names_is_not_imported_unasked(package, key):
    config = config_of("digits")
    config.update_from_flattened_dict({key: PATHS[key]})
    saved = cli.plain(config)
    with pytest.raises(ValueError, match=r"config of a/run names code to import, own:\w+: add --a"):
        imports.check_allowed(saved, "a/run", allow_imports=False)
    imports.check_allowed(saved, "a/run", allow_imports=True)
    imports.check_allowed(cli.plain(config_of("digits")), "a/run", allow_imports=False)
    assert not (package / "imported").exists()
    assert "own" not in sys.modules


def test_the_flags_of_the_run_given_again_allow_its_imports(package, monkeypatch):
    config = {"loss": {"name": "own:certainty"}, "model": {"name": "own:factory"}}
    config |= {"metrics": ["ece", "own:percent_wrong"], "best": {}}
    flags = [
        *("--config.loss.name=own:certainty", "--config.model.name", "own:factory"),
        "--config.metrics=ece,own:percent_wrong",
    ]
    arguments = ["evaluate", "--workdir=run", *flags]
    assert imports.without_import_flags(arguments) == arguments[:2]
    with_config = ["evaluate", "--config=configs/digits.py", *flags]
    assert imports.without_import_flags(with_config) == with_config
    monkeypatch.setattr(sys, "argv", arguments)
    imports.check_allowed(config, "a/run", allow_imports=False)
    monkeypatch.setattr(sys, "argv", arguments[:3])
    with pytest.raises(ValueError, match=r"import, own:factory, own:percent_wrong: add --allow_im"):
        imports.check_allowed(config, "a/run", allow_imports=False)
    monkeypatch.setattr(sys, "argv", ["evaluate", "--config.loss.name=own:other"])
    with pytest.raises(
        ValueError,
        match=r"name=own:other differs from own:\w+, the value of the run in a/run: leave",
    ):
        imports.check_allowed(config, "a/run", allow_imports=True)


def test_a_network_of_the_users_own_is_trained_and_evaluated_with_permission(package, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(package))
    paths = (f"--config.{key}={value}" for key, value in PATHS.items() if key != "metrics")
    folder = package / "run"
    output = finish(
        "train",
        "--config=configs/digits.py",
        *paths,
        "--config.metrics=ece,own:percent_wrong",
        "--config.num_epochs=1",
        f"--workdir={folder}",
        before=UNDRAWN,
    )
    row = json.loads((folder / "metrics.jsonl").read_text())
    wrong = row["validation_percent_wrong"]
    assert wrong == pytest.approx(100 * row["validation_error"], rel=1e-5)
    assert f"--workdir={folder} --allow_imports" in output
    (package / "imported").unlink()
    output = refused("evaluate", f"--workdir={folder}", "--resamples=20")
    assert f"the config of {folder} names code to import, own:certainty, own:factory" in output
    assert not (package / "imported").exists()
