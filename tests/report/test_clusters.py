"""Scores of clustered examples: width of intervals, folds, parts, what the report says."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, report
from calib_jax.report import calibrate

FEW = {"metrics": ["nll"], "num_resamples": 50}


def images(num_images=40, num_pixels=400, num_right=30):
    """Return logits, labels and clusters of images whose pixels are all equal."""
    image = np.repeat(np.arange(num_images), num_pixels)
    labels = np.where(image < num_right, 0, 1)
    return np.tile(np.float32([1, 0, -1]), (len(image), 1)), labels, image


def half_width(scored, metric="accuracy"):
    (row,) = (row for row in scored.rows if row.metric == metric)
    return (row.high - row.low) / 2


def test_equal_pixels_count_once():
    """400 equal pixels per image: the interval by pixel is sqrt(400) = 20 times too narrow."""
    logits, labels, image = images()
    options = {"metrics": ["accuracy"], "num_resamples": 200}
    by_image = half_width(report.score(logits, labels, clusters=image, **options))
    by_pixel = half_width(report.score(logits, labels, **options))
    assert by_image == pytest.approx(1.645 * np.sqrt(0.75 * 0.25 / 40), rel=0.15)
    assert by_pixel == pytest.approx(1.645 * np.sqrt(0.75 * 0.25 / 16_000), rel=0.15)
    assert 16 < by_image / by_pixel < 24


def test_folds_contain_whole_clusters():
    """With one fold per cluster, each temperature is fitted without the cluster that it scales."""
    random = np.random.default_rng(1)
    logits = 3 * random.standard_normal((36, 3)).astype(np.float32)
    labels, cluster = random.integers(0, 3, 36), random.permutation(np.arange(36) // 9)
    given = (jnp.asarray(logits), jnp.asarray(labels), None, None)

    def folds(count):
        return calibrate.calibrated("temperature", *given, count, "nll", 0, cluster)[1]

    weights = [(cluster != k).astype(np.float32) for k in range(4)]
    fits = [calibrators.temperature.fit(logits, labels, weight) for weight in weights]
    temperatures = [fold["temperature"] for fold in folds(4)["params"]]
    wanted = [float(fit.temperature) for fit in fits]
    np.testing.assert_allclose(sorted(temperatures), sorted(wanted), rtol=1e-5)
    assert folds(4)["fitted_on"] == "the rest of the examples, in 4 folds of whole clusters"
    with pytest.raises(ValueError, match=r"lie in \[2, 4\], the number of clusters, got 5"):
        folds(5)
