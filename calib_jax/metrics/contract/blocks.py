r"""One pass over the predictions, in blocks of rows.

The softmax of a block stays in the processor's cache while every metric uses it, and sums over
blocks keep more digits than one long float32 sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core.rows import present
from calib_jax.core.statistics import Joint, Sums, merged_scan
from calib_jax.core.types import Array, Labels, Logits, Weights
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Terms

_Arrays = TypeVar("_Arrays")
TermsOf = Callable[[Predictions], dict[str, Terms]]


def stats_in_blocks(
    terms_of: TermsOf, logits: Logits, labels: Labels, weights: Weights | None
) -> tuple[Joint, Sums]:
    """Compute the statistic of every term, and the number of non-finite rows as "rows"."""
    num_rows, num_classes = logits.shape
    size = _block_rows(num_rows, num_classes)

    def weighed(
        logits: Logits, labels: Labels, weights: Weights | None, counted: Weights | None
    ) -> tuple[Joint, Sums]:
        logits, labels, usable = present(logits, labels, weights)
        predictions = Predictions(logits, labels)
        not_finite = ~predictions.finite
        if counted is not None:
            if usable is not None:  # rows of another weight than the given one are NaN
                counted = jnp.where(counted == 0, counted, usable)
            not_finite &= counted != 0
        stats = {name: terms.weigh(counted) for name, terms in terms_of(predictions).items()}
        return Joint(stats), Sums({"rows": jnp.sum(not_finite)})

    if size == num_rows:
        return weighed(logits, labels, weights, weights)

    def of_block(index: Array) -> tuple[Joint, Sums]:
        # The last block ends at the last row; rows that the previous block already contains get
        # weight 0.
        start = jnp.minimum(index * size, num_rows - size)
        logits_, labels_, weights_ = _rows((logits, labels, weights), start, size)
        counted = weights_
        if num_rows % size:
            fresh = start + jnp.arange(size) >= index * size
            counted = fresh.astype(jnp.float32) if counted is None else jnp.where(fresh, counted, 0)
        return weighed(logits_, labels_, weights_, counted)

    return merged_scan(of_block, jnp.arange(-(-num_rows // size)))


def terms_in_blocks(terms_of: TermsOf, logits: Logits, labels: Labels) -> dict[str, Terms]:
    """Compute the terms of all rows, a block at a time."""
    num_rows, num_classes = logits.shape
    size = _block_rows(num_rows, num_classes)
    num_blocks = -(-num_rows // size)
    if num_blocks == 1:
        return terms_of(Predictions(logits, labels))

    def of_block(index: Array) -> dict[str, Terms]:
        start = jnp.minimum(index * size, num_rows - size)
        return terms_of(Predictions(*_rows((logits, labels), start, size)))

    def joined(leaf: Array) -> Array:  # drops the overlap of the last two blocks
        fresh = num_rows - (num_blocks - 1) * size
        return jnp.concatenate([leaf[:-1].reshape(-1, *leaf.shape[2:]), leaf[-1, size - fresh :]])

    return jax.tree.map(joined, lax.map(of_block, jnp.arange(num_blocks)))


def _block_rows(num_rows: int, num_classes: int) -> int:
    """Choose the rows per block, to fit a core's cache or an accelerator's memory."""
    entries = 2**20 if jax.default_backend() == "cpu" else 2**26
    return int(min(num_rows, max(64, entries // num_classes)))


def _rows(arrays: _Arrays, start: Array, size: int) -> _Arrays:
    return jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, start, size), arrays)
