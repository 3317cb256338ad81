"""The smooth ECE, against Gaussians and their mirror images summed at the exact confidences."""

import numpy as np
import pytest

from calib_jax import metrics

from .laws import assert_laws, value_of
from .reference import logits_of, sample, top_label


def smoothed(confidence, gap, sigma, steps=2000, images=4):
    """Return the integral of |sum of Gaussians reflected at 0 and 1, times the gaps| / n."""
    t = (np.arange(steps) + 0.5) / steps
    total = np.zeros(steps)
    for c, g in zip(confidence, gap, strict=True):
        for turn in range(-images, images + 1):
            for image in (2 * turn + c, 2 * turn - c):
                total += g * np.exp(-0.5 * ((t - image) / sigma) ** 2)
    return np.mean(np.abs(total)) / (np.sqrt(2 * np.pi) * sigma) / len(gap)


def assert_meets_its_own_bandwidth(logits, labels, actual, slack):
    """Check that a hair below the value the smoothed error is larger than it, and above less."""
    confidence, hit = top_label(logits, labels)
    for sigma in (actual - slack, actual + slack):
        larger = smoothed(confidence, confidence - hit, sigma) > sigma
        assert larger == (sigma < actual)


def confidences(low, high, wrong, rows=40):
    """Return logits of evenly spread confidences, and labels of which a share is missed."""
    rng = np.random.default_rng(0)
    labels = (rng.permutation(rows) < wrong * rows).astype(int)
    return logits_of(np.linspace(low, high, rows), 3), labels


@pytest.mark.parametrize(
    ("low", "high", "wrong"),
    [
        (0.5, 0.99, 0.25),  # about calibrated: a narrow kernel
        (0.9, 1.0, 0.5),  # overconfident, near 1: the reflection matters
        (0.4, 0.9, 0.0),  # all right
        (0.4, 0.9, 1.0),  # all wrong: a kernel wider than the interval
    ],
)
def test_meets_its_own_bandwidth(low, high, wrong):
    logits, labels = confidences(low, high, wrong)
    actual = float(value_of(metrics.smooth_ece, logits, labels))
    assert_meets_its_own_bandwidth(logits, labels, actual, slack=2e-5)


def test_a_coarse_grid_comes_close():
    logits, labels = confidences(0.5, 0.99, 0.25)
    actual = value_of(metrics.smooth_ece, logits, labels)
    coarse = value_of(metrics.smooth_ece, logits, labels, num_cells=64)
    np.testing.assert_allclose(coarse, actual, rtol=0.02)


def test_laws():
    assert_laws(metrics.smooth_ece, *sample(1))


def test_equal_confidences_count_together():
    """Of 40 examples at 0.75 three quarters are right: calibrated, in whatever order."""
    logits = logits_of(np.full(40, 0.75), 3)
    labels = (np.arange(40) < 10).astype(int)
    np.testing.assert_allclose(value_of(metrics.smooth_ece, logits, labels), 0, atol=1e-4)
    # A constant error of one sign is not smoothed away, at whatever bandwidth.
    actual = value_of(metrics.smooth_ece, logits, np.zeros(40, int))
    np.testing.assert_allclose(actual, 0.25, rtol=1e-4)


@pytest.mark.parametrize("label", [0, 1])
def test_certain_and_right_or_wrong(label):
    logits = np.tile(np.array([[1e4, -1e4, 0.0]], np.float32), (40, 1))
    actual = value_of(metrics.smooth_ece, logits, np.full(40, label))
    np.testing.assert_allclose(actual, label, atol=1e-6)


def test_one_example():
    alone = (np.arange(40) == 7).astype(np.float32)
    logits = logits_of(np.full(40, 0.75), 3)
    actual = value_of(metrics.smooth_ece, logits, np.ones(40, int), alone)
    np.testing.assert_allclose(actual, 0.75, rtol=1e-4)


def test_the_grid_must_have_cells():
    with pytest.raises(ValueError, match="num_cells must be at least 16"):
        value_of(metrics.smooth_ece, *sample(1), num_cells=0)
