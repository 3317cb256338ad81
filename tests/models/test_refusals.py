"""Options, inputs and files that the networks refuse, each with a message that names it."""

import functools
import json

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import models

from .members import BERT, CLASSES, images, variables_of

PAIR = {"source": np.ones((2, 5), int), "target": np.ones((2, 4), int)}
TOKENS = {"tokens": np.ones((2, 5), int)}
SMALL_BERT = functools.partial(models.bert, **BERT)
TRANSFORMER = functools.partial(
    models.transformer, num_classes=9, width=4, depth=1, heads=2, mlp_width=4, places=8
)
OPTIONS = [
    (lambda: models.named("resnet2"), r"did you mean 'resnet\d+'"),
    (lambda: models.named("mlp", hiden=(3,)), "did you mean 'hidden'"),
    (lambda: models.linear(dtype="int32"), "dtype must be floating.*int32"),
    (lambda: models.resnet20(shortcut="b"), "shortcut must be one of.*'b'"),
    (lambda: SMALL_BERT(heads=3), "heads must divide width, got 3 and 4"),
]


@pytest.mark.parametrize(("make", "message"), OPTIONS)
def test_a_wrong_option_is_named(make, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        make()


FLOATS = np.zeros((2, 8, 8, 3), np.float32)
INPUTS = [
    (models.resnet20, np.zeros((2, 8, 8, 3), np.uint8), None, "floating point, got uint8"),
    (models.resnet20, FLOATS[0], None, r"\[batch, height.*got \(8, 8, 3\)"),
    (functools.partial(models.linear, dtype="float64"), FLOATS, None, "jax_enable_x64"),
    (models.global_pooling_cnn, np.ones((2, 20), int), None, "at least 21 words"),
    (SMALL_BERT, {"tokens": np.ones((1, 8), int)}, None, "at most 7 tokens, got 8"),
    (TRANSFORMER, PAIR | {"target": PAIR["target"][:1]}, None, r"target must .* got \(1, 4\)"),
]


@pytest.mark.parametrize(("make", "x", "mask", "message"), INPUTS)
def test_a_wrong_input_is_named(make, x, mask, message):
    with pytest.raises((ValueError, TypeError), match=message):
        jax.eval_shape(lambda: make().init(jax.random.key(0), x, train=False, mask=mask))


def test_training_without_keys_is_refused():
    init = functools.partial(
        models.global_pooling_cnn(words=9, width=4, channels=2).init, train=True
    )
    x = np.ones((3, 21), int)
    with pytest.raises(ValueError, match=r"dropout 0.3 needs a key.*split\(key, 3\)"):
        jax.eval_shape(init, jax.random.key(0), x)
    with pytest.raises(ValueError, match="keys must be 3, one for each example"):
        jax.eval_shape(init, jax.random.key(0), x, keys=jax.random.split(jax.random.key(0), 2))


def tiny():
    network = models.resnet([1, 1], width=2, num_classes=3)
    return network, variables_of(network, images(1))


TENSORS = [
    (lambda t: t.pop("bn1.bias"), r"no ResNet: 1 missing: bn1.bias \(2,\)\.$"),
    (lambda t: t.update({"fc.weight": t["fc.weight"].T}), r"float32 \(4, 3\) instead of \(3, 4\)"),
]


@pytest.mark.parametrize(("change", "message"), TENSORS)
def test_tensors_of_another_network_are_named(change, message):
    network, variables = tiny()
    tensors = models.to_torch(network, variables)
    change(tensors)
    with pytest.raises(ValueError, match=message):
        models.from_torch(network, tensors)


CONFIGS = [
    ({"model_type": "roberta"}, "model_type must be 'bert', got 'roberta'"),
    ({"id": 1}, r"classifier.weight is float32 \(3, 4\) instead of \(9, 4\)"),
]


@pytest.mark.parametrize(("change", "message"), CONFIGS)
def test_another_configuration_of_bert_is_named(change, message, tmp_path):
    network = models.bert(num_classes=CLASSES, **BERT)
    models.write_bert(tmp_path, network, variables_of(network, network.example_inputs()))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        models.read_bert(tmp_path, num_classes=9 if "id" in change else None)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_damaged_file_of_weights_is_named(suffix, tmp_path):
    path = tmp_path / f"w.{suffix}"
    models.write_weights(path, {"a": np.arange(100.0)})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=rf"w\.{suffix} cannot be read as an? \.{suffix} file"):
        models.read_weights(path)


def test_other_files_of_weights_are_named(tmp_path):
    (tmp_path / "w.pt").write_bytes(b"\x80")
    for act in (models.read_weights, lambda path: models.write_weights(path, {})):
        with pytest.raises(ValueError, match=r"w\.pt is neither .*numpy.savez\('weights.npz'"):
            act(tmp_path / "w.pt")
    with pytest.raises(FileNotFoundError):
        models.read_weights(tmp_path / "w.npz")
    for name, array in (("w.npz", np.zeros(2, jnp.bfloat16)), ("w.npz", np.array(["x"]))):
        with pytest.raises(ValueError, match=r"a is .*, which \.npz cannot hold"):
            models.write_weights(tmp_path / name, {"a": array})
    with pytest.raises(ValueError, match=r"a is complex128, which \.safetensors cannot hold"):
        models.write_weights(tmp_path / "w.safetensors", {"a": np.zeros(2, complex)})
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]
