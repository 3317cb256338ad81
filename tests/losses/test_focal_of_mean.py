"""The focal loss of a batch's mean cross-entropy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def focal_of_mean(logits, labels, *, gamma=2.0):
    """Every term is (1 - e^-m)^gamma m."""
    mean = np.mean(probabilities(logits, labels).cross_entropy)
    return np.full(len(labels), (1 - np.exp(-mean)) ** gamma * mean)


REFERENCES = {"focal_of_mean": focal_of_mean}


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_value_and_gradient(gamma):
    checks.check_objective("focal_of_mean", focal_of_mean, gamma=gamma)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_mean_of_zero_has_a_finite_gradient(gamma):
    objective = losses.objective("focal_of_mean", gamma=gamma)
    loss = lambda z: jnp.sum(objective.value((), z, jnp.array([0])))  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(jnp.array([[1e4, 0.0]]))
    assert value == 0
    assert not np.any(gradient)
