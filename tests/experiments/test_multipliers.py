"""The multipliers of class_adaptive_margin follow the validation data of a run."""

import jax
import numpy as np
import pytest

from experiments.running import building
from tests.experiments.test_resuming import fitted, small
from tests.losses.test_class_adaptive_margin import follow


@pytest.mark.slow
def test_multipliers_follow_the_validation_data(tmp_path):
    """Two epochs, resumed after the first, equal a NumPy recomputation from the logits."""
    options = {"margin": 0.5, "rho_step": 2}
    changes = {f"loss.options.{key}": value for key, value in options.items()}
    config = small("class_adaptive_margin", num_epochs=1, **changes)
    task = building.build(config).task
    validation = task.evaluated["validation"]
    batches, states = [], []
    for num_epochs in (1, 2):
        config.num_epochs = num_epochs
        states.append(fitted(tmp_path, config).state)
        inputs = task.prepare(validation.inputs)
        logits, _, _ = task.forward(states[-1].params, {}, inputs, train=False)
        batches.append((np.asarray(logits, float), np.ones(len(validation))))
    start = task.objective.init(10)
    for epochs, state in enumerate(states, 1):
        expected = follow(start, batches[:epochs], epochs, margin=0.5, penalty="phr")
        for actual, wanted in zip(jax.device_get(state.loss_state), expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4)
    moved = [np.sum(state.loss_state.multiplier > 100 * start.multiplier) for state in states]
    assert 0 < moved[0] < moved[1], moved
