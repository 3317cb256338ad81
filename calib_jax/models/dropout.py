"""Dropout whose mask belongs to the example, and not to the batch it stands in."""

import zlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.types import Array

__all__ = ["Dropout"]


class Dropout(nn.Module):
    r"""Set each number to 0 with probability `rate` while training, and scale up the rest.

    $$y_i = \frac{m_i}{1 - r} x_i, \qquad m_i \sim \mathrm{Bernoulli}(1 - r)$$

    The mask of an example is drawn from its own key, folded with a number made from the name of
    the layer: the same example gets the same mask in whichever batch and on whichever device it
    is, and no two layers share one.

    Attributes:
      rate: the probability, 0 or more and less than 1.

    References:
      Srivastava et al. 2014, Dropout: A Simple Way to Prevent Neural Networks from Overfitting.
    """

    rate: float

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch ..."], train: bool, keys: Any
    ) -> Float[Array, "batch ..."]:
        """Drop.

        Args:
          x: one row for each example.
          train: without, nothing is dropped.
          keys: one for each example; needed if anything is to be dropped.
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
        kept_share = jnp.float32(1 - self.rate)  # float32 draws, whatever JAX could do

        def kept(key: Array) -> Array:
            key = jax.random.fold_in(key, layer)
            return jax.random.bernoulli(key, kept_share, x.shape[1:])

        return jnp.where(jax.vmap(kept)(keys), x / (1 - self.rate), 0)
