r"""The cost of the decisions that a model's probabilities recommend.

A matrix C has the cost $C_{y d}$ of the decision d if the class is y, in any unit. The decision
for an example has the least expected cost under its probabilities,

$$d_i = \arg\min_d \sum_k p_{i k} C_{k d},$$

or is abstention, if its fixed cost is lower. `expected_cost` is the mean cost of these decisions on
the labels, and `stated_cost` is their mean expected cost under the probabilities. For a calibrated
model the two are equal for every matrix; an overconfident model costs more than it states.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core.arrays import as_array
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PerExample, Scalar
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns, ratio


class Decided(NamedTuple):
    """The decision of every example, with its cost on the label and under the probabilities.

    Attributes:
      decision: column index of the matrix; abstention has the index after the last column.
      realized: the cost of the decision for the true class.
      stated: the expected cost of the decision.
      variance: the variance of the cost, if the class is drawn from the probabilities.
    """

    decision: Array
    realized: PerExample
    stated: PerExample
    variance: PerExample


def matrix_of(costs: Any, num_classes: int) -> np.ndarray:
    """Validate a matrix of costs; None is 0 for the right class and 1 for any other."""
    if costs is None:
        return 1.0 - np.eye(num_classes)
    matrix = np.asarray(as_array(costs), np.float64)
    fits = matrix.ndim == 2 and len(matrix) == num_classes and matrix.size > 0
    if not fits or not np.all(np.abs(matrix) <= np.finfo(np.float32).max):
        raise ValueError(f"costs must be finite, [{num_classes} classes, decisions], got {matrix}.")
    return matrix


def check_abstain_cost(abstain_cost: float | None) -> None:
    """Validate the cost of abstention."""
    if abstain_cost is not None and not math.isfinite(abstain_cost):
        raise ValueError(f"abstain_cost must be a finite number or None, got {abstain_cost}.")


def decided(predictions: Predictions, costs: Any, abstain_cost: float | None) -> Decided:
    """Choose the decision of least expected cost; ties go to the first, and abstention is last."""
    matrix = matrix_of(costs, predictions.num_classes)
    check_abstain_cost(abstain_cost)
    if abstain_cost is not None:
        matrix = np.concatenate([matrix, np.full((len(matrix), 1), abstain_cost)], axis=1)
    p = predictions.p
    of_class = jnp.asarray(matrix, p.dtype)
    expected = jnp.einsum("...k,kd->...d", p, of_class, precision="highest")
    # Sums in float32 round, so costs that are equal differ in their last digits, which are those of
    # the sizes of their terms. One large cost must not make the other decisions equal.
    sizes = jnp.einsum("...k,kd->...d", p, jnp.abs(of_class), precision="highest")
    best = jnp.argmin(expected, axis=-1, keepdims=True)
    least, size = (jnp.take_along_axis(each, best, axis=-1) for each in (expected, sizes))
    slack = 16 * jnp.finfo(p.dtype).eps * (sizes + size)
    costs_no_more = expected <= least + slack
    decision = jnp.argmax(costs_no_more, axis=-1).astype(jnp.int32)
    if costs is None:  # the top label, unless abstention costs less
        top = predictions.predicted
        is_best = jnp.take_along_axis(costs_no_more, top[..., None], axis=-1)
        decision = jnp.where(is_best[..., 0], top, decision)
    of_decision = of_class.T[decision]  # [*batch, classes]
    stated = predictions.if_valid(jnp.min(expected, axis=-1))
    realized = jnp.sum(jnp.where(predictions.is_true, of_decision, 0), axis=-1)
    spread = jnp.square(of_decision - stated[..., None])
    return Decided(decision, predictions.if_valid(realized), stated, jnp.sum(p * spread, axis=-1))


def _costs(
    predictions: Predictions, *, costs: Any = None, abstain_cost: float | None = None
) -> Columns:
    made = decided(predictions, costs, abstain_cost)
    return Columns({"realized": made.realized, "stated": made.stated})


@metric(_costs, lambda sums: ratio(sums["realized"], sums["weight"]))
def expected_cost(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    costs: Any = None,
    abstain_cost: float | None = None,
) -> Scalar:
    r"""Compute the mean cost of the decisions that the probabilities recommend.

    $$\frac1n \sum_i C_{y_i d_i}$$

    with the decision $d_i$ of least expected cost. Compare it before and after calibration: a
    calibrator that keeps the ranking of the classes changes no accuracy, but does change decisions.

    Args:
      costs: `[classes, decisions]`, as an array or a tuple of rows; 0 for the right class and 1 for
        any other by default, so that the cost is the error rate.
      abstain_cost: the cost of leaving an example to somebody else; None to always decide.

    References:
      Elkan, The foundations of cost-sensitive learning, IJCAI 2001.

    The forecast is 80 % rain on each of 30 days, and 18 of the days are rainy. A bet of 1 on rain
    wins or loses 1. The stated gain per day is 0.6, and the realized gain is 0.2:

    >>> from calib_jax import metrics
    >>> logits = jnp.tile(jnp.log(jnp.array([[0.2, 0.8]])), (30, 1))
    >>> rain = (jnp.arange(30) < 18).astype(int)
    >>> bet = ((0, 1), (0, -1))  # rows: dry, rain; columns: no bet, bet
    >>> metrics.stated_cost(logits, rain, costs=bet)
    Array(-0.6, dtype=float32)
    >>> metrics.expected_cost(logits, rain, costs=bet)
    Array(-0.2, dtype=float32)
    """


@expected_cost.variant()
def stated_cost(sums: Sums) -> Scalar:
    r"""Compute the mean expected cost of the decisions that the probabilities recommend.

    $$\frac1n \sum_i \min_d \sum_k p_{i k} C_{k d}$$

    A calibrated model has the same `expected_cost`, up to noise; see `decision_calibration`.

    Args:
      costs: see `expected_cost`.
      abstain_cost: see `expected_cost`.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.3, 0.7]]))
    >>> metrics.stated_cost(logits, jnp.array([0, 1]), abstain_cost=0.25)
    Array(0.175, dtype=float32)
    """
    return ratio(sums["stated"], sums["weight"])
