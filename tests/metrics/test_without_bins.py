"""Calibration errors without bins: running sums, a smoothing kernel, and a density estimate."""

import itertools
import math

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics

from . import value_of
from .reference import logits_of, sample, softmax, top_label


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
def test_one_nan_among_many_rows_is_nan(metric):
    logits = np.tile(np.float32([2, 0]), (300, 1))
    logits[7] = np.nan
    assert np.isnan(value_of(metric, logits, np.zeros(300, int)))


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


def test_equal_confidences_are_smoothed_together():
    """Of 40 examples at 0.75 three quarters are right: calibrated, in whatever order."""
    logits = logits_of(np.full(40, 0.75), 3)
    labels = (np.arange(40) < 10).astype(int)
    np.testing.assert_allclose(value_of(metrics.smooth_ece, logits, labels), 0, atol=1e-4)
    # A constant error of one sign is not smoothed away, at whatever bandwidth.
    actual = value_of(metrics.smooth_ece, logits, np.zeros(40, int))
    np.testing.assert_allclose(actual, 0.25, rtol=1e-4)


KINDS = ("canonical", "marginal", "top_label")


def pairs(seed, rows=12, num_classes=3):
    """Draw logits and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (rows, num_classes)).astype(np.float32)
    return logits, rng.integers(0, num_classes, rows)


def dirichlet(x, parameters):
    """Return the density of a Dirichlet distribution at x."""
    log_norm = sum(map(math.lgamma, parameters)) - math.lgamma(sum(parameters))
    return math.exp(
        sum((a - 1) * math.log(v) for a, v in zip(parameters, x, strict=True)) - log_norm
    )


def estimate(points, targets, bandwidth):
    """Return, for each point, the mean target of the others, weighed by their densities."""
    result = []
    for i, x in enumerate(points):
        others = [j for j in range(len(points)) if j != i]
        density = np.array([dirichlet(x, points[j] / bandwidth + 1) for j in others])
        result.append(density @ targets[others] / density.sum())
    return np.array(result)


def error(logits, labels, kind, bandwidth, p):
    """Return the mean over the examples of |estimate - probability|^p, summed over classes."""
    f = softmax(logits)
    hot = np.eye(f.shape[1])[labels]
    if kind == "canonical":
        return np.mean(np.sum(np.abs(estimate(f, hot, bandwidth) - f) ** p, axis=1))
    if kind == "top_label":
        hot = (f.argmax(axis=1) == labels).astype(float)[:, None]
        f = f.max(axis=1, keepdims=True)
    return sum(
        np.mean(np.abs(estimate(np.stack([q, 1 - q], axis=1), y, bandwidth) - q) ** p)
        for q, y in zip(f.T, hot.T, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_densities_pair_by_pair(kind):
    logits, labels = pairs(0)
    for bandwidth, p in ((0.1, 1.0), (0.5, 2.0)):
        options = {"kind": kind, "bandwidth": bandwidth, "p": p}
        actual = value_of(metrics.kde_calibration_error, logits, labels, **options)
        np.testing.assert_allclose(actual, error(logits, labels, **options), rtol=2e-5)


def test_the_gradient_is_the_slope():
    logits, labels = pairs(3)
    options = {"kind": "canonical", "bandwidth": 0.3, "p": 2.0}
    metric = metrics.kde_calibration_error.with_options(**options)
    gradient = jax.jit(jax.grad(lambda z: metric.value(metric.stat(z, labels))))(logits)
    direction = np.random.default_rng(4).normal(size=logits.shape)
    step = 1e-5 * direction
    ahead, behind = (error(logits + s, labels, **options) for s in (step, -step))
    np.testing.assert_allclose(np.sum(gradient * direction), (ahead - behind) / 2e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_saturated_logits_are_finite(kind):
    logits = np.tile(np.array([[1e4, -1e4, 0.0]], np.float32), (12, 1))
    labels = np.zeros(12, int)
    actual = value_of(metrics.kde_calibration_error, logits, labels, kind=kind)
    np.testing.assert_allclose(actual, 0, atol=1e-6)
    actual = value_of(metrics.kde_calibration_error, logits, labels + 1, kind=kind)
    wanted = 1 if kind == "top_label" else 2  # class 0 is missed, and class 1 is not expected
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_one_example_has_no_neighbour():
    logits, labels = pairs(0)
    alone = (np.arange(len(labels)) == 3).astype(np.float32)
    assert np.isnan(value_of(metrics.kde_calibration_error, logits, labels, alone))
