"""Attributes and layers that the networks of images and their blocks share."""

from typing import Any

import flax.linen as nn
from jaxtyping import Float

from calib_jax.core.types import Array, AxisName
from calib_jax.models import layers
from calib_jax.models.batch_norm import BatchNorm
from calib_jax.models.contract import DType, Mask, Network

NORMS = ("batch", "none")
STEMS = ("3x3", "7x7")

Images = Float[Array, "batch height width channels"]
Features = Float[Array, "batch rows columns features"]


class Convolutional(nn.Module):
    """A module with convolutions and batch norm.

    Attributes:
      dtype: the compute dtype.
      axis_name: the device axis over which batch norm sums its statistics.
      initializer: the recipe of the initial weights.
    """

    dtype: DType = "float32"
    axis_name: AxisName = None
    initializer: str = "torch"

    def shared(self) -> dict[str, Any]:
        """Return these attributes, for the blocks of a network."""
        names = ("dtype", "axis_name", "initializer")
        return {name: getattr(self, name) for name in names}

    def convolved(self, x: Images, features: int, size: int, *, name: str, **window: Any) -> Any:
        """Apply a convolution; `window` is as for `layers.conv`."""
        how: dict[str, Any] = {"dtype": self.dtype, "init": self.initializer, **window}
        return layers.conv(x, features, size, name=name, **how)

    def normalized(
        self, x: Images, train: bool, mask: Mask | None, *, name: str, **options: Any
    ) -> Any:
        """Apply batch norm; a module whose attribute `norm` is "none" has none."""
        if getattr(self, "norm", "batch") == "none":
            return x
        norm = BatchNorm(axis_name=self.axis_name, dtype=self.dtype, name=name, **options)
        return norm(x, train=train, mask=mask)


class ImageNetwork(Network, Convolutional):
    """The base class of the networks of images."""

    def started(self, x: Images, features: int, kind: str, *, name: str, **window: Any) -> Any:
        """Apply the first convolution: "3x3", or "7x7" with stride 2."""
        size, stride = (3, 1) if kind == "3x3" else (7, 2)
        padded = {"strides": stride, "padding": size // 2, **window}
        return self.convolved(x, features, size, name=name, **padded)

    def classified(self, x: Features, *, cells: int = 1) -> Any:
        """Average over cells x cells parts of the feature maps, and compute logits."""
        x = layers.averages(x, cells, self.dtype)
        return layers.head(x, self.num_classes, dtype=self.dtype, init=self.initializer)
