r"""ESD: an unbiased estimate of the expected squared difference of confidence and accuracy.

The square of a mean over the examples of lower confidence is estimated by a mean over pairs of
different examples, which needs a sort and two running sums instead of all pairs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import ordered_bits
from calib_jax.core.statistics import gather
from calib_jax.core.top_label import TopLabel, cross_entropy_and_top_label
from calib_jax.core.types import AxisName, Labels, Logits, Numbers, Scalar, Vector, Weights
from calib_jax.losses.cross_entropy import with_top_label_penalty
from calib_jax.losses.kernel_calibration import gathered
from calib_jax.losses.objectives import Objective, register


@checks.takes_logits(least_examples=3)
def esd_penalty(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, axis_name: AxisName = None
) -> Scalar:
    r"""Compute the expected squared difference of confidence and accuracy, without bias.

    $$\frac{1}{N} \sum_i \frac{1}{(N-1)(N-2)} \sum_{j \ne k; \; j, k \ne i}
      e_j e_k \, 1[c_j \le c_i] \, 1[c_k \le c_i], \qquad e_i = 1[\hat y_i = y_i] - c_i$$

    with $c$ the top-label confidence. Each term estimates the square of the mean of e over the
    confidences up to $c_i$. It is one value for the whole batch, and may be negative: add it to a
    loss with `regularized`. Gradients flow through e, not through the order of the confidences.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      axis_name: a device axis, over which the examples are gathered; every device returns the
        value of the global batch.

    Returns:
      A scalar, 0 unless the weights sum to more than 2.

    References:
      Yoon et al. 2023, ESD: Expected Squared Difference as a Tuning-Free Trainable Calibration
      Measure.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.75, 0.25]] * 3))
    >>> esd_penalty(logits, jnp.array([1, 1, 1])).round(4)            # e = -0.75 for each
    Array(0.5625, dtype=float32)
    """
    return _of_top_label(cross_entropy_and_top_label(logits, labels), weights, axis_name)


def _of_top_label(top: TopLabel, weights: Weights | None, axis_name: AxisName) -> Scalar:
    confidence, hit, weight = gathered(top, weights, axis_name)
    error = jnp.where(weight == 0, 0, hit - confidence)
    # Many confidences round to 1; the odds against the prediction still order them.
    place = -ordered_bits(gather(top.odds_against.reshape(-1), axis_name))
    group = jnp.searchsorted(jnp.sort(place), place, method="scan_unrolled")

    def up_to(values: Vector) -> Vector:
        """Sum, for each row, the values of the rows whose confidence is at most its own."""
        return jnp.cumsum(jax.ops.segment_sum(values, group, len(group)))[group]

    below = up_to(weight * error) - error
    squares = up_to(weight * jnp.square(error)) - jnp.square(error)
    count = jnp.sum(weight)
    terms = jnp.sum(weight * (jnp.square(below) - squares))
    enough = ~(count <= 2)  # propagates the NaN of a label out of range
    n = jnp.where(enough, count, 3)
    return jnp.where(enough, terms / (n * (n - 1) * (n - 2)), 0)


@register("esd")
def _esd(*, scale: Numbers = 1.0) -> Objective:
    """Cross-entropy plus `scale` times ESD."""
    return with_top_label_penalty(_of_top_label, scale)
