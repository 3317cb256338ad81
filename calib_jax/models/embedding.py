"""Tables of vectors: of tokens, of places and of words."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from calib_jax.core.numerics import wide
from calib_jax.models import layers
from calib_jax.models.contract import DType
from calib_jax.models.initializers import Initializer, recipe

PADDING = 0
_SCALE = 0.05


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
        return layers.rows_times(x.astype(self.embedding.dtype), self.embedding.T)


def word_vectors(tokens: Any, words: int, width: int, dtype: DType) -> Float[Array, "*batch width"]:
    """Embed integer tokens with a layer named `embedding`; call it inside a compact method.

    Number 0 is padding, and its vector is always zero. The others are drawn from U(-0.05, 0.05).
    """

    def centered(key: Any, shape: Any, dtype: Any) -> Any:
        return nn.initializers.uniform(2 * _SCALE)(key, shape, dtype) - _SCALE

    vectors = Table(words, width, dtype, "torch", centered, name="embedding")(tokens)
    return jnp.where((tokens != PADDING)[..., None], vectors, 0)
