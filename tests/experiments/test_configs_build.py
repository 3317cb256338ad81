"""Every config can be built, and is the recipe that it says, without its data set's files.

Networks and steps of training are traced on inputs of the data set's shape: nothing is computed.
"""

import functools
import importlib
import inspect
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import configs
from calib_jax import data, losses
from calib_jax.core import InMemory
from calib_jax.data.formats import files
from experiments.running import building
from tests.data import tiny, tiny_intents, tiny_scenes
from tests.selection import some

FILES = [path.stem for path in pathlib.Path(configs.__file__).parent.glob("[!_]*.py")]
NAMES = sorted(
    name for name in FILES if hasattr(importlib.import_module(f"configs.{name}"), "get_config")
)


class Images(NamedTuple):
    side: int
    num_classes: int


# The inputs of a network from the data sets that are read from files.
SHAPES = {
    "cifar10": Images(32, 10),
    "cifar100": Images(32, 100),
    "tiny_imagenet": Images(64, 200),
    "imagenet": Images(224, 1000),
    "places_lt": Images(224, 365),
    "inaturalist2018": Images(224, 8142),
}


@pytest.fixture(autouse=True, scope="module")
def tiny_files(tmp_path_factory):
    """Write tiny texts, a vocabulary of BERT and road scenes, which black images cannot replace."""
    folder = tmp_path_factory.mktemp("data")
    tiny.word_pieces(folder)
    tiny.camvid(folder)
    tiny_scenes.cityscapes(folder)
    tiny_scenes.synthia(folder)
    tiny.own_images(folder)
    tiny.own_texts(folder)
    tiny_intents.vectors(folder)
    tiny.newsgroups(folder)
    tiny.sst(folder)
    tiny.multi30k(folder)
    tiny.wmt14(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(files.VARIABLE, str(folder))
        yield


def config_of(name, loss="cross_entropy"):
    return importlib.import_module(f"configs.{name}").get_config(loss)


def dataset_of(config):
    """The data set itself if it is shipped or written here, else four black images."""
    if config.data.name not in SHAPES:
        options = {**config.data.options}
        if config.model.name == "bert":
            options["pieces"] = str(files.root(None)[0])
        return data.named(config.data.name, **options)
    side, num_classes = SHAPES[config.data.name]
    black = np.zeros((4, side, side, 3), np.uint8)
    part = InMemory(black, np.arange(4, dtype=np.int32))
    return data.Dataset(
        name=config.data.name,
        class_names=tuple(map(str, range(num_classes))),
        train=part,
        validation=part,
        test=part,
        description="",
        prepare=lambda inputs: jnp.asarray(inputs, jnp.float32) / 255,
    )


def assembled(name, loss="cross_entropy"):
    config = config_of(name, loss)
    return building.assemble(config, dataset_of(config))


# These show most of what the others do, in the time of a few.
QUICK = ("digits", "cifar10_lenet5", "sst_tree_lstm")
some_by_default = pytest.mark.parametrize("name", some(NAMES, QUICK))


@some_by_default
def test_the_network_of_every_config_takes_its_data_set(name):
    experiment = assembled(name)
    start = functools.partial(experiment.module.init_with_output, train=False)
    logits, _ = jax.eval_shape(start, jax.random.key(0), building.inputs_of(experiment.dataset, 2))
    assert logits.shape == (2, *logits.shape[1:-1], experiment.dataset.num_classes)


def test_every_config_says_only_what_its_data_set_knows():
    for name in NAMES:
        config = config_of(name)
        inspect.signature(data.catalogue()[config.data.name]).bind(**config.data.options)


def rates(name, loss, epochs):
    """The learning rate at the beginning of these epochs."""
    config = config_of(name, loss)
    rate = building.learning_rate(config, 10)
    return [float(rate(int(10 * epoch))) for epoch in epochs]


@pytest.mark.parametrize("name", ["tiny_imagenet_resnet50", "tiny_imagenet_resnet110"])
@pytest.mark.parametrize(("loss", "peak"), [("focal", 0.1), ("brier", 0.035)])
def test_the_rates_of_tiny_imagenet(name, loss, peak):
    config = config_of(name, loss)
    assert (config.num_epochs, config.batch_size) == (100, 64)
    result = rates(name, loss, [0, 39, 40, 59, 60, 99])
    assert result == pytest.approx([peak, peak, peak / 10, peak / 10, peak / 100, peak / 100])


@pytest.mark.parametrize("loss", ["flsc531", "flsc532", "flsd53"])
@pytest.mark.parametrize(
    ("name", "milestones"),
    [
        ("tiny_imagenet_resnet50", (30, 70)),
        ("tiny_imagenet_resnet110", (30, 70)),
        ("sst_tree_lstm", (3, 7)),
        ("newsgroups_cnn", None),  # 14 and 35 of 50, in proportion to 100 and 250 of 350
        ("cifar10_resnet50", None),
    ],
)
def test_the_released_epochs_of_scheduled_gammas(name, milestones, loss):
    options = config_of(name, loss).loss.options
    assert options.get("milestones") == (milestones if loss.startswith("flsc") else None)
    objective = losses.objective(loss, **options)  # takes them
    assert objective.clock == ("epoch" if loss.startswith("flsc") else "never")


@pytest.mark.parametrize(
    ("name", "reduction", "first"),
    [
        # Clipped to norm 2, then weight decay, and no Nesterov momentum.
        ("cifar10_resnet50", "sum", 0.1 * (2 + 5e-4)),
        ("cifar100_densenet121", "sum", 0.1 * (2 + 5e-4)),
        ("tiny_imagenet_resnet50", "sum", 0.1 * (2 + 5e-4)),
        # Of Nesterov's momentum the first step is (1 + 0.9) times the gradient.
        ("imagenet_resnet50", "mean", 0.02 * 1.9 * (30 + 1e-4)),
        ("cifar100_densenet40_bc", "mean", 0.1 * 1.9 * 30),
    ],
)
def test_the_first_step_of_the_recipes(name, reduction, first):
    task = assembled(name).task
    assert task.reduction == reduction
    one, steep = jnp.float32(1.0), jnp.float32(30.0)
    moved, _ = task.tx.update(steep, task.tx.init(one), one)
    assert float(moved) == pytest.approx(-first, rel=1e-5)
