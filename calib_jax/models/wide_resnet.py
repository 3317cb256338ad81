"""Wide residual networks: the form that the calibration papers released, and the original."""

from functools import partial
from typing import Any

import flax.linen as nn

from calib_jax.core import checks
from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.batch_norm import normalize
from calib_jax.models.contract import DType, Mask, Network, built, register, variant
from calib_jax.models.dropout import Dropout
from calib_jax.models.resnet import Features, Images, ResNet

_STAGES = 3
_STEM = 16


class PreActivationBlock(nn.Module):
    """Two 3 x 3 convolutions, each preceded by batch norm and ReLU, added to their input.

    Attributes:
      features: the channels of the result.
      stride: the stride of the first convolution.
      dropout: the rate between the convolutions.
      dtype: the compute dtype.
      axis_name: the device axis of batch norm.
      initializer: the recipe of the initial weights.
    """

    features: int
    stride: int = 1
    dropout: float = 0.0
    dtype: DType = "float32"
    axis_name: AxisName = None
    initializer: str = "he_normal"

    @nn.compact
    def __call__(self, x: Images, train: bool, mask: Mask | None, keys: Any) -> Features:
        """Compute the block."""
        conv = partial(layers.conv, dtype=self.dtype, init=self.initializer)
        norm = partial(
            normalize, train=train, mask=mask, dtype=self.dtype, axis_name=self.axis_name
        )
        active = nn.relu(norm(x, name="norm1"))
        y = conv(active, self.features, 3, strides=self.stride, padding=1, name="conv1")
        y = nn.relu(norm(y, name="norm2"))
        y = Dropout(self.dropout, name="dropout")(y, train, keys)
        y = conv(y, self.features, 3, padding=1, name="conv2")
        if x.shape != y.shape:
            # A projection takes the activated input; an identity shortcut takes the raw input.
            x = conv(active, self.features, 1, strides=self.stride, name="conv_shortcut")
        return x + y


class WideResNet(Network):
    """Three stages of pre-activation blocks; see `wide_resnet`.

    Attributes:
      blocks: the number of blocks in each stage.
      width: the channels of the first stage; every stage doubles them.
      stem_width: the channels of the first convolution.
      dropout: the rate inside the blocks.
      axis_name: the device axis of batch norm.
      initializer: the recipe of the initial weights.
      remat: whether the backward pass recomputes each block to save memory.
    """

    blocks: tuple[int, ...] = (4, 4, 4)
    width: int = 160
    stem_width: int = _STEM
    dropout: float = 0.0
    axis_name: AxisName = None
    remat: bool = False

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        common: dict[str, Any] = {"dtype": self.dtype, "axis_name": self.axis_name}
        how = {"dtype": self.dtype, "init": self.initializer}
        x = layers.stem(x, self.stem_width, "3x3", name="conv", **how)
        block_class = layers.recomputed(PreActivationBlock) if self.remat else PreActivationBlock
        for stage, blocks in enumerate(self.blocks, start=1):
            for block in range(1, blocks + 1):
                x = block_class(
                    self.width * 2 ** (stage - 1),
                    stride=2 if stage > 1 and block == 1 else 1,
                    dropout=self.dropout,
                    initializer=self.initializer,
                    **common,
                    name=f"stage{stage}_block{block}",
                )(x, train, mask, keys)
        x = nn.relu(normalize(x, train=train, mask=mask, name="norm", **common))
        x = layers.averages(x, 1, self.dtype)
        return layers.head(x, self.num_classes, **how)


def wide_resnet(
    depth: int,
    widening: int,
    /,
    *,
    num_classes: int = 10,
    dropout: float = 0.0,
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "he_normal",
    remat: bool = False,
) -> nn.Module:
    """Build the wide residual network of the paper: WRN-depth-widening, with pre-activation.

    The network has a 3 x 3 convolution to 16 channels and three stages of 16, 32 and 64 times
    `widening` channels, the later two starting with stride 2. Batch norm and ReLU precede the
    convolutions of every block. Images may have any size and number of channels.

    Args:
      depth: 6 n + 4, where n is the number of blocks in each stage.
      widening: the factor on the channels of the network of He et al. for CIFAR.
      num_classes: the number of logits per example.
      dropout: the rate between the two convolutions of a block, 0.3 for CIFAR in the paper;
        training needs `keys` unless it is 0.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "he_normal", as in the paper, or "torch".
      remat: whether the backward pass recomputes each block to save memory.

    References:
      Zagoruyko and Komodakis 2016, Wide Residual Networks.

    >>> wide_resnet(28, 10).blocks
    (4, 4, 4)
    >>> wide_resnet(27, 10)
    Traceback (most recent call last):
    ValueError: depth must be 6 n + 4 with n at least 1, such as 16, 22, 28 or 40, got 27.
    """
    options = {**locals()}
    del options["depth"], options["widening"]
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ValueError(
            f"depth must be 6 n + 4 with n at least 1, such as 16, 22, 28 or 40, got {depth}."
        )
    checks.whole("widening", widening)
    return built(WideResNet, options, blocks=(blocks,) * _STAGES, width=_STEM * widening)


wide_resnet28_10 = variant(
    "wide_resnet28_10",
    "the WRN-28-10 of the paper, 36.5 million parameters for 10 classes",
    partial(wide_resnet, 28),
    10,
)


@register("wide_resnet26_10")
def wide_resnet26_10(
    *,
    num_classes: int = 10,
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "he_normal",
    remat: bool = False,
) -> nn.Module:
    """Build the WRN-26-10 that the calibration papers released, with 36.5 million parameters.

    The blocks are the same as in `resnet`, with batch norm and ReLU after the convolutions and
    without dropout. See `wide_resnet` for the original form.

    Args:
      num_classes: the number of logits per example.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "he_normal", as released, or "torch".
      remat: whether the backward pass recomputes each block to save memory.

    References:
      Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss, appendix B.

    >>> wide_resnet26_10().blocks
    (4, 4, 4)
    """
    options = {**locals()}
    attributes: dict[str, Any] = {"blocks": (4,) * _STAGES, "width": 10 * _STEM}
    attributes |= {"stem_width": _STEM, "torch_shortcut": "downsample"}
    return built(ResNet, options, **attributes)
