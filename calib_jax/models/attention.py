"""Attention and the post-normalised transformer block, with masks; shared by networks of texts."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from calib_jax.models import layers
from calib_jax.models.contract import DType, at_least_single
from calib_jax.models.dropout import Dropout

Tokens = Float[Array, "batch tokens width"]
Visible = Bool[Array, "batch #heads #queries keys"]


class Attention(nn.Module):
    r"""Multi-head attention of some tokens over others, with a last dense layer.

    $$\mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{f}}\right) V, \qquad Q = x W_Q + b_Q,\quad
    K = c W_K + b_K,\quad V = c W_V + b_V$$

    Attributes:
      heads: the number of attention heads; must divide the width.
      dropout: the rate for attention weights.
      dtype: the compute dtype.
      initializer: the recipe of the initial weights.
    """

    heads: int
    dropout: float = 0.0
    dtype: DType = "float32"
    initializer: str = "normal"

    @nn.compact
    def __call__(
        self, x: Tokens, context: Tokens, visible: Visible, train: bool, keys: Any
    ) -> Tokens:
        """Attend.

        Args:
          x: the tokens with a query each; self-attention has `context` equal to it.
          context: the tokens with a key and a value each.
          visible: which tokens of the context each query sees. A query that sees none has the
            mean of all values.
          train: whether to apply dropout.
          keys: one key per example, for dropout.
        """
        width = x.shape[-1]
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)

        def per_head(tokens: Tokens, name: str) -> Array:
            return dense(tokens, width, name=name).reshape(*tokens.shape[:2], self.heads, -1)

        query = per_head(x, "query")
        key, value = per_head(context, "key"), per_head(context, "value")
        scores = jnp.einsum("bqhf,bkhf->bhqk", query, key) * query.shape[-1] ** -0.5
        # Compute in float32, since bfloat16 weights with three digits would not sum to 1.
        scores = scores.astype(at_least_single(self.dtype))
        # The lowest finite number and not -inf: a row without visible tokens would become NaN.
        scores = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
        shares = jax.nn.softmax(scores).astype(self.dtype)
        shares = Dropout(self.dropout, name="drop_shares")(shares, train, keys)
        y = jnp.einsum("bhqk,bkhf->bqhf", shares, value)
        return dense(y.reshape(x.shape), width, name="out")


class PostNormBlock(nn.Module):
    """Self-attention and a perceptron per token, each normalised after its residual connection.

    Attributes:
      heads: the number of attention heads.
      mlp_width: the hidden features of the perceptron.
      dropout: the rate after the attention and after the perceptron.
      attention_dropout: the rate for attention weights.
      epsilon: the constant that layer norm adds to the variance.
      dtype: the compute dtype.
      initializer: the recipe of the initial weights.
    """

    heads: int
    mlp_width: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    epsilon: float = 1e-12
    dtype: DType = "float32"
    initializer: str = "normal"

    @nn.compact
    def __call__(self, x: Tokens, train: bool, visible: Visible, keys: Any) -> Tokens:
        """Compute the block; `train` is the second argument, as `layers.recomputed` requires."""
        width = x.shape[-1]
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)
        norm = partial(layers.layer_norm, dtype=self.dtype, epsilon=self.epsilon)

        attention = Attention(
            self.heads, self.attention_dropout, self.dtype, self.initializer, name="attention"
        )
        y = attention(x, x, visible, train, keys)
        y = Dropout(self.dropout, name="drop_attention")(y, train, keys)
        x = norm(x + y, name="attention_norm")

        y = nn.gelu(dense(x, self.mlp_width, name="mlp_in"), approximate=False)
        y = dense(y, width, name="mlp_out")
        y = Dropout(self.dropout, name="drop_mlp")(y, train, keys)
        return norm(x + y, name="mlp_norm")
