"""Negative entropy as a regulariser of cross-entropy and of the focal loss."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def negative_entropy(logits, labels, *, gamma=0.0):
    """-(1 - p_y)^gamma H(p); p log p is 0 where p is 0."""
    p = probabilities(logits, labels)
    log = np.where(p.all > 0, p.log, 0.0)
    return p.rest**gamma * np.sum(p.all * log, axis=-1)


def entropy_regularized(logits, labels, *, scale=1.0, gamma=0.0):
    """-log p_y plus scale times the negative entropy."""
    penalty = negative_entropy(logits, labels, gamma=gamma)
    return probabilities(logits, labels).cross_entropy + scale * penalty


def focal_entropy_regularized(logits, labels, *, focal_gamma=3.0, scale=1.0, gamma=0.0):
    """-(1 - p_y)^focal_gamma log p_y plus scale times the negative entropy."""
    p = probabilities(logits, labels)
    focal = p.rest**focal_gamma * p.cross_entropy
    return focal + scale * negative_entropy(logits, labels, gamma=gamma)


REFERENCES = {
    "entropy_regularized": entropy_regularized,
    "focal_entropy_regularized": focal_entropy_regularized,
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_value_and_gradient(name, scale, gamma):
    checks.check_objective(name, REFERENCES[name], scale=scale, gamma=gamma)


def test_focal_gamma():
    checks.check_objective(
        "focal_entropy_regularized", focal_entropy_regularized, focal_gamma=1.0, gamma=1.0
    )


def test_uniform_probabilities_have_the_largest_entropy():
    values = losses.entropy_penalty(np.zeros((1, 8), np.float32), np.array([0]))
    np.testing.assert_allclose(values, -np.log(8), rtol=1e-6)
