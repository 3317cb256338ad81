"""Folders of Hugging Face that hold a BERT: `config.json` and `model.safetensors`."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from calib_jax.core.files import reading, writing
from calib_jax.core.types import PyTree
from calib_jax.models.bert import Bert, bert
from calib_jax.models.contract import recipe
from calib_jax.models.files.torch_weights import from_torch, to_torch
from calib_jax.models.files.weight_files import read_weights, write_weights

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_KIND, _ADVICE = "a configuration of BERT", "get the folder of the network anew"
_ENCODER, _HEAD, _POOLER = "bert.", "classifier.", "bert.pooler."
# Each option of `bert` in a config: the name in the config and BERT's default.
_FIELDS = {
    "words": ("vocab_size", 30_522),
    "width": ("hidden_size", 768),
    "depth": ("num_hidden_layers", 12),
    "heads": ("num_attention_heads", 12),
    "mlp_width": ("intermediate_size", 3_072),
    "places": ("max_position_embeddings", 512),
    "types": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "head_dropout": ("classifier_dropout", None),
    "epsilon": ("layer_norm_eps", 1e-12),
}
# The only supported values of these fields; a config with another value is refused.
_FIXED = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "is_decoder": False,
}
# Names of TensorFlow, which the first published checkpoints keep.
_FORMER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# Layers of pretraining, and a buffer that counts positions.
_UNUSED = ("cls.", "bert.embeddings.position_ids")


def read_bert(
    folder: str | os.PathLike[str],
    *,
    num_classes: int | None = None,
    key: Any = None,
    **options: Any,
) -> tuple[Bert, PyTree]:
    """Read a BERT from a folder of Hugging Face with `config.json` and `model.safetensors`.

    The names of the weights may have the prefix `bert.` or not. Layers of pretraining are dropped.

    Args:
      folder: the folder.
      num_classes: the number of logits per text; None takes the number of the folder's last layer.
      key: draw a new last layer from this key; None reads the last layer of the folder.
      **options: other options of `bert`, such as `pool` and `dtype`; they replace options of the
        config.

    Returns:
      The network and its variables.
    """
    folder = Path(folder)
    network_options = {**_options_of(folder / _CONFIG), **options}
    tensors = _full_names(read_weights(folder / _WEIGHTS))
    _check_depth(folder, network_options["depth"], tensors)
    if network_options.get("pool") == "mean":
        tensors = {name: t for name, t in tensors.items() if not name.startswith(_POOLER)}
    weight = tensors.get(f"{_HEAD}weight")
    if num_classes is None:
        if weight is None or key is not None:
            raise ValueError(
                f"{folder}: a new last layer needs its number of classes: give num_classes."
            )
        num_classes = len(weight)
    if key is None and weight is None:
        raise ValueError(
            f"{folder / _WEIGHTS} has no last layer: give key, and a new one is drawn from it."
        )
    try:
        network = bert(num_classes=num_classes, **network_options)
        if key is not None:
            tensors |= _new_head(network, key)
        return network, from_torch(network, tensors)
    except ValueError as error:  # sizes that fit neither each other nor the weights
        raise ValueError(f"{folder}: {error}") from error


def write_bert(folder: str | os.PathLike[str], network: nn.Module, variables: PyTree) -> None:
    """Write `config.json` and `model.safetensors`, which `transformers` and `read_bert` read.

    The class there is `BertForSequenceClassification`. A network with `pool="mean"` has no pooler,
    which that class would draw anew: use `BertModel` there, with `add_pooling_layer=False`.
    `transformers` takes `vocab.txt` from the same folder: copy it there.

    Args:
      folder: the folder; created if it does not exist.
      network: the network, as of `bert` or `read_bert`.
      variables: its variables.
    """
    if not isinstance(network, Bert):
        raise TypeError(f"network must be as of models.bert, got {type(network).__name__}.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    fields = {field: getattr(network, option) for option, (field, _) in _FIELDS.items()}
    if network.attention_dropout is None:
        fields["attention_probs_dropout_prob"] = network.dropout
    labels = {str(i): f"LABEL_{i}" for i in range(network.num_classes)}
    config = {
        "architectures": ["BertForSequenceClassification"],
        **_FIXED,
        **fields,
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
    }
    write_weights(folder / _WEIGHTS, to_torch(network, variables))
    with writing.replacing(folder / _CONFIG) as part:
        part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _options_of(path: Path) -> dict[str, Any]:
    """Read the options of `bert` from a config; refuse networks that differ from it."""
    config = reading.json_mapping(path, _KIND, _ADVICE)
    for field, value in _FIXED.items():
        if config.get(field, value) != value:
            raise ValueError(f"{path}: {field} must be {value!r}, got {config[field]!r}.")
    options = {option: config.get(field, value) for option, (field, value) in _FIELDS.items()}
    for option, (field, default) in _FIELDS.items():
        kinds = {int: (int,), float: (int, float)}.get(type(default), (int, float, type(None)))
        if type(options[option]) not in kinds:
            named = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{path}: {field} must be {named}, got {options[option]!r}.")
    return options


def _check_depth(folder: Path, depth: int, tensors: Mapping[str, np.ndarray]) -> None:
    """Compare the layers before they are traced, which takes as long as there are layers."""
    start = f"{_ENCODER}encoder.layer."
    layers = {name.removeprefix(start).partition(".")[0] for name in tensors if start in name}
    if depth != len(layers):
        raise ValueError(
            f"{folder}: num_hidden_layers is {depth}, and the weights have {len(layers)}"
            f" layer{'s' * (len(layers) != 1)}: {_ADVICE}."
        )


def _full_names(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename tensors as in `BertForSequenceClassification`, and drop those that are not used."""
    bare = not any(name.startswith(_ENCODER) for name in tensors)
    named = {}
    for name, tensor in tensors.items():
        for former, present in _FORMER.items():
            name = name.replace(former, present)
        if bare and not name.startswith((_HEAD, *_UNUSED)):
            name = _ENCODER + name
        if not name.startswith(_UNUSED):
            named[name] = tensor
    return named


def _new_head(network: Bert, key: Any) -> dict[str, np.ndarray]:
    """Draw the last layer under its names in PyTorch."""
    shape = (network.width, network.num_classes)
    start = recipe(network.initializer)
    kernel_key, bias_key = jax.random.split(key)
    kernel = start.dense(kernel_key, shape, "float32")
    bias = start.bias(network.width)(bias_key, shape[1:], "float32")
    return {f"{_HEAD}weight": np.asarray(kernel).T, f"{_HEAD}bias": np.asarray(bias)}
