"""Attention and blocks of a transformer, with masks; shared by networks of texts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from calib_jax.core.numerics import wide
from calib_jax.models import layers
from calib_jax.models.contract import DType
from calib_jax.models.layers import Dropout

# The collections of variables of a network that writes a text token by token.
PAST, CONTEXT = "past", "context"

Tokens = Float[Array, "batch tokens width"]
Context = Float[Array, "batch context_tokens width"]
Visible = Bool[Array, "#batch #heads #queries keys"]


class Attention(nn.Module):
    r"""Multi-head attention of some tokens over others, with a last dense layer.

    $$\mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{f}}\right) V, \qquad Q = x W_Q + b_Q,\quad
    K = c W_K + b_K,\quad V = c W_V + b_V$$

    Attributes:
      heads: the number of attention heads; must divide the width.
      dropout: the rate for attention weights.
      dtype: the compute dtype.
      initializer: the recipe of the initial weights.
      past: to write a text token by token, the number of tokens whose keys and values are kept in
        the collection `PAST`; 0 keeps none.
      fixed: whether the keys and values of the first context are kept in the collection `CONTEXT`
        and used for all later ones.
    """

    heads: int
    dropout: float
    dtype: DType
    initializer: str
    past: int = 0
    fixed: bool = False

    @nn.compact
    def __call__(
        self,
        x: Tokens,
        context: Context | None,
        visible: Visible,
        train: bool,
        keys: Any,
        place: Any = None,
    ) -> Tokens:
        """Attend.

        Args:
          x: the tokens with a query each; self-attention passes them as `context`, too.
          context: the tokens with a key and a value each; None uses the cached keys and values.
          visible: which tokens of the context each query sees. A query that sees none gets the
            mean of all values.
          train: whether to apply dropout.
          keys: one key per example, for dropout.
          place: with `past`, the place of the one token of x.
        """
        width = x.shape[-1]
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)

        def per_head(tokens: Any, name: str) -> Array:
            shape = (*tokens.shape[:2], self.heads, width // self.heads)
            return dense(tokens, width, name=name).reshape(shape)

        def key_or_value(name: str) -> Array:
            if self.fixed:
                return self.variable(CONTEXT, f"{name}s", per_head, context, name).value
            computed = per_head(context, name)
            if not self.past:
                return computed
            shape = (len(computed), self.past, *computed.shape[2:])
            kept = self.variable(PAST, f"{name}s", jnp.zeros, shape, computed.dtype)
            kept.value = lax.dynamic_update_slice_in_dim(kept.value, computed, place, axis=1)
            return kept.value

        query, key, value = per_head(x, "query"), key_or_value("key"), key_or_value("value")
        scores = jnp.einsum("bqhf,bkhf->bhqk", query, key) * query.shape[-1] ** -0.5
        # Compute in float32, since bfloat16 weights with three digits would not sum to 1.
        scores = scores.astype(wide(self.dtype))
        # Use the lowest finite number: with -inf, a row without visible tokens would become NaN.
        scores = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
        shares = jax.nn.softmax(scores).astype(self.dtype)
        shares = Dropout(self.dropout, name="drop_shares")(shares, train, keys)
        y = jnp.einsum("bhqk,bkhf->bqhf", shares, value)
        return dense(y.reshape(x.shape), width, name="out")


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": partial(nn.gelu, approximate=False),
    "relu": nn.relu,
}


class Block(nn.Module):
    """Attention and a perceptron per token, each normalised and with a residual connection.

    The attention is over the tokens themselves and then, if there is one, over a context.

    Attributes:
      heads: the number of attention heads.
      mlp_width: the hidden features of the perceptron.
      dropout: the rate after each attention and after the perceptron.
      attention_dropout: the rate for attention weights.
      epsilon: the constant that layer norm adds to the variance.
      dtype: the compute dtype.
      initializer: the recipe of the initial weights.
      activation: the activation of the perceptron, "gelu" or "relu".
      pre_norm: whether to normalise before each part instead of after its residual connection.
      past: as for `Attention`; the context is then fixed.
    """

    heads: int
    mlp_width: int
    dropout: float
    attention_dropout: float
    epsilon: float
    dtype: DType
    initializer: str
    activation: str = "gelu"
    pre_norm: bool = False
    past: int = 0

    @nn.compact
    def __call__(
        self,
        x: Tokens,
        train: bool,
        visible: Visible,
        keys: Any,
        context: Context | None = None,
        context_visible: Bool[Array, "#batch #heads #queries context_tokens"] | None = None,
        place: Any = None,
    ) -> Tokens:
        """Compute the block; `train` is the second argument, as `layers.recomputed` requires."""
        common = {"dtype": self.dtype, "initializer": self.initializer}
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)

        def residual(x: Tokens, name: str, part: Callable[[Tokens], Tokens]) -> Tokens:
            norm = partial(
                layers.layer_norm, name=f"{name}_norm", dtype=self.dtype, epsilon=self.epsilon
            )
            y = part(norm(x) if self.pre_norm else x)
            y = x + Dropout(self.dropout, name=f"drop_{name}")(y, train, keys)
            return y if self.pre_norm else norm(y)

        def to_itself(x: Tokens) -> Tokens:
            attention = Attention(
                self.heads, self.attention_dropout, past=self.past, name="attention", **common
            )
            return attention(x, x, visible, train, keys, place)

        def to_context(x: Tokens, seen: Any) -> Tokens:
            fixed = self.past > 0
            attention = Attention(
                self.heads, self.attention_dropout, fixed=fixed, name="cross", **common
            )
            return attention(x, context, seen, train, keys)

        def perceptron(x: Tokens) -> Tokens:
            hidden = ACTIVATIONS[self.activation](dense(x, self.mlp_width, name="mlp_in"))
            return dense(hidden, x.shape[-1], name="mlp_out")

        x = residual(x, "attention", to_itself)
        if context_visible is not None:
            x = residual(x, "cross", partial(to_context, seen=context_visible))
        return residual(x, "mlp", perceptron)


def blocks(x: Tokens, train: bool, *arguments: Any, depth: int, remat: bool, **options: Any) -> Any:
    """Apply blocks named block1, block2, ... inside a compact method.

    Args:
      x, train, *arguments: the arguments of `Block`.
      depth: the number of blocks.
      remat: whether the backward pass recomputes each block to save memory.
      **options: the attributes of `Block`.
    """
    block_class = layers.recomputed(Block) if remat else Block
    for number in range(1, depth + 1):
        x = block_class(name=f"block{number}", **options)(x, train, *arguments)
    return x
