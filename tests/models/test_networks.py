"""Each network is the one of its paper: parameters counted, layers by hand; DeepLab."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models.deeplab import resized
from tests.options import assert_recorded

from .members import built, convolutions, evaluated, images, shapes_for, size, small, variables_of


@pytest.mark.parametrize(
    ("name", "options", "shape", "parameters"),
    [
        ("mlp", {"hidden": (512, 256)}, (28, 28, 1), 535_818),
        ("lenet5", {}, (32, 32, 1), 61_706),
        # Two convolutions of 16 to 32 and 32 to 64 channels, with scale and bias for each.
        ("resnet20", {"shortcut": "projection"}, (32, 32, 3), 269_722 + 512 + 64 + 2048 + 128),
    ],
)
def test_parameters(name, options, shape, parameters):
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    _, variables = built(models.named(name, **options), x)
    assert size(variables["params"]) == parameters


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
    logits = evaluated(network, variables, x)
    expected = small_resnet_by_hand(jax.device_get(variables), x[0], shortcut, norm)
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


def layers_of(network, x, **options):
    """Compute the variables, the outputs of all layers, and the statistics."""
    variables = variables_of(network, x)
    options |= {"capture_intermediates": True, "mutable": ["intermediates", "batch_stats"]}
    _, seen = jax.device_get(jax.jit(functools.partial(network.apply, **options))(variables, x))
    by_path = jax.tree_util.tree_leaves_with_path(seen["intermediates"])
    outputs = {"/".join(key.key for key in path[:-2]): leaf for path, leaf in by_path}
    return jax.device_get(variables), outputs, seen["batch_stats"]


@pytest.mark.parametrize(
    ("network", "stem", "first"),
    [
        (models.resnet([1], False, "7x7", width=2), "conv", "stage1_block1"),
        (models.densenet([1, 1], 2, "7x7"), "stem_conv", "block1_layer1"),
    ],
)
def test_the_stem_for_imagenet_by_hand(network, stem, first):
    x = images(1, side=9)
    variables, seen, _ = layers_of(network, x, train=False)
    assert_started(variables, seen, x, stem, first)


def assert_started(variables, seen, x, stem, first):
    """Compare a convolution of 7 x 7 with windows by hand; pooling follows: 9, 5, 3 pixels."""
    maps = convolved(np.asarray(x[0], float), variables["params"][stem]["kernel"], 2)
    np.testing.assert_allclose(seen[stem][0], maps, rtol=1e-4, atol=1e-4)
    assert seen[first].shape[1:3] == (3, 3)


def test_the_stem_the_pyramid_and_the_dropout_of_deeplab():
    network = models.deeplab([1], multi_grid=[1], width=2, channels=50, low_channels=2, rates=[1])
    x, keys = images(1, side=9), jax.random.split(jax.random.key(0), 1)
    variables, seen, _ = layers_of(network, x, train=True, keys=keys)
    assert_started(variables, seen, x, "stem_conv", "stage1_block1")
    average = seen["stage2_block1"].mean(axis=(1, 2), keepdims=True)
    kernel = variables["params"]["average_conv"]["kernel"]
    np.testing.assert_allclose(seen["average_conv"], average @ kernel[0, 0], rtol=1e-4, atol=1e-5)
    for name, rate in (("decoder1", 0.5), ("decoder2", 0.1)):
        before, after = seen[f"{name}_norm"], seen[f"drop_{name}"]
        scale = after[after > 0] / before[after > 0]
        assert 0 < len(scale) < np.sum(before > 0)
        np.testing.assert_allclose(scale, 1 / (1 - rate), rtol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "densenet40_bc"])
def test_blocks_computed_again(name):
    """`remat` recomputes every block, with the same variables."""
    plain, x = small(name), images(2)
    variables, train = shapes_for(plain, x), {"train": True, "mutable": ["batch_stats"]}
    for network, count in ((plain, 0), (plain.clone(remat=True), len(plain.blocks))):
        jaxpr = jax.make_jaxpr(functools.partial(network.apply, **train))(variables, x)
        assert sum("remat" in str(equation.primitive) for equation in jaxpr.eqns) == count


def lenet_by_hand(params, image, pool, activation):
    """Compute LeNet-5's logits of one image in NumPy, loop by loop."""
    missing = 32 - len(image)
    sides = missing // 2, missing - missing // 2
    maps = np.pad(np.asarray(image, float), [sides, sides, (0, 0)])
    for layer in ("conv1", "conv2"):
        inside = convolved(maps, params[layer]["kernel"])[2:-2, 2:-2]  # where it needs no padding
        half = len(inside) // 2
        maps = activation(inside + params[layer]["bias"]).reshape(half, 2, half, 2, -1)
        maps = pool(maps, axis=(1, 3))
    x = maps.reshape(-1)
    for layer in ("dense1", "dense2", "head"):
        x = x @ np.asarray(params[layer]["kernel"], float) + np.asarray(params[layer]["bias"])
        x = x if layer == "head" else activation(x)
    return x


@pytest.mark.parametrize(
    ("options", "side", "pool", "activation"),
    [
        ({}, 28, np.mean, np.tanh),
        ({"pool": "max", "activation": "relu"}, 27, np.max, lambda x: np.maximum(x, 0)),
    ],
    ids=["paper", "today"],
)
def test_lenet5_by_hand(options, side, pool, activation):
    network = models.lenet5(**options)
    x = images(1, side=side, channels=1)
    variables = variables_of(network, x)
    logits = evaluated(network, variables, x)
    expected = lenet_by_hand(jax.device_get(variables["params"]), x[0], pool, activation)
    np.testing.assert_allclose(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_defaults_are_the_recorded_ones():
    assert_recorded("models")
    assert models.resnet20().example_inputs().shape == (2, 32, 32, 3)


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


@pytest.mark.parametrize(
    ("output_stride", "decoder", "strides", "dilations"),
    [
        # Three stages of a block, the multi-grid, the pyramid, the decoder.
        (16, True, [1, 2, 2, 1, 1, 1], [1, 1, 1, 2, 4, 8, 6, 12, 18, 1, 1]),
        (8, False, [1, 2, 1, 1, 1, 1], [1, 1, 2, 4, 8, 16, 12, 24, 36]),  # as in DeepLabV3
    ],
)
def test_dilations_replace_strides(output_stride, decoder, strides, dilations):
    """Of every 3 x 3 convolution of a network."""
    network = models.deeplab((1, 1, 1), output_stride=output_stride, width=2, decoder=decoder)
    x = jax.ShapeDtypeStruct((1, 64, 64, 3), jnp.float32)
    apply = functools.partial(network.apply, train=False)
    actual = []
    for equation in convolutions(jax.make_jaxpr(apply)(shapes_for(network, x), x)):
        if equation.invars[1].aval.shape[0] == 3:
            (stride, _), (dilation, _) = (
                equation.params[name] for name in ("window_strides", "rhs_dilation")
            )
            actual.append((stride, dilation))
    strides = strides + [1] * (len(dilations) - len(strides))
    assert actual == list(zip(strides, dilations, strict=True))


def test_an_image_may_be_one_pixel(x64):
    network = models.deeplab((1,), multi_grid=(1,), width=2, channels=2, num_classes=3)
    x = jax.ShapeDtypeStruct((2, 1, 1, 3), jnp.float32)
    init = functools.partial(network.init_with_output, train=False)
    logits, _ = jax.eval_shape(init, jax.random.key(0), x)
    assert logits.shape == (2, 1, 1, 3)
    one = jnp.full((1, 1, 1, 1), 7.0)
    for resizing in ("align_corners", "half_pixel"):
        np.testing.assert_allclose(resized(one, (3, 4), resizing), jnp.full((1, 3, 4, 1), 7.0))


def test_the_stages_of_efficientnet_halve_the_image_where_the_paper_does():
    """32 pixels after the stem of 64, and the seven stages of Tan and Le 2019, table 1."""
    network = models.efficientnet_lite0()
    x = np.zeros((1, 64, 64, 3), np.float32)

    how = {"train": False, "capture_intermediates": True, "mutable": True}
    seen = jax.eval_shape(functools.partial(network.init, **how), jax.random.key(0), x)
    of_layer = seen["intermediates"]
    ends = [f"block{number}" for number in (0, 2, 4, 7, 10, 14, 15)]  # of the stages
    sides = [of_layer[name]["__call__"][0].shape[1] for name in ["stem", *ends]]
    assert sides == [32, 32, 16, 8, 4, 4, 2, 2]


def test_a_block_of_efficientnet_adds_its_input_and_moves_its_mean_by_a_hundredth():
    network, x = small("efficientnet_lite0").clone(blocks=(2,)), images(4)
    variables, seen, after = layers_of(network, x, train=True)
    block, norm = seen["block1"], seen["block1/project_norm"]
    np.testing.assert_allclose(block, seen["block0"] + norm, rtol=1e-5, atol=1e-6)
    maps = seen["block1/project"].astype(float)
    mean, var = maps.mean(axis=(0, 1, 2)), maps.var(axis=(0, 1, 2))
    given, then = (each["block1"]["project_norm"] for each in (variables["batch_stats"], after))
    np.testing.assert_allclose(then["mean"], 0.99 * given["mean"] + 0.01 * mean, rtol=1e-5)
    params = variables["params"]["block1"]["project_norm"]
    expected = (maps - mean) / np.sqrt(var + 1e-3) * params["scale"] + params["bias"]
    np.testing.assert_allclose(norm, expected, rtol=1e-4, atol=1e-5)
