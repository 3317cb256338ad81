"""Options, inputs and files that the networks refuse, each with a message that names it."""

import functools

import jax
import jaxtyping
import numpy as np
import pytest

from calib_jax import models

from .members import BERT

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
    (lambda: models.linear(dtype="no dtype"), "dtype must be floating.*'no dtype'"),
    (lambda: models.tree_lstm(excluded_class=3), r"excluded_class must lie in \[0, 2\]"),
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
    (functools.partial(models.densenet, [1, 1], 2, "7x7"), FLOATS[:, :4], None, "5 x 5 or more"),
    (models.global_pooling_cnn, np.ones((2, 20), int), None, "at least 21 words"),
    (models.global_pooling_cnn, FLOATS[0, 0], None, r"\[batch, length, width\], got \(8, 3\)"),
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


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_damaged_file_of_weights_is_named(suffix, tmp_path):
    path = tmp_path / f"w.{suffix}"
    models.write_weights(path, {"a": np.arange(100.0)})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=rf"w\.{suffix} cannot be read as an? \.{suffix} file"):
        models.read_weights(path)
