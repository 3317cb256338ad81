"""Losses, metrics, calibrators and training steps lower for a GPU and a TPU, which no test runs on.

`jax.export` lowers without the device, and raises an error for an operation that a platform lacks.
They are traced as in programs of users who forbid implicit promotions, such as int32 to float32.
Logits of losses and metrics are bfloat16, with which they compute in float32.
"""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, losses, metrics, train
from tests.selection import some
from tests.train import tasks

PLATFORMS = ("cuda", "tpu")
CLASSES = 5
# One of each way to make a loss, and one metric of each kind of statistic.
QUICK_LOSSES = {"adafocal", "bsce_gra", "mmce", "recall"}
QUICK_METRICS = {"nll", "ece", "adaptive_ece", "classwise_ece", "aurc", "reliability"}
assert set(losses.catalogue()) >= QUICK_LOSSES
assert set(metrics.catalogue()) >= QUICK_METRICS


def lowered(function, *arguments):
    """Lower a function for both platforms; return the text of the program."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
    with jax.numpy_dtype_promotion("strict"):
        exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    assert exported.platforms == PLATFORMS
    return exported.mlir_module()


def batch(dtype, shape=(16,)):
    return jnp.zeros((*shape, CLASSES), dtype), jnp.zeros(shape, jnp.int32), jnp.ones(shape)


def traced_with_64_bits(function, shape=(16,)):
    """Trace a function of a batch where 64 bits and strict promotion are switched on."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        for dtype, integer, kind in (("float32", "int64", "float32"), ("float64", "int32", "bool")):
            logits, labels, weights = batch(dtype, shape)
            jax.eval_shape(function, logits, labels.astype(integer), weights.astype(kind))


def step_of(name, **options):
    """Return a function of state and batch, the value, gradient and update of a loss; and a state.

    The third value is the shape of its labels.
    """
    objective = losses.objective(name, **options)

    def step(state, logits, labels, weights):
        def total(logits):
            return jnp.sum(objective.value(state, logits, labels, weights))

        evidence = objective.evidence(state, logits, labels, weights)
        return jax.value_and_grad(total)(logits), objective.update(
            state, evidence, losses.Progress(1, 1, 2)
        )

    shape = (2, 4, 4) if name == "neighbour_margin" else (16,)
    return step, objective.init(CLASSES, np.full(CLASSES, 7)), shape


@pytest.mark.parametrize("name", some(losses.catalogue(), QUICK_LOSSES))
def test_every_loss_lowers_and_takes_64_bits(name):
    step, state, shape = step_of(name)
    lowered(step, state, *batch("bfloat16", shape))
    with jax.enable_x64(True):
        step, state, shape = step_of(name)
    traced_with_64_bits(functools.partial(step, state), shape)


@pytest.mark.parametrize("name", some(metrics.catalogue(), QUICK_METRICS))
def test_every_metric_lowers_and_takes_64_bits(name):
    metric = metrics.named(name)
    lowered(lambda *data: metric.value(metric.stat(*data)), *batch("bfloat16"))
    traced_with_64_bits(metric)


def test_options_take_64_bits():
    traced_with_64_bits(metrics.adaptive_ece.with_options(binning="released"))
    traced_with_64_bits(metrics.shot_accuracy(np.full(CLASSES, 7)))
    with jax.enable_x64(True):
        binned = step_of("adafocal", binning="released")
        per_image = step_of("bootstrapped", per_image=True)
    for step, state, _ in (binned, per_image):
        traced_with_64_bits(functools.partial(step, state), (2, 8))


@pytest.mark.parametrize("name", some(calibrators.catalogue(), {"temperature"}))
def test_every_calibrator_lowers(name):
    """The fit, and the parameters applied to the logits."""
    calibrator = calibrators.named(name)
    lowered(
        lambda logits, *rest: calibrator.apply(calibrator.fit(logits, *rest), logits),
        *batch("float32"),
    )


@pytest.mark.parametrize("name", ["cross_entropy", "adafocal"])
@pytest.mark.parametrize("num_devices", [1, 8])
def test_a_training_step_lowers(name, num_devices):
    """As the loop compiles it: mapped over the devices, with the gradient's sum over them."""
    objective, tx = losses.objective(name), tasks.sgd()
    step = train.make_train_step(tasks.forward, objective, tx, axis_name=train.AXIS)
    state = tasks.state_of(objective, tx, dtype=np.float32)
    inputs = jnp.zeros((2, tasks.NUM_FEATURES))
    rows = train.Batch(inputs, *(jnp.zeros(2, kind) for kind in ("int32", "float32", "int32")))
    stacked = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * num_devices), (state, rows))
    mapped = jax.pmap(step, axis_name=train.AXIS, devices=jax.devices()[:num_devices])
    assert "stablehlo.all_reduce" in lowered(mapped, *stacked)
