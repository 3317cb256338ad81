"""Networks without convolutions: a linear classifier and a multilayer perceptron."""

from collections.abc import Iterable, Sequence
from typing import Any

import flax.linen as nn

from calib_jax.core import checks
from calib_jax.core.types import Logits
from calib_jax.models import layers
from calib_jax.models.contract import DType, Network, built, register


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
