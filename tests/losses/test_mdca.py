"""MDCA: the mean probability of each class against the share of its examples."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def mdca_value(logits, labels, weights=None):
    """Sum over classes |mean p_k - mean [y = k]|, by a loop over classes, over their number."""
    p = probabilities(logits, labels).all
    weights = np.ones(len(labels)) if weights is None else weights
    gaps = [
        abs(np.average(p[:, k], weights=weights) - np.average(labels == k, weights=weights))
        for k in range(logits.shape[-1])
    ]
    return np.sum(gaps) / len(gaps)


def mdca(logits, labels, *, scale=1.0, focal_gamma=0.0):
    """(1 - p_y)^gamma (-log p_y) plus scale times the value of the batch."""
    p = probabilities(logits, labels)
    return p.rest**focal_gamma * p.cross_entropy + scale * mdca_value(logits, labels)


REFERENCES = {"mdca": mdca}


@pytest.mark.parametrize("focal_gamma", [0.0, 1.0])
def test_value_and_gradient(focal_gamma):
    checks.check_objective("mdca", mdca, scale=3.0, focal_gamma=focal_gamma)


def test_weights_are_copies():
    logits, labels = checks.batch(9)
    weights = np.array([1, 2, 0, 1, 3, 1, 0, 1, 1])
    expected = mdca_value(logits, labels, weights)
    actual = losses.mdca_penalty(logits.astype(np.float32), labels, weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_soft_labels_are_shares():
    random = np.random.default_rng(1)
    logits, soft = random.standard_normal((7, 4)), random.dirichlet(np.ones(4), size=7)
    p = probabilities(logits, np.zeros(7, int)).all
    expected = np.mean(np.abs(np.mean(p - soft, axis=0)))
    actual = losses.mdca_penalty(logits.astype(np.float32), soft.astype(np.float32))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_batch_whose_means_agree_has_no_penalty():
    logits = np.log(np.array([[0.75, 0.25], [0.25, 0.75]], np.float32))
    assert losses.mdca_penalty(logits, np.array([0, 1])) < 1e-7
