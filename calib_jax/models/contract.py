"""The network interface, the catalogue of networks, and recipes of initial weights.

    module = models.named("resnet20", num_classes=100)
    variables = module.init(key, x, train=False)
    logits = module.apply(variables, x, train=False)          # [*batch, classes]
    logits, changed = module.apply(
        variables, x, train=True, mask=mask, mutable=["batch_stats"]
    )

A network is a Flax module with the attributes `num_classes` and `dtype`, and with `axis_name` if
it uses batch norm. It is called `module(x, *, train, mask=None) -> logits`. The mask is True for
real examples and False for padding; padding does not affect the logits of real examples, the
gradients or the statistics. `example_inputs()` draws valid inputs: an array or a tree of
arrays, of integers too. A network with the attribute `dropout` is called
`module(x, *, train, mask=None, keys=None)` and draws the dropout mask of each example from the
key of that example.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from re import Match
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from calib_jax.core import checks
from calib_jax.core.types import Array, PyTree

DType: TypeAlias = Any  # any argument of jnp.dtype
Mask: TypeAlias = Bool[Array, " batch"]
Initializer: TypeAlias = Callable[..., Array]
# A mapping from a pattern, matched against a whole layer name, to PyTorch's name of the layer.
TorchRules: TypeAlias = Mapping[str, str | Callable[[Match[str]], str]]

_CATALOGUE: checks.Catalogue[Callable[..., nn.Module]] = checks.Catalogue("network")
_Factory = TypeVar("_Factory", bound=Callable[..., nn.Module])
_Network = TypeVar("_Network", bound=nn.Module)
_First = TypeVar("_First")
_Options = ParamSpec("_Options")


def register(name: str) -> Callable[[_Factory], _Factory]:
    """Register a function that builds a network under a name, for example one of your own.

    Args:
      name: the name, which `named` and configs use; it must not be taken.

    Returns:
      A decorator that returns the function unchanged. The keyword arguments of the function are
      the options of the network, with `num_classes` among them.

    >>> from calib_jax import models
    >>> @models.register("narrow_mlp")
    ... def narrow_mlp(*, num_classes=10, width=4):
    ...     return models.mlp(num_classes=num_classes, hidden=(width, width))
    >>> models.named("narrow_mlp", num_classes=3).hidden
    (4, 4)
    """
    return _CATALOGUE.register(name)


def named(name: str, /, **options: Any) -> nn.Module:
    """Build the network with the given name.

    Args:
      name: one of `models.catalogue()`.
      **options: keyword arguments of the function with that name.

    >>> from calib_jax import models
    >>> models.named("mlp", num_classes=3, hidden=(32,)).hidden
    (32,)
    >>> models.named("resnet_20")
    Traceback (most recent call last):
    ValueError: no network is called 'resnet_20'; did you mean 'resnet20'?
    """
    return _CATALOGUE.make(name, **options)


def catalogue() -> checks.Catalogue[Callable[..., nn.Module]]:
    """Return a mapping from the name of each network to the function that builds it."""
    return _CATALOGUE


class Network(nn.Module):
    """The base class of all networks.

    Attributes:
      num_classes: the number of logits per example.
      dtype: the compute dtype of the layers. Parameters, statistics, the last layer and the
        logits are always float32, or float64 if `dtype` is float64.
      initializer: the recipe of the initial weights, the option `init` of the factories.
    """

    num_classes: int = 10
    dtype: DType = "float32"
    initializer: str = "torch"

    def __post_init__(self) -> None:
        """Validate the attributes common to all networks."""
        checks.whole("num_classes", self.num_classes)
        try:
            # NumPy would take None for float64.
            floating = self.dtype is not None and jnp.issubdtype(self.dtype, jnp.floating)
        except TypeError:  # no dtype at all
            floating = False
        if not floating:
            raise ValueError(f"dtype must be floating point, got {self.dtype!r}.")
        for name in ("dropout", "attention_dropout", "head_dropout"):
            rate = getattr(self, name, None)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"{name} must be at least 0 and less than 1, got {rate}.")
        super().__post_init__()

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw valid inputs, for initialization and tests: a tree of NumPy arrays.

        Floating-point leaves are drawn from a normal distribution; integers, such as tokens, from
        all values that the network accepts.
        """
        return normal((batch, 32, 32, 3), seed)

    @nn.nowrap
    def torch_rules(self) -> TorchRules | None:
        """Return the rules that map layer names to released PyTorch names, if any."""
        return None

    @nn.nowrap
    def inputs(
        self, x: Any, mask: Any, *, rank: int | None = None
    ) -> tuple[Float[Array, "batch ..."], Mask | None]:
        """Validate and cast the inputs, and set padding to 0.

        Args:
          x: the inputs of the network.
          mask: True for real examples and False for padding, or None.
          rank: the required number of axes of `x`; None allows two or more.
        """
        name = type(self).__name__
        if isinstance(x, Mapping):
            raise TypeError(f"{name}: inputs must be one array, got a dictionary of {sorted(x)}.")
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(
                f"{name}: inputs must be floating point, got {x.dtype}: scale and cast them first."
            )
        if (x.ndim < 2 if rank is None else x.ndim != rank) or 0 in x.shape[1:]:
            shapes = {3: "[batch, length, width]", 4: "[batch, height, width, channels]"}
            wanted = shapes.get(rank or 0, "[batch, ...]")
            raise ValueError(f"{name}: inputs must have shape {wanted}, got {x.shape}.")
        if jax.dtypes.canonicalize_dtype(self.dtype) != jnp.dtype(self.dtype):
            raise ValueError(
                f"{name}: dtype {self.dtype!r} needs the environment variable JAX_ENABLE_X64=1,\n"
                "or jax.config.update('jax_enable_x64', True) at the start of the program."
            )
        x = x.astype(self.dtype)
        if mask is None:
            return x, None
        mask = jnp.asarray(mask)
        # Padding may hold NaN, and 0 * NaN would reach the gradients.
        return real_rows(x, mask), mask


def variant(
    name: str,
    what: str,
    family: Callable[Concatenate[_First, _Options], nn.Module],
    first: _First,
    /,
    *others: Any,
    **options: Any,
) -> Callable[_Options, nn.Module]:
    """Register a factory of a family whose first arguments are fixed, with other defaults."""
    factory = functools.partial(family, first, *others, **options)
    factory.__doc__ = f"Build {name}, {what}; see `{factory.func.__name__}`."
    return register(name)(factory)


def built(kind: Callable[..., _Network], options: Mapping[str, Any], **attributes: Any) -> _Network:
    """Build a network from the arguments of its factory, and from further attributes.

    The argument `init` names the attribute `initializer`, because a Flax module has a method
    `init`. Sequences become tuples, so that a network can be hashed.
    """
    given = {"initializer" if name == "init" else name: value for name, value in options.items()}
    given |= attributes
    recipe(given["initializer"])
    for name, value in given.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            given[name] = tuple(value)
    return kind(**given)


def tokens_of(
    network: str,
    x: Any,
    mask: Any,
    what: str,
    keys: Sequence[str],
    optional: Sequence[str],
    places: int,
) -> dict[str, Array]:
    """Validate a dictionary of token numbers `[batch, length]`, and set padding to 0.

    Args:
      network: the name of the network, for error messages.
      x, mask: the inputs and the mask of real examples.
      what: what the inputs must be, for error messages.
      keys, optional: the keys that the inputs must and may have.
      places: the largest length.
    """
    if not isinstance(x, dict) or not {*keys} <= set(x) <= {*keys, *optional}:
        given = sorted(x) if isinstance(x, dict) else type(x).__name__
        raise TypeError(f"{network}: inputs must be a dictionary of {what}, got {given}.")
    x = {key: jnp.asarray(leaf) for key, leaf in x.items()}
    for key, leaf in x.items():
        if not jnp.issubdtype(leaf.dtype, jnp.integer):
            raise TypeError(f"{network}: {key} must be integers, got {leaf.dtype}.")
        if leaf.ndim != 2 or not leaf.shape[1] or leaf.shape[0] != x[keys[0]].shape[0]:
            raise ValueError(f"{network}: {key} must have shape [batch, length], got {leaf.shape}.")
        if leaf.shape[1] > places:
            raise ValueError(
                f"{network}: a text may have at most {places} tokens, got {leaf.shape[1]}: cut it,"
                " or raise the option places."
            )
    return real_rows(x, mask)


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Draw floating-point inputs of a shape."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def real_rows(inputs: PyTree, mask: Any) -> PyTree:
    """Set padding to 0 in every leaf of the inputs, integers too; validate the mask, if any."""
    if mask is None:
        return inputs
    mask = jnp.asarray(mask)

    def masked(leaf: Array) -> Array:
        if mask.dtype != bool or mask.shape != leaf.shape[:1]:
            raise ValueError(
                f"mask must be boolean of shape {leaf.shape[:1]}, got {mask.dtype} of shape"
                f" {mask.shape}."
            )
        return jnp.where(mask.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0)

    return jax.tree.map(masked, inputs)


def precision_of_products() -> str | None:
    """Return the precision of matrix products that holds here, for a gradient traced later."""
    precision: str | None = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return precision


# ------------------------------------------------------------------------------------------------
# Recipes of initial weights, shared by all networks.


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
    return nn.initializers.zeros


_UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")  # PyTorch's default
_FAN_OUT = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
_FAN_IN = nn.initializers.variance_scaling(2.0, "fan_in", "normal")
_BERT, _XAVIER = nn.initializers.normal(0.02), nn.initializers.xavier_uniform()
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
