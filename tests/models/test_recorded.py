"""The released networks: their recorded outputs, from weights that come through the converter."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

from . import recorded

OURS = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "resnet110": "resnet110",
    "resnet50_ti": "resnet50_tiny_imagenet",
    "wide_resnet_26_10": "wide_resnet26_10",
    "densenet121": "densenet121",
    "densenet40_bc": "densenet40_bc",
}
QUICK = {"resnet18", "densenet40_bc"}


def loaded(case):
    network = models.named(OURS[case["function"]], num_classes=case["num_classes"], dtype="float64")
    tensors = recorded.state_dict(case["parameters"], case["seed"])
    return network, models.from_torch(network, tensors)


def assert_close(actual, expected):
    """Compare to a billionth of the largest number."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in OURS]
)
def test_outputs_are_the_recorded_ones(name, x64):
    case = recorded.CASES[name]
    network, variables = loaded(case)
    x = recorded.images(case["input_shape"], case["seed"] - 1)
    # Many layers of as many shapes compile faster together than one by one.
    evaluate = jax.jit(functools.partial(network.apply, train=False))
    logits = evaluate(variables, jnp.asarray(x))
    assert_close(logits, recorded.outputs()[f"{name}/output"])


@pytest.mark.slow
def test_the_segmentation_network_is_the_recorded_one(x64):
    case = recorded.CASES["deeplab_resnet18"]
    network = models.deeplab_resnet18(num_classes=case["num_classes"], dtype="float64")
    variables = models.from_torch(network, recorded.state_dict(case["parameters"], case["seed"]))
    x = recorded.images(case["input_shape"], case["seed"] - 1)
    logits = jax.jit(functools.partial(network.apply, train=False))(variables, jnp.asarray(x))[0]
    expected = recorded.outputs()
    means = np.mean(logits, axis=(0, 1))
    assert_close(means, expected["deeplab_resnet18/output_mean_per_class"])
    corner = np.moveaxis(expected["deeplab_resnet18/output_corner"], 0, -1)
    assert_close(logits[:4, :4], corner)
    np.testing.assert_array_equal(
        np.argmax(logits, axis=-1), expected["deeplab_resnet18/argmax"][0]
    )


@pytest.mark.parametrize("name", ["deeplab_resnet18", "deeplab_resnet101"])
def test_the_segmentation_networks_have_the_released_names(name):
    case = recorded.CASES[name]
    network = models.named(name, num_classes=case["num_classes"])
    init = functools.partial(network.init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), network.example_inputs(1))["params"]
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), params)
    shapes = {n: list(t.shape) for n, t in models.to_torch(network, {"params": zeros}).items()}
    assert shapes == dict(case["parameters"])


def test_training_is_the_recorded_one(x64):
    case = {**recorded.CASES["resnet18"], **recorded.CASES["resnet18_train"]}
    network, variables = loaded(case)
    x = recorded.images(case["input_shape"], case["input_seed"])
    train = jax.jit(functools.partial(network.apply, train=True, mutable=["batch_stats"]))
    logits, changed = train(variables, jnp.asarray(x))
    expected = recorded.outputs()
    assert_close(logits, expected["resnet18_train/output"])
    for name in ("mean", "var"):
        after = expected[f"resnet18_train/bn1_running_{name}_after"]
        assert_close(changed["batch_stats"]["norm"][name], after)


def test_the_text_network_is_the_recorded_one(x64):
    case = recorded.CASES["global_pooling_cnn"]
    network = models.global_pooling_cnn(num_classes=case["num_classes"], dtype="float64")
    assert sum(np.prod(shape) for _, shape in case["parameters"]) == 247_316
    tensors = recorded.state_dict(case["parameters"], case["seed"])
    variables = models.from_torch(network, tensors, shape=case["input_shape"][1:])
    x = np.random.RandomState(case["seed"] - 1).standard_normal(case["input_shape"])
    logits = network.apply(variables, x, train=False)
    assert_close(logits, recorded.outputs()["global_pooling_cnn/output"])
