"""Vision transformer: an image as a sequence of patches."""

from functools import partial
from re import Match
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, Logits, PyTree
from calib_jax.models import layers
from calib_jax.models.contract import DType, Network, TorchRules, built, normal, register
from calib_jax.models.dropout import Dropout

_EPSILON = 1e-5

Tokens = Float[Array, "batch tokens width"]


class TransformerBlock(nn.Module):
    """Attention and a perceptron per token, both pre-normalised and with a residual connection.

    Attributes:
      heads: the number of attention heads.
      head_width: the features of the query, key and value of one head.
      mlp_width: the hidden features of the perceptron.
      dropout: the rate for attention weights and after each linear layer but the first.
      dtype: the compute dtype.
      initializer: the recipe of the initial weights.
    """

    heads: int
    head_width: int
    mlp_width: int
    dropout: float = 0.0
    dtype: DType = "float32"
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x: Tokens, train: bool, keys: Any) -> Tokens:
        """Compute the block."""
        width = x.shape[-1]
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)
        norm = partial(layers.layer_norm, dtype=self.dtype, epsilon=_EPSILON)

        def drop(y: Array, name: str) -> Array:
            return Dropout(self.dropout, name=f"drop_{name}")(y, train, keys)

        y = norm(x, name="attention_norm")
        y = dense(y, 3 * self.heads * self.head_width, bias=False, name="queries_keys_values")
        y = y.reshape(*y.shape[:2], 3, self.heads, self.head_width)
        query, key, value = (y[:, :, i] for i in range(3))
        scores = jnp.einsum("bqhf,bkhf->bhqk", query, key) * self.head_width**-0.5
        # Compute in float32, since bfloat16 weights with three digits would not sum to 1.
        shares = jax.nn.softmax(scores.astype(wide(self.dtype))).astype(self.dtype)
        y = jnp.einsum("bhqk,bkhf->bqhf", drop(shares, "shares"), value)
        y = dense(
            y.reshape(*y.shape[:2], self.heads * self.head_width), width, name="attention_out"
        )
        x = x + drop(y, "attention")

        y = dense(norm(x, name="mlp_norm"), self.mlp_width, name="mlp_in")
        y = drop(nn.gelu(y, approximate=False), "hidden")
        return x + drop(dense(y, width, name="mlp_out"), "mlp")


class VisionTransformer(Network):
    """Transformer blocks on patches and a class token; see `vit`."""

    image: int = 256
    patch: int = 32
    width: int = 1024
    depth: int = 6
    heads: int = 16
    head_width: int = 64
    mlp_width: int = 2048
    dropout: float = 0.1
    remat: bool = False

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, _ = self.inputs(x, mask, rank=4)
        if x.shape[1:3] != (self.image, self.image):
            raise ValueError(
                f"{type(self).__name__}: images must be {self.image} x {self.image}, got"
                f" {x.shape}; image={x.shape[1]} makes a network for others."
            )
        norm = partial(layers.layer_norm, dtype=self.dtype, epsilon=_EPSILON)
        batch, channels = x.shape[0], x.shape[-1]
        rows = self.image // self.patch
        x = x.reshape(batch, rows, self.patch, rows, self.patch, channels)
        x = jnp.swapaxes(x, 2, 3).reshape(batch, rows * rows, self.patch**2 * channels)
        x = norm(x, name="patch_norm")
        x = layers.dense(x, self.width, dtype=self.dtype, init=self.initializer, name="embedding")
        x = norm(x, name="embedding_norm")

        start = partial(self.param, init_fn=nn.initializers.normal(1.0))
        precise = wide(self.dtype)
        token = start("cls_token", shape=(1, 1, self.width), dtype=precise)
        places = start("pos_embedding", shape=(1, 1 + rows * rows, self.width), dtype=precise)
        token = jnp.broadcast_to(token, (batch, 1, self.width)).astype(self.dtype)
        x = jnp.concatenate([token, x], axis=1) + places.astype(self.dtype)
        x = Dropout(self.dropout, name="drop_embedding")(x, train, keys)
        block_class = layers.recomputed(TransformerBlock) if self.remat else TransformerBlock
        for block in range(1, self.depth + 1):
            x = block_class(
                self.heads,
                self.head_width,
                self.mlp_width,
                dropout=self.dropout,
                dtype=self.dtype,
                initializer=self.initializer,
                name=f"block{block}",
            )(x, train, keys)
        x = norm(x[:, 0], name="norm")
        return layers.head(x, self.num_classes, dtype=self.dtype, init=self.initializer)

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw images of the option `image`."""
        return normal((batch, self.image, self.image, 3), seed)

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the released network."""

        def block(match: Match[str]) -> str:
            return f"transformer.layers.{int(match[1]) - 1}"

        return {
            "patch_norm": "to_patch_embedding.1",
            "embedding": "to_patch_embedding.2",
            "embedding_norm": "to_patch_embedding.3",
            r"block(\d+)": block,
            "attention_norm": "0.norm",
            "queries_keys_values": "0.to_qkv",
            "attention_out": "0.to_out.0",
            "mlp_norm": "1.net.0",
            "mlp_in": "1.net.1",
            "mlp_out": "1.net.4",
            "norm": "transformer.norm",
            "head": "mlp_head",
        }


@register("vit")
def vit(
    *,
    num_classes: int = 10,
    image: int = 256,
    patch: int = 32,
    width: int = 1024,
    depth: int = 6,
    heads: int = 16,
    head_width: int = 64,
    mlp_width: int = 2048,
    dropout: float = 0.1,
    dtype: DType = "float32",
    init: str = "torch",
    remat: bool = False,
) -> nn.Module:
    """Build a vision transformer, by default the released one with 53.6 million parameters.

    The image is split into patches. Each patch is normalised, mapped to `width` features and
    normalised again. A learnt class token is prepended and learnt position embeddings are added.
    After `depth` blocks of attention and a perceptron with GELU, a linear layer maps the
    normalised class token to logits.

    For CIFAR use, for example, `vit(image=32, patch=4, width=256, heads=4, mlp_width=512)`.

    Args:
      num_classes: the number of logits per example.
      image: the height and width of the images.
      patch: the height and width of a patch; must divide `image`.
      width: the features of a token.
      depth: the number of blocks.
      heads: the number of attention heads.
      head_width: the features of each head.
      mlp_width: the hidden features of the perceptron.
      dropout: the rate after the embedding and inside the blocks; training needs `keys` unless it
        is 0.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights: "torch", "normal" or "xavier".
      remat: whether the backward pass recomputes each block to save memory.

    References:
      Dosovitskiy et al. 2021, An Image Is Worth 16 x 16 Words.

    >>> vit(image=32, patch=5)
    Traceback (most recent call last):
    ValueError: patch must divide image, got 5 and 32.
    """
    options = {**locals()}
    for name in ("image", "patch", "width", "depth", "heads", "head_width", "mlp_width"):
        checks.whole(name, options[name])
    if image % patch:
        raise ValueError(f"patch must divide image, got {patch} and {image}.")
    return built(VisionTransformer, options)
