r"""What every metric looks at: the softmax, its top label, and the label that was true.

Each quantity is computed when a metric first asks for it, and once for all metrics.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.core import checks
from calib_jax.core.numerics import (
    at_least_float32,
    first_argmax,
    is_true_class,
    true_class,
)
from calib_jax.core.rows import valid, widened
from calib_jax.core.types import Array, Labels, Logits, PerClass, PerExample


class Predictions:
    r"""A lazy view of logits and labels.

    Everything that depends on the label is NaN where the label is out of range; everything is
    NaN where a logit is NaN.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`; kept as int32 or wider.
      excluded_class: see `without`.
    """

    def __init__(self, logits: Logits, labels: Labels, excluded_class: int | None = None) -> None:
        self.logits = at_least_float32(logits)
        # Cells are computed from labels, and label times bins overflows a narrow integer.
        self.labels = widened(labels)
        self.excluded_class = excluded_class

    def without(self, excluded_class: int | None) -> Predictions:
        """Strike a class out after the softmax, without renormalising: never predicted."""
        if excluded_class is None:
            return self
        checks.between("excluded_class", excluded_class, 0, self.num_classes - 1)
        return Predictions(self.logits, self.labels, excluded_class)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.logits.shape[-1]

    @functools.cached_property
    def _top_logit(self) -> PerExample:
        return jnp.max(self.logits, axis=-1)

    @functools.cached_property
    def _shifted(self) -> PerClass:
        return self.logits - self._top_logit[..., None]

    @functools.cached_property
    def _spread(self) -> PerClass:
        return jnp.exp(self._shifted)

    @functools.cached_property
    def _total(self) -> PerExample:
        return jnp.sum(self._spread, axis=-1)

    @functools.cached_property
    def p(self) -> PerClass:
        """The probabilities."""
        p = self._spread / self._total[..., None]
        return p if self.excluded_class is None else p.at[..., self.excluded_class].set(0)

    @functools.cached_property
    def odds(self) -> PerClass:
        r"""$p_k / (1 - p_k)$, of the softmax, precise also where $p_k$ rounds to 1.

        Without logarithms, of which a compiler rounds those at the end of a vector differently:
        equal rows must have equal odds.
        """
        top = is_true_class(first_argmax(self.logits), self.num_classes)
        of_others = jnp.sum(jnp.where(top, 0, self._spread), axis=-1, keepdims=True)
        return self._spread / jnp.where(top, of_others, self._total[..., None] - self._spread)

    @functools.cached_property
    def square_sum(self) -> PerExample:
        r"""$\sum_k p_k^2$, of the softmax."""
        return jnp.sum(jnp.square(self._spread), axis=-1) / jnp.square(self._total)

    @functools.cached_property
    def log_total(self) -> PerExample:
        r"""$\log \sum_k e^{z_k}$."""
        return self._top_logit + jnp.log(self._total)

    @functools.cached_property
    def valid(self) -> Bool[Array, "*batch"]:
        """Whether the label is one of the classes, and the logits are numbers with a largest one.

        A class may have the logit -inf.
        """
        return valid(self.labels, self.num_classes) & self.finite

    @functools.cached_property
    def finite(self) -> Bool[Array, "*batch"]:
        """Whether no logit is NaN or +inf, and not all of them are -inf.

        The total shows all three; over 64 classes and more XLA drops NaN from a maximum on a CPU.
        """
        return jnp.isfinite(self._total)

    def if_valid(self, values: Float[Array, "*batch"]) -> PerExample:
        """Put NaN where the label is out of range or a logit is NaN."""
        return jnp.where(self.valid, values, jnp.nan)

    @functools.cached_property
    def log_true(self) -> PerExample:
        r"""$\log p_y$."""
        margin = true_class(self.logits, self.labels) - self._top_logit
        return self.if_valid(margin - jnp.log(self._total))

    @functools.cached_property
    def predicted(self) -> Labels:
        """The class of the largest probability, the first of equals."""
        return first_argmax(self.logits if self.excluded_class is None else self.p)

    @functools.cached_property
    def rank(self) -> Integer[Array, "*batch"]:
        """How many classes come before the true one: 0 where it is the predicted one.

        Of equal probabilities the class of smaller index comes first. One pass over the classes,
        and no entry is compared with itself, which a compiler may have computed twice.
        """
        rows = self.logits if self.excluded_class is None else self.p
        labels = self.labels[..., None]
        own = true_class(rows, self.labels)[..., None]
        index = lax.broadcasted_iota(labels.dtype, rows.shape, rows.ndim - 1)
        before = jnp.where(index < labels, rows >= own, rows > own)
        before &= index != labels
        return jnp.sum(jnp.where(before, 1.0, 0.0), axis=-1).astype(jnp.int32)

    @functools.cached_property
    def confidence(self) -> PerExample:
        """The largest probability."""
        if self.excluded_class is None:
            return 1 / self._total  # the largest is e^0 over the total
        return jnp.max(self.p, axis=-1)

    @functools.cached_property
    def hit(self) -> PerExample:
        """1 where the predicted class is the true one, else 0."""
        return self.if_valid((self.rank == 0).astype(self.logits.dtype))

    @functools.cached_property
    def entropy(self) -> PerExample:
        r"""$-\sum_k p_k \log p_k$, of the softmax, with $0 \log 0 = 0$."""
        # A class of probability 0 adds nothing, also where its logit is -inf.
        shifted = jnp.where(self._spread == 0, 0, self._shifted)
        mean = jnp.sum(self._spread * shifted, axis=-1) / self._total
        return jnp.log(self._total) - mean

    @functools.cached_property
    def is_true(self) -> Bool[Array, "*batch classes"]:
        """The one-hot label."""
        return is_true_class(self.labels, self.num_classes)
