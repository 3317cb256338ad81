"""BERT against the package transformers, on random weights and on a pretrained folder.

python -m pytest tests/models/test_bert_transformers.py -m slow

It needs transformers and torch. CALIB_JAX_BERT names a pretrained folder (config.json,
model.safetensors), such as MiniLM; without it transformers writes one with random weights.
"""

import os

import jax
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
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def texts(words, length=16):
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, words, size=(4, length))
    for row, real in enumerate((length, length - 5, 3, 1)):
        tokens[row, real:] = 0
    return {"tokens": tokens, "types": draw.integers(2, size=tokens.shape)}


def outputs_of(theirs, x):
    import torch

    given = {"input_ids": x["tokens"], "token_type_ids": x["types"]}
    given["attention_mask"] = x["tokens"] != 0
    with torch.no_grad():
        return theirs(**{name: torch.as_tensor(array) for name, array in given.items()})


def drawn(transformers):
    """Draw every parameter: what begins as zeros or ones would hide mistakes."""
    import torch

    torch.manual_seed(0)
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return network.eval()


def test_logits_in_both_directions(transformers, tmp_path):
    theirs, x = drawn(transformers), texts(60)
    theirs.save_pretrained(tmp_path / "theirs")
    network, variables = models.read_bert(tmp_path / "theirs")
    logits = network.apply(variables, x, train=False)
    np.testing.assert_allclose(logits, outputs_of(theirs, x).logits, rtol=0, atol=1e-4)
    variables = jax.tree.map(lambda leaf: 1.1 * leaf, variables)
    models.write_bert(tmp_path / "ours", network, variables)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    logits = network.apply(variables, x, train=False)
    np.testing.assert_allclose(logits, outputs_of(again, x).logits, rtol=0, atol=1e-4)


def test_vectors_of_a_pretrained_folder(transformers, tmp_path):
    folder = os.environ.get("CALIB_JAX_BERT")
    if folder is None:
        folder = tmp_path
        drawn(transformers).bert.save_pretrained(folder)
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    network, variables = models.read_bert(folder, num_classes=CLASSES, key=jax.random.key(0))
    x = texts(network.words)
    params = {"params": variables["params"]["bert"]}
    hidden = np.asarray(network.encoder().apply(params, x["tokens"], x["types"]))
    real, expected = x["tokens"] != 0, outputs_of(theirs, x).last_hidden_state.numpy()
    np.testing.assert_allclose(hidden[real], expected[real], rtol=0, atol=1e-4)
