"""A differentiable expected calibration error: soft bins and a soft rank of the true class."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import logsumexp, probabilities


def soft_ece(logits, labels, *, num_bins=15, rank_sharpness=100.0, bin_temperature=0.01):
    """(1/N) sum_b |sum_n w_nb (accuracy_n - confidence_n)|."""
    p = probabilities(logits, labels)
    gaps = np.zeros(num_bins)
    for probability, true, top in zip(p.all, p.true, p.top, strict=True):
        height = np.array(
            [
                top * b - sum((i - 1) / num_bins for i in range(1, b + 1))
                for b in range(1, num_bins + 1)
            ]
        )
        height /= bin_temperature
        membership = np.exp(height - logsumexp(height[None])[0]) + 1e-6
        membership /= 1 + (num_bins + 1) * 1e-6
        # the rank counts the true class itself as a half
        difference = rank_sharpness * (probability - true)
        rank = 0.5 + np.sum(np.exp(-np.logaddexp(0.0, -difference)))
        accuracy = max(2 - rank, 0.0)
        gaps += membership * (accuracy - top)
    return np.sum(np.abs(gaps)) / len(labels)


def soft_ece_objective(
    logits,
    labels,
    *,
    scale=1.0,
    cross_entropy_scale=1.0,
    num_bins=15,
    rank_sharpness=100.0,
    bin_temperature=0.01,
):
    """Cross-entropy and the soft ECE, each with its scale."""
    penalty = soft_ece(
        logits,
        labels,
        num_bins=num_bins,
        rank_sharpness=rank_sharpness,
        bin_temperature=bin_temperature,
    )
    return cross_entropy_scale * probabilities(logits, labels).cross_entropy + scale * penalty


REFERENCES = {"soft_ece": soft_ece_objective}


@pytest.mark.parametrize("cross_entropy_scale", [1.0, 0.0])
def test_value_and_gradient(cross_entropy_scale):
    # the bins are steep: finite differences need a small step, and lose digits for it
    checks.check_objective(
        "soft_ece",
        soft_ece_objective,
        step=1e-7,
        rtol=1e-5,
        scale=0.5,
        cross_entropy_scale=cross_entropy_scale,
    )


def test_options():
    checks.check_objective(
        "soft_ece",
        soft_ece_objective,
        step=1e-6,
        num_bins=7,
        rank_sharpness=20.0,
        bin_temperature=0.05,
    )


def test_absent_examples_change_nothing():
    logits, labels = checks.batch(12)
    logits, labels = logits.astype(np.float32), np.append(labels[:9], [255, -1, 7])
    weights = np.repeat(np.array([1.0, 0.0], np.float32), [9, 3])
    np.testing.assert_allclose(
        losses.soft_ece_penalty(logits, labels, weights),
        losses.soft_ece_penalty(logits[:9], labels[:9]),
        rtol=1e-5,
    )


def test_without_cross_entropy_an_impossible_true_class_is_finite():
    """0 times an infinite cross-entropy is 0."""
    objective = losses.objective("soft_ece", cross_entropy_scale=0.0)
    logits = np.array([[0.0, -np.inf], [1.0, 0.0]], np.float32)
    assert np.isfinite(objective.value((), logits, np.array([1, 0]), None)).all()
