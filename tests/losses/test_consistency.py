"""Consistency loss: the focal weight of calibrated logits times cross-entropy."""

import jax.numpy as jnp
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight


def consistency(
    logits, labels, *, gamma=3.0, temperature=1.5, weighting="gradient", constants_at=None
):
    """-(1 - softmax(z / T)_y)^gamma log p_y."""
    if constants_at is not None:
        constants_at = constants_at / temperature
    p = seen_by_weight(logits / temperature, labels, weighting, constants_at)
    return p.rest**gamma * probabilities(logits, labels).cross_entropy


REFERENCES = {"consistency": consistency}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.0])
def test_value_and_gradient(gamma, temperature):
    checks.check_objective("consistency", consistency, gamma=gamma, temperature=temperature)


def test_differentiated_weight():
    checks.check_objective("consistency", consistency, temperature=1.5, weighting="loss")


def test_calibrated_logits_of_any_origin():
    logits, labels = checks.batch()
    calibrated, _ = checks.batch(seed=1)

    def reference(logits, labels):
        weight = probabilities(calibrated, labels).rest ** 2
        return weight * probabilities(logits, labels).cross_entropy

    def value(logits, labels):
        return losses.consistency(logits, labels, jnp.asarray(calibrated), gamma=2.0)

    checks.check(value, reference, logits, labels)
