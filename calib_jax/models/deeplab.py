"""DeepLabV3 and DeepLabV3+ for semantic segmentation: a class for every pixel of an image."""

from collections.abc import Sequence
from functools import partial
from re import Match
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.contract import DType, Mask, TorchRules, built, variant
from calib_jax.models.images import ImageNetwork
from calib_jax.models.layers import Dropout
from calib_jax.models.resnet import ResidualBlock

RESIZINGS = ("align_corners", "half_pixel")
STRIDES = (8, 16)
_STEM_STRIDE = 4

Features = Float[Array, "batch _ _ _"]  # of any size and number of channels


class DeepLab(ImageNetwork, kw_only=True):
    """A residual network with dilated convolutions, a spatial pyramid and, in V3+, a decoder.

    See `deeplab` for the other attributes.

    Attributes:
      low_channels: the channels to which the decoder reduces the features of the first stage.
    """

    blocks: tuple[int, ...]
    multi_grid: tuple[int, ...]
    bottleneck: bool
    width: int
    channels: int
    decoder: bool
    low_channels: int
    output_stride: int
    rates: tuple[int, ...]
    dropout: float
    resizing: str
    remat: bool

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits for every pixel."""
        x, mask = self.inputs(x, mask, rank=4)
        height, width = x.shape[1:3]
        low, high = self._backbone(x, train, mask)
        y = self._pyramid(high, train, mask)
        y = Dropout(self.dropout, name="drop_pyramid")(y, train, keys)

        if self.decoder:
            y = self._decoded(y, low, train, mask, keys)
        precise = wide(self.dtype)
        how = {"dtype": precise, "init": self._recipe_behind, "bias": True}
        logits = self.convolved(y.astype(precise), self.num_classes, 1, name="head", **how)
        return resized(logits, (height, width), self.resizing)

    def _decoded(
        self, y: Features, low: Features, train: bool, mask: Mask | None, keys: Any
    ) -> Features:
        """Join the result of the pyramid with the features of the first stage."""
        low = self._layer(low, self.low_channels, 1, "low", train, mask)
        y = resized(y, low.shape[1:3], self.resizing)
        y = jnp.concatenate([y, low], axis=-1)
        y = self._layer(y, self.channels, 3, "decoder1", train, mask)
        y = Dropout(self.dropout, name="drop_decoder1")(y, train, keys)
        y = self._layer(y, self.channels, 3, "decoder2", train, mask)
        return Dropout(self.dropout / 5, name="drop_decoder2")(y, train, keys)

    def _layer(
        self,
        x: Features,
        features: int,
        size: int,
        name: str,
        train: bool,
        mask: Mask | None,
        *,
        dilation: int = 1,
        **window: Any,
    ) -> Features:
        """Apply a convolution, batch norm and ReLU."""
        window = {"init": self._recipe_behind, "dilation": dilation, **window}
        padding = size // 2 * dilation
        x = self.convolved(x, features, size, name=f"{name}_conv", padding=padding, **window)
        return nn.relu(self.normalized(x, train, mask, name=f"{name}_norm"))

    def _backbone(self, x: Features, train: bool, mask: Mask | None) -> tuple[Features, Features]:
        """Return the features of the first and the last stage."""
        of_stem: dict[str, Any] = {"strides": 2, "init": self.initializer}
        x = self._layer(x, self.width, 7, "stem", train, mask, **of_stem)
        x = layers.max_pool(x, 3, stride=2, padding=1)
        block_class = layers.recomputed(ResidualBlock) if self.remat else ResidualBlock
        left, dilation, low = self.output_stride // _STEM_STRIDE, 1, x
        stages = [(1,) * blocks for blocks in self.blocks] + [self.multi_grid]
        for stage, grid in enumerate(stages, start=1):
            stride = 2 if stage > 1 and left > 1 else 1
            left //= stride
            if stage > 1 and stride == 1:  # dilate instead of reducing the size
                dilation *= 2
            for block, factor in enumerate(grid, start=1):
                x = block_class(
                    features=self.width * 2 ** (stage - 1),
                    bottleneck=self.bottleneck,
                    stride=stride if block == 1 else 1,
                    dilation=dilation * factor,
                    **self.shared(),
                    name=f"stage{stage}_block{block}",
                )(x, train, mask)
            if stage == 1:
                low = x
        return low, x

    def _pyramid(self, x: Features, train: bool, mask: Mask | None) -> Features:
        """Join convolutions of several dilations with the average over the image."""
        convolved = partial(self._layer, features=self.channels, train=train, mask=mask)
        scales = [convolved(x, size=1, name="pyramid1")]
        for number, rate in enumerate(self.rates, start=2):
            scales.append(convolved(x, size=3, name=f"pyramid{number}", dilation=rate))
        average = jnp.mean(x.astype(wide(x.dtype)), axis=(1, 2), keepdims=True)
        average = convolved(average.astype(x.dtype), size=1, name="average")
        scales.append(jnp.broadcast_to(average, scales[0].shape))
        return convolved(jnp.concatenate(scales, axis=-1), size=1, name="joined")

    @property
    def _recipe_behind(self) -> str:
        """The recipe behind the backbone, where the released code draws by fan-in."""
        return "he_normal_fan_in" if self.initializer == "he_normal" else self.initializer

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the released network, whose head V3 has as `head`."""

        def block(match: Match[str]) -> str:
            return f"backbone.layer{match[1]}.{int(match[2]) - 1}"

        return {
            r"stage(\d+)_block(\d+)": block,
            r"conv_shortcut": "downsample.0",
            r"norm_shortcut": "downsample.1",
            r"norm(\d)": r"bn\1",
            r"stem_conv": "backbone.conv1",
            r"stem_norm": "backbone.bn1",
            r"pyramid(\d)_conv": r"aspp.aspp\1.atrous_conv",
            r"pyramid(\d)_norm": r"aspp.aspp\1.bn",
            r"average_conv": "aspp.global_avg_pool.1",
            r"average_norm": "aspp.global_avg_pool.2",
            r"joined_conv": "aspp.conv1",
            r"joined_norm": "aspp.bn1",
            r"low_conv": "decoder.conv1",
            r"low_norm": "decoder.bn1",
            r"decoder1_conv": "decoder.last_conv.0",
            r"decoder1_norm": "decoder.last_conv.1",
            r"decoder2_conv": "decoder.last_conv.4",
            r"decoder2_norm": "decoder.last_conv.5",
            r"head": "decoder.last_conv.8" if self.decoder else "head",
        }


def resized(x: Features, size: Sequence[int], resizing: str) -> Features:
    """Resize feature maps bilinearly.

    Args:
      x: the feature maps.
      size: the new height and width.
      resizing: "align_corners" maps the middles of the corner pixels onto each other, as in the
        released code; "half_pixel" maps the edges of the image, as in `jax.image.resize`.
    """
    if resizing == "half_pixel":
        shape = (x.shape[0], *size, x.shape[-1])
        return jax.image.resize(x, shape, "linear", antialias=False)
    rows, columns = (
        jnp.asarray(_aligned(new, old), x.dtype)
        for new, old in zip(size, x.shape[1:3], strict=True)
    )
    # A product with a matrix has a fast gradient, which gathered pixels do not have on a CPU.
    precision = jax.lax.Precision.HIGHEST  # the last product gives the logits
    x = jnp.einsum("ni,bijc->bnjc", rows, x, precision=precision)
    return jnp.einsum("nj,bijc->binc", columns, x, precision=precision)


def _aligned(new: int, old: int) -> np.ndarray:
    """Return the weights `[new, old]` of linear interpolation with aligned ends."""
    places = np.linspace(0, old - 1, new)
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(old)))


def deeplab(
    blocks: Sequence[int] = (2, 2, 2),
    /,
    *,
    num_classes: int = 10,
    multi_grid: Sequence[int] = (1, 2, 4),
    bottleneck: bool = True,
    width: int = 64,
    channels: int = 256,
    decoder: bool = True,
    low_channels: int = 48,
    output_stride: int = 16,
    rates: Sequence[int] | None = None,
    dropout: float = 0.5,
    resizing: str = "align_corners",
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "he_normal",
    remat: bool = False,
) -> nn.Module:
    """Build DeepLabV3 or V3+ with a residual network; V3+ as released with the recall loss.

    A stem of stride 4 is followed by stages of residual blocks. Once the features are reduced by
    the output stride, later stages double the dilation instead. The spatial pyramid has a 1 x 1
    convolution, 3 x 3 convolutions of several dilations and the average over the image. The decoder
    of V3+ joins its result with the features of the first stage. The logits are resized to the
    image: `[batch, height, width, classes]`. Images may have any size and number of channels.

    Args:
      blocks: the number of blocks in each stage but the last.
      num_classes: the number of logits per pixel.
      multi_grid: for each block of the last stage, the factor of its dilation.
      bottleneck: whether the blocks are bottlenecks, as in all released networks.
      width: the features inside the blocks of the first stage; every later stage doubles them.
      channels: the channels of the pyramid and the decoder.
      decoder: True builds V3+; False builds V3, whose logits follow the pyramid.
      low_channels: the channels to which the decoder reduces the features of the first stage.
      output_stride: 8 or 16.
      rates: the dilations of the pyramid; None uses 6, 12, 18 for stride 16 and twice these for 8.
      dropout: the rate after the pyramid and the decoder's first convolution; the rate after its
        second convolution is a fifth of it. Training needs `keys` unless it is 0.
      resizing: "align_corners" as released, or "half_pixel" as in `jax.image.resize`.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "he_normal" as released (behind the backbone by fan-in), or "torch".
      remat: whether the backward pass recomputes each block, which saves memory and costs time.

    References:
      Chen et al. 2017, Rethinking Atrous Convolution for Semantic Image Segmentation (V3).
      Chen et al. 2018, Encoder-Decoder with Atrous Separable Convolution.
      Tian et al. 2021, Striking the Right Balance: Recall Loss for Semantic Segmentation.

    >>> deeplab([1, 1], output_stride=8).rates
    (12, 24, 36)
    """
    options = {**locals()}
    if rates is None:
        rates = tuple(rate * 16 // output_stride for rate in (6, 12, 18))
    for name, sizes in {"blocks": blocks, "multi_grid": multi_grid, "rates": rates}.items():
        if not sizes:
            raise ValueError(f"{name} must not be empty.")
        for size in sizes:
            checks.whole(name, size)
    for name in ("width", "channels", "low_channels"):
        checks.whole(name, options[name])
    checks.one_of("resizing", resizing, RESIZINGS)
    if output_stride not in STRIDES:
        raise ValueError(f"output_stride must be 8 or 16, got {output_stride!r}.")
    return built(DeepLab, options, rates=rates)


deeplab_resnet18 = variant(
    "deeplab_resnet18",
    "the released DeepLabV3+ whose ResNet-18 has bottlenecks, 35.3 million parameters",
    deeplab,
    (2, 2, 2),
)
deeplab_resnet101 = variant(
    "deeplab_resnet101", "the released DeepLabV3+, 59.3 million parameters", deeplab, (3, 4, 23)
)
_BASIC: dict[str, Any] = {"multi_grid": (1, 2), "bottleneck": False}
deeplabv3_resnet18 = variant(
    "deeplabv3_resnet18",
    "DeepLabV3 with basic blocks, 15.3 million parameters",
    deeplab,
    (2, 2, 2),
    **_BASIC,
    decoder=False,
)
deeplabv3_resnet101 = variant(
    "deeplabv3_resnet101", "58.0 million parameters", deeplab, (3, 4, 23), decoder=False
)
_NARROW: dict[str, Any] = {"width": 12, "channels": 48, "low_channels": 12, "dropout": 0.1}
deeplab_small = variant(
    "deeplab_small",
    "a small DeepLabV3+ for laptops and images of about 160 x 120",
    deeplab,
    (2, 2, 2),
    **_BASIC,
    **_NARROW,
    output_stride=8,
    rates=(3, 6, 9),
)
