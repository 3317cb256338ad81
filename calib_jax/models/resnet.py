"""Residual networks of the calibration papers, for CIFAR, Tiny ImageNet and ImageNet."""

from collections.abc import Callable, Sequence
from functools import partial
from re import Match
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.types import Array, AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.batch_norm import NORMS, normalize
from calib_jax.models.contract import DType, Mask, Network, TorchRules, built, variant, variants_of

SHORTCUTS = ("pad", "projection")
STEMS = ("3x3", "7x7")

Images = Float[Array, "batch height width channels"]
Features = Float[Array, "batch rows columns features"]


class ResidualBlock(nn.Module):
    """Convolutions with batch norm, added to their input, and ReLU after the sum.

    Without batch norm the convolutions have biases, and the last one starts at zero, so that the
    block starts as its shortcut: otherwise every block would double the variance.

    Attributes:
      features: the channels inside the block, and of the result unless `bottleneck`.
      bottleneck: whether the convolutions are 1 x 1, 3 x 3 and 1 x 1 with four times the features
        at the end, instead of two of 3 x 3.
      stride: the stride of the first 3 x 3 convolution.
      dilation: the distance between the taps of the 3 x 3 convolutions.
      shortcut: how the shortcut changes the shape of the input; see `small_resnet`.
      dtype: the compute dtype.
      axis_name: the device axis of batch norm.
      initializer: the recipe of the initial weights.
      norm: "batch", or "none".

    References:
      Zhang et al. 2019, Fixup Initialization, section 3 (residual branches that start at zero).
    """

    features: int
    bottleneck: bool = False
    stride: int = 1
    shortcut: str = "projection"
    dtype: DType = "float32"
    axis_name: AxisName = None
    initializer: str = "torch"
    norm: str = "batch"
    dilation: int = 1

    @nn.compact
    def __call__(self, x: Images, train: bool, mask: Mask | None) -> Features:
        """Compute the block."""
        plain = self.norm == "none"
        conv = partial(layers.conv, dtype=self.dtype, init=self.initializer, bias=plain)
        norm = partial(
            normalize,
            train=train,
            mask=mask,
            dtype=self.dtype,
            axis_name=self.axis_name,
            norm=self.norm,
        )
        first = (3, self.features, self.stride)  # window, features, stride
        plan = [first, (3, self.features, 1)]
        if self.bottleneck:
            plan = [(1, self.features, 1), first, (1, 4 * self.features, 1)]
        y = x
        for number, (size, features, stride) in enumerate(plan, start=1):
            if number > 1:
                y = nn.relu(y)
            y = conv(
                y,
                features,
                size,
                strides=stride,
                padding=size // 2 * self.dilation,
                dilation=self.dilation,
                name=f"conv{number}",
                zero=plain and number == len(plan),
            )
            y = norm(y, name=f"norm{number}")
        if x.shape != y.shape:
            more = y.shape[-1] - x.shape[-1]
            if self.shortcut == "projection":
                x = conv(x, y.shape[-1], 1, strides=self.stride, name="conv_shortcut")
                x = norm(x, name="norm_shortcut")
            else:
                x = x[:, :: self.stride, :: self.stride]
                x = jnp.pad(x, [(0, 0), (0, 0), (0, 0), (more // 2, more - more // 2)])
        return nn.relu(x + y)


class ResNet(Network):
    """Stages of residual blocks, each but the first starting with stride 2; see `resnet`.

    Attributes:
      blocks: the number of blocks in each stage.
      bottleneck: whether the blocks are bottlenecks.
      width: the features inside the blocks of the first stage; every stage doubles them.
      stem_width: the channels of the first convolution.
      stem: the window of the first convolution; "7x7" has stride 2 and is followed by pooling
        with stride 2.
      cells: the last feature maps are averaged over cells x cells parts.
      shortcut: how shortcuts change the shape; see `small_resnet`.
      axis_name: the device axis of batch norm.
      initializer: the recipe of the initial weights.
      remat: whether the backward pass recomputes the activations inside each block instead of
        storing them.
      torch_shortcut: the name of a projection in the released code.
      norm: "batch", or "none".
    """

    blocks: tuple[int, ...] = (2, 2, 2, 2)
    bottleneck: bool = False
    width: int = 64
    stem_width: int = 64
    stem: str = "3x3"
    cells: int = 1
    shortcut: str = "projection"
    axis_name: AxisName = None
    remat: bool = False
    torch_shortcut: str = "shortcut"
    norm: str = "batch"

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        common: dict[str, Any] = {
            "dtype": self.dtype,
            "axis_name": self.axis_name,
            "norm": self.norm,
        }
        how = {"dtype": self.dtype, "init": self.initializer}
        bias = self.norm == "none"
        x = layers.stem(x, self.stem_width, self.stem, name="conv", bias=bias, **how)
        x = nn.relu(normalize(x, train=train, mask=mask, name="norm", **common))
        if self.stem == "7x7":
            x = layers.max_pool(x, 3, stride=2, padding=1)
        block_class = layers.recomputed(ResidualBlock) if self.remat else ResidualBlock
        for stage, blocks in enumerate(self.blocks, start=1):
            for block in range(1, blocks + 1):
                x = block_class(
                    self.width * 2 ** (stage - 1),
                    bottleneck=self.bottleneck,
                    stride=2 if stage > 1 and block == 1 else 1,
                    shortcut=self.shortcut,
                    initializer=self.initializer,
                    **common,
                    name=f"stage{stage}_block{block}",
                )(x, train, mask)
        x = layers.averages(x, self.cells, self.dtype)
        return layers.head(x, self.num_classes, **how)

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the released networks."""

        def block(match: Match[str]) -> str:
            return f"layer{match[1]}.{int(match[2]) - 1}"

        return {
            r"stage(\d+)_block(\d+)": block,
            r"conv_shortcut": f"{self.torch_shortcut}.0",
            r"norm_shortcut": f"{self.torch_shortcut}.1",
            r"conv": "conv1",
            r"norm": "bn1",
            r"norm(\d)": r"bn\1",
            r"head": "fc",
        }


def resnet(
    blocks: Sequence[int],
    bottleneck: bool = False,
    stem: str = "3x3",
    cells: int = 1,
    /,
    *,
    num_classes: int = 10,
    width: int = 64,
    norm: str = "batch",
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "torch",
    remat: bool = False,
) -> nn.Module:
    """Build a residual network of any depth, in the form that the calibration papers released.

    The network has a stem, stages of residual blocks, an average and a linear layer. The blocks of
    the first stage have `width` features inside, and every later stage doubles them. Where the
    shape changes, the shortcut is a 1 x 1 convolution with batch norm. The 3 x 3 convolution of a
    bottleneck has the stride. Images may have any size and number of channels. (The released
    networks for CIFAR average 4 x 4 positions, which are all positions for 32 x 32 images.)

    Args:
      blocks: the number of blocks in each stage.
      bottleneck: whether a block is 1 x 1, 3 x 3, 1 x 1 with four times the features at its end,
        or two of 3 x 3.
      stem: "3x3" with stride 1, or "7x7" with stride 2 and 3 x 3 max pooling with stride 2.
      cells: 1 averages over all positions; 2 averages over each quarter of the feature maps, and
        the linear layer takes the concatenated results.
      num_classes: the number of logits per example.
      width: the features inside the blocks of the first stage.
      norm: "batch", or "none" for a network without normalization: its convolutions have biases,
        and the last convolution of every block starts at zero, so that deep networks train, too.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "torch", or "he_normal".
      remat: whether the backward pass recomputes each block, which saves memory and costs time.
        It has no effect on CPUs, where XLA's compiler removes it.

    References:
      He et al. 2016, Deep Residual Learning for Image Recognition.
      Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss, appendix B.

    >>> resnet([1, 1], width=4).blocks
    (1, 1)
    """
    options = {**locals()}
    if not blocks:
        raise ValueError("blocks must name at least one stage, got none.")
    for number in blocks:
        checks.whole("blocks", number)
    checks.whole("width", width)
    checks.at_least("cells", cells, 1)
    checks.one_of("stem", stem, STEMS)
    checks.one_of("norm", norm, NORMS)
    shortcut = "shortcut" if (stem, cells) == ("3x3", 1) else "downsample"
    return built(ResNet, options, stem_width=width, torch_shortcut=shortcut)


_DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    110: ((3, 4, 26, 3), True),
    152: ((3, 8, 36, 3), True),
}


@variants_of(resnet)
def _for_cifar(depth: int, millions: str) -> Callable[..., nn.Module]:
    what = f"the released ResNet-{depth} for CIFAR, {millions} million parameters for 10 classes"
    return variant(f"resnet{depth}", what, resnet, *_DEPTHS[depth])


@variants_of(resnet)
def _for_tiny_imagenet(depth: int, millions: str) -> Callable[..., nn.Module]:
    what = f"the released ResNet-{depth} for Tiny ImageNet (64 x 64), {millions} million parameters"
    changed: dict[str, Any] = {"num_classes": 200, "init": "he_normal"}
    return variant(
        f"resnet{depth}_tiny_imagenet", what, resnet, *_DEPTHS[depth], "3x3", 2, **changed
    )


@variants_of(resnet)
def _for_imagenet(depth: int, millions: str) -> Callable[..., nn.Module]:
    what = f"the ResNet-{depth} for ImageNet, {millions} million parameters"
    changed: dict[str, Any] = {"num_classes": 1000, "init": "he_normal"}
    return variant(f"resnet{depth}_imagenet", what, resnet, *_DEPTHS[depth], "7x7", **changed)


resnet18 = _for_cifar(18, "11.2")
resnet34 = _for_cifar(34, "21.3")
resnet50 = _for_cifar(50, "23.5")
resnet101 = _for_cifar(101, "42.5")
resnet110 = _for_cifar(110, "45.9")
resnet152 = _for_cifar(152, "58.2")
resnet50_tiny_imagenet = _for_tiny_imagenet(50, "25.1")
resnet110_tiny_imagenet = _for_tiny_imagenet(110, "47.5")
resnet50_imagenet = _for_imagenet(50, "25.6")
resnet110_imagenet = _for_imagenet(110, "47.9")
resnet152_imagenet = _for_imagenet(152, "60.2")
