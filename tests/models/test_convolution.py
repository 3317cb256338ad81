"""The convolution equals JAX's own, values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from calib_jax.models.convolution import convolve

CHANNELS_LAST = {1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC")}

# Sizes, window, strides, padding, dilation of the window.
CASES = {
    "as it comes": ((5, 6), (3, 3), (1, 1), "VALID", None),
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
    "text": ((12,), (5,), (1,), "VALID", None),
    "text, strided and dilated": ((12,), (3,), (2,), [(1, 3)], (2,)),
}


def arrays(sizes, window, dtype=np.float64, batch=2):
    draw = np.random.default_rng(0)
    x, kernel = draw.standard_normal((batch, *sizes, 3)), draw.standard_normal((*window, 3, 4))
    return jnp.asarray(x, dtype), jnp.asarray(kernel, dtype)


def with_gradients(function, x, kernel):
    y, back = jax.vjp(function, x, kernel)
    towards = jnp.asarray(np.random.default_rng(1).standard_normal(y.shape), y.dtype)
    return y, *back(towards)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_jax(case, x64):
    sizes, window, strides, padding, dilation = case
    options = {
        "window_strides": strides,
        "padding": padding,
        "rhs_dilation": dilation,
        "dimension_numbers": CHANNELS_LAST[len(sizes)],
    }
    x, kernel = arrays(sizes, window)
    actual = with_gradients(functools.partial(convolve, **options), x, kernel)
    expected = with_gradients(functools.partial(lax.conv_general_dilated, **options), x, kernel)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch", [32, 53])
def test_parts_of_a_large_batch_make_the_whole(batch, x64):
    x, kernel = arrays((3,), (2,), batch=batch)
    options = {"window_strides": (1,), "padding": "SAME", "dimension_numbers": CHANNELS_LAST[1]}
    actual = with_gradients(functools.partial(convolve, **options), x, kernel)
    expected = with_gradients(functools.partial(lax.conv_general_dilated, **options), x, kernel)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


def test_groups_are_left_to_jax():
    x, kernel = arrays((5, 6), (3, 3), np.float32)
    kernel = jnp.concatenate([kernel[:, :, :1]] * 3, axis=-1)
    options = {"dimension_numbers": CHANNELS_LAST[2], "feature_group_count": 3}
    actual = convolve(x, kernel, (1, 1), [(0, 1), (1, 0)], **options)
    expected = lax.conv_general_dilated(x, kernel, (1, 1), [(0, 1), (1, 0)], **options)
    np.testing.assert_array_equal(actual, expected)


def test_gradients_keep_the_dtype():
    x, kernel = arrays((4, 4), (3, 3), jnp.bfloat16)
    conv = functools.partial(
        convolve, window_strides=(1, 1), padding="SAME", dimension_numbers=CHANNELS_LAST[2]
    )
    assert {a.dtype for a in with_gradients(conv, x, kernel)} == {jnp.dtype(jnp.bfloat16)}


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
