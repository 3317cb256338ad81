"""Recall loss: classes with low current recall get larger weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core import arrays, checks
from calib_jax.core.binning import class_sums
from calib_jax.core.numerics import (
    at_least_float32,
    first_argmax,
    times,
    true_class,
    weigh,
    wide,
    with_true_class,
)
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, Labels, Logits, Number, PerExample, Weights
from calib_jax.losses.focal import mean_one, of_true_class, unchecked_cross_entropy, weigh_classes
from calib_jax.losses.objectives import Objective, Progress, classes_of_state, make_objective

COUNTERS = ("recall", "released")


class RecallState(NamedTuple):
    """The miss rate of each class, 1 - recall."""

    miss_rate: Float[Array, " classes"]


class RecallPrecisionState(NamedTuple):
    """The miss rate of each class, 1 - recall, and the error rate of the class's predictions."""

    miss_rate: Float[Array, " classes"]
    false_rate: Float[Array, " classes"]


@arrays.takes_logits()
def recall(logits: Logits, labels: Labels, state: RecallState) -> PerExample:
    r"""Compute the recall loss: cross-entropy times the miss rate of the example's class.

    $$\ell = (1 - R_y) \, (-\log p_y)$$

    It balances false negatives against false positives by the current recall of the classes,
    where inverse class frequency would overshoot. The rates are constants for differentiation.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      state: the miss rates, from the objective's `update`.

    Returns:
      One value per example, in float32 or float64.

    References:
      Tian et al. 2021, Striking the Right Balance: Recall Loss for Semantic Segmentation.

    >>> import jax.numpy as jnp
    >>> state = RecallState(miss_rate=jnp.array([0.5, 0.25]))
    >>> recall(jnp.zeros((2, 2)), jnp.array([0, 1]), state).round(4)
    Array([0.3466, 0.1733], dtype=float32)
    """
    return weigh_classes(lax.stop_gradient(state.miss_rate), logits, labels)


def _log_rest(logits: Logits, predicted: Labels) -> PerExample:
    """Compute the logarithm of 1 - p of the predicted class, however far it leads.

    The prepared view bounds it at -84, which changes no weight; here it is the loss itself. Where
    all other logits are -inf the result is -inf, with gradient 0.
    """
    rows = at_least_float32(logits)
    rows = rows - lax.stop_gradient(jnp.max(rows, axis=-1, keepdims=True))
    others = with_true_class(rows, predicted, -jnp.inf)
    alone = jnp.max(others, axis=-1) == -jnp.inf
    # Mask the unused branch inside as well, or it would send NaN gradients back.
    log_others = jax.nn.logsumexp(jnp.where(alone[..., None], 0, others), axis=-1)
    lead = true_class(rows, predicted) - log_others
    return jnp.where(alone, -jnp.inf, -jax.nn.softplus(lead))


def _moved(rate: Array, errors: Array, count: Array, alpha: Number, counters: str) -> Array:
    """Update the moving averages of the error rates with the error rates of a batch."""
    errors, count = errors.astype(rate.dtype), count.astype(rate.dtype)
    if counters == "released":
        # Both counters start at one: an absent class has rate 1, a perfect class 1 / count.
        batch = jnp.maximum(errors, 1) / jnp.maximum(count, 1)
        moved = alpha * batch + (1 - alpha) * rate
        # A batch without examples leaves the rates unchanged.
        return jnp.where(jnp.sum(count) == 0, rate, moved).astype(rate.dtype)
    seen = count != 0  # NaN reaches the rates
    batch = errors / jnp.where(seen, count, 1)
    return jnp.where(seen, alpha * batch + (1 - alpha) * rate, rate).astype(rate.dtype)


def _counts(logits: Logits, weights: Weights | None) -> PerExample:
    """Compute how often each example counts; NaN for NaN logits or an unusable weight.

    A row of NaN logits has no prediction, and would count as missed.
    """
    unknown = jnp.any(jnp.isnan(logits), axis=-1)
    return weigh(jnp.where(unknown, jnp.nan, 1).astype(wide(logits.dtype)), weights)


def _recall_sums(logits: Logits, labels: Labels, weights: Weights | None) -> dict[str, Array]:
    num_classes = logits.shape[-1]
    counts = _counts(logits, weights)
    wrong = first_argmax(logits) != labels
    return {
        "count": class_sums(labels, counts, num_classes),
        "missed": class_sums(labels, wrong.astype(counts.dtype) * counts, num_classes),
    }


def recall_objective(
    *, alpha: Number = 1.0, counters: str = "recall", normalized: bool = False
) -> Objective:
    r"""Recall loss with a moving average, $R \leftarrow \alpha R_{batch} + (1 - \alpha) R$.

    Args:
      alpha: 1 gives the recall of the batch; the paper uses less than 1 for iNaturalist. R starts
        at 0, so the first batch counts alpha, and a class that is absent from a batch keeps its
        value. The released code has no average in its loss class; in its function the caller passes
        the weights of the last batch, and the first batch counts alone.
      counters: "recall", or "released": errors and counts of at least one per class, so that
        no weight is ever 0 and an absent class has weight 1.
      normalized: divide the class weights by their mean over the batch, as one of the released
        functions does; the mean of the terms is then a weighted mean of cross-entropy.
    """
    checks.one_of("counters", counters, COUNTERS)

    def value(state: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        rates = state.miss_rate
        return weigh_classes(rates, logits, labels, weights, axis_name, normalized=normalized)

    def evidence(state: RecallState, logits: Logits, labels: Labels, weights: Any) -> Sums:
        return Sums(_recall_sums(logits, labels, weights))

    def update(state: RecallState, stat: Sums, progress: Progress) -> RecallState:
        return RecallState(_moved(state.miss_rate, stat["missed"], stat["count"], alpha, counters))

    return make_objective(
        value,
        init=lambda num_classes: RecallState(jnp.ones(num_classes, float)),
        evidence=evidence,
        update=update,
        clock="step",
        table=lambda state, stat: state._asdict(),
    )


def recall_precision(
    *, alpha: Number = 1.0, counters: str = "recall", floor: Number = 0.0
) -> Objective:
    r"""Recall loss plus a precision term on wrong predictions.

    $$\frac{\sum_n w_{y_n} (-\log p_{n y_n})}{\sum_n w_{y_n}}
      + \frac{\sum_{\hat y_n \ne y_n} v_{\hat y_n} (-\log(1 - p_{n \hat y_n} + \epsilon))}
             {\sum_{\hat y_n \ne y_n} v_{\hat y_n}}$$

    with w the miss rate of a class and v the share of wrong predictions of the class. This sum
    is the weighted mean of the terms.

    Args:
      alpha, counters: as in "recall".
      floor: $\epsilon$; 1e-9 in the released code. Here the logarithm is finite without it.

    References:
      Tian et al. 2021, released code.
    """
    checks.one_of("counters", counters, COUNTERS)

    def value(state: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        classes_of_state(len(state.miss_rate), logits)
        cross_entropy = unchecked_cross_entropy(logits, labels)
        predicted = first_argmax(logits)
        log_rest = jnp.logaddexp(_log_rest(logits, predicted), jnp.log(floor))
        missed = of_true_class(state.miss_rate, labels)
        false = jnp.where(predicted == labels, 0, of_true_class(state.false_rate, predicted))
        missed, false = (
            mean_one(factors.astype(log_rest.dtype), weights, axis_name)
            for factors in (missed, false)
        )
        return times(missed, cross_entropy) + times(false, -log_rest)

    def evidence(state: RecallPrecisionState, logits: Logits, labels: Labels, weights: Any) -> Sums:
        num_classes = logits.shape[-1]
        predicted = first_argmax(logits)
        counts = _counts(logits, weights)
        wrong = predicted != labels
        of_predictions = {
            "predicted": class_sums(predicted, counts, num_classes),
            "false": class_sums(predicted, wrong.astype(counts.dtype) * counts, num_classes),
        }
        return Sums(_recall_sums(logits, labels, weights) | of_predictions)

    def update(state: RecallPrecisionState, stat: Sums, progress: Progress) -> RecallPrecisionState:
        return RecallPrecisionState(
            _moved(state.miss_rate, stat["missed"], stat["count"], alpha, counters),
            _moved(state.false_rate, stat["false"], stat["predicted"], alpha, counters),
        )

    def init(num_classes: int) -> RecallPrecisionState:
        ones = jnp.ones(num_classes, float)
        return RecallPrecisionState(ones, ones)

    return make_objective(
        value,
        init=init,
        evidence=evidence,
        update=update,
        clock="step",
        table=lambda state, stat: state._asdict(),
    )
