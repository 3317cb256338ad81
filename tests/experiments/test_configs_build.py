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
from calib_jax import data, losses, train
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


# What a network sees of the data sets that are read from files.
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
    logits, _ = jax.eval_shape(start, jax.random.key(0), experiment.inputs(2))
    assert logits.shape == (2, *logits.shape[1:-1], experiment.dataset.num_classes)


def test_every_config_says_only_what_its_data_set_knows():
    for name in NAMES:
        config = config_of(name)
        inspect.signature(data.catalogue()[config.data.name]).bind(**config.data.options)


@some_by_default
def test_a_step_of_every_config_can_be_repeated(name):
    """A step that changed a shape or a dtype of the state could not."""
    experiment = assembled(name, "adafocal")
    task = experiment.task
    step = train.make_train_step(
        *(task.forward, task.objective, task.tx),
        reduction=task.reduction,
        augment=task.augment,
        prepare=task.prepare,
        axis_name=train.AXIS,
    )
    examples = task.train[np.arange(4)]
    batch = train.Batch(examples.inputs, examples.labels, np.ones(4, np.float32), np.arange(4))
    batch = jax.tree.map(jnp.asarray, batch)  # of JAX's types
    state, batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype),
        (experiment.template(), batch),
    )
    on_one_device = train.data_parallel(step, train.local_devices(1))
    after, measured = jax.eval_shape(on_one_device, state, batch)
    facts = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (state, after)]
    assert facts[0] == facts[1]
    assert measured["loss"].shape == (1,)


def rates(name, loss, epochs):
    """The learning rate at the beginning of these epochs."""
    config = config_of(name, loss)
    rate = building.learning_rate(config, 10)
    return [float(rate(int(10 * epoch))) for epoch in epochs]


@pytest.mark.parametrize(
    ("name", "loss", "num_epochs"),
    [
        ("cifar10_wide_resnet26_10", "brier", 550),
        ("cifar10_wide_resnet26_10", "flsd53", 350),
        ("cifar100_wide_resnet26_10", "brier", 350),
        ("cifar100_resnet110", "brier", 430),
        ("cifar100_resnet110", "adafocal", 350),
        ("cifar10_resnet110", "brier", 350),
    ],
)
def test_two_networks_train_longer_with_the_brier_score(name, loss, num_epochs):
    assert config_of(name, loss).num_epochs == num_epochs
    result = rates(name, loss, [0, 149, 150, 249, 250, num_epochs - 1])
    assert result == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


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
    ("name", "width", "warm_up", "peak"),
    [
        ("wmt14_transformer_base", 512, 4_000, None),
        ("multi30k_transformer_small", 256, 1_000, 1e-3),
    ],
)
def test_the_rates_of_translation(name, width, warm_up, peak):
    # Equation 3 of Vaswani et al. 2017, or the same shape with another peak.
    rate = building.learning_rate(config_of(name), 10)
    for step in (0, 7, warm_up // 2, warm_up, 4 * warm_up, 100_000):
        shape = min(step * warm_up**-1.5, max(step, 1) ** -0.5)
        expected = width**-0.5 * shape if peak is None else peak * warm_up**0.5 * shape
        assert float(rate(step)) == pytest.approx(expected, rel=1e-5)
    task = assembled(name).task
    steep = jnp.float32(30.0)
    state = task.tx.init(steep)
    for _ in range(2):
        moved, state = task.tx.update(steep, state, steep)
    # A step of Adam is the rate, whatever a constant gradient is: that of the second step.
    assert float(moved) == pytest.approx(-float(rate(1)), rel=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("imagenet")])
def test_the_rates_of_imagenet(name):
    config = config_of(name)
    assert (config.num_epochs, config.batch_size) == (90, 256)
    result = rates(name, "cross_entropy", [0, 2.5, 5, 29, 30, 60, 80])
    assert result == pytest.approx([0.02, 0.06, 0.1, 0.1, 0.01, 0.001, 0.0001])


@pytest.mark.parametrize(
    ("name", "images", "steps", "rate"),
    [
        ("cityscapes_deeplab_resnet18", 2975 - 144 - 95 - 122, 90_000, 1e-4),
        ("synthia_deeplab_resnet18", 2205, 100_000, 1e-3),
    ],
)
def test_the_steps_of_segmentation(name, images, steps, rate):
    config = config_of(name)
    in_an_epoch = images // config.batch_size
    assert steps <= config.num_epochs * in_an_epoch < steps + in_an_epoch
    assert rates(name, "cross_entropy", [0, 10, 200]) == pytest.approx([rate] * 3)


@pytest.mark.parametrize(
    ("name", "peak"), [("places_lt_resnet152", 0.005), ("inaturalist2018_resnet50", 0.01)]
)
def test_the_rates_of_the_long_tails(name, peak):
    config = config_of(name)
    assert (config.batch_size, config.loss.reduction) == (128, "mean")
    result = rates(name, "cross_entropy", [0, config.num_epochs / 2, config.num_epochs])
    assert result == pytest.approx([peak, peak / 2, 0], abs=1e-8)
    # The command of the second stage trains the last layer alone.
    config.optimizer.groups = (("head/*", {}), ("*", {"frozen": True}))
    tx = building.optimizer(config, 1.0)
    params = {name: {"kernel": jnp.ones(1)} for name in ("head", "stage1_block1")}
    moved, _ = tx.update(params, tx.init(params), params)
    assert float(moved["head"]["kernel"][0]) != 0 == float(moved["stage1_block1"]["kernel"][0])


def test_the_recipe_of_bert():
    assert rates("newsgroups_bert", "cross_entropy", [0, 0.1, 0.3, 1.2, 2.9]) == pytest.approx(
        [0, 5e-5 / 3, 5e-5, 1e-4 / 3, 5e-5 / 27]
    )
    config = config_of("newsgroups_bert")
    config.num_epochs = 2  # the warm-up is a tenth of these
    assert float(building.learning_rate(config, 10)(2)) == pytest.approx(5e-5)
    tx = building.optimizer(config, 1.0)
    params = {"kernel": jnp.ones(1), "bias": jnp.ones(1), "scale": jnp.ones(1)}
    params = {"dense": params}
    moved, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    decay = {name: float(leaf[0]) for name, leaf in moved["dense"].items()}
    assert decay == pytest.approx({"kernel": -0.01, "bias": 0.0, "scale": 0.0})


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


def test_every_config_says_its_command():
    for name in NAMES:
        text = importlib.import_module(f"configs.{name}").__doc__
        assert f"python -m experiments.train --config=configs/{name}.py" in text, name
