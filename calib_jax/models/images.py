"""The base classes of networks of images, and LeNet-5."""

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
from calib_jax.models.contract import DType, Mask, Network, built, register

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


# ------------------------------------------------------------------------------------------------
# LeNet-5.

_POOLS: dict[str, Callable[[Any], Any]] = {
    "average": layers.average_pool,
    "max": partial(layers.max_pool, window=2, stride=2),
}
_ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu}
_SIDE = 32


class LeNet5(ImageNetwork, kw_only=True):
    """Two convolutions with pooling and three dense layers; see `lenet5`."""

    pool: str
    activation: str
    width: int
    norm: str

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        common = {"dtype": self.dtype, "init": self.initializer}
        pool, activation = _POOLS[self.pool], _ACTIVATIONS[self.activation]
        missing = [max(_SIDE - side, 0) for side in x.shape[1:3]]
        x = jnp.pad(x, [(0, 0), *((short // 2, short - short // 2) for short in missing), (0, 0)])
        for number, features in enumerate((6, 16), start=1):
            features *= self.width
            x = self.convolved(x, features, 5, name=f"conv{number}", bias=True)
            x = pool(activation(self.normalized(x, train, mask, name=f"norm{number}")))
        x = layers.flat(x)
        for number, features in enumerate((120, 84), start=1):
            features *= self.width
            x = activation(layers.dense(x, features, name=f"dense{number}", **common))
        return layers.head(x, self.num_classes, **common)


@register("lenet5")
def lenet5(
    *,
    num_classes: int = 10,
    pool: str = "average",
    activation: str = "tanh",
    width: int = 1,
    norm: str = "none",
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "torch",
) -> nn.Module:
    """Build LeNet-5 in the form usual today: all channels connected, a linear last layer.

    It has 61,706 parameters for 32 x 32 images with one channel, and 62,006 with three. Smaller
    images are zero-padded to 32 x 32, like the digits in the paper.

    Args:
      num_classes: the number of logits per example.
      pool: the pooling over 2 x 2 windows, "average" as in the paper (without its trained scale)
        or "max".
      activation: "tanh" as in the paper, or "relu". Most of today's implementations use
        `pool="max", activation="relu"`.
      width: a factor on the channels and features of all layers but the last.
      norm: "none" as in the paper, or "batch" for batch norm after the convolutions.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights, "torch" or "he_normal".

    References:
      LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition, section II.B.

    >>> from functools import partial
    >>> import jax, jax.numpy as jnp
    >>> digits = jnp.zeros((2, 28, 28, 1))
    >>> init = partial(lenet5().init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), digits)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    61706
    """
    options = {**locals()}
    checks.one_of("pool", pool, _POOLS)
    checks.one_of("activation", activation, _ACTIVATIONS)
    checks.whole("width", width)
    checks.one_of("norm", norm, NORMS)
    return built(LeNet5, options)
