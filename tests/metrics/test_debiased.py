"""Debiased calibration errors, against bins that are filled example by example."""

import jax
import numpy as np

from calib_jax import metrics

from .laws import value_of
from .reference import logits_of, sample, top_label


def debiased(confidence, hit, bins):
    """Return the debiased error, `bins` being one array of row numbers a bin."""
    total = 0.0
    for rows in bins:
        n, a = len(rows), np.mean(hit[rows]) if len(rows) else 0
        if n >= 2:
            gap = np.mean(confidence[rows]) - a
            total += n / len(hit) * (gap**2 - a * (1 - a) / (n - 1))
    return np.sqrt(max(total, 0.0))


def equal_width(confidence, num_bins):
    """Return the rows of each bin (lo, hi]."""
    index = np.ceil(confidence * num_bins) - 1
    return [np.flatnonzero(index == b) for b in range(num_bins)]


def test_a_clipped_value_has_gradient_zero():
    logits = np.log(np.array([[0.5, 0.5]] * 4, np.float32))
    metric = metrics.debiased_rms_calibration_error
    value, gradient = jax.value_and_grad(metric)(logits, np.array([0, 0, 1, 1]))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_bins_of_equal_width():
    logits, labels = sample(levels=20)
    confidence, hit = top_label(logits, labels)
    for num_bins in (4, 60):
        bins = equal_width(confidence, num_bins)
        wanted = debiased(confidence, hit, bins)
        metric = metrics.debiased_rms_calibration_error
        actual = value_of(metric, logits, labels, num_bins=num_bins)
        np.testing.assert_allclose(actual, wanted, rtol=1e-4)
    assert min(map(len, bins)) < 2  # bins that are empty or hold one example were met


def test_bins_of_equal_mass():
    rng = np.random.default_rng(1)
    logits = logits_of(rng.permutation(np.linspace(0.45, 0.95, 40)), 3)
    labels = (rng.random(40) < 0.6).astype(int)
    confidence, hit = top_label(logits, labels)
    bins = np.argsort(confidence).reshape(5, -1)
    metric = metrics.adaptive_debiased_rms_calibration_error
    actual = value_of(metric, logits, labels, num_bins=5)
    np.testing.assert_allclose(actual, debiased(confidence, hit, bins), rtol=1e-4)
