"""Named recipes of weight initialisers, shared by all networks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.nn import initializers

from calib_jax.core import checks
from calib_jax.core.types import Array

Initializer = Callable[..., Array]


class Recipe(NamedTuple):
    """The initialisers of one recipe.

    Attributes:
      convolution: the initialiser of kernels `[*positions, channels, features]`.
      dense: the initialiser of matrices `[inputs, features]`.
      bias: `(fan_in) -> initialiser`, since the scale of a bias may depend on its layer.
    """

    convolution: Initializer
    dense: Initializer
    bias: Callable[[int], Initializer]


def uniform_bias(fan_in: int) -> Initializer:
    r"""Draw biases from $U(-1/\sqrt{n}, 1/\sqrt{n})$, where n is the fan-in of the layer."""
    bound = fan_in**-0.5

    def draw(key: Any, shape: Any, dtype: Any = float, **options: Any) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


def _no_bias(fan_in: int) -> Initializer:
    return initializers.zeros


_UNIFORM = initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # PyTorch's default
_FAN_OUT = initializers.variance_scaling(2.0, "fan_out", "normal")
_FAN_IN = initializers.variance_scaling(2.0, "fan_in", "normal")
_BERT, _XAVIER = initializers.normal(0.02), initializers.xavier_uniform()
_RECIPES = {
    "torch": Recipe(_UNIFORM, _UNIFORM, uniform_bias),
    # Fan-out suits hidden layers only: for the last layer, which has few outputs, it would give
    # initial logits of size 10.
    "he_normal": Recipe(_FAN_OUT, _UNIFORM, uniform_bias),
    "he_normal_fan_in": Recipe(_FAN_IN, _UNIFORM, uniform_bias),
    "normal": Recipe(_BERT, _BERT, _no_bias),
    "xavier": Recipe(_XAVIER, _XAVIER, _no_bias),
}


def recipe(name: str) -> Recipe:
    r"""Return the recipe with the given name.

    Args:
      name: "torch" is PyTorch's default: weights and biases are uniform within $1/\sqrt{n}$,
        where n is the fan-in. "he_normal" is the recipe of the papers on residual networks:
        convolutions are normal by fan-out, dense layers and biases as in PyTorch;
        "he_normal_fan_in" is the same by fan-in. "normal" is BERT's: $N(0, 0.02^2)$ for all
        matrices, and biases are 0. "xavier" is the Transformer's: matrices are uniform with
        variance 2 / (fan-in + fan-out), and biases are 0.

    References:
      He et al. 2015, Delving Deep into Rectifiers, section 2.2.

    >>> recipe("he_nomal")
    Traceback (most recent call last):
    ValueError: init must be one of 'torch', 'he_normal', 'he_normal_fan_in', 'normal', 'xavier',
    got 'he_nomal'; did you mean 'he_normal'?
    """
    checks.one_of("init", name, _RECIPES)
    return _RECIPES[name]
