r"""Multiplicities of a bootstrap: how often each example occurs in each resample.

Drawing n indices and gathering is slow. Drawing n independent Poisson(1) counts, by inverse CDF
from 16 random bits each, is fast; their total varies, but the metrics divide by it. For resamples
of exactly n examples, the counts are Poisson with a mean slightly below 1, and the few missing
examples are drawn one by one. Independent Poisson counts of equal mean are multinomial given their
total, and they remain so when uniform draws are added.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt32

from calib_jax.core.types import Array, Labels

SCHEMES = ("multinomial", "poisson")


def multiplicities(
    keys: Array, num_rows: int, scheme: str, classes: Labels | None
) -> Float[Array, "resamples rows"]:
    """Draw two resamples per key, ordered by the first of every pair, then the second.

    Args:
      keys: one key per pair; its draws do not depend on the other keys.
      num_rows: number of examples.
      scheme: "multinomial": exactly `num_rows` examples; "poisson": about as many.
      classes: if given, every class keeps its number of examples.
    """
    if classes is not None:
        return _within_classes(_both(keys), classes)
    if scheme == "poisson":
        return _poisson(keys, num_rows, 1.0).astype(jnp.float32)
    return _multinomial(keys, num_rows).astype(jnp.float32)


def _both(keys: Array) -> Array:
    """Split the keys of pairs into keys of resamples."""
    pairs = jax.vmap(jax.random.split)(keys)
    return jnp.concatenate([pairs[:, 0], pairs[:, 1]])


def _poisson(keys: Array, num_rows: int, mean: float) -> Int[Array, "resamples rows"]:
    """Draw counts by inverse CDF from 16 random bits each, exact to 1.5e-5."""
    bits = jax.vmap(lambda key: jax.random.bits(key, (num_rows,), jnp.uint32))(keys)
    halves = jnp.concatenate([bits >> 16, bits & 0xFFFF]).astype(jnp.int32)
    counts = jnp.zeros(halves.shape, jnp.int32)
    probability, below = math.exp(-mean), 0.0
    for count in range(1, 20):
        below += probability
        threshold = round(below * 2**16)
        if threshold < 2**16:
            counts += (halves >= threshold).astype(jnp.int32)
        probability *= mean / count
    return counts


def _multinomial(keys: Array, num_rows: int) -> Int[Array, "resamples rows"]:
    # Six standard deviations below 1, so the total exceeds num_rows once in 1e9 resamples.
    mean = max(0.0, 1 - 6 / math.sqrt(num_rows))
    expected = mean * num_rows
    extra = num_rows - max(0, math.floor(expected - 6 * math.sqrt(expected)))

    def fill(key: Array, counts: Int[Array, " rows"]) -> Int[Array, " rows"]:
        missing = num_rows - jnp.sum(counts)
        index = _below(num_rows, jax.random.bits(key, (extra,), jnp.uint32))
        return counts.at[index].add((jnp.arange(extra) < missing).astype(jnp.int32))

    poisson_keys, fill_keys = (
        jax.vmap(jax.random.fold_in, (0, None))(keys, which) for which in (0, 1)
    )
    return jax.vmap(fill)(_both(fill_keys), _poisson(poisson_keys, num_rows, mean))


def _below(bound: int, bits: UInt32[Array, " draws"]) -> Int[Array, " draws"]:
    """Compute floor(bits * bound / 2**32), a uniform integer, without a slow division.

    It multiplies 16-bit halves, because 64-bit integers may be disabled.
    """
    high, low = bits >> 16, bits & 0xFFFF
    above, below = np.uint32(bound >> 16), np.uint32(bound & 0xFFFF)
    middle = ((high * below) & 0xFFFF) + ((low * above) & 0xFFFF) + ((low * below) >> 16)
    product = high * above + ((high * below) >> 16) + ((low * above) >> 16) + (middle >> 16)
    return product.astype(jnp.int32)


def _within_classes(keys: Array, classes: Labels) -> Float[Array, "resamples rows"]:
    """Replace each example by a random example of its class."""
    by_class = jnp.argsort(classes)
    ordered = classes[by_class]
    first = jnp.searchsorted(ordered, ordered, side="left")
    size = jnp.searchsorted(ordered, ordered, side="right") - first

    def draw(key: Array) -> Float[Array, " rows"]:
        index = by_class[first + jax.random.randint(key, size.shape, 0, size)]
        return jnp.zeros(index.shape, jnp.float32).at[index].add(1)

    return jax.vmap(draw)(keys)
