"""Small networks: a linear classifier, a multilayer perceptron and LeNet-5."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.types import AxisName, Logits
from calib_jax.models import layers
from calib_jax.models.contract import DType, Network, built, register
from calib_jax.models.images import NORMS, ImageNetwork

_POOLS: dict[str, Callable[[Any], Any]] = {
    "average": layers.average_pool,
    "max": partial(layers.max_pool, window=2, stride=2),
}
_ACTIVATIONS = {"tanh": jnp.tanh, "relu": nn.relu}
_SIDE = 32


class Perceptron(Network):
    """Dense layers with ReLU between them; `hidden` holds the widths of all but the last.

    See `mlp`, and `linear` for the network without hidden layers.
    """

    hidden: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map inputs `[batch, ...]` of any shape to logits `[batch, classes]`."""
        x, _ = self.inputs(x, mask)
        x = layers.flat(x)
        for number, width in enumerate(self.hidden, start=1):
            name = f"hidden{number}"
            x = nn.relu(layers.dense(x, width, name=name, dtype=self.dtype, init=self.initializer))
        return layers.head(x, self.num_classes, dtype=self.dtype, init=self.initializer)


@register("linear")
def linear(*, num_classes: int = 10, dtype: DType = "float32", init: str = "torch") -> nn.Module:
    """Build a linear classifier: multinomial logistic regression on the flattened inputs.

    Args:
      num_classes: the number of logits per example.
      dtype: as in `Network`; the only layer is the last one, so only float64 has an effect.
      init: the recipe of the initial weights: "torch", "normal" or "xavier".

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.zeros((2, 8, 8, 1))
    >>> variables = linear().init(jax.random.key(0), images, train=False)
    >>> jax.tree.map(jnp.shape, variables["params"])
    {'head': {'bias': (10,), 'kernel': (64, 10)}}
    """
    return mlp(num_classes=num_classes, hidden=(), dtype=dtype, init=init)


@register("mlp")
def mlp(
    *,
    num_classes: int = 10,
    hidden: Sequence[int] = (256, 256),
    dtype: DType = "float32",
    init: str = "torch",
) -> nn.Module:
    """Build a multilayer perceptron: dense layers with ReLU on the flattened inputs.

    Args:
      num_classes: the number of logits per example.
      hidden: the widths of the hidden layers.
      dtype: the compute dtype of the hidden layers; the last is at least float32 (see `Network`).
      init: the recipe of the initial weights: "torch", "normal" or "xavier".

    >>> import jax, jax.numpy as jnp
    >>> network = mlp(num_classes=3, hidden=(32,))
    >>> logits, _ = network.init_with_output(jax.random.key(0), jnp.zeros((2, 5)), train=False)
    >>> logits.shape
    (2, 3)
    """
    options = {**locals()}
    if not isinstance(hidden, Iterable):
        raise TypeError(
            f"hidden must be the widths of the hidden layers, got {hidden!r}: ({hidden},)?"
        )
    for width in hidden:
        checks.whole("hidden", width)
    return built(Perceptron, options)


class LeNet5(ImageNetwork):
    """Two convolutions with pooling and three dense layers; see `lenet5`."""

    pool: str = "average"
    activation: str = "tanh"
    width: int = 1
    norm: str = "none"

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
