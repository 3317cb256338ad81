"""MDCA: the mean probability of each class should be the share of its examples in the batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core.binning import class_sums
from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32, times
from calib_jax.core.probabilities import Probabilities, cross_entropy_and_view, prepare
from calib_jax.core.rows import weigh, weighted_sum
from calib_jax.core.statistics import total
from calib_jax.core.types import (
    Array,
    AxisName,
    Labels,
    Logits,
    Numbers,
    PerExample,
    PyTree,
    Scalar,
    SoftLabels,
    Vector,
    Weights,
)
from calib_jax.losses.focal import focal, focal_uncertainty
from calib_jax.losses.objectives import Objective, make_objective, register


@checks.takes_logits(soft_labels=True, least_examples=2)
def mdca_penalty(
    logits: Logits,
    labels: Labels | SoftLabels,
    weights: Weights | None = None,
    *,
    axis_name: AxisName = None,
) -> Scalar:
    r"""Compute the multi-class difference of confidence and accuracy of a batch.

    $$\frac{1}{K} \sum_k \Bigl| \frac{1}{N} \sum_i p_{ik} - \frac{1}{N} \sum_i q_{ik} \Bigr|$$

    with q the one-hot labels. It is one value for the whole batch: add it to a loss with
    `regularized`. A class that no example has, whose logits are all -inf, is left out of the mean.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      weights: the weight of each example; weight k equals k copies.
      axis_name: a device axis, over which the differences are summed.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Hebbalaguppe et al. 2022, A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for
      Improved Neural Network Calibration.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.6, 0.4]]))
    >>> mdca_penalty(logits, jnp.array([0, 1])).round(4)              # |0.7 - 0.5|
    Array(0.2, dtype=float32)
    """
    if labels.ndim == logits.ndim:
        num_classes = logits.shape[-1]
        p = jax.nn.softmax(at_least_float32(logits)).reshape(-1, num_classes)
        weight = weigh(jnp.ones(logits.shape[:-1], p.dtype), weights).reshape(-1)
        probability = weighted_sum(weight, p)
        share = weighted_sum(weight, labels.reshape(p.shape).astype(p.dtype))
        counted = some_possible(logits, weight, probability + share)
        return _mean_gap(probability - share, counted, weight, axis_name)
    return _of_view(logits, prepare(logits, labels), weights, axis_name)


def _of_view(
    logits: Logits, p: Probabilities, weights: Weights | None, axis_name: AxisName
) -> Scalar:
    # p - q is the probability of the wrong classes, and minus their sum at the true class.
    weight = weigh(jnp.ones_like(p.rest), weights).reshape(-1)
    rest, labels = weight * p.rest.reshape(-1), p.labels.reshape(-1)
    probability = weighted_sum(rest, p.share.reshape(-1, p.share.shape[-1]))
    gap = probability - class_sums(labels, rest, len(probability))
    share = class_sums(labels, weight, len(probability))
    counted = some_possible(logits, weight, probability + share)
    return _mean_gap(gap, counted, weight, axis_name)


def some_possible(
    logits: Logits, weight: Vector, mass: Float[Array, " classes"]
) -> Float[Array, " classes"]:
    """Mark with 1 the classes that occur or are possible in some row of positive weight.

    A probability may round to 0 while the class is possible, so the logits are read where the
    mass of a class, the sum of its probabilities and labels, is 0.
    """

    def possible() -> Float[Array, " classes"]:
        rows = logits.reshape(-1, logits.shape[-1])
        some = jnp.any((rows > -jnp.inf) & (weight > 0)[:, None], axis=0)
        return (some | (mass != 0)).astype(mass.dtype)

    mass = lax.stop_gradient(mass)
    return lax.cond(jnp.all(mass != 0), lambda: jnp.ones_like(mass), possible)


def _mean_gap(
    gap: Float[Array, " classes"],
    counted: Float[Array, " classes"],
    weight: Vector,
    axis_name: AxisName,
) -> Scalar:
    """Average the absolute gaps of the classes that count, over all devices."""
    gap, counted, count = total((gap, counted, jnp.sum(weight)), axis_name)
    mean = jnp.sum(jnp.abs(gap)) / jnp.maximum(jnp.sum(counted != 0, dtype=gap.dtype), 1)
    return mean / jnp.maximum(count, 1e-30)


@register("mdca")
def _mdca(*, scale: Numbers = 1.0, focal_gamma: Numbers = 0.0) -> Objective:
    """Focal loss, cross-entropy with `focal_gamma` 0, plus `scale` times MDCA."""
    uncertainty = focal_uncertainty(gamma=focal_gamma)
    focal_loss = checks.unchecked(focal)
    penalty = checks.unchecked(mdca_penalty)

    def value(
        _: PyTree,
        logits: Logits,
        labels: Labels | SoftLabels,
        weights: Weights | None,
        *,
        axis_name: AxisName,
    ) -> PerExample:
        if labels.ndim == logits.ndim:
            terms = focal_loss(logits, labels, gamma=focal_gamma)
            extra = penalty(logits, labels, weights, axis_name=axis_name)
        else:
            losses, view = cross_entropy_and_view(logits, labels)
            terms = times(uncertainty(view), losses)
            extra = _of_view(logits, view, weights, axis_name)
        return terms + checks.per_example("scale", scale, terms) * extra

    return make_objective(value, soft_labels=True)
