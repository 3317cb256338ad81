"""DCA: the mean confidence of a batch against its accuracy."""

import jax
import numpy as np

from calib_jax import losses

from . import checks
from .reference import probabilities


def dca(logits, labels, *, scale=1.0):
    """-log p_y plus scale times |mean confidence - accuracy|."""
    p = probabilities(logits, labels)
    gap = np.mean(p.top) - np.mean(p.predicted == labels)
    return p.cross_entropy + scale * abs(gap)


REFERENCES = {"dca": dca}


def test_value_and_gradient():
    checks.check_objective("dca", dca, scale=2.5)


def test_the_accuracy_is_constant():
    """The gradient of |C - A| is that of C, with the sign of the gap."""
    logits = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0]], np.float32)
    gradient = jax.grad(losses.dca_penalty)(logits, np.array([1, 1, 0]))
    c = 1 / (1 + np.exp(-logits[:, 0]))
    np.testing.assert_allclose(gradient[:, 0], c * (1 - c) / 3, rtol=1e-5)
