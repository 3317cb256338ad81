"""DCA: the mean confidence of a batch should be its accuracy."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.top_label import TopLabel, cross_entropy_and_top_label
from calib_jax.core.types import AxisName, Labels, Logits, Numbers, Scalar, Weights
from calib_jax.losses.cross_entropy import with_top_label_penalty
from calib_jax.losses.objectives import Objective, register


@checks.takes_logits(least_examples=2)
def dca_penalty(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, axis_name: AxisName = None
) -> Scalar:
    r"""Compute the difference of the confidence and the accuracy of a batch.

    $$\Bigl| \frac{1}{N} \sum_i c_i - \frac{1}{N} \sum_i 1[\hat y_i = y_i] \Bigr|$$

    with $c$ the top-label confidence. It is one value for the whole batch: add it to a loss with
    `regularized`. Gradients flow through c; the accuracy is constant.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      axis_name: a device axis, over which the confidences and hits are summed.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Liang et al. 2020, Improved Trainable Calibration Method for Neural Networks on Medical
      Imaging Classification.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.6, 0.4]]))
    >>> dca_penalty(logits, jnp.array([0, 1])).round(4)               # |0.7 - 0.5|
    Array(0.2, dtype=float32)
    """
    return _of_top_label(cross_entropy_and_top_label(logits, labels), weights, axis_name)


def _of_top_label(top: TopLabel, weights: Weights | None, axis_name: AxisName) -> Scalar:
    count = jnp.sum(weigh(jnp.ones_like(top.hit), weights))
    gap, count = total((jnp.sum(weigh(top.confidence - top.hit, weights)), count), axis_name)
    return jnp.abs(gap) / jnp.maximum(count, 1e-30)


@register("dca")
def _dca(*, scale: Numbers = 1.0) -> Objective:
    """Cross-entropy plus `scale` times DCA."""
    return with_top_label_penalty(_of_top_label, scale)
