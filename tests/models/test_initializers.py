"""Weights begin in the size and shape that their recipe says."""

import functools

import jax
import numpy as np

from calib_jax import models

from .members import images


def start(network, x):
    # Compiled, so that nothing but the draws is computed, and with a generator that compiles fast.
    init = jax.jit(functools.partial(network.init, train=False))
    variables = init(jax.random.key(0, impl="rbg"), x)
    return jax.device_get(variables["params"])


def assert_uniform(draws, bound):
    """Uniform within the bound: none beyond, some close to it, and the variance of that."""
    assert np.abs(draws).max() <= bound
    assert np.abs(draws).max() > bound * (1 - 20 / draws.size)
    tolerance = 5 / np.sqrt(draws.size)
    np.testing.assert_allclose(draws.std(), bound / np.sqrt(3), rtol=tolerance)
    assert abs(draws.mean()) < tolerance * bound


def test_torch():
    params = start(models.lenet5(), images(1, side=32))
    for layer, fan_in in (("conv1", 75), ("conv2", 150), ("dense1", 400), ("dense2", 120)):
        assert_uniform(params[layer]["kernel"], fan_in**-0.5)
        bias = params[layer]["bias"]
        assert fan_in**-0.5 / 2 < np.abs(bias).max() <= fan_in**-0.5


def test_he_normal():
    params = start(models.small_resnet(1, shortcut="projection"), images(1))
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


def test_a_small_resnet_may_begin_as_in_torch():
    params = start(models.small_resnet(1, init="torch"), images(1))
    assert_uniform(params["stage3_block1"]["conv2"]["kernel"], (9 * 64) ** -0.5)


def test_deeplab_is_by_fan_out_in_its_backbone_and_by_fan_in_behind_it():
    network = models.deeplab((1, 1, 1), num_classes=3, width=16, channels=64, low_channels=32)
    params = start(network, images(1, side=32))
    expected = {"stem_conv": 49 * 16, "pyramid2_conv": 9 * 512, "decoder1_conv": 9 * 96, "head": 64}
    for name, fan in expected.items():
        kernel = params[name]["kernel"]
        np.testing.assert_allclose(kernel.std(), np.sqrt(2 / fan), rtol=0.15, err_msg=name)
