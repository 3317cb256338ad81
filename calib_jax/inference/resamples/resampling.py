r"""Multiplicities of a bootstrap: how often each example occurs in each resample.

Drawing n indices and gathering is slow. Drawing n independent Poisson(1) counts, by inverse CDF
from 16 random bits each, is fast; their total varies, but the metrics divide by it. For resamples
of exactly n examples, the counts are Poisson with a mean slightly below 1, and the few missing
examples are drawn one by one. Independent Poisson counts of equal mean are multinomial given their
total, and they remain so when uniform draws are added.

The 64 random bits of a key and a row are the counts of the row in four resamples.

Rows may be padded: only the first `number` rows are drawn. This number is an argument of the
compiled program, so that sets of several sizes share a program, and the draws of the first rows
are the same as without padding.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt32

from calib_jax.core.types import Array, Labels

PER_KEY = 4  # resamples


class Drawn(NamedTuple):
    """How many rows a resample draws from, and how; created by `drawn`.

    Attributes:
      number: the number of rows that are drawn; the other rows are padding.
      thresholds: the 16 random bits of a row give the count k if they reach the first k thresholds.
    """

    number: Any
    thresholds: Any


def drawn(number: int) -> Drawn:
    """Prepare the draws of `number` rows, on the host."""
    return Drawn(np.int32(number), np.array(_thresholds(_mean(number)), np.int32))


def multiplicities(
    keys: Array, size: int, classes: Labels | None, which: Drawn | None = None
) -> Float[Array, "resamples rows"]:
    """Draw four resamples per key: the first of every key, then the second of every key, ...

    Args:
      keys: one key per four resamples; its draws do not depend on the other keys.
      size: number of rows.
      classes: if given, every class keeps its number of examples; padding is a separate class.
      which: the rows that are drawn; all if None.
    """
    if classes is not None:
        split = jax.vmap(functools.partial(jax.random.split, num=PER_KEY))(keys)
        return _within_classes(split.swapaxes(0, 1).reshape(-1, *keys.shape[1:]), classes)
    which = drawn(size) if which is None else which
    counts = _filled(keys, _poisson(keys, size, which), which)
    return counts.astype(jnp.float32)


def _words(keys: Array, stream: int, size: int) -> UInt32[Array, "words rows"]:
    """Draw two words of 32 random bits for each key and row; they do not depend on `size`."""

    def of_key(key: Array) -> UInt32[Array, "two rows"]:
        streams = jax.random.split(jax.random.fold_in(key, stream))
        return jax.vmap(lambda one: jax.random.bits(one, (size,), jnp.uint32))(streams)

    return jax.vmap(of_key)(keys).swapaxes(0, 1).reshape(-1, size)


def in_order(values: Array) -> Array:
    """Reorder `[4 x keys, ...]`, as `multiplicities` returns it, key by key."""
    by_key = values.reshape(PER_KEY, -1, *values.shape[1:]).swapaxes(0, 1)
    return by_key.reshape(values.shape)


def _mean(number: int) -> float:
    """Return the mean of a row's Poisson count.

    It is six standard deviations below 1, so that the total exceeds the number of rows once in 1e9
    resamples.
    """
    return max(0.0, 1 - 6 / math.sqrt(number))


@functools.cache
def _thresholds(mean: float) -> list[int]:
    """Return the inverse CDF of a Poisson count at 16 bits, as long as a mean of 1 needs."""
    thresholds, probability, below = [], math.exp(-mean), 0.0
    for count in range(1, 9):
        below += probability
        thresholds.append(round(below * 2**16))
        probability *= mean / count
    return thresholds


def _poisson(keys: Array, size: int, which: Drawn) -> Int[Array, "resamples rows"]:
    """Draw counts by inverse CDF from 16 random bits each, exact to 1.5e-5."""
    words = _words(keys, 0, size)
    halves = jnp.concatenate([words >> 16, words & 0xFFFF]).astype(jnp.int32)
    counts = jnp.zeros(halves.shape, jnp.int32)
    for threshold in which.thresholds:
        counts += (halves >= threshold).astype(jnp.int32)
    return jnp.where(jnp.arange(size, dtype=jnp.int32) < which.number, counts, 0)


def _filled(
    keys: Array, counts: Int[Array, "resamples rows"], which: Drawn
) -> Int[Array, "resamples rows"]:
    """Add uniform draws until the total is the number of rows."""
    size = counts.shape[1]
    expected = size * _mean(size)
    most_missing = size - max(0, math.floor(expected - 6 * math.sqrt(expected)))

    def fill(counts: Int[Array, " rows"], bits: UInt32[Array, " draws"]) -> Int[Array, " rows"]:
        missing = which.number - jnp.sum(counts, dtype=counts.dtype)
        added = (jnp.arange(most_missing, dtype=counts.dtype) < missing).astype(jnp.int32)
        return counts.at[_below(which.number, bits)].add(added)

    words = [_words(keys, stream, most_missing) for stream in (1, 2)]
    return jax.vmap(fill)(counts, jnp.concatenate(words))


def _below(bound: Any, bits: UInt32[Array, " draws"]) -> Int[Array, " draws"]:
    """Compute floor(bits * bound / 2**32), a uniform integer, without a slow division.

    It multiplies 16-bit halves, because 64-bit integers may be disabled.
    """
    high, low = bits >> 16, bits & 0xFFFF
    bound = jnp.asarray(bound, jnp.uint32)
    above, below = bound >> 16, bound & 0xFFFF
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
