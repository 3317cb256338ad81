"""The Transformer of Vaswani et al. 2017: an encoder and a decoder for translation."""

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from calib_jax.core import checks
from calib_jax.core.types import Logits, PyTree
from calib_jax.models import layers
from calib_jax.models.attention import blocks
from calib_jax.models.contract import DType, Network, built, register, tokens_of
from calib_jax.models.layers import PADDING, Dropout, Table

NORMS = ("post", "pre")

Numbers = Int[Array, "batch length"]
Memory = Float[Array, "batch length width"]


def waves(places: int, width: int) -> np.ndarray:
    r"""Compute the vectors of places: $\sin(t / 10000^{2i/d})$ and cos in turn.

    >>> waves(2, 4).round(3)
    array([[0.   , 1.   , 0.   , 1.   ],
           [0.841, 0.54 , 0.01 , 1.   ]])
    """
    rates = 10_000 ** (-np.arange(0, width, 2) / width)
    angles = np.arange(places)[:, None] * rates
    vectors = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(places, -1)
    return vectors[:, :width]


class Stack(nn.Module):
    """A sequence of blocks, with a last layer norm if the blocks are pre-normalised."""

    depth: int
    remat: bool
    pre_norm: bool
    epsilon: float
    dtype: DType
    options: dict[str, Any]

    @nn.compact
    def __call__(self, x: Memory, train: bool, *arguments: Any) -> Memory:
        """Compute the blocks with the arguments of `Block`."""
        common = {"pre_norm": self.pre_norm, "epsilon": self.epsilon, "dtype": self.dtype}
        depth, remat = self.depth, self.remat
        x = blocks(x, train, *arguments, depth=depth, remat=remat, **common, **self.options)
        if self.pre_norm:
            x = layers.layer_norm(x, name="norm", dtype=self.dtype, epsilon=self.epsilon)
        return x


class Transformer(Network, kw_only=True):
    """An encoder and a decoder with tied embeddings; see `transformer`."""

    width: int
    depth: int
    heads: int
    mlp_width: int
    places: int
    norm: str
    dropout: float
    attention_dropout: float
    epsilon: float
    remat: bool
    past: int = 0

    @property
    def words(self) -> int:
        """The size of the vocabulary: every word is a class."""
        return self.num_classes

    def setup(self) -> None:
        """Create the layers."""
        options = {
            **{"heads": self.heads, "mlp_width": self.mlp_width, "activation": "relu"},
            **{"dropout": self.dropout, "attention_dropout": self.attention_dropout},
            "initializer": self.initializer,
        }
        common = (self.depth, self.remat, self.norm == "pre", self.epsilon, self.dtype)
        start = nn.initializers.normal(self.width**-0.5)
        self.table = Table(self.num_classes, self.width, self.dtype, self.initializer, start)
        self.encoder = Stack(*common, options)
        self.decoder = Stack(*common, {**options, "past": self.past})
        self.drop_source = Dropout(self.dropout)
        self.drop_target = Dropout(self.dropout)

    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map `{"source": [batch, length], "target": [batch, length]}` to logits of each place."""
        source, target = self._numbers(x, mask)
        memory = self.encode(source, train=train, keys=keys)
        hidden, _ = self.inputs(self._embedded(target), mask, rank=3)
        causal = np.tril(np.ones((1, 1, *(target.shape[1],) * 2), bool))
        hidden = self.decoder(
            self.drop_target(hidden, train, keys),
            train,
            causal & _visible(target),
            keys,
            memory,
            _visible(source),
        )
        return self.table.products(hidden)

    def encode(self, source: Numbers, *, train: bool = False, keys: Any = None) -> Memory:
        """Compute the vectors of the source tokens, each in the context of its sentence."""
        x = self.drop_source(self._embedded(source), train, keys)
        return self.encoder(x, train, _visible(source), keys)

    def step(
        self,
        tokens: Int[Array, " rows"],
        place: Any,
        memory: Memory | None,
        source_visible: Bool[Array, "rows 1 1 length"],
    ) -> Float[Array, "rows classes"]:
        """Compute the logits after one more token, for a network with the attribute `past`.

        The collection `PAST` has the keys and values of earlier tokens, and `CONTEXT` has the keys
        and values of the source; the first call, with `memory`, fills `CONTEXT`.
        """
        visible = (jnp.arange(self.past) <= place)[None, None, None, :]
        x = self._embedded(tokens[:, None], place)
        hidden = self.decoder(x, False, visible, None, memory, source_visible, place)
        return self.table.products(hidden)[:, 0]

    def _embedded(self, tokens: Numbers, place: Any = 0) -> Memory:
        """Add the vectors of tokens and of their places, which start at `place`."""
        length = tokens.shape[1]
        of_places = lax.dynamic_slice_in_dim(jnp.asarray(self._waves), place, length)
        vectors: Array = self.table(tokens) * math.sqrt(self.width)
        return vectors + of_places.astype(vectors.dtype)[None]

    @property
    def _waves(self) -> np.ndarray:
        return waves(self.places, self.width)

    def _numbers(self, x: Any, mask: Any) -> tuple[Array, Array]:
        """Validate the inputs and return the tokens of both languages."""
        name, keys = type(self).__name__, ("source", "target")
        x = tokens_of(name, x, mask, "'source' and 'target'", keys, (), self.places)
        return x["source"], x["target"]

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw pairs of five and four tokens; the first pair has padding at both ends."""
        draw = np.random.default_rng(seed)
        most = min(5, self.places)
        sizes = {"source": most, "target": max(1, most - 1)}
        tokens = {
            name: draw.integers(1, self.num_classes, size=(batch, size), dtype=np.int32)
            for name, size in sizes.items()
        }
        for side in tokens.values():
            side[:1, max(1, side.shape[1] - 1) :] = PADDING
        return tokens


def _visible(tokens: Numbers) -> Bool[Array, "batch 1 1 length"]:
    return (tokens != PADDING)[:, None, None, :]


@register("transformer")
def transformer(
    *,
    num_classes: int = 37_000,
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    mlp_width: int = 2_048,
    places: int = 256,
    norm: str = "post",
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    epsilon: float = 1e-6,
    dtype: DType = "float32",
    init: str = "xavier",
    remat: bool = False,
) -> Transformer:
    r"""Build the Transformer for translation, by default of the size of Transformer-Base.

    Both languages share a vocabulary. A token is its vector, times $\sqrt d$, and the waves of its
    place. Blocks of self-attention and of a perceptron with ReLU encode the source; blocks of the
    decoder attend only to earlier tokens, and also to the encoded source. The logits are products
    with the vectors of all tokens, so input and output have the same parameters.

    Inputs are a dictionary of tokens, "source" and "target" `[batch, length]`, where 0 is padding
    and is not attended to. The target begins with a token that marks its beginning, and the logits
    at a place predict the next token. `models.translate` writes translations.

    Args:
      num_classes: the size of the vocabulary.
      width: d, the features of a token.
      depth: the number of blocks of the encoder, and of the decoder.
      heads: the number of attention heads; must divide `width`.
      mlp_width: the hidden features of the perceptrons.
      places: the length of the longest sentence; longer ones need no further parameters.
      norm: "post", normalised after each residual connection as in the paper, or "pre", before each
        part and once at the end, which also trains without warm-up.
      dropout: the rate after the embedding, the attentions and the perceptrons; training needs
        `keys` unless both rates are 0.
      attention_dropout: the rate for attention weights.
      epsilon: the constant that layer norm adds to the variance.
      dtype: the compute dtype of all layers but the logits (see `Network`).
      init: the recipe of the initial weights; the vectors of tokens are drawn from $N(0, 1/d)$.
      remat: whether the backward pass recomputes each block to save memory.

    References:
      Vaswani et al. 2017, Attention Is All You Need.

    >>> transformer(width=100, heads=12)
    Traceback (most recent call last):
    ValueError: heads must divide width, got 12 and 100.
    """
    options = {**locals()}
    for name in ("width", "depth", "heads", "mlp_width", "places"):
        checks.whole(name, options[name])
    if width % heads:
        raise ValueError(f"heads must divide width, got {heads} and {width}.")
    checks.one_of("norm", norm, NORMS)
    checks.above("epsilon", epsilon, 0)
    return built(Transformer, options)
