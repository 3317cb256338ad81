"""Residual networks of the calibration papers, for CIFAR, Tiny ImageNet and ImageNet."""

from collections.abc import Sequence
from re import Match
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.contract import DType, Mask, TorchRules, built, register, variant
from calib_jax.models.images import NORMS, STEMS, Convolutional, Features, ImageNetwork, Images

SHORTCUTS = ("pad", "projection")


class ResidualBlock(Convolutional, kw_only=True):
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
      norm: "batch", or "none".

    References:
      Zhang et al. 2019, Fixup Initialization, section 3 (residual branches that start at zero).
    """

    features: int
    bottleneck: bool
    stride: int
    shortcut: str = "projection"
    norm: str = "batch"
    dilation: int = 1

    @nn.compact
    def __call__(self, x: Images, train: bool, mask: Mask | None) -> Features:
        """Compute the block."""
        plain = self.norm == "none"
        first = (3, self.features, self.stride)  # window, features, stride
        plan = [first, (3, self.features, 1)]
        if self.bottleneck:
            plan = [(1, self.features, 1), first, (1, 4 * self.features, 1)]
        y = x
        for number, (size, features, stride) in enumerate(plan, start=1):
            y = self.convolved(
                nn.relu(y) if number > 1 else y,
                features,
                size,
                name=f"conv{number}",
                strides=stride,
                padding=size // 2 * self.dilation,
                dilation=self.dilation,
                bias=plain,
                zero=plain and number == len(plan),
            )
            y = self.normalized(y, train, mask, name=f"norm{number}")
        if x.shape != y.shape and self.shortcut == "projection":
            x = self.convolved(
                x, y.shape[-1], 1, name="conv_shortcut", strides=self.stride, bias=plain
            )
            x = self.normalized(x, train, mask, name="norm_shortcut")
        elif x.shape != y.shape:
            more = y.shape[-1] - x.shape[-1]
            x = x[:, :: self.stride, :: self.stride]
            x = jnp.pad(x, [(0, 0), (0, 0), (0, 0), (more // 2, more - more // 2)])
        return nn.relu(x + y)


class ResNet(ImageNetwork, kw_only=True):
    """Stages of residual blocks, each but the first starting with stride 2; see `resnet`.

    Attributes:
      blocks: the number of blocks in each stage.
      bottleneck: whether the blocks are bottlenecks.
      width: the features inside the blocks of the first stage; every stage doubles them.
      stem_width: the channels of the first convolution.
      stem: the window of the first convolution; "7x7" has stride 2 and is followed by
        pooling with stride 2.
      cells: the last feature maps are averaged over cells x cells parts.
      shortcut: how shortcuts change the shape; see `small_resnet`.
      remat: whether the backward pass recomputes the activations inside each block instead of
        storing them.
      torch_shortcut: the name of a projection in the released code.
      norm: "batch", or "none".
    """

    blocks: tuple[int, ...]
    bottleneck: bool = False
    width: int
    stem_width: int
    stem: str = "3x3"
    cells: int = 1
    shortcut: str = "projection"
    remat: bool = False
    torch_shortcut: str = "shortcut"
    norm: str = "batch"

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        bias = self.norm == "none"
        x = self.started(x, self.stem_width, self.stem, name="conv", bias=bias)
        x = nn.relu(self.normalized(x, train, mask, name="norm"))
        if self.stem == "7x7":
            x = layers.max_pool(x, 3, stride=2, padding=1)
        block_class = layers.recomputed(ResidualBlock) if self.remat else ResidualBlock
        for stage, blocks in enumerate(self.blocks, start=1):
            for block in range(1, blocks + 1):
                x = block_class(
                    features=self.width * 2 ** (stage - 1),
                    bottleneck=self.bottleneck,
                    stride=2 if stage > 1 and block == 1 else 1,
                    shortcut=self.shortcut,
                    norm=self.norm,
                    **self.shared(),
                    name=f"stage{stage}_block{block}",
                )(x, train, mask)
        return self.classified(x, cells=self.cells)

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


_BASIC18, _BASIC34 = ((2, 2, 2, 2), False), ((3, 4, 6, 3), False)
_DEEP50, _DEEP101 = ((3, 4, 6, 3), True), ((3, 4, 23, 3), True)
_DEEP110, _DEEP152 = ((3, 4, 26, 3), True), ((3, 8, 36, 3), True)
_TINY: dict[str, Any] = {"num_classes": 200, "init": "he_normal"}
_IMAGENET: dict[str, Any] = {"num_classes": 1000, "init": "he_normal"}

resnet18 = variant("resnet18", "for CIFAR, 11.2 million parameters", resnet, *_BASIC18)
resnet34 = variant("resnet34", "for CIFAR, 21.3 million parameters", resnet, *_BASIC34)
resnet50 = variant("resnet50", "for CIFAR, 23.5 million parameters", resnet, *_DEEP50)
resnet101 = variant("resnet101", "for CIFAR, 42.5 million parameters", resnet, *_DEEP101)
resnet110 = variant("resnet110", "for CIFAR, 45.9 million parameters", resnet, *_DEEP110)
resnet152 = variant("resnet152", "for CIFAR, 58.2 million parameters", resnet, *_DEEP152)
resnet50_tiny_imagenet = variant(
    "resnet50_tiny_imagenet", "25.1 million parameters", resnet, *_DEEP50, "3x3", 2, **_TINY
)
resnet110_tiny_imagenet = variant(
    "resnet110_tiny_imagenet", "47.5 million parameters", resnet, *_DEEP110, "3x3", 2, **_TINY
)
resnet50_imagenet = variant(
    "resnet50_imagenet", "25.6 million parameters", resnet, *_DEEP50, "7x7", **_IMAGENET
)
resnet110_imagenet = variant(
    "resnet110_imagenet", "47.9 million parameters", resnet, *_DEEP110, "7x7", **_IMAGENET
)
resnet152_imagenet = variant(
    "resnet152_imagenet", "60.2 million parameters", resnet, *_DEEP152, "7x7", **_IMAGENET
)


def small_resnet(
    blocks: int,
    *,
    num_classes: int = 10,
    width: int = 16,
    norm: str = "batch",
    shortcut: str = "pad",
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "he_normal",
) -> nn.Module:
    """Build a residual network of 6 n + 2 layers, with n blocks in each of three stages.

    The network has a 3 x 3 convolution to 16 channels (`width`), three stages of basic blocks (16,
    32 and 64 channels, the later two starting with stride 2), the average over all positions and a
    linear layer. Images may have any size and number of channels.

    Args:
      blocks: n; 1, 3, 5, 9 and 18 give `resnet8`, `resnet20`, `resnet32`, `resnet56` and
        `resnet110_small`.
      num_classes: the number of logits per example.
      width: the channels of the first stage.
      norm: "batch", or "none" for a network without normalization, as in `resnet`.
      shortcut: how the shortcut changes the shape of its input. "pad" is the paper's option A for
        CIFAR: it takes every second position and pads zero channels, half of them before the old
        ones and half after. "projection" is option B: a 1 x 1 convolution with batch norm.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "he_normal" as in the paper, whose deep networks need this scale, and by fan-out as in
        the released networks that do not use PyTorch's default; or "torch".

    References:
      He et al. 2016, Deep Residual Learning for Image Recognition, section 4.2.

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.zeros((2, 32, 32, 3))
    >>> from functools import partial
    >>> init = partial(resnet20().init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    269722
    """
    options = {**locals()}
    checks.whole("blocks", blocks)
    checks.whole("width", width)
    checks.one_of("norm", norm, NORMS)
    checks.one_of("shortcut", shortcut, SHORTCUTS)
    return built(ResNet, options, blocks=(blocks,) * 3, stem_width=width)


resnet8 = variant("resnet8", "75,290 parameters", small_resnet, 1)
resnet20 = variant("resnet20", "269,722 parameters", small_resnet, 3)
resnet32 = variant("resnet32", "464,154 parameters", small_resnet, 5)
resnet56 = variant("resnet56", "853,018 parameters", small_resnet, 9)
resnet110_small = variant("resnet110_small", "1.7 million parameters", small_resnet, 18)


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
    without dropout, unlike those of Zagoruyko and Komodakis 2016.

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
    attributes: dict[str, Any] = {"width": 160, "stem_width": 16, "torch_shortcut": "downsample"}
    return built(ResNet, options, blocks=(4, 4, 4), **attributes)
