"""Metrics of pixels by image: pooled, averaged and with intervals, against NumPy."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics
from calib_jax.inference import resampling

SEVERAL = {name: metrics.named(name) for name in ("ece", "mean_iou", "classwise_ece", "accuracy")}


def scenes(num_images=6, seed=0):
    """Return logits [images, 4, 5, 3], labels and weights, with void pixels of label 255."""
    random = np.random.default_rng(seed)
    logits = 2 * random.standard_normal((num_images, 4, 5, 3)).astype(np.float32)
    labels = np.where(
        random.random((num_images, 4, 5)) < 0.6, logits.argmax(-1), random.integers(0, 3, (4, 5))
    )
    weights = (random.random((num_images, 4, 5)) < 0.8).astype(np.float32)
    weights[1] = 0  # an image of void
    return logits, np.where(weights > 0, labels, 255), weights


@pytest.fixture(scope="module")
def stream():
    """A stream of six images in batches of four and two."""
    accumulated = inference.ImageStream(SEVERAL)
    for part in (slice(0, 4), slice(4, 6)):
        accumulated.update(*(array[part] for array in scenes()))
    return accumulated


def test_pooled_values_are_those_of_all_pixels(stream):
    expected = metrics.values_of(SEVERAL, *scenes())
    for name, value in stream.compute().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


def test_per_image_is_the_mean_over_images_with_a_pixel(stream):
    logits, labels, weights = scenes()
    for name, value in stream.per_image().items():
        each = [SEVERAL[name](logits[n], labels[n], weights[n]) for n in (0, 2, 3, 4, 5)]
        np.testing.assert_allclose(value, np.mean(each), rtol=1e-5, err_msg=name)


def test_intervals_are_those_of_drawn_images(stream):
    """Check against a loop over draws, in which the pixels of the drawn images are joined."""
    key, draws = jax.random.key(3), 20
    kind = {"key": key, "num_resamples": draws, "level": 0.8}
    actual = stream.estimates(**kind, method="percentile")
    valid = stream.estimates(**kind)
    logits, labels, weights = scenes()
    (counts,) = resampling.resamples_on_host(key, 6, draws)
    index = [np.repeat(np.arange(6), row.astype(int)) for row in counts]
    samples = [metrics.values_of(SEVERAL, logits[i], labels[i], weights[i]) for i in index]
    for name, estimate in actual.items():
        low, high = np.quantile([sample[name] for sample in samples], [0.1, 0.9])
        np.testing.assert_allclose([estimate.low, estimate.high], [low, high], rtol=1e-4)
        np.testing.assert_allclose(estimate.value, stream.compute()[name])
        if SEVERAL[name].biased:  # percentiles exclude the error of a calibrated model
            assert valid[name].interval == "none"
            assert np.all(np.isnan(valid[name].low))
        else:
            assert valid[name][1:] == estimate[1:]
