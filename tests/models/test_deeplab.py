"""DeepLab: resizing against NumPy, sizes, strides, V3 beside V3+, and refused options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models.deeplab import resized

from .members import shapes_for


def interpolated(image, places):
    """Interpolate `[rows, columns]` at the places of each axis, one row or column at a time."""
    rows = np.stack([np.interp(places[0], np.arange(len(c)), c) for c in image.T], axis=1)
    return np.stack([np.interp(places[1], np.arange(len(r)), r) for r in rows])


@pytest.mark.parametrize("resizing", ["align_corners", "half_pixel"])
@pytest.mark.parametrize("new", [(9, 14), (5, 4), (1, 7)])
def test_resizing_is_interpolation(resizing, new, x64):
    image = np.random.default_rng(0).standard_normal((5, 4))
    places = [
        np.linspace(0, old - 1, count)
        if resizing == "align_corners"
        else np.clip((np.arange(count) + 0.5) * old / count - 0.5, 0, old - 1)
        for count, old in zip(new, image.shape, strict=True)
    ]
    actual = resized(jnp.asarray(image)[None, ..., None], new, resizing)
    np.testing.assert_allclose(actual[0, ..., 0], interpolated(image, places), atol=1e-12)


def windows(output_stride, **options):
    """Return the stride and dilation of every 3 x 3 convolution of a network, by its level."""
    network = models.deeplab((1, 1, 1), output_stride=output_stride, width=2, **options)
    x = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    apply = functools.partial(network.apply, train=False)
    equations = jax.make_jaxpr(apply)(shapes_for(network, x), x).jaxpr.eqns
    strides, dilations = [], []
    for equation in _convolutions(equations):
        if equation.invars[1].aval.shape[0] == 3:
            strides.append(equation.params["window_strides"][0])
            dilations.append(equation.params["rhs_dilation"][0])
    return strides, dilations


def _convolutions(equations):
    for equation in equations:
        if equation.primitive.name == "conv_general_dilated":
            yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _convolutions(inner.eqns)


@pytest.mark.parametrize(
    ("output_stride", "strides", "dilations"),
    [
        # Three stages of a block, the multi-grid, the pyramid, the decoder.
        (16, [1, 2, 2, 1, 1, 1], [1, 1, 1, 2, 4, 8, 6, 12, 18, 1, 1]),
        (8, [1, 2, 1, 1, 1, 1], [1, 1, 2, 4, 8, 16, 12, 24, 36, 1, 1]),
    ],
)
def test_dilations_replace_strides(output_stride, strides, dilations):
    actual = windows(output_stride)
    assert actual == (strides + [1] * 5, dilations)
    # DeepLabV3 has no decoder.
    assert windows(output_stride, decoder=False) == (strides + [1] * 3, dilations[:-2])


def test_an_image_may_be_one_pixel(x64):
    network = models.deeplab((1,), multi_grid=(1,), width=2, channels=2, num_classes=3)
    x = jax.ShapeDtypeStruct((2, 1, 1, 3), jnp.float32)
    init = functools.partial(network.init_with_output, train=False)
    logits, _ = jax.eval_shape(init, jax.random.key(0), x)
    assert logits.shape == (2, 1, 1, 3)
    one = jnp.full((1, 1, 1, 1), 7.0)
    for resizing in ("align_corners", "half_pixel"):
        np.testing.assert_allclose(resized(one, (3, 4), resizing), jnp.full((1, 3, 4, 1), 7.0))
