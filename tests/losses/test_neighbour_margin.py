"""NACL: logits of pixels against the label shares of their windows, with the laws of images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from .checks import values_and_gradient
from .reference import probabilities


def shares(labels, num_classes, kernel_size, weights=None):
    """Count labels in each window by loops; pixels outside and of weight 0 are not counted."""
    counted = np.zeros((*labels.shape, num_classes))
    reach = kernel_size // 2
    for place in np.ndindex(*labels.shape):
        for step in np.ndindex(*(kernel_size,) * (labels.ndim - 1)):
            other = (place[0], *(p + s - reach for p, s in zip(place[1:], step, strict=True)))
            inside = all(0 <= o < size for o, size in zip(other, labels.shape, strict=True))
            if inside and (weights is None or weights[other]):
                counted[(*place, labels[other])] += 1
    return counted / kernel_size ** (labels.ndim - 1)


def neighbour_margin(logits, labels, *, alpha=0.1, kernel_size=3, distance="l1", weights=None):
    """-log p_y plus alpha times the mean distance of shares and logits."""
    num_classes = logits.shape[-1]
    flat = probabilities(logits.reshape(-1, num_classes), labels.reshape(-1)).cross_entropy
    gap = shares(labels, num_classes, kernel_size, weights) - logits
    size = np.abs(gap) if distance == "l1" else gap**2
    return flat.reshape(labels.shape) + alpha * np.mean(size, axis=-1)


REFERENCES = {"neighbour_margin": neighbour_margin}


def images(shape=(2, 4, 5), num_classes=3, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((*shape, num_classes)), random.integers(num_classes, size=shape)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 4, 5), {}),
        ((2, 4, 5), {"distance": "l2", "alpha": 0.5, "kernel_size": 5}),
        ((1, 3, 2, 3), {"alpha": 1.0}),
    ],
)
def test_value_and_gradient(shape, options):
    logits, labels = images(shape)
    objective = losses.objective("neighbour_margin", **options)
    values, gradient = values_and_gradient(
        lambda z, y: objective.value((), z, y, None), logits, labels
    )
    np.testing.assert_allclose(values, neighbour_margin(logits, labels, **options), rtol=1e-9)
    step, expected = 1e-6, np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        shift = np.zeros_like(logits)
        shift[index] = step
        above = neighbour_margin(logits + shift, labels, **options)
        below = neighbour_margin(logits - shift, labels, **options)
        expected[index] = np.sum(above - below) / (2 * step)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


def test_pixels_of_weight_zero_are_in_no_share_and_have_no_gradient():
    logits, labels = images()
    weights = np.ones(labels.shape, np.float32)
    weights[0, 1, 2] = weights[1, 0, 0] = 0
    expected = neighbour_margin(logits, labels, weights=weights) * weights
    void = np.where(weights == 0, 255, labels)
    logits = np.where(weights[..., None] == 0, np.nan, logits).astype(np.float32)
    objective = losses.objective("neighbour_margin")
    terms = objective.value((), logits, void, weights)
    np.testing.assert_allclose(terms, expected, rtol=1e-5)
    gradient = jax.grad(lambda z: jnp.sum(objective.value((), z, void, weights)))(logits)
    assert np.isfinite(gradient).all()
    assert not gradient[0, 1, 2].any()


def test_devices_agree_with_one():
    """Terms depend on their image alone: devices need no other device."""
    logits, labels = images((8, 3, 3))
    logits = logits.astype(np.float32)
    objective = losses.objective("neighbour_margin")

    def value(logits, labels):
        return objective.value((), logits, labels, None, axis_name="devices")

    parts = (logits[:, None], labels[:, None])
    on_devices = jax.pmap(value, axis_name="devices")(*parts)
    np.testing.assert_allclose(
        on_devices[:, 0], objective.value((), logits, labels, None), rtol=1e-6
    )


def test_a_wrong_label_is_nan_in_its_pixel_alone():
    logits, labels = images()
    good = losses.objective("neighbour_margin").value((), logits.astype(np.float32), labels)
    labels[0, 0, 0] = 7
    terms = losses.objective("neighbour_margin").value((), logits.astype(np.float32), labels)
    assert np.isnan(terms[0, 0, 0])
    np.testing.assert_array_equal(np.isnan(terms).sum(), 1)
    np.testing.assert_array_equal(terms[1], good[1])


def test_logits_at_the_extremes_are_finite():
    labels = np.zeros((1, 2, 2), int)
    for scale in (0.0, 1e4, 1e12):
        logits = jnp.asarray(scale * images((1, 2, 2))[0], jnp.float32)
        terms, back = jax.vjp(
            lambda z: losses.objective("neighbour_margin").value((), z, labels, None), logits
        )
        assert np.isfinite(terms).all()
        assert np.isfinite(back(jnp.ones_like(terms))[0]).all()
