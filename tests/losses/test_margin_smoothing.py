"""Margin-based label smoothing: the distance of the logits below the largest, beyond a margin."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def margin_smoothing(logits, labels, *, margin=10.0, alpha=0.1, class_reduction="mean"):
    """-log p_y plus alpha times the excess of each class, by a loop over classes."""
    terms = probabilities(logits, labels).cross_entropy
    num_classes = logits.shape[-1]
    for k in range(num_classes):
        excess = np.maximum(np.max(logits, axis=-1) - logits[:, k] - margin, 0)
        terms = terms + alpha * excess / (num_classes if class_reduction == "mean" else 1)
    return terms


def max_suppression(logits, labels, *, alpha=0.1):
    """-log p_y plus alpha times the largest logit minus the mean of all."""
    largest, mean = np.max(logits, axis=-1), np.mean(logits, axis=-1)
    return probabilities(logits, labels).cross_entropy + alpha * (largest - mean)


REFERENCES = {"margin_smoothing": margin_smoothing, "max_suppression": max_suppression}


@pytest.mark.parametrize("alpha", [0.1, 2.0])
def test_max_suppression(alpha):
    checks.check_objective("max_suppression", max_suppression, alpha=alpha)


@pytest.mark.parametrize("class_reduction", ["mean", "sum"])
def test_value_and_gradient(class_reduction):
    checks.check_objective("margin_smoothing", margin_smoothing, class_reduction=class_reduction)
    checks.check_objective(
        "margin_smoothing", margin_smoothing, margin=1.5, alpha=0.7, class_reduction=class_reduction
    )


def test_within_the_margin_it_is_cross_entropy():
    logits = np.array([[4.0, 0.0, -6.0]], np.float32)
    labels = np.array([1])
    expected = losses.cross_entropy(logits, labels)
    np.testing.assert_array_equal(losses.margin_smoothing(logits, labels), expected)
    assert losses.margin_smoothing(logits, labels, margin=9.0) > expected


def test_soft_labels_change_only_the_cross_entropy():
    logits, _ = checks.batch(6, 4)
    logits = (3 * logits).astype(np.float32)
    soft = np.random.default_rng(0).dirichlet(np.ones(4), size=6).astype(np.float32)
    penalty = losses.margin_smoothing(logits, soft, margin=2.0) - losses.cross_entropy(logits, soft)
    labels = np.zeros(6, int)
    expected = losses.margin_smoothing(logits, labels, margin=2.0) - losses.cross_entropy(
        logits, labels
    )
    np.testing.assert_allclose(penalty, expected, rtol=1e-4, atol=1e-5)


def test_a_class_of_logit_minus_infinity_has_an_infinite_distance():
    logits = jnp.asarray([[30.0, 0.0, -jnp.inf]])
    assert losses.margin_smoothing(logits, jnp.array([0])) == jnp.inf
    expected = losses.cross_entropy(logits, jnp.array([0]))
    assert losses.margin_smoothing(logits, jnp.array([0]), alpha=0.0) == expected
