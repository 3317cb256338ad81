"""Each network is the one of its paper: parameters counted, layers computed by hand."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models import layers

from .members import abstract, images, keys, size, small, variables_of


@pytest.mark.parametrize(
    ("name", "options", "shape", "parameters"),
    [
        ("linear", {}, (28, 28, 1), 7_850),
        ("mlp", {"hidden": (512, 256)}, (28, 28, 1), 535_818),
        ("lenet5", {}, (32, 32, 1), 61_706),
        ("lenet5", {}, (28, 28, 1), 61_706),
        ("lenet5", {"pool": "max", "activation": "relu"}, (8, 8, 1), 61_706),
        ("lenet5", {}, (32, 32, 3), 62_006),
        ("resnet20", {}, (28, 28, 1), 269_434),
        # With 100 classes, as the papers count them.
        ("resnet50", {"num_classes": 100}, (32, 32, 3), 23_705_252),
        ("wide_resnet26_10", {"num_classes": 100}, (32, 32, 3), 36_539_124),
        # Two convolutions of 16 to 32 and 32 to 64 channels, with scale and bias for each.
        ("resnet20", {"shortcut": "projection"}, (32, 32, 3), 269_722 + 512 + 64 + 2048 + 128),
    ],
)
def test_parameters(name, options, shape, parameters):
    network = models.named(name, **options)
    assert size(abstract(network, (1, *shape))["params"]) == parameters


def small_resnet_parameters(width, norm):
    """Count the parameters with one block in each stage, for 3 channels and 10 classes."""
    of_features = 2 if norm == "batch" else 1  # scale and bias, or the bias of the convolution
    count = 9 * 3 * width + of_features * width
    for stage in (1, 2, 3):
        features = width * 2 ** (stage - 1)
        channels = features // 2 if stage > 1 else features
        count += 9 * features * (channels + features) + 2 * of_features * features
    return count + 10 * (4 * width + 1)


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("width", [16, 5])
def test_parameters_of_resnet8(width, norm):
    network = models.resnet8(width=width, norm=norm)
    assert size(abstract(network)["params"]) == small_resnet_parameters(width, norm)


@pytest.mark.parametrize("width", [1, 3])
def test_parameters_of_a_wider_lenet(width):
    layers = [(25, 3, 6), (25, 6, 16), (1, 25 * 16, 120), (1, 120, 84)]
    layers = [
        (window, inputs * (1 if inputs == 3 else width), outputs * width)
        for window, inputs, outputs in layers
    ]
    count = sum(window * inputs * outputs + outputs for window, inputs, outputs in layers)
    count += 84 * width * 10 + 10
    plain, normed = (models.lenet5(width=width, norm=norm) for norm in ("none", "batch"))
    assert size(abstract(plain)["params"]) == count
    assert size(abstract(normed)["params"]) == count + 2 * (6 + 16) * width


@pytest.mark.slow
def test_blocks_without_norm_start_as_their_shortcuts():
    network, x = models.resnet([2, 2], width=3, norm="none", num_classes=4), images(2)
    variables = network.init(jax.random.key(0), x, train=False)
    block = variables["params"]["stage1_block1"]
    assert np.any(block["conv1"]["kernel"])
    assert not np.any(block["conv2"]["kernel"])
    deeper = models.small_resnet(6, width=3, norm="none", num_classes=4)
    logits, _ = deeper.init_with_output(jax.random.key(0), x, train=False)
    assert 0.01 < float(jnp.max(jnp.abs(logits))) < 10  # after 18 blocks


def test_depth():
    # 6 n + 2 layers with weights: all matrices and kernels.
    for network, depth in (
        (models.resnet8(), 8),
        (models.resnet20(), 20),
        (models.small_resnet(2), 14),
    ):
        leaves = jax.tree_util.tree_leaves_with_path(abstract(network)["params"])
        assert sum(path[-1].key == "kernel" for path, _ in leaves) == depth


@pytest.mark.parametrize("side", [5, 8, 33])
def test_a_small_resnet_takes_any_size(side):
    network = models.small_resnet(1)
    apply = functools.partial(network.apply, train=False)
    x = jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32)
    assert jax.eval_shape(apply, abstract(network), x).shape == (2, 10)


def convolved(maps, kernel, stride=1):
    """Convolve the maps of one image, padded to keep their size, window by window."""
    kernel = np.asarray(kernel, float)
    reach = len(kernel)
    maps = np.pad(maps, [(reach // 2, reach // 2), (reach // 2, reach // 2), (0, 0)])
    starts = range(0, len(maps) - reach + 1, stride)
    return np.array(
        [
            [np.tensordot(maps[i : i + reach, j : j + reach], kernel, 3) for j in starts]
            for i in starts
        ]
    )


def small_resnet_by_hand(variables, image, shortcut, norm="batch"):
    """Compute the logits of one image in NumPy, in evaluation, for one block a stage."""

    def normed(maps, *path):
        if norm == "none":  # the bias of the convolution stands in place of the scale and bias
            layer = variables["params"]
            for key in path:
                layer = layer[key.replace("norm", "conv")]
            return maps + layer["bias"]
        params, statistics = variables["params"], variables["batch_stats"]
        for key in path:
            params, statistics = params[key], statistics[key]
        deviation = np.sqrt(np.asarray(statistics["var"], float) + 1e-5)
        return (maps - statistics["mean"]) / deviation * params["scale"] + params["bias"]

    maps = convolved(np.asarray(image, float), variables["params"]["conv"]["kernel"])
    maps = np.maximum(normed(maps, "norm"), 0)
    for stage, stride in ((1, 1), (2, 2), (3, 2)):
        name = f"stage{stage}_block1"
        block = variables["params"][name]
        inside = convolved(maps, block["conv1"]["kernel"], stride)
        inside = np.maximum(normed(inside, name, "norm1"), 0)
        inside = normed(convolved(inside, block["conv2"]["kernel"]), name, "norm2")
        if stage > 1 and shortcut == "projection":
            maps = normed(
                convolved(maps, block["conv_shortcut"]["kernel"], stride), name, "norm_shortcut"
            )
        elif stage > 1:
            quarter = maps.shape[-1] // 2  # of the channels of the result
            maps = np.pad(maps[::stride, ::stride], [(0, 0), (0, 0), (quarter, quarter)])
        maps = np.maximum(maps + inside, 0)
    head = variables["params"]["head"]
    return maps.mean(axis=(0, 1)) @ np.asarray(head["kernel"], float) + head["bias"]


@pytest.mark.parametrize(
    ("shortcut", "norm"), [("pad", "batch"), ("projection", "batch"), ("projection", "none")]
)
def test_small_resnet_by_hand(shortcut, norm):
    network = models.small_resnet(1, shortcut=shortcut, norm=norm)
    x = images(1, side=7)
    variables = variables_of(network, x)
    logits = jax.jit(functools.partial(network.apply, train=False))(variables, x)
    expected = small_resnet_by_hand(jax.device_get(variables), x[0], shortcut, norm)
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


def normed(maps, params, statistics=None):
    """Normalise by running statistics, or each row by its own."""
    if statistics is None:
        mean, var = maps.mean(-1, keepdims=True), maps.var(-1, keepdims=True)
    else:
        mean, var = (np.asarray(statistics[name], float) for name in ("mean", "var"))
    return (maps - mean) / np.sqrt(var + 1e-5) * params["scale"] + params["bias"]


def test_wide_resnet_by_hand():
    network = models.wide_resnet(10, 1).clone(blocks=(2, 1), width=4, stem_width=4, dropout=0.5)
    x = images(1, side=5)
    variables = jax.device_get(variables_of(network, x))

    def active(maps, *path):
        params, statistics = variables["params"], variables["batch_stats"]
        for key in path:
            params, statistics = params[key], statistics[key]
        return np.maximum(normed(maps, params, statistics), 0)

    maps = convolved(np.asarray(x[0], float), variables["params"]["conv"]["kernel"])
    for name, stride in (("stage1_block1", 1), ("stage1_block2", 1), ("stage2_block1", 2)):
        block = variables["params"][name]
        before = active(maps, name, "norm1")
        inside = active(convolved(before, block["conv1"]["kernel"], stride), name, "norm2")
        if stride > 1:
            maps = convolved(before, block["conv_shortcut"]["kernel"], stride)
        maps = maps + convolved(inside, block["conv2"]["kernel"])
    features = active(maps, "norm").mean((0, 1))
    head = variables["params"]["head"]
    expected = features @ np.asarray(head["kernel"], float) + head["bias"]
    logits = jax.jit(functools.partial(network.apply, train=False))(variables, x)
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("size", "cells"), [((4, 6), 2), ((5, 3), 2), ((1, 1), 2), ((3, 4), 1)])
def test_averages_of_parts(size, cells):
    maps = images(2, side=7)[:, : size[0], : size[1]]
    actual = layers.averages(maps, cells, "float32").reshape(2, 3, cells, cells)
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


@pytest.mark.parametrize("case", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("values", ["distinct", "ties", "infinite", "nan"])
def test_maximum_over_windows(case, values):
    sizes, window, stride, padding = case
    draw = np.random.default_rng(0)
    x = -np.abs(draw.standard_normal((2, *sizes, 3)))  # padding is no 0 among them
    if values == "ties":
        x = np.round(x)
    elif values != "distinct":
        x[draw.random(x.shape) < 0.2] = {"infinite": -np.inf, "nan": np.nan}[values]

    padded = np.full((2, *(size + 2 * padding for size in sizes), 3), -np.inf)
    inside = (slice(None), *(slice(padding, padding + size) for size in sizes), slice(None))
    padded[inside] = x
    counts = [(size + 2 * padding - window) // stride + 1 for size in sizes]
    expected = np.empty((2, *counts, 3))
    towards = draw.standard_normal(expected.shape)
    gradient = np.zeros_like(padded)
    for place in np.ndindex(expected.shape):
        starts = [i * stride for i in place[1:-1]]
        cut = (place[0], *(slice(i, i + window) for i in starts), place[-1])
        first = np.unravel_index(np.argmax(padded[cut]), (window,) * len(sizes))  # or first NaN
        chosen = (place[0], *(i + j for i, j in zip(starts, first, strict=True)), place[-1])
        expected[place] = padded[chosen]
        gradient[chosen] += towards[place]

    pool = functools.partial(layers.max_pool, window=window, stride=stride, padding=padding)
    actual, back = jax.vjp(pool, jnp.asarray(x, jnp.float32))
    np.testing.assert_array_equal(actual, expected.astype(np.float32))
    np.testing.assert_allclose(
        back(jnp.asarray(towards, jnp.float32))[0], gradient[inside], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet28_10", "densenet40_bc"])
def test_blocks_computed_again(name):
    plain, x = small(name), images(2)
    again = plain.clone(remat=True)
    variables = abstract(plain)
    assert jax.tree.structure(abstract(again)) == jax.tree.structure(variables)
    blocks = {}
    for network in (plain, again):
        train = functools.partial(network.apply, train=True, mutable=["batch_stats"])
        jaxpr = jax.make_jaxpr(train)(variables, x, **keys(network, 2))
        blocks[network] = sum("remat" in str(e.primitive) for e in jaxpr.eqns)
    assert blocks[plain] == 0
    assert blocks[again] == len(plain.blocks)


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet28_10"])
def test_blocks_computed_again_give_the_same(name):
    network, x = small(name).clone(blocks=(1,)), images(3)
    variables = variables_of(network, x)

    def total(params, network):
        logits, changed = network.apply(
            {**variables, "params": params},
            x,
            train=True,
            mask=jnp.array([True, False, True]),
            mutable=["batch_stats"],
            **keys(network, 3),
        )
        return jnp.sum(jnp.sin(logits)), changed

    plain, again = (
        jax.jit(jax.grad(functools.partial(total, network=n), has_aux=True))(variables["params"])
        for n in (network, network.clone(remat=True))
    )
    chex.assert_trees_all_close(plain, again, rtol=1e-4, atol=1e-5)


def lenet_by_hand(params, image, pool, activation):
    """Compute LeNet-5's logits of one image in NumPy, loop by loop."""
    maps = np.pad(np.asarray(image, float), [(2, 2), (2, 2), (0, 0)])
    for layer in ("conv1", "conv2"):
        kernel, bias = (np.asarray(params[layer][part], float) for part in ("kernel", "bias"))
        side = len(maps) - 4
        result = np.empty((side, side, len(bias)))
        for i in range(side):
            for j in range(side):
                result[i, j] = np.tensordot(maps[i : i + 5, j : j + 5], kernel, 3) + bias
        result = activation(result)
        maps = pool(result.reshape(side // 2, 2, side // 2, 2, -1), axis=(1, 3))
    x = maps.reshape(-1)
    for layer in ("dense1", "dense2", "head"):
        x = x @ np.asarray(params[layer]["kernel"], float) + np.asarray(params[layer]["bias"])
        x = x if layer == "head" else activation(x)
    return x


@pytest.mark.parametrize(
    ("options", "pool", "activation"),
    [
        ({}, np.mean, np.tanh),
        ({"pool": "max", "activation": "relu"}, np.max, lambda x: np.maximum(x, 0)),
    ],
    ids=["paper", "today"],
)
def test_lenet5_by_hand(options, pool, activation):
    network = models.lenet5(**options)
    x = images(1, side=28, channels=1)
    variables = variables_of(network, x)
    logits = jax.jit(functools.partial(network.apply, train=False))(variables, x)
    expected = lenet_by_hand(jax.device_get(variables["params"]), x[0], pool, activation)
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_mlp_by_hand():
    network = models.mlp(num_classes=2, hidden=[7, 5])
    x = images(3, side=2)
    variables = variables_of(network, x)
    logits = network.apply(variables, x, train=True)
    rows = np.asarray(x, float).reshape(3, -1)
    for layer in ("hidden1", "hidden2", "head"):
        kernel, bias = (np.asarray(variables["params"][layer][part]) for part in ("kernel", "bias"))
        rows = rows @ kernel + bias
        rows = rows if layer == "head" else np.maximum(rows, 0)
    np.testing.assert_allclose(logits, rows, rtol=1e-4, atol=1e-5)
