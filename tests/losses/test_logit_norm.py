"""LogitNorm: cross-entropy of logits divided by their norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def logit_norm(logits, labels, *, tau=0.04):
    """-log softmax(z / (tau (|z| + 1e-7)))_y."""
    norm = np.sqrt(np.sum(logits**2, axis=-1, keepdims=True)) + 1e-7
    return probabilities(logits / (tau * norm), labels).cross_entropy


REFERENCES = {"logit_norm": logit_norm}


@pytest.mark.parametrize("tau", [0.04, 1.0])
def test_value_and_gradient(tau):
    checks.check_objective("logit_norm", logit_norm, tau=tau)


def test_a_factor_of_the_logits_changes_nothing():
    logits, labels = checks.batch()
    logits = logits.astype(np.float32)
    expected = losses.logit_norm(logits, labels)
    for factor in (1e-2, 1e4, 1e25):
        actual = losses.logit_norm(np.float32(factor) * logits, labels)
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=1e-5)


def test_logits_of_zero_have_the_gradient_of_the_added_constant():
    gradient = jax.grad(lambda z: jnp.sum(losses.logit_norm(z, jnp.array([0]), tau=1.0)))(
        jnp.zeros((1, 2))
    )
    np.testing.assert_allclose(gradient, [[-0.5e7, 0.5e7]], rtol=1e-5)


def test_an_impossible_class_takes_no_part_in_the_norm():
    logits, labels = checks.batch(num_classes=4)
    wider = np.insert(logits, 4, -np.inf, axis=1).astype(np.float32)
    expected = losses.logit_norm(logits.astype(np.float32), labels)
    np.testing.assert_allclose(losses.logit_norm(wider, labels), expected, rtol=1e-6)
