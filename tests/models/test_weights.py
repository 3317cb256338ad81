"""Weights to and from PyTorch's names and layouts, and the released networks' recorded outputs."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

from . import members
from .members import SMALL, evaluated, images, variables_of, weights

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


@functools.lru_cache(maxsize=1)  # two tests of one network follow each other
def loaded(name):
    case = members.RECORDED[name]
    network = models.named(OURS[name], num_classes=case["num_classes"], dtype="float64")
    tensors = members.recorded_weights(case["parameters"], case["seed"])
    return network, models.from_torch(network, tensors)


def assert_close(actual, expected):
    """Compare to a billionth of the largest number."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_training_is_the_recorded_one(x64):
    case, (network, variables) = members.RECORDED["resnet18_train"], loaded("resnet18")
    x = members.recorded_images(case["input_shape"], case["input_seed"])
    train = jax.jit(functools.partial(network.apply, train=True, mutable=["batch_stats"]))
    logits, changed = train(variables, jnp.asarray(x))
    expected = members.recorded_outputs()
    assert_close(logits, expected["resnet18_train/output"])
    for name in ("mean", "var"):
        after = expected[f"resnet18_train/bn1_running_{name}_after"]
        assert_close(changed["batch_stats"]["norm"][name], after)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in OURS]
)
def test_outputs_are_the_recorded_ones(name, x64):
    case, (network, variables) = members.RECORDED[name], loaded(name)
    x = members.recorded_images(case["input_shape"], case["seed"] - 1)
    logits = evaluated(network, variables, x)
    assert_close(logits, members.recorded_outputs()[f"{name}/output"])


@pytest.mark.slow
def test_the_segmentation_network_is_the_recorded_one(x64):
    case = members.RECORDED["deeplab_resnet18"]
    network = models.deeplab_resnet18(num_classes=case["num_classes"], dtype="float64")
    variables = models.from_torch(
        network, members.recorded_weights(case["parameters"], case["seed"])
    )
    x = members.recorded_images(case["input_shape"], case["seed"] - 1)
    logits = evaluated(network, variables, jnp.asarray(x))[0]
    expected = members.recorded_outputs()
    means = np.mean(logits, axis=(0, 1))
    assert_close(means, expected["deeplab_resnet18/output_mean_per_class"])
    corner = np.moveaxis(expected["deeplab_resnet18/output_corner"], 0, -1)
    assert_close(logits[:4, :4], corner)
    np.testing.assert_array_equal(
        np.argmax(logits, axis=-1), expected["deeplab_resnet18/argmax"][0]
    )


def test_the_segmentation_network_has_the_released_names():
    """With 3 of the 23 blocks of its third stage: the others have equal tensors."""
    case = members.RECORDED["deeplab_resnet101"]
    network = models.deeplab_resnet101(num_classes=case["num_classes"])
    network = network.clone(blocks=tuple(min(3, blocks) for blocks in network.blocks))
    init = functools.partial(network.init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), network.example_inputs(1))["params"]
    zeros = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), params)
    shapes = {n: list(t.shape) for n, t in models.to_torch(network, {"params": zeros}).items()}
    of_other_blocks = re.compile(r".*layer\d\.([3-9]|\d\d)\.")
    assert shapes == {n: s for n, s in case["parameters"] if not of_other_blocks.match(n)}


def test_the_text_network_is_the_recorded_one(x64):
    case = members.RECORDED["global_pooling_cnn"]
    network = models.global_pooling_cnn(num_classes=case["num_classes"], dtype="float64")
    assert sum(np.prod(shape) for _, shape in case["parameters"]) == 247_316
    tensors = members.recorded_weights(case["parameters"], case["seed"])
    variables = models.from_torch(network, tensors, shape=case["input_shape"][1:])
    x = np.random.RandomState(case["seed"] - 1).standard_normal(case["input_shape"])
    logits = evaluated(network, variables, x)
    assert_close(logits, members.recorded_outputs()["global_pooling_cnn/output"])
    # Numbers of words are looked up, and padding is 0.
    words = np.arange(2 * x.shape[1]).reshape(2, -1) % 9
    variables["params"]["embedding"] = {"embedding": (table := x[0, :9])}
    apply = functools.partial(evaluated, network.clone(words=9))
    vectors = table[words] * (words > 0)[..., None]
    assert_close(apply(variables, words), apply(variables, vectors))


RELEASED = {name: n for name, n in SMALL.items() if getattr(n, "torch_rules", dict)()}


def tiny():
    network = models.resnet([1, 1], width=2, num_classes=3)
    return network, variables_of(network, images(1))


@pytest.mark.parametrize("network", RELEASED.values(), ids=RELEASED)
def test_there_and_back(network):
    variables = weights(network)
    tensors = models.to_torch(network, variables)
    assert len(tensors) == len(jax.tree.leaves(variables))
    jax.tree.map(np.testing.assert_array_equal, models.from_torch(network, tensors), variables)


class OwnTensor:
    """A tensor that NumPy converts without a choice of the dtype."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __array__(self):
        return self.array


def test_tensors_are_what_numpy_converts():
    network, variables = tiny()
    tensors = {name: OwnTensor(each) for name, each in models.to_torch(network, variables).items()}
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
    other = network.clone(num_classes=7)
    assert models.classes_in(other, tensors) == 3
    assert models.classes_in(other, {"bn1.weight": tensors["bn1.weight"]}) == 7
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
    with pytest.raises(ValueError, match=r"conv1.weight is float32 \(2, 1, 3, 3\) instead of"):
        models.from_torch(network, tensors)


DTYPES = (*"bBhHiIlLefd?", jnp.bfloat16)


def arrays(dtypes=DTYPES):
    draw = np.random.default_rng(0)
    shapes = [(3, 2), (), (0, 4), (5,)]
    return {
        f"layer.{i}.weight": np.asarray(draw.integers(0, 2, shapes[i % 4])).astype(dtype)
        for i, dtype in enumerate(dtypes)
    }


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_what_is_written_is_read(suffix, tmp_path):
    written = arrays(DTYPES if suffix == "safetensors" else DTYPES[:-1])
    # Neither the name "file" nor the order of its values matters.
    written |= {"file": np.arange(6.0).reshape(2, 3).T, "big-endian": np.arange(3, dtype=">f4")}
    path = tmp_path / f"weights.{suffix}"
    for _ in range(2):  # the second time over the first
        models.write_weights(path, written)
    actual = models.read_weights(path)
    jax.tree.map(np.testing.assert_array_equal, actual, written)
    for name, array in written.items():
        assert actual[name].dtype == array.dtype.newbyteorder("=")
    assert [*tmp_path.iterdir()] == [path]
    assert (suffix == "npz") != (b'"format":"pt"' in path.read_bytes())


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_file_written_elsewhere(tmp_path):
    """Bytes by hand: other orders, the metadata, and spaces behind the header."""
    header = {
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "I16", "shape": [2], "data_offsets": [4, 8]},
        "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]},
    }
    text = json.dumps(header).encode() + b"   "
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors(text, b"\x80\x3f\x00\xc0" + b"\x01\x00\xff\xff"))
    actual = models.read_weights(path)
    assert actual["a"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(actual["a"].astype(float), [[1], [-2]])
    np.testing.assert_array_equal(actual["b"], [1, -1])
