"""Weights, handled here for the whole library.

A weight can be a padding mask, an ignore mask of pixels, a resampling count or an importance.
A row of weight 0 is absent, even if its label is 255 or -1 or its logits are NaN:

    logits, labels, weights = present(logits, labels, weights)  # harmless values in absent rows
    total = jnp.sum(weigh(values, weights))                     # exactly 0 from absent rows

A row whose weight is negative, infinite or NaN becomes a row of NaN logits and weight 1, so that
every function that gives NaN for NaN logits gives NaN for such a weight, too. The same happens to
all rows if the weights sum to more than `LARGEST_TOTAL`.

Weights count copies of an example, see `counted`.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.types import AnyLabels, Array, Batch, Labels, Logits, Vector, Weights

# Products of weights and losses must not overflow either.
LARGEST_TOTAL = 1e30


@functools.partial(jax.jit, inline=True)  # one program instead of one per operation
def present(logits: Logits, labels: AnyLabels, weights: Weights | None) -> Batch:
    """Replace labels and logits by 0 where the weight is 0, so that absent rows cause no NaN.

    Where a weight is invalid, the logits become NaN and the weight 1.
    """
    if weights is None:
        return logits, labels, None
    absent = weights == 0
    usable = (weights >= 0) & (jnp.sum(weights) <= LARGEST_TOTAL)  # the sum keeps NaN and inf
    fill = jnp.where(absent & usable, 0, jnp.nan).astype(logits.dtype)
    counts = usable & ~absent
    logits = jnp.where(counts[..., None], logits, fill[..., None])
    soft = labels.ndim == logits.ndim
    labels = jnp.where(counts[..., None] if soft else counts, labels, 0)
    return logits, labels, jnp.where(usable, weights, jnp.ones_like(weights))


@functools.partial(jax.jit, inline=True)
def counted(weights: Weights) -> Weights:
    r"""Scale weights to a mean of 1 where they cannot count copies of an example.

    Weights count copies: weight 2 is an example given twice. A positive weight below 1 counts no
    copies, so only the ratios of such weights have a meaning. They are scaled to a mean of 1 over
    the rows of positive weight, and weights that sum to 1 give the values of no weights.

    The number of examples matters to debiased errors, to refinement, to penalties of a fit and to
    ESD. Every function of whole data sets therefore scales weights once, where they enter.
    Statistics of parts, which are merged, keep the scale of their weights.

    >>> counted(jnp.array([0.25, 0.75, 0.0])), counted(jnp.array([1.0, 3.0, 0.0]))
    (Array([0.5, 1.5, 0. ], dtype=float32), Array([1., 3., 0.], dtype=float32))
    """
    present = weights > 0
    below_1 = jnp.any(present & (weights < 1))
    # Relative to the largest weight, equal weights become exactly 1.
    relative = weights / jnp.max(jnp.where(present, weights, 0), initial=0)
    number = jnp.sum(present, dtype=weights.dtype)
    mean = jnp.sum(jnp.where(present, relative, 0)) / number
    return jnp.where(below_1, relative / mean, weights)


def thinned(logits: Logits, labels: Labels, weights: Any, most: int = 2**15) -> tuple[Any, ...]:
    """Keep an even grid of the labels of every example that has more than `most`.

    An image of 1,024 x 2,048 pixels has two million labels, and statistics with one row per label
    do not need all of them.

    >>> logits = jnp.zeros((1, 1024, 2048, 1))
    >>> thinned(logits, jnp.zeros((1, 1024, 2048), int), None)[1].shape
    (1, 128, 256)
    """
    step, sizes = 1, labels.shape[1:]
    while math.prod(-(-size // step) for size in sizes) > most:
        step += 1
    grid = (slice(None), *(slice((min(step, size) - 1) // 2, None, step) for size in sizes))
    return logits[grid], labels[grid], None if weights is None else weights[grid]


def weigh(values: Float[Array, "..."], weights: Weights | None) -> Float[Array, "..."]:
    """Multiply values by the weights of their rows; weight 0 gives exactly 0 for any value.

    A negative, infinite or NaN weight gives NaN.
    """
    if weights is None:
        return values
    weights = weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))
    usable = (weights >= 0) & (weights < jnp.inf)
    return jnp.where(usable, jnp.where(weights == 0, 0, weights * values), jnp.nan)


def weighted_sum(weights: Vector, rows: Float[Array, "rows classes"]) -> Float[Array, " classes"]:
    """Sum weighted rows, also on accelerators in the full precision of float32.

    Many rows are summed in parts, as in `binning.class_sums`, because a long sum loses digits.
    """
    num_rows = len(rows)
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    if num_rows <= 2**17:
        return product("n,nk->k", weights, rows)
    size = 2 ** (num_rows.bit_length() // 2)
    end = num_rows - num_rows % size
    parts = weights[:end].reshape(-1, size), rows[:end].reshape(-1, size, rows.shape[1])
    whole = jnp.sum(product("pn,pnk->pk", *parts), axis=0)
    return whole + product("n,nk->k", weights[end:], rows[end:]) if end < num_rows else whole
