"""One device and eight give the same training, for every objective."""

import jax
import numpy as np
import pytest

from calib_jax import losses, train
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
    one, eight = train.first(one), train.first(eight)
    moved = jax.tree.leaves(one.params)[0] - np.asarray(tasks.variables()["params"]["in"])
    assert np.abs(moved).max() > 1e-6
    close(one, eight, 1e-9)
    close(measured_one, measured_eight, 1e-9)


@pytest.mark.parametrize("name", tasks.objectives())
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
        moved = jax.tree.map(lambda a, b: np.ravel(a - b), train.first(state).params, start)
        return np.concatenate(jax.tree.leaves(moved))

    one, eight = gradient(1), gradient(8)
    assert np.linalg.norm(one - eight) <= 1e-4 * np.linalg.norm(one)


@pytest.mark.parametrize("num_devices", [1, 4, 8])
def test_evidence_of_a_validation_pass_is_that_of_all_examples(num_devices):
    objective = losses.objective("adafocal")
    devices = train.local_devices(num_devices)
    step = train.make_eval_step(tasks.forward, {}, objective=objective, axis_name=train.AXIS)
    state = tasks.state_of(objective)
    everywhere = train.replicate(state, devices)
    found = train.Resident(SOURCE, devices).evaluation(step, 10)(everywhere)["evidence"]
    logits, _, _ = tasks.forward(state.params, {}, SOURCE.inputs, train=False)
    wanted = objective.evidence(state.loss_state, logits, SOURCE.labels, None)

    def real(rows):
        kept = np.asarray(rows["weight"]) > 0
        return np.sort(np.asarray(rows["confidence"])[kept])

    np.testing.assert_allclose(real(found), real(wanted), rtol=1e-5)
    streamed = train.Streamed(SOURCE, devices).evaluation(step, 10)(everywhere)["evidence"]
    np.testing.assert_array_equal(real(streamed), real(found))


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
