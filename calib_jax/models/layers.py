"""Layers as functions, for use inside a compact method: they name, initialise and cast alike."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core.types import Array, Logits
from calib_jax.models.contract import DType, at_least_single
from calib_jax.models.convolution import convolve
from calib_jax.models.initializers import recipe


def dense(
    x: Float[Array, "*batch inputs"],
    features: int,
    *,
    name: str,
    dtype: DType,
    init: str = "torch",
    bias: bool = True,
) -> Float[Array, "*batch features"]:
    """Multiply by a matrix and, by default, add a bias."""
    start = recipe(init)
    return nn.Dense(
        features,
        use_bias=bias,
        dtype=dtype,
        param_dtype=at_least_single(dtype),
        kernel_init=start.dense,
        bias_init=start.bias(x.shape[-1]),
        name=name,
    )(x)


def head(
    x: Float[Array, "*batch inputs"],
    num_classes: int,
    *,
    dtype: DType,
    init: str = "torch",
) -> Logits:
    """Make logits: a dense layer in float32 or better, whatever the layers before computed in.

    A logit in bfloat16 has three digits, and confidences with so few cannot be calibrated.
    """
    precise = at_least_single(dtype)
    return dense(x.astype(precise), num_classes, name="head", dtype=precise, init=init)


def conv(
    x: Float[Array, "batch ..."],
    features: int,
    size: int | Sequence[int],
    *,
    name: str,
    dtype: DType,
    init: str = "torch",
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[tuple[int, int]] = 0,
    dilation: int = 1,
    bias: bool = False,
) -> Float[Array, "batch ..."]:
    """Convolve inputs `[batch, *positions, channels]`, by default without padding and bias.

    Args:
      x: the inputs.
      features: channels of the result.
      size: of the window, for each axis of positions or for all.
      name: of the parameters in the tree.
      dtype: the compute dtype.
      init: the recipe of the initial weights.
      strides, padding, dilation: as `nn.Conv` takes them. A number pads both sides, as in
        PyTorch; "SAME" with a stride of 2 would pad one side only.
      bias: whether one is added.
    """
    rank = x.ndim - 2
    window = (size,) * rank if isinstance(size, int) else tuple(size)
    start = recipe(init)
    fan_in = x.shape[-1]
    for length in window:
        fan_in *= length
    return nn.Conv(
        features,
        window,
        strides=strides,
        padding=padding,
        kernel_dilation=dilation,
        use_bias=bias,
        dtype=dtype,
        param_dtype=at_least_single(dtype),
        kernel_init=start.convolution,
        bias_init=start.bias(fan_in),
        conv_general_dilated=convolve,
        name=name,
    )(x)


def averages(
    x: Float[Array, "batch rows columns channels"], cells: int, dtype: DType
) -> Float[Array, "batch features"]:
    """Average over `cells` x `cells` parts of the maps, in float32 or better.

    With one cell that is the average over all positions. Sizes that `cells` does not divide give
    parts that overlap by one row or column, as in PyTorch's adaptive pooling. The features are
    ordered channel by channel, as in PyTorch, too.
    """
    x = x.astype(at_least_single(dtype))
    for axis in (1, 2):
        size = x.shape[axis]
        parts = [
            lax.slice_in_dim(x, i * size // cells, -(-(i + 1) * size // cells), axis=axis)
            for i in range(cells)
        ]
        x = jnp.concatenate([jnp.mean(part, axis, keepdims=True) for part in parts], axis)
    return jnp.moveaxis(x, -1, 1).reshape(x.shape[0], -1)


def max_pool(
    x: Float[Array, "batch height width channels"],
) -> Float[Array, "batch rows columns channels"]:
    """Take the largest of every 3 x 3, with stride 2, as the stems for ImageNet do."""
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))


def recomputed(block: type[nn.Module]) -> Any:
    """Make a block that keeps its inputs alone and computes itself again in the backward pass.

    The gradients are the same; on a CPU so is the memory, since XLA finds there that both
    computations are one and makes it once (JAX 0.10.2, `experiments.benchmarks.networks`).

    Blocks are therefore called `block(x, train, ...)`: `train` is no array, which is told by its
    place.
    """
    return nn.remat(block, static_argnums=(2,))
