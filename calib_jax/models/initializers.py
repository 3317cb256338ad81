"""How weights begin: by the name of the recipe, the same for every network."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.nn import initializers

from calib_jax.core import checks
from calib_jax.core.types import Array

Initializer = Callable[..., Array]


class Recipe(NamedTuple):
    """Initialisers of one recipe.

    Attributes:
      convolution: of a kernel `[*positions, channels, features]`.
      dense: of a matrix `[inputs, features]`.
      bias: `(fan_in) -> initialiser`, since a recipe may look at the layer that the bias is of.
    """

    convolution: Initializer
    dense: Initializer
    bias: Callable[[int], Initializer]


def uniform_fan_in() -> Initializer:
    r"""Draw from $U(-1/\sqrt{n}, 1/\sqrt{n})$, n being the inputs of one output (fan-in).

    That is the "Kaiming uniform with $a = \sqrt 5$" that PyTorch gives linear and convolutional
    layers.
    """
    return initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def he_normal_fan_out() -> Initializer:
    r"""Draw from $N(0, 2/n)$, n being the outputs that one input reaches (fan-out).

    Gradients keep their size on the way back through layers with ReLU.

    References:
      He et al. 2015, Delving Deep into Rectifiers, section 2.2.
    """
    return initializers.variance_scaling(2.0, "fan_out", "normal")


def uniform_bias(fan_in: int) -> Initializer:
    r"""Draw biases from $U(-1/\sqrt{n}, 1/\sqrt{n})$, n being the layer's fan-in."""
    bound = fan_in**-0.5

    def draw(key: Any, shape: Any, dtype: Any = float, **options: Any) -> Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


_RECIPES = {
    "torch": Recipe(uniform_fan_in(), uniform_fan_in(), uniform_bias),
    # Fan-out is for layers between layers. For the last, of as few outputs as classes, it would
    # make logits of size 10 before anything is learnt.
    "he_normal": Recipe(he_normal_fan_out(), uniform_fan_in(), uniform_bias),
}


def recipe(name: str) -> Recipe:
    r"""Find a recipe by its name.

    Args:
      name: "torch", PyTorch's default: weights and biases uniform within $1/\sqrt{n}$, n being
        the fan-in. "he_normal", of the papers with residual networks: convolutions normal by
        fan-out, dense layers and biases as in PyTorch.

    >>> recipe("he_nomal")
    Traceback (most recent call last):
    ValueError: init must be one of 'torch', 'he_normal', got 'he_nomal'; did you mean 'he_normal'?
    """
    checks.one_of("init", name, _RECIPES)
    return _RECIPES[name]
