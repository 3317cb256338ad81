"""Layers against NumPy and JAX: convolutions, averages, maxima, dropout, initial weights."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from calib_jax import models
from calib_jax.models import contract, layers
from calib_jax.models.convolution import convolve

from .members import images


@pytest.mark.parametrize(("size", "cells"), [((4, 6), 2), ((5, 3), 2), ((1, 1), 2), ((3, 4), 1)])
def test_averages_of_parts(size, cells):
    maps = images(2, side=7)[:, : size[0], : size[1]]
    average = jax.jit(functools.partial(layers.averages, cells=cells, dtype="float32"))
    actual = average(maps).reshape(2, 3, cells, cells)
    for i, j in np.ndindex(cells, cells):
        part = np.asarray(maps, float)[
            :,
            math.floor(i * size[0] / cells) : math.ceil((i + 1) * size[0] / cells),
            math.floor(j * size[1] / cells) : math.ceil((j + 1) * size[1] / cells),
        ]
        np.testing.assert_allclose(actual[:, :, i, j], part.mean((1, 2)), rtol=1e-5, atol=1e-6)


# Positions, window, stride, padding: the text network, LeNet-5, the stem for ImageNet and the rest.
POOLS = {
    "text": ((12,), 5, 1, 0),
    "halves": ((6, 5), 2, 2, 0),
    "stem": ((5, 8), 3, 2, 1),
    "gaps": ((9, 7), 2, 3, 0),
    "one window": ((4,), 4, 1, 0),
    "volumes": ((4, 3, 5), 2, 1, 1),
}


@functools.partial(jax.jit, static_argnames=("window", "stride", "padding"))
def pooled(x, towards, **options):
    """Compute the maxima, and the gradient of x."""
    y, back = jax.vjp(functools.partial(layers.max_pool, **options), x)
    return y, *back(towards)


@pytest.mark.parametrize("case", POOLS.values(), ids=POOLS)
def test_maximum_over_windows(case):
    sizes, window, stride, padding = case
    draw = np.random.default_rng(0)
    x = -np.abs(draw.standard_normal((4, *sizes, 3)))  # padding is no 0 among them
    x[1] = np.round(x[1])  # ties
    x[2:][draw.random(x[2:].shape) < 0.2] = -np.inf
    x[3] = np.where(x[3] == -np.inf, np.nan, x[3])

    padded = np.full((4, *(size + 2 * padding for size in sizes), 3), -np.inf)
    inside = (slice(None), *(slice(padding, padding + size) for size in sizes), slice(None))
    padded[inside] = x
    counts = [(size + 2 * padding - window) // stride + 1 for size in sizes]
    expected = np.empty((4, *counts, 3))
    towards = draw.standard_normal(expected.shape)
    gradient = np.zeros_like(padded)
    for place in np.ndindex(expected.shape):
        starts = [i * stride for i in place[1:-1]]
        cut = (place[0], *(slice(i, i + window) for i in starts), place[-1])
        first = np.unravel_index(np.argmax(padded[cut]), (window,) * len(sizes))  # or first NaN
        chosen = (place[0], *(i + j for i, j in zip(starts, first, strict=True)), place[-1])
        expected[place] = padded[chosen]
        gradient[chosen] += towards[place]

    arrays = x.astype(np.float32), towards.astype(np.float32)
    actual, of_x = pooled(*arrays, window=window, stride=stride, padding=padding)
    np.testing.assert_array_equal(actual, expected.astype(np.float32))
    np.testing.assert_allclose(of_x, gradient[inside], rtol=1e-5, atol=1e-6)


@functools.partial(jax.jit, static_argnames="rate")
def drop(x, rate, seeds):
    return models.Dropout(rate).apply({}, x, True, seeds)


def test_dropout_scales_up_the_rest():
    x = jnp.full((4, 50, 60), 3.0)
    y = np.asarray(drop(x, 0.3, jax.random.split(jax.random.key(0), 4)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 3 / 0.7, rtol=1e-6)
    # 12,000 draws: five standard deviations.
    assert abs(kept.mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / kept.size)
    assert len({row.tobytes() for row in kept}) == 4


def test_a_dropout_mask_belongs_to_the_example():
    x, seeds = jnp.ones((6, 40)), jax.random.split(jax.random.key(1), 6)
    whole = drop(x, 0.5, seeds)
    order = jnp.array([4, 2, 5])
    np.testing.assert_array_equal(drop(x[order], 0.5, seeds[order]), whole[order])
    raw = jax.random.key_data(seeds)
    np.testing.assert_array_equal(drop(x, 0.5, raw), whole)


def test_dropout_layers_do_not_share_masks():
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x, seeds):
            return [models.Dropout(0.5, name=name)(x, True, seeds) for name in ("one", "other")]

    one, other = Two().apply({}, jnp.ones((2, 100)), jax.random.split(jax.random.key(2), 2))
    agreement = np.mean((one == 0) == (other == 0))
    assert 0.25 < agreement < 0.75


def start(network, x, *names, **options):
    """Draw the initial parameters, of all layers or of some."""

    # Compiled, so that nothing but the draws is computed, and with a generator that compiles fast.
    @jax.jit
    def init(key):
        params = network.init(key, x, **options or {"train": False})["params"]
        return {name: params[name] for name in names or params}

    return jax.device_get(init(jax.random.key(0, impl="rbg")))


def assert_uniform(draws, bound):
    """Uniform within the bound: none beyond, some close to it, and the variance of that."""
    assert np.abs(draws).max() <= bound
    assert np.abs(draws).max() > bound * (1 - 20 / draws.size)
    tolerance = 5 / np.sqrt(draws.size)
    np.testing.assert_allclose(draws.std(), bound / np.sqrt(3), rtol=tolerance)
    assert abs(draws.mean()) < tolerance * bound


def test_torch():
    params = start(models.lenet5(), images(1, side=32), "conv1", "dense1")
    for layer, fan_in in (("conv1", 75), ("dense1", 400)):
        assert_uniform(params[layer]["kernel"], fan_in**-0.5)
        bias = params[layer]["bias"]
        assert fan_in**-0.5 / 2 < np.abs(bias).max() <= fan_in**-0.5
        assert bias.min() < 0 < bias.max()


# The variance of kernels of 3 x 3 from 50 channels to 60.
VARIANCES = {
    **{"torch": 1 / (3 * 9 * 50), "he_normal": 2 / (9 * 60), "he_normal_fan_in": 2 / (9 * 50)},
    **{"normal": 0.02**2, "xavier": 2 / (9 * 110)},
}


@pytest.mark.parametrize(("recipe", "variance"), VARIANCES.items())
def test_variances_of_recipes(recipe, variance):
    """27,000 draws: the variance has a standard deviation of .9 percent."""
    made = contract.recipe(recipe)
    draws = made.convolution(jax.random.key(0, impl="rbg"), (3, 3, 50, 60))
    np.testing.assert_allclose(np.var(draws), variance, rtol=0.05)
    bias = np.abs(made.bias(450)(jax.random.key(1, impl="rbg"), (27_000,), "float32")).max()
    np.testing.assert_allclose(bias, 0 if recipe in ("normal", "xavier") else 450**-0.5, rtol=1e-3)


def test_vectors_of_words():
    params = start(models.global_pooling_cnn(words=99, channels=2), np.ones((1, 21), int))
    assert_uniform(params["embedding"]["embedding"], 0.05)
    network = models.transformer(num_classes=99, width=64, depth=1, mlp_width=2)
    params = start(network, jnp.ones((1, 1), int), "table", method="encode")
    np.testing.assert_allclose(params["table"]["embedding"].std(), 1 / 8, rtol=0.05)


def test_he_normal():
    network = models.small_resnet(1, shortcut="projection")
    params = start(network, images(1), "stage3_block1", "head")
    block = params["stage3_block1"]
    kernel = block["conv1"]["kernel"]
    assert kernel.shape == (3, 3, 32, 64)
    deviation = np.sqrt(2 / (9 * 64))
    np.testing.assert_allclose(kernel.std(), deviation, rtol=0.03)
    assert np.abs(kernel).max() > 3.2 * deviation  # a normal that is not cut off
    kernel = block["conv_shortcut"]["kernel"]
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / 64), rtol=0.1)
    assert_uniform(params["head"]["kernel"], 1 / 8)
    bound = params["head"]["kernel"].shape[0] ** -0.5  # as in the released code
    assert bound / 2 < np.abs(params["head"]["bias"]).max() <= bound


def test_deeplab_is_by_fan_out_in_its_backbone_and_by_fan_in_behind_it():
    small = {"multi_grid": (1,), "width": 16, "channels": 64, "low_channels": 32}
    network = models.deeplab((1,), num_classes=3, rates=(1,), **small)
    expected = {"stem_conv": 49 * 16, "pyramid2_conv": 9 * 128, "decoder1_conv": 9 * 96, "head": 64}
    params = start(network, images(1, side=32), *expected)
    for name, fan in expected.items():
        kernel = params[name]["kernel"]
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / fan), rtol=0.15, err_msg=name)


def test_a_large_mean_costs_layer_norm_no_digits():
    class Norm(nn.Module):
        @nn.compact
        def __call__(self, x):
            return layers.layer_norm(x, name="norm", dtype="float32", epsilon=1e-6)

    x = images(2) + 1e4
    y, _ = Norm().init_with_output(jax.random.key(0), x)
    exact = np.asarray(x, float)
    deviation = exact - exact.mean(axis=-1, keepdims=True)
    expected = deviation / np.sqrt(np.square(deviation).mean(axis=-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(y, expected, rtol=0.01, atol=0.01)


CHANNELS_LAST = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC")}

# Sizes, window, strides, padding, dilation of the window.
CASES = {
    "one by one": ((4, 4), (1, 1), (1, 1), "VALID", None),
    "one by one, strided": ((5, 6), (1, 1), (2, 2), [(0, 0), (0, 0)], (1, 1)),
    "same": ((5, 6), (3, 2), (1, 1), "SAME", None),
    "same, strided": ((7, 6), (3, 3), (2, 2), "SAME", (1, 1)),
    "what the last stride leaves": ((8, 9), (3, 2), (3, 4), [(0, 0), (1, 0)], None),
    "stride larger than the window": ((9, 8), (2, 1), (3, 3), [(0, 1), (2, 0)], None),
    "more padding than window": ((4, 5), (2, 3), (1, 2), [(3, 2), (4, 5)], None),
    "negative padding": ((7, 8), (3, 3), (1, 2), [(-1, 0), (-2, -1)], None),
    "dilated": ((9, 10), (3, 2), (1, 1), [(2, 2), (0, 3)], (2, 3)),
    "dilated and strided": ((11, 9), (3, 2), (2, 3), "SAME", (2, 1)),
    "text, strided and dilated": ((12,), (3,), (2,), [(1, 3)], (2,)),
}


def arrays(sizes, window, dtype=np.float64, batch=2):
    draw = np.random.default_rng(0)
    x, kernel = draw.standard_normal((batch, *sizes, 3)), draw.standard_normal((*window, 3, 4))
    return jnp.asarray(x.astype(dtype)), jnp.asarray(kernel.astype(dtype))


def with_gradients(function, x, kernel):
    shape = jax.eval_shape(function, x, kernel).shape
    towards = np.random.default_rng(1).standard_normal(shape).astype(x.dtype)

    @jax.jit
    def both(x, kernel, towards):
        y, back = jax.vjp(function, x, kernel)
        return y, *back(towards)

    return both(x, kernel, towards)


def assert_equals_jax(x, kernel, **options):
    options |= {"dimension_numbers": CHANNELS_LAST[x.ndim - 2]}
    actual = with_gradients(functools.partial(convolve, **options), x, kernel)
    expected = with_gradients(functools.partial(lax.conv_general_dilated, **options), x, kernel)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_jax(case, x64):
    sizes, window, strides, padding, dilation = case
    options = {"window_strides": strides, "padding": padding, "rhs_dilation": dilation}
    assert_equals_jax(*arrays(sizes, window), **options)


@pytest.mark.parametrize("batch", [32, 53])
def test_parts_of_a_large_batch_make_the_whole(batch, x64):
    x, kernel = arrays((3,), (2,), batch=batch)
    assert_equals_jax(x, kernel, window_strides=(1,), padding="SAME")


def test_groups_are_left_to_jax():
    x, kernel = arrays((5, 6), (3, 3), np.float32)
    kernel = jnp.concatenate([kernel[:, :, :1]] * 3, axis=-1)
    options = {"dimension_numbers": CHANNELS_LAST[2], "feature_group_count": 3}
    actual = convolve(x, kernel, (1, 1), [(0, 1), (1, 0)], **options)
    expected = lax.conv_general_dilated(x, kernel, (1, 1), [(0, 1), (1, 0)], **options)
    np.testing.assert_array_equal(actual, expected)


def test_second_derivatives(x64):
    x, kernel = arrays((4, 3), (2, 2))

    def value(kernel, function):
        y = function(x, kernel, (2, 1), "SAME", dimension_numbers=CHANNELS_LAST[2])
        return jnp.sum(jnp.sin(y))

    def hessian_vector(function):
        slope = jax.grad(functools.partial(value, function=function))
        return jax.jvp(slope, (kernel,), (jnp.cos(kernel),))[1]

    np.testing.assert_allclose(
        hessian_vector(convolve), hessian_vector(lax.conv_general_dilated), rtol=1e-12
    )
