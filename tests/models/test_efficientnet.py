"""EfficientNet-Lite0: sizes, names and paddings; the released weights are no part of the tests."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import models


def shapes(side, **options):
    network = models.efficientnet_lite0(**options)
    init = partial(network.init, train=False)
    return network, jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, side, side, 3)))


def test_parameters_are_those_of_the_released_network():
    _, variables = shapes(224)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables["params"])) == 4_652_008
    network, small = shapes(32, num_classes=10)
    assert sum(leaf.size for leaf in jax.tree.leaves(small["params"])) == 4_652_008 - 990 * 1281
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), small)
    names = models.to_torch(network, zeros)
    assert names["_blocks.0._depthwise_conv.weight"].shape == (32, 1, 3, 3)
    assert names["_blocks.15._project_conv.weight"].shape == (320, 1152, 1, 1)
    assert names["_fc.weight"].shape == (10, 1280)
    assert "_blocks.0._expand_conv.weight" not in names


def test_logits_have_the_shape_of_the_batch():
    network, variables = shapes(64, num_classes=3)
    out = jax.eval_shape(partial(network.apply, train=False), variables, jnp.zeros((2, 64, 64, 3)))
    assert out.shape == (2, 3)
