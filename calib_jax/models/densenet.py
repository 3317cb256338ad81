"""Densely connected networks: each layer takes the outputs of all previous layers of its block."""

from collections.abc import Sequence
from re import Match
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.contract import DType, Mask, TorchRules, built, variant
from calib_jax.models.images import STEMS, Convolutional, Features, ImageNetwork, Images

_BOTTLENECK = 4
_NEW = ("first", "last")


class DenseLayer(Convolutional, kw_only=True):
    """A 1 x 1 convolution to `4 * growth` channels, then a 3 x 3 to `growth`, both pre-activated.

    Attributes:
      growth: the number of new channels, which are concatenated with the input.
      new: whether the new channels come "first" or "last".
    """

    growth: int
    new: str

    @nn.compact
    def __call__(self, x: Images, train: bool, mask: Mask | None) -> Features:
        """Compute the layer."""
        y = nn.relu(self.normalized(x, train, mask, name="norm1"))
        y = self.convolved(y, _BOTTLENECK * self.growth, 1, name="conv1")
        y = nn.relu(self.normalized(y, train, mask, name="norm2"))
        y = self.convolved(y, self.growth, 3, padding=1, name="conv2")
        return jnp.concatenate([y, x] if self.new == "first" else [x, y], axis=-1)


class Transition(Convolutional):
    """A pre-activated 1 x 1 convolution to half the channels, then 2 x 2 average pooling."""

    @nn.compact
    def __call__(self, x: Images, train: bool, mask: Mask | None) -> Features:
        """Compute the layer."""
        active = nn.relu(self.normalized(x, train, mask, name="norm"))
        return layers.average_pool(self.convolved(active, x.shape[-1] // 2, 1, name="conv"))


class DenseNet(ImageNetwork, kw_only=True):
    """Blocks of dense layers with transitions between them; see `densenet`.

    Attributes:
      blocks: the number of layers in each block.
      growth: the number of channels that each layer adds.
      stem_width: the channels of the first convolution.
      stem: the window of the first convolution; "7x7" has stride 2 and is followed by batch norm
        and pooling.
      new: whether a layer puts its channels "first" or "last".
      remat: whether the backward pass recomputes the activations inside each layer instead of
        storing them.
      torch_final_norm: the name of the last batch norm in the released code.
    """

    blocks: tuple[int, ...]
    growth: int
    stem_width: int
    stem: str
    new: str
    remat: bool
    torch_final_norm: str

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        least = 2 ** (len(self.blocks) - 1)
        if self.stem == "7x7":
            least = 4 * least - 3  # the smallest size that two strides of 2 round up to `least`
        if min(x.shape[1:3]) < least:
            raise ValueError(
                f"{type(self).__name__}: {len(self.blocks)} blocks with a {self.stem} stem"
                f" need images of {least} x {least} or more, got {x.shape}."
            )
        x = self.started(x, self.stem_width, self.stem, name="stem_conv")
        if self.stem == "7x7":
            x = nn.relu(self.normalized(x, train, mask, name="stem_norm"))
            x = layers.max_pool(x, 3, stride=2, padding=1)
        layer_class = layers.recomputed(DenseLayer) if self.remat else DenseLayer
        grown = {"growth": self.growth, "new": self.new, **self.shared()}
        for block, depth in enumerate(self.blocks, start=1):
            for layer in range(1, depth + 1):
                x = layer_class(**grown, name=f"block{block}_layer{layer}")(x, train, mask)
            if block < len(self.blocks):
                x = Transition(**self.shared(), name=f"transition{block}")(x, train, mask)
        return self.classified(nn.relu(self.normalized(x, train, mask, name="final_norm")))

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the released code for CIFAR, or of torchvision."""
        final = self.torch_final_norm
        if final == "bn":

            def layer(match: Match[str]) -> str:
                return f"dense{match[1]}.{int(match[2]) - 1}"

            return {
                r"stem_conv": "conv1",
                r"block(\d+)_layer(\d+)": layer,
                r"norm(\d?)": r"bn\1",
                r"transition(\d)": r"trans\1",
                r"final_norm": final,
                r"head": "linear",
            }
        return {
            r"stem_(conv|norm)": r"features.\g<1>0",
            r"block(\d+)_layer(\d+)": r"features.denseblock\1.denselayer\2",
            r"(transition\d)": r"features.\1",
            r"final_norm": f"features.{final}",
            r"head": "classifier",
        }


def densenet(
    blocks: Sequence[int],
    growth: int = 32,
    stem: str = "3x3",
    new: str = "first",
    final_norm: str = "bn",
    /,
    *,
    num_classes: int = 10,
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "torch",
    remat: bool = False,
) -> nn.Module:
    """Build a DenseNet-BC: bottleneck layers, and transitions that halve the channels.

    The stem has `2 * growth` channels, and every layer of a block adds `growth` channels. Between
    blocks, a 1 x 1 convolution halves the channels and 2 x 2 average pooling halves the positions.
    Batch norm, ReLU, the average over all positions and a linear layer follow. (The released
    networks average 4 x 4 or 8 x 8 positions, which are all positions for 32 x 32 images.)

    Args:
      blocks: the number of layers in each block.
      growth: the number of channels that each layer adds.
      stem: "3x3" with stride 1 and without batch norm, or "7x7" with stride 2, batch norm, ReLU
        and 3 x 3 max pooling with stride 2.
      new: whether a layer puts its new channels "first", before the old ones, or "last". Use the
        order of the pretrained weights.
      final_norm: the name of the last batch norm in PyTorch weights: "bn" selects the layer names
        of the calibration papers' code; "norm5" and "norm_final" select torchvision's names.
      num_classes: the number of logits per example.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "torch" or "he_normal".
      remat: whether the backward pass recomputes each layer, which saves memory and costs time.

    References:
      Huang et al. 2017, Densely Connected Convolutional Networks.

    >>> densenet([4, 4, 4], 12).blocks
    (4, 4, 4)
    """
    options = {**locals()}
    del options["final_norm"]
    if not blocks:
        raise ValueError("blocks must name at least one block, got none.")
    for number in blocks:
        checks.whole("blocks", number)
    checks.whole("growth", growth)
    checks.one_of("stem", stem, STEMS)
    checks.one_of("new", new, _NEW)
    return built(DenseNet, options, stem_width=2 * growth, torch_final_norm=final_norm)


_121 = ((6, 12, 24, 16), 32)
densenet121 = variant("densenet121", "for CIFAR, 7.0 million parameters", densenet, *_121)
densenet161 = variant(
    "densenet161", "for CIFAR, 26.5 million parameters", densenet, (6, 12, 36, 24), 48
)
densenet169 = variant(
    "densenet169", "for CIFAR, 12.5 million parameters", densenet, (6, 12, 32, 32)
)
densenet201 = variant(
    "densenet201", "for CIFAR, 18.1 million parameters", densenet, (6, 12, 48, 32)
)
densenet121_imagenet = variant(
    "densenet121_imagenet",
    "8.0 million parameters",
    densenet,
    *(*_121, "7x7", "last", "norm5"),
    num_classes=1000,
    init="he_normal",
)
densenet40_bc = variant(
    "densenet40_bc",
    "of the code of temperature scaling, 188,092 parameters",
    densenet,
    *((6, 6, 6), 12, "3x3", "last", "norm_final"),
    num_classes=100,
    init="he_normal",
)
