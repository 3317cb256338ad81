r"""Decomposition of the Brier score."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.fixed_bins import bin_sums, confidence_bins


class BrierParts(NamedTuple):
    """The terms of a binned score: reliability - resolution + uncertainty."""

    reliability: Scalar
    resolution: Scalar
    uncertainty: Scalar


@metric(confidence_bins, biased=True)
def brier_decomposition(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> BrierParts:
    r"""Split the top-label Brier score into reliability, resolution and uncertainty.

    With $a$ the accuracy over all bins,

    $$\underbrace{\sum_b \frac{n_b}{n} (c_b - a_b)^2}_{\text{reliability}}
      - \underbrace{\sum_b \frac{n_b}{n} (a_b - a)^2}_{\text{resolution}}
      + \underbrace{a (1 - a)}_{\text{uncertainty}}
      = \frac1n \sum_i (c_{b(i)} - h_i)^2$$

    holds exactly for hits $h_i$ when every confidence is replaced by the mean of its bin. The
    score of the confidences themselves, $\frac1n \sum_i (c_i - h_i)^2$, also contains the
    within-bin variance of the confidence minus twice the within-bin covariance of confidence
    and hit. This difference goes to 0 with the width of the bins.

    The score uses the predicted class alone, in [0, 1]; `brier` sums over all classes.
    The reliability is the square of `rms_calibration_error` (lower is better). The resolution
    measures how well the confidence separates right from wrong predictions (higher is better).
    The uncertainty depends on the accuracy alone.

    References:
      Murphy, A new vector partition of the probability score, Journal of Applied Meteorology
      1973.
      Stephenson et al., Two extra components in the Brier score decomposition, Weather and
      Forecasting 2008.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]]))
    >>> parts = metrics.brier_decomposition(logits, jnp.array([0, 0, 0, 1]))
    >>> {name: round(float(value), 4) for name, value in parts._asdict().items()}
    {'reliability': 0.01, 'resolution': 0.0625, 'uncertainty': 0.1875}
    """
    bins = bin_sums(sums)
    total = jnp.sum(bins.weight)
    accuracy = ratio(jnp.sum(bins.hit), total)
    above = jnp.where(bins.weight > 0, ratio(bins.hit, bins.weight) - accuracy, 0)
    return BrierParts(
        reliability=ratio(jnp.sum(bins.weight * jnp.square(bins.gap)), total),
        resolution=ratio(jnp.sum(bins.weight * jnp.square(above)), total),
        uncertainty=accuracy * (1 - accuracy),
    )
