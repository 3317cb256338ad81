"""What a network is asked for, and the one sentence that answers a mistake."""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import models

from .members import images


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: models.named("resnet2"), ValueError, r"did you mean 'resnet\d+'"),
        (lambda: models.named("mlp", hiden=(3,)), TypeError, "did you mean 'hidden'"),
        (lambda: models.named("linear", axis_name="d"), TypeError, "no option 'axis_name'"),
        (lambda: models.named("resnet56", blocks=3), TypeError, "no option 'blocks'"),
        (lambda: models.linear(num_classes=0), ValueError, "num_classes must be at least 1"),
        (lambda: models.linear(dtype="int32"), ValueError, "dtype must be floating.*int32"),
        (lambda: models.linear(dtype=None), ValueError, "dtype must be floating.*None"),
        (lambda: models.linear(dtype="float23"), ValueError, "dtype must be floating.*float23"),
        (lambda: models.mlp(hidden=(3, 0)), ValueError, "hidden must be at least 1.*got 0"),
        (lambda: models.mlp(init="he"), ValueError, "init must be one of.*'he'"),
        (lambda: models.lenet5(pool="mean"), ValueError, "pool must be one of.*'mean'"),
        (lambda: models.lenet5(activation="elu"), ValueError, "activation.*did you mean 'relu'"),
        (lambda: models.resnet20(shortcut="b"), ValueError, "shortcut must be one of.*'b'"),
        (lambda: models.resnet8(width=0), ValueError, "width must be at least 1, got 0"),
        (lambda: models.resnet18(norm="layer"), ValueError, "norm must be one of.*'layer'"),
        (lambda: models.lenet5(norm="bach"), ValueError, "norm.*did you mean 'batch'"),
        (lambda: models.small_resnet(0), ValueError, "blocks must be at least 1.*got 0"),
        (lambda: models.resnet([]), ValueError, "blocks must name at least one stage"),
        (lambda: models.resnet([1, 0]), ValueError, "blocks must be at least 1.*got 0"),
        (lambda: models.resnet([1], False, "5x5"), ValueError, "stem must be one of.*'5x5'"),
        (lambda: models.named("resnet50", blocks=3), TypeError, "no option 'blocks'"),
        (lambda: models.wide_resnet(26, 10), ValueError, r"depth must be 6 n \+ 4.*got 26"),
        (lambda: models.densenet([6], 0), ValueError, "growth must be at least 1, got 0"),
        (lambda: models.resnet21, AttributeError, "no 'resnet21'; did you mean"),
    ],
)
def test_a_wrong_option_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.mlp(hidden=32), "widths of the hidden layers, got 32"),
        (lambda: models.linear(num_classes=2.5), "num_classes must be an integer, got 2.5"),
        (lambda: models.small_resnet(1, width=2.5), "width must be an integer, got 2.5"),
        (lambda: models.wide_resnet(10, 1.5), "widening must be an integer, got 1.5"),
    ],
)
def test_a_number_of_another_type_is_named(monkeypatch, make, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("x", "mask", "error", "message"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), None, TypeError, "floating point, got uint8"),
        (np.zeros((8, 8, 3), np.float32), None, ValueError, r"\[batch, height.*got \(8, 8, 3\)"),
        (np.zeros((2, 0, 8, 3), np.float32), None, ValueError, r"got \(2, 0, 8, 3\)"),
        (np.zeros((2, 8, 8, 3), np.float32), np.ones(2), ValueError, "mask must be boolean"),
        (np.zeros((2, 8, 8, 3), np.float32), np.ones(3, bool), ValueError, r"\(2,\).*\(3,\)"),
    ],
)
def test_a_wrong_input_is_named(x, mask, error, message):
    with pytest.raises(error, match=message):
        models.resnet20().init(jax.random.key(0), x, train=False, mask=mask)


@pytest.mark.parametrize(
    ("make", "x", "message"),
    [
        (models.resnet20, {"image": 1}, r"inputs must be one array, got .* \['image'\]"),
        (models.global_pooling_cnn, {"tokens": 1}, r"must be one array, got .* \['tokens'\]"),
        (models.global_pooling_cnn, np.ones(30, int), r"shape \[batch, length\], got \(30,\)"),
        (models.tree_lstm, 1, "inputs must be a dictionary of 'words' and 'children', got int"),
        (models.bert, {"tokens": np.ones((2, 3), int)}, r"mask must be .* \(2,\), got .* \(3,\)"),
    ],
)
def test_a_tree_that_a_network_does_not_take_is_named(make, x, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make().init(jax.random.key(0), x, train=False, mask=np.ones(3, bool))


@pytest.mark.parametrize(
    ("make", "side", "message"),
    [
        (models.densenet40_bc, 3, r"DenseNet: 3 blocks .* images of 4 x 4 .*\(1, 3, 3, 3\)"),
        (models.densenet121_imagenet, 28, r"images of 29 x 29 or more, got \(1, 28, 28, 3\)"),
    ],
)
def test_an_image_of_the_wrong_size_is_named(make, side, message):
    init = functools.partial(make().init, train=False)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, side, side, 3)))


def test_double_precision_is_not_quietly_single():
    network = models.linear(dtype="float64")
    with pytest.raises(ValueError, match="jax_enable_x64"):
        network.init(jax.random.key(0), images(1), train=False)


def test_double_precision(x64):
    network = models.mlp(dtype="float64", hidden=(2,))
    logits, variables = network.init_with_output(jax.random.key(0), images(1), train=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float64")}
    assert logits.dtype == jnp.float64
    # Single precision stays single, whatever JAX could do.
    logits, variables = models.linear().init_with_output(
        jax.random.key(0), images(1, dtype=np.float64), train=False
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32


def test_logits_of_short_numbers_are_not_short():
    # Were the last layer in bfloat16, all logits would be numbers of 8 bits.
    network = models.linear(dtype="bfloat16")
    logits, _ = network.init_with_output(jax.random.key(0), images(4), train=False)
    assert np.any(logits != logits.astype(jnp.bfloat16).astype(jnp.float32))
