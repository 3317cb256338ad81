"""LeNet-5: two convolutions, three dense layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.batch_norm import NORMS, normalize
from calib_jax.models.contract import DType, Network, built, register

_POOLS: dict[str, Callable[[Any], Any]] = {
    "average": layers.average_pool,
    "max": partial(layers.max_pool, window=2, stride=2),
}
_ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu}
_SIDE = 32


class LeNet5(Network):
    """Two convolutions with pooling and three dense layers; see `lenet5`."""

    pool: str = "average"
    activation: str = "tanh"
    width: int = 1
    norm: str = "none"
    axis_name: AxisName = None

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map images `[batch, height, width, channels]` to logits `[batch, classes]`."""
        x, mask = self.inputs(x, mask, rank=4)
        common = {"dtype": self.dtype, "init": self.initializer}
        pool, activation = _POOLS[self.pool], _ACTIVATIONS[self.activation]
        norm = partial(
            normalize,
            train=train,
            mask=mask,
            dtype=self.dtype,
            axis_name=self.axis_name,
            norm=self.norm,
        )
        missing = [max(_SIDE - side, 0) for side in x.shape[1:3]]
        x = jnp.pad(x, [(0, 0), *((short // 2, short - short // 2) for short in missing), (0, 0)])
        for number, features in enumerate((6, 16), start=1):
            features *= self.width
            x = layers.conv(x, features, 5, name=f"conv{number}", bias=True, **common)
            x = activation(norm(x, name=f"norm{number}"))
            x = pool(x)
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
