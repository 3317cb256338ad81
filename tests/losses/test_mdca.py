"""MDCA: the mean probability of each class against the share of its examples."""

import jax
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


@pytest.mark.parametrize("name", ["mdca_penalty", "soft_iou_penalty"])
def test_a_probability_that_rounds_to_0_is_that_of_a_class(name):
    penalty, labels = getattr(losses, name), np.array([0, 1])
    far = [np.tile(np.float32([gap, 0, 0, 0]), (2, 1)) for gap in (80, 120, 1e9)]
    value, *others = (penalty(logits, labels) for logits in far)
    np.testing.assert_allclose(value, {"mdca_penalty": 0.25, "soft_iou_penalty": 7 / 8}[name])
    np.testing.assert_allclose(others, value, rtol=1e-6)
    masked = np.where(np.arange(4) < 3, far[0], -np.inf)
    np.testing.assert_allclose(penalty(masked, labels), penalty(far[0][:, :3], labels), rtol=1e-6)


@pytest.mark.parametrize("name", ["mdca_penalty", "soft_iou_penalty"])
def test_sums_of_many_pixels_keep_their_digits(name):
    """One of weight 2^25, and many others that one float32 sum would lose."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=2**17 + 7)
    logits = random.standard_normal((len(labels), 3)) + 2 * np.eye(3)[labels]
    weights = np.ones(len(labels))
    weights[0] = 2**25
    value = getattr(losses, name)(*map(np.float32, (logits,)), labels, np.float32(weights))
    with jax.enable_x64(True):
        np.testing.assert_allclose(value, getattr(losses, name)(logits, labels, weights), rtol=5e-5)
