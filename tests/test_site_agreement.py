"""The page on migration: other libraries' formulas in NumPy, and ours beside them."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, losses, metrics


def sample(num_classes=4):
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((200, num_classes))).astype(np.float32)
    z = logits.astype(np.float64)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return logits, (p.cumsum(axis=1) < random.random((200, 1))).sum(axis=1), p


def gaps(confidence, hit, bins):
    """Share, and mean confidence minus accuracy, of each bin that is not empty."""
    inside = [bins == b for b in np.unique(bins)]
    gap = np.array([(confidence[rows] - hit[rows]).mean() for rows in inside])
    return np.array([rows.mean() for rows in inside]), gap


def left_closed(confidence, hit, num_bins=15):
    """Bins [lo, hi): a confidence of 1 has a bin of its own, as in torchmetrics and relplot."""
    return gaps(confidence, hit, np.floor(confidence * num_bins).astype(int))


@pytest.mark.slow
def test_left_closed_bins_are_the_option():
    """ECE, MCE, RMS and ACE of torchmetrics and netcal, where no confidence is 1."""
    logits, labels, p = sample()
    share, gap = left_closed(p.max(axis=1), p.argmax(axis=1) == labels)
    for metric, expected in (
        (metrics.ece, share @ abs(gap)),
        (metrics.mce, max(abs(gap))),
        (metrics.rms_calibration_error, np.sqrt(share @ gap**2)),
        (metrics.average_calibration_error, abs(gap).mean()),
    ):
        assert metric(logits, labels, edges="left") == pytest.approx(expected, abs=2e-6)


@pytest.mark.slow
def test_a_confidence_of_one():
    """0.525 with a bin of its own, and 0.475 here, as the page states."""
    share, gap = left_closed(np.array([0.95, 1.0]), np.array([1, 0]), num_bins=10)
    assert share @ abs(gap) == pytest.approx(0.525)
    logits = jnp.log(jnp.array([[0.95, 0.05], [1.0, 0.0]]))
    for edges in ("left", "right"):
        statistic = metrics.ece.stat(logits, jnp.array([0, 1]), num_bins=10, edges=edges)
        assert metrics.ece.value(statistic) == pytest.approx(0.475)


@pytest.mark.slow
def test_mmce_of_netcal_is_a_root():
    logits, labels, p = sample()
    error = (p.argmax(axis=1) == labels) - p.max(axis=1)
    kernel = np.exp(-2.5 * abs(p.max(axis=1)[:, None] - p.max(axis=1)))
    expected = np.sqrt(error @ kernel @ error) / 200
    assert jnp.sqrt(losses.mmce_penalty(logits, labels)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_scikit_learn():
    """Halved Brier score, clipped logarithms, the calibration curve, temperature and sigmoid."""
    peers = pytest.importorskip("sklearn.metrics")
    calibration = pytest.importorskip("sklearn.calibration")
    logits, labels, p = sample(num_classes=2)
    brier = float(metrics.brier(logits, labels))
    assert peers.brier_score_loss(labels, p[:, 1]) == pytest.approx(brier / 2, abs=1e-6)
    wide, classes, of_classes = sample()
    brier = float(metrics.brier(wide, classes))
    assert peers.brier_score_loss(classes, of_classes) == pytest.approx(brier, abs=1e-6)
    epsilon = np.finfo(np.float64).eps
    certain = peers.log_loss([0], np.array([[0.0, 1.0]]), labels=[0, 1])
    assert certain == pytest.approx(-np.log(epsilon))
    assert metrics.nll(jnp.array([[-jnp.inf, 0.0]]), jnp.array([0])) == jnp.inf

    frequency, mean = calibration.calibration_curve(labels, p[:, 1], n_bins=15)
    curve = metrics.classwise_reliability(logits, labels)
    filled = np.asarray(curve.weight)[1] > 0
    np.testing.assert_allclose(np.asarray(curve.confidence)[1][filled], mean, atol=1e-6)
    np.testing.assert_allclose(np.asarray(curve.accuracy)[1][filled], frequency, atol=1e-6)

    theirs = calibration._TemperatureScaling().fit(wide.astype(np.float64), classes)
    ours = calibrators.temperature.fit(wide, classes)
    assert 1 / theirs.beta_ == pytest.approx(float(ours.temperature), rel=1e-4)
    score = (logits[:, 1] - logits[:, 0]).astype(np.float64)
    sigmoid = calibration._SigmoidCalibration().fit(score, labels)
    platt = calibrators.platt.fit(logits, labels, smoothed=True)
    assert -sigmoid.a_ == pytest.approx(float(platt.slope[0]), rel=1e-3)
    assert -sigmoid.b_ == pytest.approx(float(platt.intercept[0]), abs=1e-3)
