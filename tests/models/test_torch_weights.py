"""Weights to and from PyTorch's names and layouts; that they are right, the recorded cases say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

from .members import SMALL, images, inputs, variables_of

RELEASED = {name: n for name, n in SMALL.items() if getattr(n, "torch_rules", dict)()}


def tiny():
    network = models.resnet([1, 1], width=2, num_classes=3)
    return network, variables_of(network, images(1))


def test_every_released_family_is_here():
    families = {type(network).__name__ for network in RELEASED.values()}
    texts = {"GlobalPoolingCNN", "TreeLSTM", "Bert"}
    assert families == {"ResNet", "DenseNet", "DeepLab", "EfficientNetLite0"} | texts


@pytest.mark.parametrize("network", RELEASED.values(), ids=RELEASED)
def test_there_and_back(network):
    variables = variables_of(network, inputs(network, 1))
    tensors = models.to_torch(network, variables)
    assert len(tensors) == len(jax.tree.leaves(variables))
    jax.tree.map(np.testing.assert_array_equal, models.from_torch(network, tensors), variables)


def test_no_memory_is_shared():
    # Memory is shared, if it is, where it lies at a multiple of 64 bytes.
    network, variables = tiny()
    tensors = models.to_torch(network, variables)
    assert all(tensor.flags.writeable for tensor in tensors.values())
    place = np.zeros(100, np.float32)
    place = place[-(place.ctypes.data // 4) % 16 :][:2]
    place[:] = 3
    actual = models.from_torch(network, {**tensors, "bn1.bias": place})
    place[:] = 4
    np.testing.assert_array_equal(actual["params"]["norm"]["bias"], [3, 3])


def test_layouts():
    network, variables = tiny()
    tensors = models.to_torch(network, variables)
    block = variables["params"]["stage2_block1"]
    np.testing.assert_array_equal(
        tensors["layer2.0.conv1.weight"][3, 1], block["conv1"]["kernel"][:, :, 1, 3]
    )
    np.testing.assert_array_equal(tensors["fc.weight"].T, variables["params"]["head"]["kernel"])
    statistics = variables["batch_stats"]["stage2_block1"]["norm_shortcut"]
    np.testing.assert_array_equal(tensors["layer2.0.shortcut.1.running_var"], statistics["var"])


def test_what_training_left_in_a_checkpoint_is_no_matter():
    network, variables = tiny()
    tensors = models.to_torch(network, variables)
    wrapped = {f"module.{name}": tensor for name, tensor in tensors.items()}
    wrapped["module.bn1.num_batches_tracked"] = np.array(12)
    actual = models.from_torch(network, wrapped)
    jax.tree.map(np.testing.assert_array_equal, actual, variables)
    doubles = {name: tensor.astype(float) for name, tensor in tensors.items()}
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(models.from_torch(network, doubles))}
    assert dtypes == {jnp.dtype("float32")}


def test_images_with_other_channels():
    network = models.resnet([1], width=2)
    variables = variables_of(network, images(1, channels=1))
    tensors = models.to_torch(network, variables)
    actual = models.from_torch(network, tensors, shape=(8, 8, 1))
    jax.tree.map(np.testing.assert_array_equal, actual, variables)
    with pytest.raises(ValueError, match=r"conv1.weight has shape \(2, 1, 3, 3\) instead of"):
        models.from_torch(network, tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("bn1.bias"), r"no ResNet: 1 is missing: bn1.bias \(2,\)\.$"),
        (lambda t: t.update(extra=np.ones(3)), r"1 is left over: extra \(3,\)\.$"),
        (
            lambda t: t.update({"fc.weight": t["fc.weight"].T}),
            r"fc.weight has shape \(4, 3\) instead of \(3, 4\)\.$",
        ),
        (
            lambda t: t.update({"fc.bias": t["fc.bias"].astype(str)}),
            r"fc.bias holds <U32, and no real numbers\.$",
        ),
        (lambda t: t.clear(), r"32 are missing, such as bn1.running_mean \(2,\), .*\)\.$"),
    ],
    ids=["missing", "left over", "misshapen", "text", "empty"],
)
def test_other_tensors_are_named(change, message):
    network, variables = tiny()
    tensors = models.to_torch(network, variables)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        models.from_torch(network, tensors)


def test_a_network_that_nobody_released():
    with pytest.raises(ValueError, match="no PyTorch code was released for WideResNet"):
        models.from_torch(models.wide_resnet28_10(), {})
    with pytest.raises(ValueError, match="no PyTorch code was released for Perceptron"):
        models.to_torch(models.linear(), {})


def test_a_part_of_the_variables_is_refused():
    network, variables = tiny()
    # Layers would lose a part of their names, and of two with the same one would be lost.
    with pytest.raises(ValueError, match="give all that init returns"):
        models.to_torch(network, variables["params"])


def test_variables_of_another_network_are_refused():
    _, variables = tiny()
    with pytest.raises(ValueError, match=r"stage2_block1/.* this ResNet has no such variable"):
        models.to_torch(models.resnet([1], width=2), variables)
