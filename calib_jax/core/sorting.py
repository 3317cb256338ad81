"""The order of float32 numbers, on a CPU by sorts of single integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Integer

from calib_jax.core.types import Array


def argsort(values: Float[Array, "*batch n"]) -> Integer[Array, "*batch n"]:
    """Compute what `jnp.argsort` computes along the last axis, on a CPU in half of its time.

    XLA sorts one array of integers on a CPU about six times as fast as numbers with their indices.
    So each 32-bit key shares its integer with an index: two or three sorts, each by the next
    digits of the keys, keep the order of the sorts before, as in a radix sort.
    """
    n = values.shape[-1]
    if jax.default_backend() != "cpu" or values.dtype != jnp.float32 or not 1 < n < 2**24:
        return jnp.argsort(values)
    of_index = (n - 1).bit_length()  # bits
    key = _increasing(values)
    index = lax.broadcasted_iota(jnp.uint32, values.shape, values.ndim - 1)
    order = index.astype(jnp.int32)
    for first in range(0, 32, 32 - of_index):
        digits = jnp.take_along_axis(key, order, axis=-1) >> first
        packed = jnp.sort((digits << of_index) | index, stable=False)
        position = (packed & ((1 << of_index) - 1)).astype(jnp.int32)
        order = jnp.take_along_axis(order, position, axis=-1)
    return order


def _increasing(values: Float[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """Map numbers to unsigned integers of the same order: -0 equals 0, and NaN is the largest."""
    values = jnp.where(values == 0, 0.0, jnp.where(jnp.isnan(values), jnp.nan, values))
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    negative = bits >> 31 == 1
    return jnp.where(negative, ~bits, bits | jnp.uint32(2**31))
