"""Every config is a step that can be traced, on inputs of its data set's shape, without its files.

Nothing is computed: `jax.eval_shape` runs the network's initialisation, a step of training with
the config's loss, reduction and optimiser, and a step of evaluation, on shapes alone.
"""

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
from configs.base import base
from experiments import building

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
}


def config_of(name, loss="cross_entropy"):
    return importlib.import_module(f"configs.{name}").get_config(loss)


def dataset_of(config):
    """The data set itself if it is shipped, else four black images in its place."""
    if config.data.name not in SHAPES:
        return building.examples(config)
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


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_every_config_can_be_traced(name):
    experiment = building.assemble(config := config_of(name, "adafocal"), dataset_of(config))
    task, devices = experiment.task, train.local_devices(1)
    step = train.make_train_step(
        task.forward,
        task.objective,
        task.tx,
        reduction=task.reduction,
        axis_name=train.AXIS,
        augment=task.augment,
        prepare=task.prepare,
    )
    examples = task.train[np.arange(4)]
    batch = train.Batch(examples.inputs, examples.labels, np.ones(4, np.float32), np.arange(4))
    state, batch = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype),
        (experiment.template(), batch),
    )
    after, measured = jax.eval_shape(train.data_parallel(step, devices), state, batch)
    # A step that changed a shape or a dtype could not be repeated, nor resumed.
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(
        lambda leaf: leaf.dtype, state
    )
    assert measured["loss"].shape == (1,)


@pytest.mark.parametrize("name", NAMES)
def test_every_config_says_its_command(name):
    text = importlib.import_module(f"configs.{name}").__doc__
    assert f"python -m experiments.train --config=configs/{name}.py" in text
