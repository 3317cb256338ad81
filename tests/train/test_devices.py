"""One device and eight give the same training, for every objective."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.core.statistics import merged
from tests.train import tasks

# 38 examples in batches of 10: the last batch of an epoch has 8, on 8 devices one or two each.
SOURCE = tasks.examples(38)


def close(one, other, tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", tasks.objectives())
def test_ten_steps_on_one_and_on_eight_devices(name, x64):
    objective = losses.objective(name)
    one, measured_one = tasks.trained(objective, SOURCE, num_devices=1, steps=10)
    eight, measured_eight = tasks.trained(objective, SOURCE, num_devices=8, steps=10)
    assert train.differing(eight) == []
    one, eight = tasks.the_only(one), tasks.the_only(eight)
    moved = jax.tree.leaves(one.params)[0] - np.asarray(tasks.variables()["params"]["in"])
    assert np.abs(moved).max() > 1e-6
    close(one, eight, 1e-9)
    close(measured_one, measured_eight, 1e-9)


# One of every way to make a loss; the others, whose gradients are made of the same, are slow.
DISTINCT = {
    *("adafocal", "brier", "bsce_gra", "ece_weighted", "flsd53", "mmce", "recall", "soft_ece"),
    "tempered_focal",
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in DISTINCT else pytest.param(name, marks=pytest.mark.slow)
        for name in tasks.objectives()
    ],
)
def test_one_gradient_in_single_precision(name):
    """SGD of rate 1 without momentum moves by the gradient itself."""
    objective = losses.objective(name)

    def gradient(num_devices):
        state, _ = tasks.trained(
            objective,
            tasks.examples(38, dtype=np.float32),
            num_devices=num_devices,
            steps=1,
            tx=tasks.optax.sgd(1.0),
            dtype=np.float32,
        )
        start = tasks.variables(dtype=np.float32)["params"]
        moved = jax.tree.map(lambda a, b: np.ravel(a - b), tasks.the_only(state).params, start)
        return np.concatenate(jax.tree.leaves(moved))

    one, eight = gradient(1), gradient(8)
    assert np.linalg.norm(one - eight) <= 1e-4 * np.linalg.norm(one)


@pytest.mark.parametrize("num_devices", [1, 4, 8])
def test_evidence_of_a_validation_pass_is_that_of_all_examples(num_devices):
    objective = losses.objective("adafocal")
    arrangement = train.Arrangement(train.local_devices(num_devices))
    step = train.make_eval_step(tasks.forward, {}, objective=objective, axis_name=train.AXIS)
    state = tasks.state_of(objective)
    everywhere = arrangement.place([state])

    def evidence(feed):
        (found,) = feed(SOURCE, arrangement).evaluation(step, 10)(everywhere)
        return found["evidence"]

    found = evidence(train.Resident)
    logits, _, _ = tasks.forward(state.params, {}, SOURCE.inputs, train=False)
    wanted = objective.evidence(state.loss_state, logits, SOURCE.labels, None)

    def real(rows):
        kept = np.asarray(rows["weight"]) > 0
        return np.sort(np.asarray(rows["confidence"])[kept])

    np.testing.assert_allclose(real(found), real(wanted), rtol=1e-5)
    np.testing.assert_array_equal(real(evidence(train.Streamed)), real(found))


def test_totals_merge_in_double_precision():
    many = [
        losses.objective("recall").evidence(
            losses.objective("recall").init(2),
            np.zeros((1, 2), np.float32),
            np.zeros(1, np.int32),
            np.full(1, 2.0**24, np.float32),
        )
    ] * 3
    assert float(merged(many)["count"][0]) == 3 * 2.0**24


class Normalised(nn.Module):
    """Two dense layers with batch norm and dropout between them."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, *, train, mask=None, keys=None):
        x = nn.Dense(8, param_dtype=jnp.float64)(x)
        x = models.BatchNorm(axis_name=self.axis_name, dtype=jnp.float64)(x, train=train, mask=mask)
        x = models.Dropout(0.3)(jnp.tanh(x), train, keys)
        return nn.Dense(tasks.NUM_CLASSES, param_dtype=jnp.float64)(x)


def test_batch_norm_and_dropout_on_one_and_on_eight_devices_and_with_padding(x64):
    """Statistics are those of the real examples of the whole batch, wherever they lie.

    So are the examples' keys, and what dropout drops.
    """
    objective, tx = losses.objective("cross_entropy"), tasks.sgd()
    source = tasks.examples(10)
    variables = Normalised().init(jax.random.key(0), source.inputs, train=False)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(variables))

    def trained(num_devices, rows):
        arrangement = train.Arrangement(train.local_devices(num_devices))
        module = Normalised(axis_name=train.AXIS)
        step = train.make_train_step(train.linen(module), objective, tx, axis_name=train.AXIS)
        state = train.create(variables, objective, tx, tasks.NUM_CLASSES, 0)
        runner = train.Resident(source, arrangement).training(step)
        runner.begin(train.in_batches(np.arange(10), 10, multiple=rows), 0)
        states = arrangement.place([state])
        for start in range(3):
            states, _ = runner(states, [0], [1])
            assert train.differing(states) == [], start
        return tasks.the_only(states)

    plain, padded, eight = trained(1, 1), trained(1, 16), trained(8, 8)
    moved = np.asarray(variables["batch_stats"]["BatchNorm_0"]["mean"])
    assert np.abs(plain.model_state["batch_stats"]["BatchNorm_0"]["mean"] - moved).max() > 1e-3
    close(plain, padded, 1e-12)
    close(plain, eight, 1e-9)
