"""BERT: a transformer encoder of texts, pretrained elsewhere, with a layer that classifies."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import Logits, PyTree
from calib_jax.models import layers
from calib_jax.models.attention import blocks
from calib_jax.models.contract import DType, Network, TorchRules, built, register, tokens_of
from calib_jax.models.layers import PADDING, Dropout, Table

POOLINGS = ("first", "mean")

Numbers = Int[Array, "batch length"]


class _Sizes(nn.Module):
    """The attributes that an encoder and the network around it share; see `BertEncoder`."""

    words: int = 30_522
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_width: int = 3_072
    places: int = 512
    types: int = 2
    dropout: float = 0.1
    epsilon: float = 1e-12
    dtype: DType = "float32"
    initializer: str = "normal"
    remat: bool = False


class BertEncoder(_Sizes):
    """Vectors of the tokens of texts, each in the context of its text.

    `BertEncoder` is the layer `bert` of the network that `models.bert` builds: its variables are
    `{"params": variables["params"]["bert"]}`.

    Attributes:
      words: the size of the vocabulary.
      width: the features of a token.
      depth: the number of blocks.
      heads: the number of attention heads; must divide `width`.
      mlp_width: the hidden features of the perceptrons.
      places: the length of the longest text.
      types: the number of token types.
      dropout: the rate after the embedding, the attention and the perceptron.
      attention_dropout: the rate for attention weights.
      epsilon: the constant that layer norm adds to the variance.
      dtype: the compute dtype.
      initializer: the recipe of the initial weights.
      remat: whether the backward pass recomputes each block to save memory.
    """

    attention_dropout: float = 0.1

    @nn.compact
    def __call__(
        self, tokens: Any, types: Any, *, train: bool = False, keys: Any = None
    ) -> Float[Array, "batch length width"]:
        """Map token numbers and types, each `[batch, length]`, to vectors.

        Padding (0) is not attended to.
        """
        tokens, types = jnp.asarray(tokens), jnp.asarray(types)

        def look_up(numbers: Any, count: int, name: str) -> Array:
            return Table(count, self.width, self.dtype, self.initializer, name=name)(numbers)

        x = look_up(tokens, self.words, "words") + look_up(types, self.types, "types")
        x += look_up(jnp.arange(tokens.shape[1]), self.places, "places")[None]
        x = layers.layer_norm(x, name="norm", dtype=self.dtype, epsilon=self.epsilon)
        x = Dropout(self.dropout, name="drop")(x, train, keys)
        visible = (tokens != PADDING)[:, None, None, :]
        names = ("depth", "remat", "heads", "mlp_width", "dropout", "attention_dropout", "epsilon")
        options = {name: getattr(self, name) for name in (*names, "dtype", "initializer")}
        return blocks(x, train, visible, keys, **options)


class Bert(Network, _Sizes):
    """A BERT encoder, pooling and a dense layer; see `bert`."""

    pool: str = "first"
    attention_dropout: float | None = None
    head_dropout: float | None = None

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map `{"tokens": [batch, length]}`, with "types" or without, to logits."""
        tokens, types = self._numbers(x, mask)
        encoder = self.encoder(name="bert")
        hidden, _ = self.inputs(encoder(tokens, types, train=train, keys=keys), mask, rank=3)
        if self.pool == "first":
            pooled = layers.dense(
                hidden[:, 0], self.width, name="pooler", dtype=self.dtype, init=self.initializer
            )
            pooled = jnp.tanh(pooled)
        else:
            real = (tokens != PADDING)[..., None]
            total = jnp.sum(jnp.where(real, hidden, 0), axis=1, dtype=wide(self.dtype))
            pooled = total / jnp.maximum(jnp.sum(real, axis=1, dtype=total.dtype), 1)
        head_dropout = self.dropout if self.head_dropout is None else self.head_dropout
        pooled = Dropout(head_dropout, name="drop_head")(pooled, train, keys)
        return layers.head(pooled, self.num_classes, dtype=self.dtype, init=self.initializer)

    def _numbers(self, x: Any, mask: Any) -> tuple[Numbers, Numbers]:
        """Validate the inputs and return the tokens and their types."""
        name, what = type(self).__name__, "'tokens' and, if wanted, 'types'"
        x = tokens_of(name, x, mask, what, ("tokens",), ("types",), self.places)
        tokens, types = x["tokens"], x.get("types", jnp.zeros_like(x["tokens"]))
        if types.shape != tokens.shape:
            raise ValueError(
                f"{name}: types must have the shape of tokens, {tokens.shape}, got {types.shape}."
            )
        return tokens, types

    @nn.nowrap
    def encoder(self, *, name: str | None = None) -> BertEncoder:
        """Return the encoder of this network, for vectors of tokens in place of logits."""
        shared = {field.name for field in dataclasses.fields(_Sizes)} - {"parent", "name"}
        options = {attribute: getattr(self, attribute) for attribute in shared}
        attention_dropout = self.attention_dropout
        if attention_dropout is None:
            attention_dropout = self.dropout
        return BertEncoder(**options, attention_dropout=attention_dropout, name=name)

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw texts of six tokens, of which the first text has two of padding."""
        draw = np.random.default_rng(seed)
        tokens = draw.integers(1, self.words, size=(batch, min(6, self.places)), dtype=np.int32)
        tokens[:1, -2:] = PADDING
        types = draw.integers(self.types, size=tokens.shape, dtype=np.int32)
        return {"tokens": tokens, "types": types}

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of `BertForSequenceClassification` of Hugging Face."""
        return {
            "words": "embeddings.word_embeddings",
            "places": "embeddings.position_embeddings",
            "types": "embeddings.token_type_embeddings",
            "norm": "embeddings.LayerNorm",
            r"block(\d+)": lambda match: f"encoder.layer.{int(match[1]) - 1}",
            "query|key|value": r"self.\g<0>",
            "out": "output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "mlp_in": "intermediate.dense",
            "mlp_out": "output.dense",
            "mlp_norm": "output.LayerNorm",
            "pooler": "bert.pooler.dense",
            "head": "classifier",
        }


@register("bert")
def bert(
    *,
    num_classes: int = 2,
    words: int = 30_522,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    mlp_width: int = 3_072,
    places: int = 512,
    types: int = 2,
    pool: str = "first",
    dropout: float = 0.1,
    attention_dropout: float | None = None,
    head_dropout: float | None = None,
    epsilon: float = 1e-12,
    dtype: DType = "float32",
    init: str = "normal",
    remat: bool = False,
) -> Bert:
    """Build BERT for classification, by default of the size of BERT-base.

    The vectors of token, position and type are added and normalised. Blocks of self-attention and
    of a perceptron with GELU follow, each normalised after its residual connection. The vector of
    the first token (with a dense layer and tanh), or the mean over the tokens, is mapped to logits.

    Inputs are a dictionary: "tokens" `[batch, length]`, where 0 is padding and is not attended to,
    and "types" of the same shape, by default all 0. `read_bert` builds the network of a folder of
    Hugging Face with its weights.

    Args:
      num_classes: the number of logits per text.
      words: the size of the vocabulary (`vocab_size` of `config.json`); a token number out of range
        is read as the nearest one.
      width: the features of a token (`hidden_size`).
      depth: the number of blocks (`num_hidden_layers`).
      heads: the number of attention heads; must divide `width` (`num_attention_heads`).
      mlp_width: the hidden features of the perceptrons (`intermediate_size`).
      places: the length of the longest text (`max_position_embeddings`).
      types: the number of token types (`type_vocab_size`).
      pool: "first", the first token through a dense layer and tanh, or "mean" over the tokens.
      dropout: the rate after the embedding and in the blocks (`hidden_dropout_prob`); training
        needs `keys` unless all three rates are 0.
      attention_dropout: the rate for attention weights (`attention_probs_dropout_prob`); None is
        `dropout`.
      head_dropout: the rate before the last layer (`classifier_dropout`); None is `dropout`.
      epsilon: the constant that layer norm adds to the variance (`layer_norm_eps`).
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights; "normal" is BERT's.
      remat: whether the backward pass recomputes each block to save memory.

    References:
      Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language
      Understanding.

    >>> bert(width=100, heads=12)
    Traceback (most recent call last):
    ValueError: heads must divide width, got 12 and 100.
    """
    options = {**locals()}
    for name in ("words", "width", "depth", "heads", "mlp_width", "places", "types"):
        checks.whole(name, options[name])
    if width % heads:
        raise ValueError(f"heads must divide width, got {heads} and {width}.")
    checks.one_of("pool", pool, POOLINGS)
    checks.above("epsilon", epsilon, 0)
    return built(Bert, options)
