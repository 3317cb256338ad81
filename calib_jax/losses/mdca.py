"""MDCA: the mean probability of each class should be the share of its examples in the batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.probabilities import prepare
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.types import (
    Array,
    AxisName,
    Labels,
    Logits,
    Numbers,
    Scalar,
    SoftLabels,
    Vector,
    Weights,
)
from calib_jax.losses.focal import focal
from calib_jax.losses.objectives import Objective, register, regularized, with_options


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
    `regularized`. A class that neither occurs nor has any probability is left out of the mean.

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
    num_classes = logits.shape[-1]
    rows, ones = logits.reshape(-1, num_classes), jnp.ones(logits.shape[:-1])
    weight = weigh(ones.astype(at_least_float32(logits).dtype), weights).reshape(-1)
    if labels.ndim == logits.ndim:
        probability = _sum(weight, jax.nn.softmax(at_least_float32(rows)))
        share = _sum(weight, labels.reshape(rows.shape).astype(weight.dtype))
        gap = probability - share
    else:
        # p - q is the probability of the wrong classes, and minus their sum at the true class.
        p = prepare(rows, labels.reshape(-1))
        probability = _sum(weight * p.rest, p.share)
        gap = probability.at[p.labels].add(-weight * p.rest)
        share = jnp.zeros_like(gap).at[p.labels].add(weight)
    gap, mass, count = total((gap, probability + share, jnp.sum(weight)), axis_name)
    mean = jnp.sum(jnp.abs(gap)) / jnp.maximum(jnp.sum(mass != 0), 1)
    return mean / jnp.maximum(count, 1e-30)


def _sum(weight: Vector, rows: Float[Array, "rows classes"]) -> Float[Array, " classes"]:
    """Sum weighted rows."""
    return jnp.matmul(weight, rows, precision=lax.Precision.HIGHEST)


@register("mdca")
@checks.takes_options_of(mdca_penalty, without=["axis_name"])
def _mdca(*, scale: Numbers = 1.0, focal_gamma: Numbers = 0.0, **options: Any) -> Objective:
    """Focal loss, cross-entropy with `focal_gamma` 0, plus `scale` times MDCA."""
    loss = with_options(focal, gamma=focal_gamma)
    return regularized(loss, with_options(mdca_penalty, **options), scale)
