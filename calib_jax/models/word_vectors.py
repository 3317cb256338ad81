"""The embedding of word numbers, shared by the networks of texts."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from calib_jax.core.numerics import wide
from calib_jax.models.contract import DType

PADDING = 0
LAYER = "embedding"


class WordVectors(nn.Module):
    """A vector for each word number; the number 0 is padding, and its vector is always zero.

    Attributes:
      words: the size of the vocabulary with padding. A number out of range gets the vector of the
        nearest one.
      width: the size of a vector.
      dtype: the compute dtype.
      scale: the vectors are drawn from U(-scale, scale).
    """

    words: int
    width: int
    dtype: DType = "float32"
    scale: float = 0.05

    @nn.compact
    def __call__(self, tokens: Any) -> Float[Array, "*batch width"]:
        """Return the vector of each word number; the numbers may have any shape."""
        start = nn.initializers.uniform(2 * self.scale)

        def centered(key: Any, shape: Any, dtype: Any) -> Any:
            return start(key, shape, dtype) - self.scale

        shape = (self.words, self.width)
        table = self.param("embedding", centered, shape, wide(self.dtype))
        # An out-of-range number would otherwise be a vector of NaN.
        vectors = jnp.take(table, tokens, axis=0, mode="clip").astype(self.dtype)
        return jnp.where((tokens != PADDING)[..., None], vectors, 0)
