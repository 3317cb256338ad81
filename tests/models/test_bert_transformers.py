"""BERT against the package transformers, on random weights and on a pretrained folder.

python -m pytest tests/models/test_bert_transformers.py -m slow

It needs transformers and torch. CALIB_JAX_BERT names a pretrained folder (config.json,
model.safetensors); without it the pretrained case runs on a folder that transformers writes.
"""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

CLASSES = 5
SIZES = {
    **{"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 40, "max_position_embeddings": 20, "num_labels": CLASSES},
}

pytestmark = pytest.mark.slow


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers")


def texts(words, length=16):
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, words, size=(4, length))
    for row, real in enumerate((length, length - 5, 3, 1)):
        tokens[row, real:] = 0
    return {"tokens": tokens, "types": draw.integers(2, size=tokens.shape)}


def theirs_of(x):
    torch = pytest.importorskip("torch")
    return {
        "input_ids": torch.as_tensor(x["tokens"]),
        "token_type_ids": torch.as_tensor(x["types"]),
        "attention_mask": torch.as_tensor(x["tokens"] != 0),
    }


def drawn(transformers, seed=0):
    """Draw every parameter: what begins as zeros or ones would hide mistakes."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return network.eval()


def assert_close(ours, theirs, tolerance, name=""):
    size = max(1.0, float(np.abs(theirs).max()))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * size, err_msg=name)


def assert_equal_gradients(network, gradient, theirs, tolerance):
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    tensors = models.to_torch(network, {"params": gradient})
    assert set(tensors) == set(expected)
    for name, tensor in tensors.items():
        assert_close(tensor, expected[name], tolerance, name)


def compared(network, variables, theirs, x, tolerance):
    """Compare the logits, and the gradients of the mean cross-entropy."""
    torch = pytest.importorskip("torch")
    labels = np.arange(len(x["tokens"])) % network.num_classes
    output = theirs(**theirs_of(x)).logits
    torch.nn.functional.cross_entropy(output, torch.as_tensor(labels)).backward()

    def loss(params):
        logits = network.apply({"params": params}, x, train=False)
        log_probabilities = jax.nn.log_softmax(logits)
        return -jnp.mean(log_probabilities[np.arange(len(labels)), labels]), logits

    gradient, logits = jax.jit(jax.grad(loss, has_aux=True))(variables["params"])
    assert_close(logits, output.detach().numpy(), tolerance)
    assert_equal_gradients(network, gradient, theirs, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_weights(transformers, dtype, tmp_path, request):
    if dtype == "float64":
        request.getfixturevalue("x64")
    theirs = drawn(transformers)
    theirs.save_pretrained(tmp_path)
    network, _ = models.read_bert(tmp_path, dtype=dtype)
    theirs = theirs.to(getattr(pytest.importorskip("torch"), dtype))
    variables = models.from_torch(network, theirs.state_dict())
    compared(network, variables, theirs, texts(60), 1e-5 if dtype == "float32" else 1e-10)


def test_the_mean_over_tokens(transformers, tmp_path):
    torch = pytest.importorskip("torch")
    theirs = drawn(transformers)
    theirs.save_pretrained(tmp_path)
    network, variables = models.read_bert(tmp_path, pool="mean")
    x = texts(60)
    given = theirs_of(x)
    with torch.no_grad():
        real = given["attention_mask"][..., None]
        mean = (theirs.bert(**given).last_hidden_state * real).sum(1) / real.sum(1)
        expected = theirs.classifier(mean).numpy()
    assert_close(network.apply(variables, x, train=False), expected, 1e-5)


def test_transformers_reads_what_we_write(transformers, tmp_path):
    network = models.bert(
        **{"words": 60, "width": 24, "depth": 2, "heads": 4, "mlp_width": 40, "places": 20},
        **{"num_classes": CLASSES, "dropout": 0.2, "attention_dropout": 0.3, "head_dropout": 0.4},
    )
    x = texts(60)
    variables = jax.jit(functools.partial(network.init, train=False))(jax.random.key(0), x)
    models.write_bert(tmp_path, network, variables)
    theirs, report = transformers.BertForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    config = theirs.config
    rates = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
    assert (*rates, config.classifier_dropout) == (0.2, 0.3, 0.4)
    compared(network, variables, theirs.eval(), x, 1e-5)


def test_a_pretrained_folder(transformers, tmp_path):
    torch = pytest.importorskip("torch")
    folder = os.environ.get("CALIB_JAX_BERT")
    if folder is None:
        folder = tmp_path
        drawn(transformers, seed=1).bert.save_pretrained(folder)
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    network, variables = models.read_bert(folder, num_classes=CLASSES, key=jax.random.key(0))
    x = texts(network.words)
    weight = np.random.default_rng(2).standard_normal((*x["tokens"].shape, network.width))
    weight = np.float32(weight * (x["tokens"] != 0)[..., None])
    hidden = theirs(**theirs_of(x)).last_hidden_state
    (hidden * torch.as_tensor(weight)).mean().backward()

    def total(params):
        ours = network.encoder().apply({"params": params}, x["tokens"], x["types"])
        return jnp.mean(ours * weight), ours

    gradient, ours = jax.jit(jax.grad(total, has_aux=True))(variables["params"]["bert"])
    real = x["tokens"] != 0
    assert_close(np.asarray(ours)[real], hidden.detach().numpy()[real], 1e-5)
    expected = {
        f"bert.{name}": p.grad.numpy()
        for name, p in theirs.named_parameters()
        if p.grad is not None
    }
    tensors = models.to_torch(network, {"params": {"bert": gradient}})
    assert set(tensors) == set(expected)
    for name, tensor in tensors.items():
        size = np.abs(expected[name]).max()
        # Keys have a common shift without effect on the softmax, so their bias has no gradient.
        atol = 1e-5 * max(size, 1e-3)
        np.testing.assert_allclose(tensor, expected[name], rtol=0, atol=atol, err_msg=name)
