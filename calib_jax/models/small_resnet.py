"""The small residual networks of He et al. for CIFAR: three stages of 16, 32 and 64 channels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.types import Array, AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.batch_norm import BatchNorm
from calib_jax.models.contract import DType, Mask, Network, register
from calib_jax.models.initializers import recipe

__all__ = ["resnet20", "resnet56", "resnet110_small", "small_resnet"]

_SHORTCUTS = ("pad", "projection")
_WIDTHS = (16, 32, 64)

Images = Float[Array, "batch height width channels"]
Features = Float[Array, "batch rows columns features"]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions, added to their input.

    Attributes:
      features: channels of the result.
      stride: of the first convolution.
      shortcut: how the input takes the shape of the result; see `resnet20`.
      dtype: to compute in.
      axis_name: the device axis of batch norm.
      initializer: the recipe of the initial weights.
    """

    features: int
    stride: int = 1
    shortcut: str = "pad"
    dtype: DType = "float32"
    axis_name: AxisName = None
    initializer: str = "he_normal"

    @nn.compact
    def __call__(self, x: Images, *, train: bool, mask: Mask | None) -> Features:
        """Compute the block."""
        conv = partial(layers.conv, dtype=self.dtype, init=self.initializer)
        norm = partial(_norm, dtype=self.dtype, axis_name=self.axis_name, train=train, mask=mask)
        y = conv(x, self.features, 3, strides=self.stride, padding=1, name="conv1")
        y = nn.relu(norm(y, name="norm1"))
        y = norm(conv(y, self.features, 3, padding=1, name="conv2"), name="norm2")
        if x.shape != y.shape:
            if self.shortcut == "projection":
                x = conv(x, self.features, 1, strides=self.stride, name="conv_shortcut")
                x = norm(x, name="norm_shortcut")
            else:
                more = self.features - x.shape[-1]
                x = x[:, :: self.stride, :: self.stride]
                x = jnp.pad(x, [(0, 0), (0, 0), (0, 0), (more // 2, more - more // 2)])
        return nn.relu(x + y)


class SmallResNet(Network):
    """Residual stages of `blocks` blocks each; see `resnet20`."""

    blocks: int = 3
    shortcut: str = "pad"
    axis_name: AxisName = None
    initializer: str = "he_normal"

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        common: dict[str, Any] = {"dtype": self.dtype, "axis_name": self.axis_name}
        x = layers.conv(
            x, _WIDTHS[0], 3, padding=1, dtype=self.dtype, init=self.initializer, name="conv"
        )
        x = nn.relu(_norm(x, **common, train=train, mask=mask, name="norm"))
        for stage, width in enumerate(_WIDTHS, start=1):
            for block in range(1, self.blocks + 1):
                x = BasicBlock(
                    width,
                    stride=2 if stage > 1 and block == 1 else 1,
                    shortcut=self.shortcut,
                    initializer=self.initializer,
                    **common,
                    name=f"stage{stage}_block{block}",
                )(x, train=train, mask=mask)
        x = layers.global_average(x, self.dtype)
        return layers.head(x, self.num_classes, dtype=self.dtype, init=self.initializer)


def _norm(
    x: Images, *, train: bool, mask: Mask | None, dtype: DType, axis_name: AxisName, name: str
) -> Images:
    return BatchNorm(axis_name=axis_name, dtype=dtype, name=name)(x, train=train, mask=mask)


def small_resnet(
    blocks: int,
    *,
    num_classes: int = 10,
    shortcut: str = "pad",
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "he_normal",
) -> nn.Module:
    """Make a residual network of 6 n + 2 layers, n being the blocks of each of three stages.

    A 3 x 3 convolution to 16 channels, three stages of basic blocks (16, 32 and 64 channels, the
    later two beginning with stride 2), the average over all positions, a linear layer. Images may
    have any size and number of channels.

    Args:
      blocks: n; 3, 9 and 18 are `resnet20`, `resnet56` and `resnet110_small`.
      num_classes: how many logits an example gets.
      shortcut: how the input of a block takes the shape of its result. "pad", the paper's option
        A for CIFAR: every second position, and zeros for the new channels, half of them before
        the old ones and half behind. "projection", option B: a 1 x 1 convolution with batch norm.
      axis_name: the device axis whose batches batch norm treats as one.
      dtype: what all layers but the last compute in (see `Network`).
      init: "he_normal", as the paper, whose deep networks need weights of that size; by fan-out,
        as the released residual networks that do not leave it to PyTorch. Or "torch".

    References:
      He et al. 2016, Deep Residual Learning for Image Recognition, section 4.2.

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.zeros((2, 32, 32, 3))
    >>> init = partial(resnet20().init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    269722
    """
    checks.at_least("blocks", blocks, 1)
    checks.one_of("shortcut", shortcut, _SHORTCUTS)
    recipe(init)
    return SmallResNet(
        num_classes=num_classes,
        dtype=dtype,
        blocks=blocks,
        shortcut=shortcut,
        axis_name=axis_name,
        initializer=init,
    )


def _of_depth(name: str, blocks: int, millions: str) -> Callable[..., nn.Module]:
    made = partial(small_resnet, blocks)
    made.__doc__ = (
        f"Make the small ResNet with {blocks} blocks a stage, {millions} million parameters for 10"
        " classes; see `small_resnet`."
    )
    return register(name)(made)


resnet20 = _of_depth("resnet20", 3, "0.27")
resnet56 = _of_depth("resnet56", 9, "0.85")
resnet110_small = _of_depth("resnet110_small", 18, "1.7")
