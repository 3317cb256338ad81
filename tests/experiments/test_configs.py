"""Configs: their entries reach the training, each builds, and each is the recipe that it says.

Networks and steps of training are traced on inputs of the data set's shape: nothing is computed.
"""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import re

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from ml_collections import ConfigDict

import configs
from calib_jax import data, losses, models, train
from calib_jax.core import InMemory
from calib_jax.data.formats import files
from configs import losses as fragments
from experiments.running import building, initial
from tests.data import tiny, tiny_photographs
from tests.selection import some
from tests.train.tasks import OnDisk

FILES = [path.stem for path in pathlib.Path(configs.__file__).parent.glob("[!_]*.py")]
NAMES = sorted(
    name for name in FILES if hasattr(importlib.import_module(f"configs.{name}"), "get_config")
)


# The sides and classes of the images of data sets that are read from files.
SHAPES = {
    "cifar10": (32, 10),
    "cifar100": (32, 100),
    "tiny_imagenet": (64, 200),
    "imagenet": (224, 1000),
    "places_lt": (224, 365),
    "inaturalist2018": (224, 8142),
}


@pytest.fixture(autouse=True, scope="module")
def tiny_files(tmp_path_factory):
    """Write tiny texts, a vocabulary of BERT and road scenes, which black images cannot replace."""
    folder = tmp_path_factory.mktemp("data")
    tiny.word_pieces(folder)
    tiny.camvid(folder)
    tiny_photographs.cityscapes(folder)
    tiny_photographs.synthia(folder)
    tiny.own_images(folder)
    tiny.own_texts(folder)
    tiny.vectors(folder)
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


def test_the_papers_recipe():
    """Rate 0.1 until epoch 150, a tenth until 250, a hundredth after; summed, clipped to 2."""
    config = config_of("digits", "focal")
    base = fragments.base("focal")
    config.schedule, config.optimizer = base.schedule, base.optimizer
    rate = building.learning_rate(config, 352)
    steps = [0, 352 * 150 - 1, 352 * 150, 352 * 250]
    assert [float(rate(step)) for step in steps] == pytest.approx([0.1, 0.1, 0.01, 0.001])
    assert base.loss.reduction == "sum"
    assert (base.optimizer.clip_norm, base.optimizer.weight_decay) == (2.0, 5e-4)
    assert (base.num_epochs, base.batch_size) == (350, 128)


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
    part = data.subset(OnDisk(experiment.dataset.train), np.arange(20))
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


@pytest.mark.parametrize("given", ["train,test", ("train,test",), ["train", "test"]])
def test_the_text_of_a_flag_may_name_several(given):
    dataset = building.data_set("digits", {"noisy": given, "label_noise": 1.0})
    assert "100% of the labels of train, test replaced" in dataset.description


@pytest.mark.parametrize(("watched", "direction"), [("accuracy", "max"), ("brier", "min")])
def test_patience_may_watch_a_metric_whose_direction_is_known(watched, direction):
    config = config_of("digits")
    config.patience, config.patience_for = 3, watched
    assert building.build(config).plan.best == {**config.best, watched: direction}


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


def residual(*, num_classes, dtype="float32", remat=False):
    """A residual network of two blocks without batch norm, whose examples are independent."""
    sizes = {"width": 8, "norm": "none", "num_classes": num_classes}
    return models.resnet([1, 1], False, **sizes, dtype=dtype, remat=remat)


def network(**changes):
    """The network on 8 x 8 digits."""
    config = config_of("digits")
    config.data.options.training_size = 40
    config.batch_size = 8
    config.model.name = "tests.experiments.test_configs:residual"
    config.model.options = ConfigDict()
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return building.build(config)


def step_of(experiment):
    """The compiled step of training, and the first eight examples."""
    task, examples = experiment.task, experiment.dataset.train[np.arange(8)]
    step = train.make_train_step(
        task.forward,
        task.objective,
        task.tx,
        reduction=task.reduction,
        accumulate=experiment.plan.accumulate,
        prepare=task.prepare,
    )
    batch = train.Batch(examples.inputs, examples.labels, jnp.ones(8), jnp.arange(8))
    return jax.jit(step), batch


def products(experiment):
    """List the precisions of all matrix products and convolutions in the program of a step."""
    step, batch = step_of(experiment)
    program = step.lower(experiment.template(), batch).as_text()
    called = re.compile(r"stablehlo\.(dot_general|convolution)")
    lines = filter(called.search, program.splitlines())
    return [tuple(re.findall(r"\b(HIGH|HIGHEST)\b", line)) for line in lines]


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("float32", ("HIGHEST",) * 2), ("tensorfloat32", ("HIGH",) * 2), ("bfloat16", ())],
)
def test_float32_permits_no_shorter_factors(precision, expected):
    """XLA's default permits TF32 on a GPU and bfloat16 on a TPU, also for arrays of float32."""
    found = products(network(precision=precision, accumulate=2))
    assert len(found) >= 20
    assert set(found) == {expected}


def test_an_option_of_the_network_holds_where_its_switch_is_left():
    experiment = network(**{"model.options.dtype": "bfloat16", "model.options.remat": True})
    assert (experiment.module.dtype, experiment.module.remat) == ("bfloat16", True)


LOSSES = fragments.names()


def test_every_row_is_an_objective_whose_options_can_be_overridden():
    assert sorted(losses.catalogue()) == LOSSES
    for name in LOSSES:
        config = fragments.load(name)
        assert isinstance(config, ml_collections.ConfigDict), name
        assert set(config) == {"name", "options", "reduction"}, name
        assert config.name == name, name
        assert config.reduction in {"sum", "mean"}, name
        losses.objective(config.name, **config.options)
        # A ConfigDict refuses keys that it does not hold, so `--config.loss.options.gamma=2`
        # needs the key.
        parameters = inspect.signature(losses.catalogue()[name]).parameters.values()
        options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        assert set(config.options) == options, name
        # Nor can a bare None be given a value: a placeholder has a type.
        types = {config.options.get_type(option) for option in config.options}
        assert type(None) not in types, name


def test_fragments_are_not_shared():
    fragments.load("focal").options.gamma = 7.0
    assert fragments.load("focal").options.gamma != 7.0
    fragments.load("flsc531").options.milestones = (3, 7)
    assert fragments.load("flsc531").options.milestones is None
    assert fragments.load("flsc532").options.milestones is None


def test_unknown_loss_names_the_near_one():
    with pytest.raises(ValueError, match=r"'flsd_53'.*did you mean 'flsd53'"):
        fragments.load("flsd_53")
