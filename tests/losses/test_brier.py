"""Brier score: squared distance between the probabilities and the one-hot label."""

import numpy as np

from calib_jax import losses

from . import checks
from .reference import probabilities


def brier(logits, labels):
    """sum_k (q_k - p_k)^2."""
    return np.sum(probabilities(logits, labels).distance ** 2, axis=-1)


REFERENCES = {"brier": brier}


def test_value_and_gradient():
    checks.check_objective("brier", brier)


def test_by_hand():
    # p = (1/5, 4/5): both classes are off by the same amount
    logits = np.log(np.array([[1.0, 4.0], [1.0, 4.0]], np.float32))
    np.testing.assert_allclose(
        losses.brier(logits, np.array([0, 1])), [2 * 0.8**2, 2 * 0.2**2], rtol=1e-6
    )
