"""The kernel estimate of the calibration error, against densities written out pair by pair."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics

from .laws import assert_laws, value_of
from .reference import softmax

KINDS = ("canonical", "marginal", "top_label")


def sample(seed, rows=12, num_classes=3):
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
    logits, labels = sample(0)
    for bandwidth, p in ((0.1, 1.0), (0.5, 2.0)):
        options = {"kind": kind, "bandwidth": bandwidth, "p": p}
        actual = value_of(metrics.kde_calibration_error, logits, labels, **options)
        np.testing.assert_allclose(actual, error(logits, labels, **options), rtol=2e-5)


@pytest.mark.parametrize("kind", ["canonical", "marginal"])
def test_laws(kind):
    assert_laws(metrics.kde_calibration_error, *sample(1), kind=kind, bandwidth=0.2)


def test_blocks_of_rows_change_nothing(monkeypatch):
    logits, labels = sample(2)
    whole = value_of(metrics.kde_calibration_error, logits, labels)
    monkeypatch.setattr("calib_jax.metrics.without_bins._BLOCK_ENTRIES", 5 * len(labels))
    blocks = value_of(metrics.kde_calibration_error, logits, labels)
    np.testing.assert_allclose(blocks, whole, rtol=1e-6)


def test_the_gradient_is_the_slope():
    logits, labels = sample(3)
    options = {"kind": "canonical", "bandwidth": 0.3, "p": 2.0}
    metric = metrics.kde_calibration_error.with_options(**options)
    labels_ = jnp.asarray(labels)
    gradient = jax.grad(lambda z: metric.value(metric.stat(z, labels_)))(jnp.asarray(logits))
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
    logits, labels = sample(0)
    alone = (np.arange(len(labels)) == 3).astype(np.float32)
    assert np.isnan(value_of(metrics.kde_calibration_error, logits, labels, alone))


def test_options_are_checked():
    logits, labels = sample(0)
    for options, message in (
        ({"kind": "canonic"}, "did you mean 'canonical'"),
        ({"bandwidth": 0.0}, "bandwidth must be greater than 0"),
        ({"p": 0.5}, "p must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            value_of(metrics.kde_calibration_error, logits, labels, **options)
