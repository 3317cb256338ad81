"""Cross-entropy: -log p_y."""

import numpy as np

from calib_jax import losses

from . import checks
from .reference import probabilities


def cross_entropy(logits, labels):
    """-log p_y."""
    return probabilities(logits, labels).cross_entropy


REFERENCES = {"cross_entropy": cross_entropy}


def test_value_and_gradient():
    checks.check_objective("cross_entropy", cross_entropy)


def test_by_hand():
    # p = (1/5, 4/5)
    logits = np.log(np.array([[1.0, 4.0], [1.0, 4.0]], np.float32))
    np.testing.assert_allclose(
        losses.cross_entropy(logits, np.array([0, 1])), np.log([5.0, 1.25]), rtol=1e-6
    )
