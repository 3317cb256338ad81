"""Layers with common naming, initialisation and casting; dropout; vectors; the perceptron."""

import functools
import math
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, Logits
from calib_jax.models.contract import DType, Initializer, Network, built, recipe, register
from calib_jax.models.convolution import convolve

PADDING = 0  # the number of a token that pads a text
_SCALE = 0.05  # of random word vectors


def dense(
    x: Float[Array, "*batch inputs"],
    features: int,
    *,
    name: str,
    dtype: DType,
    init: str = "torch",
    bias: bool = True,
) -> Float[Array, "*batch features"]:
    """Apply a dense layer, by default with a bias."""
    start = recipe(init)
    return nn.Dense(
        features,
        use_bias=bias,
        dtype=dtype,
        param_dtype=wide(dtype),
        kernel_init=start.dense,
        bias_init=start.bias(x.shape[-1]),
        dot_general=_product,
        name=name,
    )(x)


def rows_times(
    x: Float[Array, "*batch inputs"], kernel: Float[Array, "inputs features"]
) -> Float[Array, "*batch features"]:
    """Multiply all rows by a matrix, as one matrix.

    With more axes, XLA's CPU compiler would transpose the operands of the gradients: a training
    step of a Transformer would take twice as long (JAX 0.10.2).
    """
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _product(x: Array, kernel: Array, dimension_numbers: Any, **options: Any) -> Array:
    """Replace `lax.dot_general` in `nn.Dense`, which always contracts the same dimensions."""
    return rows_times(x, kernel)


def head(
    x: Float[Array, "*batch inputs"], num_classes: int, *, dtype: DType, init: str = "torch"
) -> Logits:
    """Compute logits by a dense layer in at least float32, whatever the compute dtype is.

    A bfloat16 logit has only three digits, too few to calibrate confidences.
    """
    precise = wide(dtype)
    return dense(x.astype(precise), num_classes, name="head", dtype=precise, init=init)


def layer_norm(
    x: Float[Array, "*batch width"], *, name: str, dtype: DType, epsilon: float
) -> Float[Array, "*batch width"]:
    """Normalise each vector to mean 0 and variance 1, then scale and shift its features."""
    precise = wide(dtype)
    norm = nn.LayerNorm(
        epsilon=epsilon, dtype=precise, param_dtype=precise, use_fast_variance=False, name=name
    )
    return norm(x.astype(precise)).astype(dtype)


def conv(
    x: Float[Array, "batch ..."],
    features: int,
    size: int | Sequence[int],
    *,
    name: str,
    dtype: DType,
    init: str = "torch",
    strides: int | Sequence[int] = 1,
    padding: str | int | Sequence[tuple[int, int]] = 0,
    dilation: int = 1,
    groups: int = 1,
    bias: bool = False,
    zero: bool = False,
) -> Float[Array, "batch ..."]:
    """Convolve inputs `[batch, *positions, channels]`, by default without padding and bias.

    Args:
      x: the inputs.
      features: the channels of the result.
      size: the size of the window, one for all axes of positions or one per axis.
      name: the name of the layer in the parameter tree.
      dtype: the compute dtype.
      init: the recipe of the initial weights.
      strides, padding, dilation: as for `nn.Conv`. An integer pads both sides, as in PyTorch;
        "SAME" with a stride of 2 would pad one side only.
      groups: the number of groups of channels; with all of them the convolution is depthwise.
      bias: whether to add a bias.
      zero: whether the kernel and the bias start at zero instead of by the recipe.
    """
    rank = x.ndim - 2
    window = (size,) * rank if isinstance(size, int) else tuple(size)
    start = recipe(init)
    fan_in = x.shape[-1] // groups * math.prod(window)
    return nn.Conv(
        features,
        window,
        strides=strides,
        padding=padding,
        kernel_dilation=dilation,
        feature_group_count=groups,
        use_bias=bias,
        dtype=dtype,
        param_dtype=wide(dtype),
        kernel_init=nn.initializers.zeros_init() if zero else start.convolution,
        bias_init=nn.initializers.zeros_init() if zero else start.bias(fan_in),
        conv_general_dilated=convolve,
        name=name,
    )(x)


def averages(
    x: Float[Array, "batch rows columns channels"], cells: int, dtype: DType
) -> Float[Array, "batch features"]:
    """Average over `cells` x `cells` parts of the feature maps, in at least float32.

    One cell gives the average over all positions. If `cells` does not divide the size, parts
    overlap by one row or column, as in PyTorch's adaptive pooling. The result is ordered by
    channel first, also as in PyTorch.
    """
    x = x.astype(wide(dtype))
    for axis in (1, 2):
        size = x.shape[axis]
        parts = [
            lax.slice_in_dim(x, i * size // cells, -(-(i + 1) * size // cells), axis=axis)
            for i in range(cells)
        ]
        x = jnp.concatenate([jnp.mean(part, axis, keepdims=True) for part in parts], axis)
    return flat(jnp.moveaxis(x, -1, 1))


def flat(x: Float[Array, "batch ..."]) -> Float[Array, "batch features"]:
    """Join all axes but the first; the number of examples may be 0."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def average_pool(
    x: Float[Array, "batch rows columns channels"],
) -> Float[Array, "batch half_rows half_columns channels"]:
    """Average over windows of 2 x 2, as `flax.linen.avg_pool`, which mixes dtypes."""
    return nn.pooling.pool(x, 0.0, lax.add, (2, 2), (2, 2), "VALID") / 4


def max_pool(
    x: Float[Array, "batch ... channels"], window: int, *, stride: int = 1, padding: int = 0
) -> Float[Array, "batch ... channels"]:
    """Take the maximum over windows that are as long on each axis of positions.

    Of equal values the first one gets the gradient, in the order of rows, as in PyTorch. The axes
    are pooled one after the other, each by comparing slices: `flax.linen.max_pool` gives the same
    values, but on a CPU its gradient is slower and needs more memory (a training step of the text
    network 1.1 and 1.6 times as much, JAX 0.10.2).

    Args:
      x: the inputs, `[batch, *positions, channels]`.
      window: the length of the windows.
      stride: the distance between windows.
      padding: the positions added to both ends of each axis, which are never the maximum.
    """
    for axis in range(x.ndim - 2, 0, -1):
        around = [(padding, padding) if i == axis else (0, 0) for i in range(x.ndim)]
        x = jnp.pad(x, around, constant_values=-jnp.inf)
        last = (x.shape[axis] - window) // stride * stride
        slices = (
            lax.slice_in_dim(x, start, start + last + 1, stride, axis) for start in range(window)
        )
        x = functools.reduce(_larger_or_first, slices)
    return x


def _larger_or_first(a: Array, b: Array) -> Array:
    return jnp.where((a >= b) | jnp.isnan(a), a, b)


def recomputed(block: type[nn.Module]) -> Any:
    """Wrap a block so that it stores only its inputs and recomputes the rest in the backward pass.

    The gradients do not change. On a CPU the memory does not change either, since XLA merges the
    two computations there (JAX 0.10.2).

    Call blocks as `block(x, train, ...)`: `static_argnums` marks `train` as static by its position.
    """
    return nn.remat(block, static_argnums=(2,))


class Dropout(nn.Module):
    r"""Set each value to 0 with probability `rate` while training, and scale up the rest.

    $$y_i = \frac{m_i}{1 - r} x_i, \qquad m_i \sim \mathrm{Bernoulli}(1 - r)$$

    The mask of an example is drawn from the key of the example, folded with a hash of the layer's
    name. The mask therefore depends on neither the batch nor the device, and differs between
    layers.

    Attributes:
      rate: the probability of a 0, with 0 <= rate < 1.

    References:
      Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from Overfitting.
    """

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch ..."], train: bool, keys: Any
    ) -> Float[Array, "batch ..."]:
        """Apply dropout.

        Args:
          x: the inputs, one row per example.
          train: whether to apply dropout; without it the inputs are returned unchanged.
          keys: one key per example; required while training with a positive rate.
        """
        if not train or self.rate == 0:
            return x
        if keys is None:
            raise ValueError(
                f"dropout {self.rate} needs a key for each example while training: call the network"
                f" with keys=jax.random.split(key, {x.shape[0]})."
            )
        if keys.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"keys must be {x.shape[0]}, one for each example, got shape {keys.shape}."
            )
        layer = zlib.crc32("/".join(self.path).encode())
        kept_share = jnp.float32(1 - self.rate)  # draw in float32 even if x64 is enabled

        def kept(key: Array) -> Array:
            key = jax.random.fold_in(key, layer)
            return jax.random.bernoulli(key, kept_share, x.shape[1:])

        return jnp.where(jax.vmap(kept)(keys), x / (1 - self.rate), 0)


# ------------------------------------------------------------------------------------------------
# Tables of vectors: of tokens, of places and of words.


class Table(nn.Module):
    """A learnt vector for each number.

    Attributes:
      count: the number of vectors. A number out of range gets the vector of the nearest one.
      width: the size of a vector.
      dtype: the compute dtype.
      start: the initialiser of the vectors; None takes the one of `initializer`.
      initializer: the recipe of the initial weights.
    """

    count: int
    width: int
    dtype: DType
    initializer: str
    start: Initializer | None = None

    def setup(self) -> None:
        """Create the vectors."""
        start = self.start or recipe(self.initializer).dense
        shape = (self.count, self.width)
        self.embedding = self.param("embedding", start, shape, wide(self.dtype))

    def __call__(self, numbers: Int[Array, "..."]) -> Float[Array, "... width"]:
        """Return the vector of each number; the numbers may have any shape."""
        # An out-of-range number would otherwise be a vector of NaN.
        return jnp.take(self.embedding, numbers, axis=0, mode="clip").astype(self.dtype)

    def products(self, x: Float[Array, "... width"]) -> Float[Array, "... count"]:
        """Return the product with every vector in the dtype of the parameters: tied logits."""
        return rows_times(x.astype(self.embedding.dtype), self.embedding.T)


def word_vectors(tokens: Any, words: int, width: int, dtype: DType) -> Float[Array, "*batch width"]:
    """Embed integer tokens with a layer named `embedding`; call it inside a compact method.

    Number 0 is padding, and its vector is always zero. The others are drawn from U(-0.05, 0.05).
    """

    def centered(key: Any, shape: Any, dtype: Any) -> Any:
        return nn.initializers.uniform(2 * _SCALE)(key, shape, dtype) - _SCALE

    vectors = Table(words, width, dtype, "torch", centered, name="embedding")(tokens)
    return jnp.where((tokens != PADDING)[..., None], vectors, 0)


# ------------------------------------------------------------------------------------------------
# Networks of dense layers alone.


class Perceptron(Network, kw_only=True):
    """Dense layers with ReLU between them; `hidden` holds the widths of all but the last.

    See `mlp`, and `linear` for the network without hidden layers.
    """

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None) -> Logits:
        """Map inputs `[batch, ...]` of any shape to logits `[batch, classes]`."""
        x, _ = self.inputs(x, mask)
        x = flat(x)
        for number, width in enumerate(self.hidden, start=1):
            name = f"hidden{number}"
            x = nn.relu(dense(x, width, name=name, dtype=self.dtype, init=self.initializer))
        return head(x, self.num_classes, dtype=self.dtype, init=self.initializer)


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
