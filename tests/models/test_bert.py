"""BERT against NumPy and the package transformers, its inputs, and folders of Hugging Face."""

import functools
import inspect
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.models.files import bert_files

from . import members
from .members import BERT, CLASSES, affine, attended, evaluated, variables_of

SIZES = BERT | {"dropout": 0.0}
TOKENS = np.array([[3, 7, 49, 2, 0], [4, 1, 9, 11, 6], [5, 0, 0, 0, 0]], np.int32)
TYPES = np.array([[0, 0, 1, 1, 0], [1, 0, 0, 1, 1], [1, 0, 0, 0, 0]], np.int32)
X = {"tokens": TOKENS, "types": TYPES}

normalized = functools.partial(members.normalized, epsilon=1e-12)


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def by_numpy(params, tokens, types, pool):
    """Compute the logits of one text; its padding is cut off."""
    length = np.count_nonzero(tokens)
    encoder = params["bert"]
    x = encoder["words"]["embedding"][tokens[:length]] + encoder["places"]["embedding"][:length]
    x = normalized(encoder["norm"], x + encoder["types"]["embedding"][types[:length]])
    block = encoder["block1"]
    x = normalized(block["attention_norm"], x + attended(block["attention"], x, x))
    y = affine(block["mlp_out"], gelu(affine(block["mlp_in"], x)))
    x = normalized(block["mlp_norm"], x + y)
    pooled = x.mean(axis=0) if pool == "mean" else np.tanh(affine(params["pooler"], x[0]))
    return affine(params["head"], pooled)


def made(pool="first", dtype="float32"):
    network = models.bert(num_classes=CLASSES, **SIZES, pool=pool, dtype=dtype)
    return network, variables_of(network, X)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_logits_are_those_of_numpy(pool, x64):
    network, variables = made(pool, "float64")
    params = jax.tree.map(np.asarray, variables["params"])
    texts = zip(TOKENS, TYPES, strict=True)
    expected = np.stack([by_numpy(params, *text, pool) for text in texts])
    logits = evaluated(network, variables, X)
    np.testing.assert_allclose(logits, expected, rtol=1e-12, atol=1e-12)
    assert np.isfinite(evaluated(network, variables, X | {"tokens": 0 * TOKENS})).all()


def test_the_encoder_is_the_layer_bert():
    network, variables = made("mean")
    encoder = network.clone(dropout=0.5).encoder()  # which evaluates by default
    hidden = jax.jit(encoder.apply)({"params": variables["params"]["bert"]}, TOKENS, TYPES)
    assert hidden.shape == (3, 5, 4)
    pooled = np.stack([row[:n].mean(axis=0) for row, n in zip(hidden, (4, 5, 1), strict=True)])
    logits = affine(jax.tree.map(np.asarray, variables["params"]["head"]), pooled)
    np.testing.assert_allclose(evaluated(network, variables, X), logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_a_folder_there_and_back(pool, tmp_path):
    network = made(pool)[0].clone(depth=2)
    variables, folder = variables_of(network, X), tmp_path / "new" / "folder"
    models.write_bert(folder, network, variables)
    again, read = models.read_bert(folder, pool=pool)
    # A config.json states the rate of the attention, which is that of the rest by default.
    assert again == network.clone(attention_dropout=network.dropout)
    jax.tree.map(np.testing.assert_array_equal, read, variables)
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] == 4
    assert (config["pad_token_id"], config["is_decoder"]) == (0, False)
    assert len(config["id2label"]) == CLASSES


def test_a_config_without_fields_is_bert_base(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    options = bert_files._options_of(tmp_path / "config.json")
    parameters = inspect.signature(models.bert).parameters
    expected = {name: parameters[name].default for name in options}
    assert options == expected | {"attention_dropout": 0.1}  # None: the rate of the rest
    x = models.bert(words=2).example_inputs()
    assert x["tokens"].tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]


def renamed(folder, rename):
    path = folder / "model.safetensors"
    tensors = models.read_weights(path)
    models.write_weights(path, {rename(name): t for name, t in tensors.items() if rename(name)})


def bare(name):
    """Name a tensor as `BertModel` does, without the last layer."""
    return None if name.startswith("classifier") else name.removeprefix("bert.")


def former(name):
    """Name a tensor as the first checkpoints do."""
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    name = name.replace("LayerNorm.bias", "LayerNorm.beta")
    return name.replace("classifier", "cls.seq_relationship")


@pytest.mark.parametrize("rename", [bare, former])
def test_a_pretrained_folder_gets_a_new_last_layer(rename, tmp_path):
    network, variables = made()
    models.write_bert(tmp_path, network, variables)
    renamed(tmp_path, rename)
    path = tmp_path / "model.safetensors"
    prefix = "" if rename is bare else "bert."
    position_ids = {f"{prefix}embeddings.position_ids": np.arange(7)[None]}
    models.write_weights(path, models.read_weights(path) | position_ids)
    read_network, read = models.read_bert(tmp_path, num_classes=9, key=jax.random.key(0))
    assert read_network.num_classes == 9
    head = read["params"].pop("head")
    variables["params"].pop("head")
    jax.tree.map(np.testing.assert_array_equal, read, variables)
    assert head["kernel"].shape == (4, 9)
    assert 0.01 < float(jnp.std(head["kernel"])) < 0.03
    assert not head["bias"].any()
    with pytest.raises(ValueError, match="has no last layer: give key"):
        models.read_bert(tmp_path, num_classes=9)
    with pytest.raises(ValueError, match="give num_classes"):
        models.read_bert(tmp_path)


# Tests against the package need transformers and torch.
OF_THE_PACKAGE = {
    **{"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 40, "max_position_embeddings": 20, "num_labels": CLASSES},
}


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
    network = transformers.BertForSequenceClassification(transformers.BertConfig(**OF_THE_PACKAGE))
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return network.eval()


@pytest.mark.slow
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
