"""The calibration errors of running sums, against the sums of every interval of confidences."""

import itertools

import numpy as np
import pytest

from calib_jax import inference, metrics

from .laws import assert_laws, value_of
from .reference import logits_of, sample, top_label


def drift(confidence, hit):
    """Return the largest mean of confidence - hit over the examples up to a confidence."""
    n = len(hit)
    return max(
        abs(np.sum((confidence - hit)[confidence <= level])) / n for level in confidence + 1e-6
    )


def test_equals_the_largest_drift():
    logits, labels = sample()
    wanted = drift(*top_label(logits, labels))
    np.testing.assert_allclose(value_of(metrics.ks_error, logits, labels), wanted, rtol=1e-5)


def test_ecce_is_the_largest_drift_of_an_interval():
    logits, labels = sample()
    confidence, hit = top_label(logits, labels)
    ends = [-1, *np.unique(confidence) + 1e-6]
    wanted = max(
        abs(np.sum((confidence - hit)[(confidence > low) & (confidence <= high)])) / len(hit)
        for low, high in itertools.combinations(ends, 2)
    )
    np.testing.assert_allclose(value_of(metrics.ecce, logits, labels), wanted, rtol=1e-5)
    kuiper = inference.calibration_test("kuiper", logits, labels)
    np.testing.assert_allclose(kuiper.statistic, wanted, rtol=1e-5)


@pytest.mark.parametrize("metric", [metrics.ks_error, metrics.ecce])
def test_laws(metric):
    assert_laws(metric, *sample(1))


@pytest.mark.parametrize("metric", [metrics.ks_error, metrics.ecce])
def test_one_nan_among_many_rows_is_nan(metric):
    logits = np.tile(np.float32([2, 0]), (300, 1))
    logits[7] = np.nan
    assert np.isnan(value_of(metric, logits, np.zeros(300, int)))


@pytest.mark.parametrize("wrong", [False, True])
def test_one_sided_miscalibration_is_the_gap_of_the_means(wrong):
    logits = logits_of(np.linspace(0.5, 0.9, 40), 3)
    labels = np.full(40, int(wrong))
    wanted = 0.7 if wrong else 0.3
    np.testing.assert_allclose(value_of(metrics.ks_error, logits, labels), wanted, rtol=1e-5)


def test_equal_confidences_are_looked_at_together():
    """Of 40 examples at 0.75 three quarters are right: calibrated, in whatever order."""
    logits = logits_of(np.full(40, 0.75), 3)
    labels = (np.arange(40) < 10).astype(int)
    for values in (labels, labels[::-1]):
        np.testing.assert_allclose(value_of(metrics.ks_error, logits, values), 0, atol=1e-6)


def test_one_example():
    actual = value_of(metrics.ks_error, logits_of([0.75]), np.array([0]))
    np.testing.assert_allclose(actual, 0.25, rtol=1e-6)
