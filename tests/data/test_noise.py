"""Gaussian noise: its size on the scale of the pixels, its ends, and that it can be repeated."""

import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.examples import InMemory


def grey(value, brightest=255, dtype=np.uint8):
    images = np.full((40, 16, 16, 3), value * brightest).astype(dtype)
    return InMemory(images, np.arange(40) % 10)


def test_pixels_stay_on_the_scale_and_labels_stay():
    for value, mean in ((0.0, 0.04), (1.0, 0.96)):  # half of it is cut: sigma / sqrt(2 pi)
        noisy = data.gaussian_noise(grey(value, 16), brightest=16)
        assert noisy.inputs.min() >= 0
        assert noisy.inputs.max() <= 16
        assert np.mean(noisy.inputs / 16) == pytest.approx(mean, abs=0.03)
        np.testing.assert_array_equal(noisy.labels, np.arange(40) % 10)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_noise_of_an_example_is_that_of_one_draw(dtype):
    """However many examples are read at a time: 1,500 are several reads."""
    shape = (1500, 16, 16, 3)
    images = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    weights = np.linspace(0, 1, 1500)
    source = InMemory(images, np.arange(1500) % 10, weights)
    noisy = data.gaussian_noise(source, severity=2, seed=7)
    noise = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    expected = np.clip(images.astype(np.float32) / 255 + 0.06 * noise, 0, 1) * 255
    np.testing.assert_array_equal(noisy.inputs, expected.astype(dtype))
    np.testing.assert_array_equal(noisy.labels, source.labels)
    np.testing.assert_array_equal(noisy.weights, weights)
