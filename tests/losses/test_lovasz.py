"""Lovasz-softmax against the definition: Jaccard losses of sets of mistakes, counted one by one."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def jaccard_loss(true, wrong):
    """1 - IoU of a class that occurs where `true`, if exactly the pixels `wrong` are mistaken."""
    predicted = true ^ wrong
    return 1 - np.sum(true & predicted) / np.sum(true | predicted)


def extension(logits, labels):
    """Equations 8 and 11: errors in descending order, weighted by the growth of the loss."""
    p = probabilities(logits, labels).all
    values = []
    for k in np.unique(labels):
        true = labels == k
        errors = np.where(true, 1 - p[:, k], p[:, k])
        wrong, before, value = np.zeros(len(labels), bool), 0.0, 0.0
        for n in np.argsort(-errors):
            wrong[n] = True
            after = jaccard_loss(true, wrong)
            value += errors[n] * (after - before)
            before = after
        values.append(value)
    return np.mean(values)


def lovasz(logits, labels, *, scale=1.0, cross_entropy_scale=0.0, per_image=False):
    """Every term is the penalty plus a share of cross-entropy."""
    assert not per_image
    cross_entropy = probabilities(logits, labels).cross_entropy
    return scale * extension(logits, labels) + cross_entropy_scale * cross_entropy


REFERENCES = {"lovasz": lovasz}


@pytest.mark.parametrize("options", [{}, {"scale": 2.0, "cross_entropy_scale": 0.5}])
def test_value_and_gradient(options):
    checks.check_objective("lovasz", lovasz, **options)


def test_hard_predictions_give_the_mean_jaccard_loss():
    """IoU 1/3, 1/2 and 0 by hand, of the classes 0, 1 and 2; class 3 does not occur."""
    labels = np.array([0, 0, 1, 1, 2])
    predicted = np.array([0, 1, 1, 1, 0])
    value = losses.lovasz_penalty(1e3 * np.eye(4)[predicted], labels)
    np.testing.assert_allclose(value, 1 - (1 / 3 + 2 / 3 + 0) / 3, rtol=1e-6)


def test_per_image_is_the_mean_over_the_images_that_have_a_label():
    logits, labels = checks.batch(18)
    logits, labels = logits.reshape(3, 6, 5), labels.reshape(3, 6)
    weights = np.ones((3, 6))
    weights[1], weights[2, :2] = 0, 0
    value = losses.lovasz_penalty(logits, labels, weights, per_image=True)
    expected = (extension(logits[0], labels[0]) + extension(logits[2, 2:], labels[2, 2:])) / 2
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_large_batch_keeps_its_precision():
    """Check 200,000 equal pixels: differences of quotients would have no digits left."""
    logits, labels = checks.batch(20)
    many = np.tile(logits, (10_000, 1)), np.tile(labels, 10_000)
    value = losses.lovasz_penalty(many[0].astype(np.float32), many[1])
    np.testing.assert_allclose(value, extension(logits, labels), rtol=1e-4)
