"""Dropout with one key per example, so that masks do not depend on the batch."""

import zlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.types import Array


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
