"""One device and eight give the same training, for every objective."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from tests.train import tasks

# 38 examples in batches of 10: the last batch of an epoch has 8, on 8 devices one or two each.
SOURCE = tasks.examples(38)


def close(one, other, tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# One of every way in which examples meet: by a sum over pairs, by a state, by a sum over bins.
DISTINCT = ("mmce", "recall", "soft_ece")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in DISTINCT else pytest.mark.slow)
        for name in tasks.objectives()
    ],
)
def test_ten_steps_on_one_and_on_eight_devices(name, x64):
    objective = losses.objective(name)
    one, measured_one = tasks.trained(objective, SOURCE, num_devices=1, steps=10)
    eight, measured_eight = tasks.trained(objective, SOURCE, num_devices=8, steps=10)
    assert tasks.differing(eight) == []
    moved = train.first(one).params["in"] - np.asarray(tasks.variables()["params"]["in"])
    assert np.abs(moved).max() > 1e-6
    close(train.first(one), train.first(eight), 1e-9)
    close(measured_one, measured_eight, 1e-9)


def test_evidence_of_a_validation_pass_is_that_of_all_examples():
    objective, devices = losses.objective("adafocal"), train.local_devices(8)
    step = train.make_eval_step(tasks.forward, {}, objective=objective, axis_name=train.AXIS)
    state = tasks.state_of(objective)
    everywhere = train.replicate(state, devices)

    def evidence(feed):
        return feed(SOURCE, devices).evaluation(step, 10)(everywhere)["evidence"]

    result = evidence(train.Resident)
    logits, _, _ = tasks.forward(state.params, {}, SOURCE.inputs, train=False)
    wanted = jax.jit(objective.evidence)(state.loss_state, logits, SOURCE.labels, None)

    def real(rows):
        kept = np.asarray(rows["weight"]) > 0
        return np.sort(np.asarray(rows["confidence"])[kept])

    np.testing.assert_allclose(real(result), real(wanted), rtol=1e-5)
    np.testing.assert_array_equal(real(evidence(train.Streamed)), real(result))


class Normalised(nn.Module):
    """Two dense layers with batch norm and dropout between them."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, *, train, mask=None, keys=None):
        x = nn.Dense(8, param_dtype=jnp.float64)(x)
        x = models.BatchNorm(axis_name=self.axis_name, dtype=jnp.float64)(x, train=train, mask=mask)
        x = models.Dropout(0.3)(jnp.tanh(x), train, keys)
        return nn.Dense(tasks.NUM_CLASSES, param_dtype=jnp.float64)(x)


@pytest.mark.slow
def test_batch_norm_and_dropout_on_one_and_on_eight_devices_and_with_padding(x64):
    """Statistics are those of the real examples of the whole batch, wherever they lie.

    So are the examples' keys, and what dropout drops.
    """
    objective, tx = losses.objective("cross_entropy"), tasks.sgd()
    source = tasks.examples(10)
    variables = Normalised().init(jax.random.key(0), source.inputs, train=False)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(variables))

    def trained(num_devices, rows):
        devices = train.local_devices(num_devices)
        module = Normalised(axis_name=train.AXIS)
        step = train.make_train_step(train.linen(module), objective, tx, axis_name=train.AXIS)
        state = train.create(variables, objective, tx, tasks.NUM_CLASSES, 0)
        run_steps = train.Resident(source, devices).training(step)
        order = train.in_batches(np.arange(10), 10, multiple=rows)
        state = train.replicate(state, devices)
        for start in range(3):
            state, _ = run_steps(state, order, None, 0, 1)
            assert tasks.differing(state) == [], start
        return train.first(state)

    plain, padded, eight = trained(1, 1), trained(1, 16), trained(8, 8)
    moved = np.asarray(variables["batch_stats"]["BatchNorm_0"]["mean"])
    assert np.abs(plain.model_state["batch_stats"]["BatchNorm_0"]["mean"] - moved).max() > 1e-3
    close(plain, padded, 1e-12)
    close(plain, eight, 1e-9)
