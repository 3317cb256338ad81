"""Logit adjustment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities

COUNTS = np.array([5000, 500, 50, 3, 7])


def logit_adjusted(logits, labels, *, tau=1.0, counts=None):
    """-log of pi_y^tau e^z_y over the sum of pi_k^tau e^z_k; equal counts at the start."""
    if counts is not None:
        prior = np.asarray(counts, float) / np.sum(counts)
        logits = logits + np.log(prior**tau)
    return probabilities(logits, labels).cross_entropy


REFERENCES = {"logit_adjusted": logit_adjusted}


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_value_and_gradient(tau, x64):
    checks.check_objective("logit_adjusted", logit_adjusted, tau=tau)
    state = losses.objective("logit_adjusted", tau=tau).init(5, COUNTS)
    of_state = {"state": state, "fields": {"counts": COUNTS}}
    checks.check_objective("logit_adjusted", logit_adjusted, checks.batch(), **of_state, tau=tau)


def test_a_class_without_examples_has_no_probability():
    objective = losses.objective("logit_adjusted")
    state = objective.init(3, [3, 0, 1])
    logits, labels = jnp.array([[0.0, 9.0, 0.0]]), jnp.array([0])
    np.testing.assert_allclose(
        objective.value(state, logits, labels, None), np.log(4 / 3), rtol=1e-6
    )
    gradient = jax.grad(lambda z: objective.value(state, z, labels, None).sum())(logits)
    np.testing.assert_allclose(gradient, [[-0.25, 0, 0.25]], atol=1e-6)
    assert objective.value(state, logits, jnp.array([1]), None) == np.inf
    plain = losses.objective("logit_adjusted", tau=0.0)
    expected = losses.cross_entropy(logits, labels)
    np.testing.assert_allclose(plain.value(state, logits, labels, None), expected, rtol=1e-6)


def test_the_optimum_is_the_balanced_posterior():
    """Closed form: a constant network fits z_k = const, whatever the counts of the labels."""
    counts = np.array([60, 30, 10])
    objective = losses.objective("logit_adjusted")
    state, labels = (
        objective.init(3, counts),
        jnp.repeat(jnp.arange(3), counts, total_repeat_length=100),
    )
    loss = lambda z: jnp.sum(objective.value(state, jnp.broadcast_to(z, (100, 3)), labels, None))  # noqa: E731
    np.testing.assert_allclose(jax.grad(loss)(jnp.full(3, 0.4)), 0, atol=1e-4)
