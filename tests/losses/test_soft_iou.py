"""Soft intersection over union against loops over classes and pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def penalty(logits, labels):
    """1 - the mean IoU of classes with any probability."""
    p = probabilities(logits, labels).all
    values = []
    for k in range(p.shape[1]):
        shared = sum(row[k] for row, label in zip(p, labels, strict=True) if label == k)
        union = sum(1 if label == k else row[k] for row, label in zip(p, labels, strict=True))
        values.append(shared / union)
    return 1 - np.mean(values)


def soft_iou(logits, labels, *, scale=1.0, cross_entropy_scale=0.0, per_image=False):
    """Every term is the penalty plus a share of cross-entropy."""
    assert not per_image
    cross_entropy = probabilities(logits, labels).cross_entropy
    return scale * penalty(logits, labels) + cross_entropy_scale * cross_entropy


REFERENCES = {"soft_iou": soft_iou}


@pytest.mark.parametrize("options", [{}, {"scale": 2.0, "cross_entropy_scale": 0.5}])
def test_value_and_gradient(options):
    checks.check_objective("soft_iou", soft_iou, **options)


def test_hard_predictions_give_the_mean_iou():
    """IoU 1/3, 2/3, 0 by hand; class 3 is impossible."""
    logits = 1e3 * np.eye(4)[np.array([0, 1, 1, 1, 0])]
    logits[:, 3] = -np.inf
    value = losses.soft_iou_penalty(logits, np.array([0, 0, 1, 1, 2]))
    np.testing.assert_allclose(value, 1 - (1 / 3 + 2 / 3 + 0) / 3, rtol=1e-6)


def test_per_image_is_the_mean_over_the_images_that_have_a_label():
    logits, labels = checks.batch(18)
    logits, labels = logits.reshape(3, 6, 5), labels.reshape(3, 6)
    weights = np.ones((3, 6))
    weights[1], weights[2, :2] = 0, 0
    value = losses.soft_iou_penalty(logits, labels, weights, per_image=True)
    expected = (penalty(logits[0], labels[0]) + penalty(logits[2, 2:], labels[2, 2:])) / 2
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("unit", [1e-30, 1e20])
def test_the_unit_of_the_weights_is_arbitrary(unit):
    """The square of a union of tiny weights is 0 in single precision."""
    logits, labels = checks.batch(18)
    logits[0, 1:] = -np.inf
    run = jax.value_and_grad(losses.soft_iou_penalty)
    value, gradient = run(jnp.asarray(logits), labels, np.full(18, unit, np.float32))
    expected, expected_gradient = run(jnp.asarray(logits), labels)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("logit", [-20.0, -51.0, -70.0, -85.0])
def test_a_class_with_a_tiny_probability_has_a_tiny_union(logit):
    """The square of its union is 0 in float32; the IoUs are 0 and 1, eager and compiled."""
    logits = jnp.array([[logit, 0.0], [logit, 0.0]])
    for transform in (lambda f: f, jax.jit):
        value, gradient = transform(jax.value_and_grad(losses.soft_iou_penalty))(
            logits, jnp.array([1, 1])
        )
        assert float(value) == pytest.approx(0.5, rel=1e-6)
        assert np.isfinite(np.asarray(gradient)).all()


def test_an_empty_batch_is_zero():
    assert losses.soft_iou_penalty(jnp.zeros((4, 3)), jnp.zeros(4, int), np.zeros(4)) == 0
    assert losses.lovasz_penalty(jnp.zeros((4, 3)), jnp.zeros(4, int), np.zeros(4)) == 0
