r"""The view of logits and labels that metrics share: softmax, top label and true label.

Each quantity is computed on first access and cached for all metrics. One pass over the predictions
goes over blocks of rows: the softmax of a block stays in the processor's cache while every metric
uses it, and sums over blocks keep more digits than one long float32 sum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.core import checks, numerics
from calib_jax.core.rows import present
from calib_jax.core.statistics import Joint, Sums, merged_scan
from calib_jax.core.types import Array, Labels, Logits, PerClass, PerExample, Weights
from calib_jax.core.values import is_stated, two_classes
from calib_jax.metrics.contract.terms import Terms


class Predictions:
    r"""A lazy view of logits and labels.

    Quantities that depend on the label are NaN where the label is out of range; all quantities
    are NaN where a logit is NaN.

    One column in place of the logits is a stated confidence, and the label 1 means a right answer:
    see `Stated`. The stated answer is then class 1, also where its probability is below 1/2.

    Args:
      logits: `[*batch, classes]`, or `[*batch, 1]`.
      labels: `[*batch]`; converted to int32 or wider.
      excluded_class: see `without`.

    Attributes:
      stated: the stated confidence, or None.
      num_classes: the number of classes.
      log_total: $\log \sum_k e^{z_k}$.
      finite: whether no logit is NaN or +inf, and not all of them are -inf.
      valid: whether the row is finite and its label in range. Single logits may be -inf.
    """

    def __init__(self, logits: Logits, labels: Labels, excluded_class: int | None = None) -> None:
        self.stated = logits[..., 0] if is_stated(logits) else None
        self.logits = numerics.at_least_float32(two_classes(logits))
        self.num_classes: int = self.logits.shape[-1]
        # Cell indices are labels times bins, which would overflow a narrow integer type.
        self.labels = numerics.widened(labels)
        self.excluded_class = excluded_class
        self._top_logit = jnp.max(self.logits, axis=-1)
        self._shifted = self.logits - self._top_logit[..., None]
        self._spread = jnp.exp(self._shifted)
        self._total = jnp.sum(self._spread, axis=-1)
        self.log_total = self._top_logit + jnp.log(self._total)
        # The maximum does not detect NaN: from 64 classes on, XLA drops NaN from it on a CPU.
        self.finite = jnp.isfinite(self._total)
        self.valid = numerics.valid(self.labels, self.num_classes) & self.finite

    def without(self, excluded_class: int | None) -> Predictions:
        """Set a class's probability to 0 without renormalising, so that it is never predicted."""
        if excluded_class is None:
            return self
        if self.stated is not None:
            raise TypeError("excluded_class needs classes, and a stated confidence has none.")
        checks.between("excluded_class", excluded_class, 0, self.num_classes - 1)
        return Predictions(self.logits, self.labels, excluded_class)

    @functools.cached_property
    def p(self) -> PerClass:
        """The probabilities."""
        p = self._spread / self._total[..., None]
        return p if self.excluded_class is None else p.at[..., self.excluded_class].set(0)

    @functools.cached_property
    def odds(self) -> PerClass:
        r"""$p_k / (1 - p_k)$ of the softmax, accurate even where $p_k$ rounds to 1.

        It uses no logarithms, because compilers round logarithms at the end of a vector
        differently, and equal rows must have equal odds.
        """
        top = numerics.is_true_class(numerics.first_argmax(self.logits), self.num_classes)
        of_others = jnp.sum(jnp.where(top, 0, self._spread), axis=-1, keepdims=True)
        return self._spread / jnp.where(top, of_others, self._total[..., None] - self._spread)

    @functools.cached_property
    def square_sum(self) -> PerExample:
        r"""$\sum_k p_k^2$, of the softmax."""
        return jnp.sum(jnp.square(self._spread), axis=-1) / jnp.square(self._total)

    def if_valid(self, values: Float[Array, "*batch"]) -> PerExample:
        """Replace values by NaN where the label is out of range or a logit is NaN."""
        return jnp.where(self.valid, values, jnp.nan)

    @functools.cached_property
    def log_true(self) -> PerExample:
        r"""$\log p_y$."""
        margin = numerics.true_class(self.logits, self.labels) - self._top_logit
        return self.if_valid(margin - jnp.log(self._total))

    @functools.cached_property
    def predicted(self) -> Labels:
        """The class of the largest probability; ties go to the smallest index."""
        if self.stated is not None:
            return jnp.ones_like(self.labels)
        return numerics.first_argmax(self.logits if self.excluded_class is None else self.p)

    @functools.cached_property
    def rank(self) -> Integer[Array, "*batch"]:
        """The number of classes ranked before the true one, 0 where it is predicted.

        Ties go to the smaller index. It takes one pass over the classes and compares no entry with
        itself, because a compiler may compute the two operands separately.
        """
        if self.stated is not None:
            return jnp.where(self.labels == 1, 0, 1)
        rows = self.logits if self.excluded_class is None else self.p
        labels = self.labels[..., None]
        true = numerics.true_class(rows, self.labels)[..., None]
        index = lax.broadcasted_iota(labels.dtype, rows.shape, rows.ndim - 1)
        before = jnp.where(index < labels, rows >= true, rows > true)
        before &= index != labels
        return jnp.sum(jnp.where(before, 1.0, 0.0), axis=-1).astype(jnp.int32)

    @functools.cached_property
    def confidence(self) -> PerExample:
        """The probability of the predicted class."""
        if self.stated is not None:
            return jnp.where(self.finite, self.stated, jnp.nan)
        if self.excluded_class is None:
            return 1 / self._total  # the largest probability is e^0 over the total
        return jnp.max(self.p, axis=-1)

    @functools.cached_property
    def hit(self) -> PerExample:
        """1 where the predicted class is the true one, else 0."""
        return self.if_valid((self.rank == 0).astype(self.logits.dtype))

    @functools.cached_property
    def entropy(self) -> PerExample:
        r"""$-\sum_k p_k \log p_k$, of the softmax, with $0 \log 0 = 0$."""
        # A class of probability 0 contributes 0, even if its logit is -inf.
        shifted = jnp.where(self._spread == 0, 0, self._shifted)
        mean = jnp.sum(self._spread * shifted, axis=-1) / self._total
        return jnp.log(self._total) - mean

    @functools.cached_property
    def is_true(self) -> Bool[Array, "*batch classes"]:
        """The one-hot label."""
        return numerics.is_true_class(self.labels, self.num_classes)


TermsOf = Callable[[Predictions], dict[str, Terms]]


def stats_in_blocks(
    terms_of: TermsOf, logits: Logits, labels: Labels, weights: Weights | None
) -> tuple[Joint, Sums]:
    """Compute the statistic of every term, and the number of non-finite rows as "rows".

    If there are several devices, a block has rows of all of up to 64 equal parts, so that rows that
    are sharded over the devices stay where they are.
    """
    num_rows, size = len(logits), _block_rows(*logits.shape)

    def weighed(rows: tuple[Any, Any, Any], fresh: Array | None) -> tuple[Joint, Sums]:
        logits, labels, weights = present(*rows)
        predictions = Predictions(logits, labels)
        if fresh is not None:
            weights = fresh.astype(jnp.float32) if weights is None else jnp.where(fresh, weights, 0)
        not_finite = ~predictions.finite if weights is None else ~predictions.finite & (weights > 0)
        stats = {name: terms.weigh(weights) for name, terms in terms_of(predictions).items()}
        return Joint(stats), Sums({"rows": jnp.sum(not_finite)})

    if size == num_rows:
        return weighed((logits, labels, weights), None)
    num_parts = math.gcd(num_rows, 64) if jax.device_count() > 1 else 1
    of_part = num_rows // num_parts
    width = max(1, size // num_parts)

    def in_parts(array: Array) -> Array:
        return array if num_parts == 1 else array.reshape(num_parts, of_part, *array.shape[1:])

    def of_block(index: Array) -> tuple[Joint, Sums]:
        # The last block ends at the end of the parts; rows of the block before get weight 0.
        start = jnp.minimum(index * width, of_part - width)

        def rows_of(array: Array) -> Array:
            axis = 0 if num_parts == 1 else 1
            block = lax.dynamic_slice_in_dim(in_parts(array), start, width, axis)
            return block.reshape(num_parts * width, *array.shape[1:])

        fresh = jnp.tile(start + jnp.arange(width) >= index * width, num_parts)
        rows = jax.tree.map(rows_of, (logits, labels, weights))
        return weighed(rows, fresh if of_part % width else None)

    return merged_scan(of_block, jnp.arange(-(-of_part // width)))


def terms_in_blocks(terms_of: TermsOf, logits: Logits, labels: Labels) -> dict[str, Terms]:
    """Compute the terms of all rows, a block at a time."""

    def of_row(row: tuple[Array, Array]) -> dict[str, Terms]:
        return terms_of(Predictions(*row))

    return lax.map(of_row, (logits, labels), batch_size=_block_rows(*logits.shape))


def _block_rows(num_rows: int, num_classes: int) -> int:
    """Choose the rows per block, to fit a core's cache or an accelerator's memory."""
    entries = 2**20 if jax.default_backend() == "cpu" else 2**26
    return int(min(num_rows, max(64, entries // num_classes)))
