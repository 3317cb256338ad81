"""DeepLab: resizing against NumPy, sizes, strides, V3 beside V3+, and refused options."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models.deeplab import resized
from tests.selection import first_case

from .members import shapes_for, size, variables_of


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


def test_a_small_network_is_small():
    network = models.deeplab_small(num_classes=11)
    x = jax.ShapeDtypeStruct((1, 24, 32, 3), jnp.float32)
    assert size(shapes_for(network, x)["params"]) < 1_000_000
    logits = jax.eval_shape(
        functools.partial(network.apply, train=False), shapes_for(network, x), x
    )
    assert logits.shape == (1, 24, 32, 11)


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


@first_case
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


@pytest.mark.slow
def test_v3_is_v3_plus_whose_decoder_changes_nothing(x64):
    options = {"multi_grid": (1,), "width": 2, "channels": 4, "low_channels": 2, "num_classes": 3}
    plus, plain = (
        models.deeplab((1,), **options, dtype="float64", decoder=decoder)
        for decoder in (True, False)
    )
    # Images of 4 x 4 have features of one pixel, before and after the decoder's resizing.
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4, 4, 3)))
    variables = jax.tree.map(lambda leaf: leaf.astype(float), variables_of(plus, x))
    for name, channels in (("decoder1", 6), ("decoder2", 4)):
        kernel = np.zeros((3, 3, channels, 4))
        kernel[1, 1, range(4), range(4)] = 1
        variables["params"][f"{name}_conv"]["kernel"] = jnp.asarray(kernel)
        variables["params"][f"{name}_norm"] = {"scale": jnp.ones(4), "bias": jnp.zeros(4)}
        variables["batch_stats"][f"{name}_norm"] = {
            "mean": jnp.zeros(4),
            "var": jnp.full(4, 1 - 1e-5),
        }
    expected = plus.apply(variables, x, train=False)
    shared = {
        kind: {
            name: value
            for name, value in layers.items()
            if not name.startswith(("low_", "decoder"))
        }
        for kind, layers in variables.items()
    }
    assert {*shared["params"]} == {*shapes_for(plain, x)["params"]}
    np.testing.assert_allclose(plain.apply(shared, x, train=False), expected, rtol=1e-9)
    assert float(jnp.std(expected, axis=0).min()) > 0


def test_an_image_may_be_one_pixel(x64):
    network = models.deeplab((1,), multi_grid=(1,), width=2, channels=2, num_classes=3)
    x = jax.ShapeDtypeStruct((2, 1, 1, 3), jnp.float32)
    init = functools.partial(network.init_with_output, train=False)
    logits, _ = jax.eval_shape(init, jax.random.key(0), x)
    assert logits.shape == (2, 1, 1, 3)
    one = jnp.full((1, 1, 1, 1), 7.0)
    for resizing in ("align_corners", "half_pixel"):
        np.testing.assert_allclose(resized(one, (3, 4), resizing), jnp.full((1, 3, 4, 1), 7.0))


@pytest.mark.parametrize(
    ("blocks", "options", "message"),
    [
        ((), {}, "blocks and multi_grid must not be empty"),
        ((1, 0), {}, "blocks must be at least 1, got 0"),
        ((1,), {"output_stride": 32}, "output_stride must be 8 or 16, got 32"),
        ((1,), {"resizing": "align"}, "did you mean 'align_corners'"),
        ((1,), {"rates": (6, 0)}, "rates must be at least 1, got 0"),
    ],
)
def test_networks_that_do_not_exist_are_refused(blocks, options, message):
    with pytest.raises(ValueError, match=message):
        models.deeplab(blocks, **options)
