"""The switches of a config that hold for every network: precision, remat and accumulate."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from calib_jax import models, train
from experiments.running import building
from tests.experiments.test_building import config_of
from tests.selection import first_case


def residual(*, num_classes, dtype="float32", remat=False):
    """A residual network of two blocks without batch norm, whose examples are independent."""
    sizes = {"width": 8, "norm": "none", "num_classes": num_classes}
    return models.resnet([1, 1], False, **sizes, dtype=dtype, remat=remat)


def network(**changes):
    """The network on 8 x 8 digits."""
    config = config_of("digits")
    config.data.options.training_size = 40
    config.batch_size = 8
    config.model.name = "tests.experiments.test_switches:residual"
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


def after_a_step(experiment):
    """The state after one step, and the logits of the first eight examples before it."""
    (step, batch), state = step_of(experiment), experiment.state()
    forward = jax.jit(lambda *args: experiment.task.forward(*args, train=False)[0])
    logits = forward(state.params, state.model_state, building.inputs_of(experiment.dataset, 8))
    return step(state, batch)[0], logits


@pytest.fixture(scope="module")
def plain():
    return after_a_step(network())


def distance(one, other):
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return max(float(jnp.max(jnp.abs(a - b))) for a, b in pairs)


@pytest.mark.slow
def test_half_precision_keeps_parameters_and_logits(plain):
    state, logits = after_a_step(network(precision="bfloat16"))
    assert network(precision="bfloat16").module.dtype == "bfloat16"
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32
    assert 1e-6 < distance(logits, plain[1]) < 0.1
    assert 1e-8 < distance(state.params, plain[0].params) < 0.05


def products(experiment):
    """List the precisions of all matrix products and convolutions in the program of a step."""
    step, batch = step_of(experiment)
    program = step.lower(experiment.template(), batch).as_text()
    called = re.compile(r"stablehlo\.(dot_general|convolution)")
    lines = filter(called.search, program.splitlines())
    return [tuple(re.findall(r"\b(HIGH|HIGHEST)\b", line)) for line in lines]


@first_case
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
