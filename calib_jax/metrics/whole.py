r"""All metrics of one set of predictions, computed in one compiled pass.

The rows are processed in blocks: the softmax of a block stays in the processor's cache while every
metric uses it, and sums over blocks keep more digits than one long float32 sum. Metrics with the
same terms (ECE and MCE) share one statistic.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Real

from calib_jax.core import checks
from calib_jax.core.rows import present
from calib_jax.core.statistics import Joint, Rows
from calib_jax.core.trouble import Trouble, known, refuse, trouble_in
from calib_jax.core.types import Array, Labels, Logits, Weights
from calib_jax.metrics.predictions import Predictions
from calib_jax.metrics.terms import Terms

if TYPE_CHECKING:
    from calib_jax.metrics.contract import Metric

Members: TypeAlias = "Mapping[str, Metric]"


def values_of(metrics: Members, logits: Any, labels: Any, weights: Any = None) -> dict[str, Any]:
    """Compute several metrics in one pass; outside `jit`, raise on inputs that would make them NaN.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> found = metrics.values_of(
    ...     {"accuracy": metrics.accuracy, "ece": metrics.ece}, logits, jnp.array([0, 1, 1])
    ... )
    >>> {name: round(float(value), 3) for name, value in found.items()}
    {'accuracy': 0.667, 'ece': 0.433}
    """
    logits, labels, weights = checks.flat_rows(_names(metrics), logits, labels, weights)
    members = tuple(metrics.items())
    if not known(logits, labels, weights):
        return _values(members, logits, labels, weights)
    values, trouble = _checked_values(members, logits, labels, weights)
    refuse(_names(metrics), trouble, logits.shape)
    return values


def stats_of(metrics: Members, logits: Any, labels: Any, weights: Any = None) -> Joint:
    """Compute the statistics of all metrics, each once, for `values_of_stats`."""
    logits, labels, weights = checks.flat_rows(_names(metrics), logits, labels, weights)
    return _pass(tuple(metrics.items()), logits, labels, weights)[0]


def values_of_stats(metrics: Members, stats: Joint) -> dict[str, Any]:
    """Compute every metric from the merged statistics of `stats_of`."""
    owner = owners(tuple(metrics.items()))
    return {name: one.value(stats[owner[name]]) for name, one in metrics.items()}


def owners(members: tuple[tuple[str, Metric], ...]) -> dict[str, str]:
    """Map each metric to the first metric with the same terms, which computes them."""
    first: dict[Any, str] = {}
    return {name: first.setdefault(one.terms_key, name) for name, one in members}


def terms_of(members: tuple[tuple[str, Metric], ...], predictions: Predictions) -> dict[str, Terms]:
    """Compute the terms of every metric, each once, from one view of the predictions."""
    owner = owners(members)
    return {name: one.terms_of(predictions) for name, one in members if owner[name] == name}


def _names(metrics: Members) -> str:
    return ", ".join(metrics)


# --------------------------------------------------------------------------------------------
# The pass over blocks of rows.


def _block_rows(num_rows: int, num_classes: int) -> int:
    """Choose the rows per block, to fit a core's cache or an accelerator's memory."""
    entries = 2**20 if jax.default_backend() == "cpu" else 2**26
    return int(min(num_rows, max(64, entries // num_classes)))


def _pass(
    members: tuple[tuple[str, Metric], ...],
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
) -> tuple[Joint, Real[Array, ""]]:
    """Compute the statistics and the number of rows that are not finite."""
    num_rows, num_classes = logits.shape
    size = _block_rows(num_rows, num_classes)

    def block(logits: Logits, labels: Labels, weights: Weights | None, own: Any) -> Any:
        predictions = Predictions(*present(logits, labels, weights))
        unmeasurable = jnp.sum(
            ~predictions.finite if own is None else ~predictions.finite & (own != 0)
        )
        stats = {k: t.weigh(own) for k, t in terms_of(members, predictions).items()}
        rows = {name: stat for name, stat in stats.items() if isinstance(stat, Rows)}
        sums = {name: stat for name, stat in stats.items() if name not in rows}
        return (sums, unmeasurable), rows

    if size == num_rows:
        (sums, unmeasurable), rows = block(logits, labels, weights, weights)
        return Joint(sums | rows), unmeasurable

    def add(carry: Any, index: Array) -> tuple[Any, Any]:
        # The last block ends at the last row; rows that the previous block already contains get
        # weight 0.
        start = jnp.minimum(index * size, num_rows - size)
        cut = functools.partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
        own = cut_weights = None if weights is None else cut(weights)
        if num_rows % size:
            fresh = start + jnp.arange(size) >= index * size
            own = fresh.astype(jnp.float32) if own is None else jnp.where(fresh, own, 0)
        sums, rows = block(cut(logits), cut(labels), cut_weights, own)
        return jax.tree.map(jnp.add, carry, sums), rows

    first = jax.tree.map(lambda array: array[:size], (logits, labels, weights))
    shapes = jax.eval_shape(block, *first, jnp.ones((size,)))[0]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (sums, unmeasurable), rows = lax.scan(add, zeros, jnp.arange(-(-num_rows // size)))
    flat = jax.tree.map(lambda column: column.reshape(-1, *column.shape[2:]), rows)
    return Joint(sums | flat), unmeasurable


def terms_in_blocks(
    members: tuple[tuple[str, Metric], ...], logits: Logits, labels: Labels
) -> dict[str, Terms]:
    """Compute the terms of every metric for all rows, a block at a time."""
    num_rows, num_classes = logits.shape
    size = _block_rows(num_rows, num_classes)
    num_blocks = -(-num_rows // size)

    def block(index: Array) -> dict[str, Terms]:
        start = jnp.minimum(index * size, num_rows - size)
        cut = functools.partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=size)
        return terms_of(members, Predictions(cut(logits), cut(labels)))

    def joined(leaf: Array) -> Array:  # drops the overlap of the last two blocks
        new = num_rows - (num_blocks - 1) * size
        return jnp.concatenate([leaf[:-1].reshape(-1, *leaf.shape[2:]), leaf[-1, size - new :]])

    if num_blocks == 1:
        return terms_of(members, Predictions(logits, labels))
    return jax.tree.map(joined, lax.map(block, jnp.arange(num_blocks)))


def _values(
    members: tuple[tuple[str, Metric], ...],
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
) -> dict[str, Any]:
    return values_of_stats(dict(members), _pass(members, logits, labels, weights)[0])


@functools.partial(jax.jit, static_argnums=0)
def _checked_values(
    members: tuple[tuple[str, Metric], ...],
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
) -> tuple[dict[str, Any], Trouble]:
    stats, trouble = checked_stats(members, logits, labels, weights)
    return values_of_stats(dict(members), stats), trouble


def checked_stats(
    members: tuple[tuple[str, Metric], ...],
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
) -> tuple[Joint, Trouble]:
    """Compute the statistics and the invalid inputs of the rows in one pass."""
    stats, unmeasurable = _pass(members, logits, labels, weights)
    return stats, trouble_in(logits, labels, weights)._replace(not_finite=unmeasurable)
