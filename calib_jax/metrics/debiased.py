r"""Calibration errors without the bias that noise in finite bins adds to the plug-in estimate.

The squared gap of a bin, $\Delta_b^2$, is too large on average by the variance of its accuracy
$a_b$. The metrics subtract the unbiased estimate of that variance, $a_b (1 - a_b) / (n_b - 1)$,
where $n_b$ is the sum of the weights in the bin, so that a weight k equals k copies. A bin with
$n_b < 2$ has no variance estimate and contributes 0 to the sum, but its examples count in n.
"""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.binning import BinSums
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.ranked import Ranked
from calib_jax.metrics.equal_mass import confidences, equal_mass
from calib_jax.metrics.fixed_bins import bin_sums, confidence_bins


def _debiased_rms(bins: BinSums) -> Scalar:
    count = bins.weight
    # Accept a count slightly below 2, because equal-mass bins hold the rounded fraction n / B.
    enough = count >= 2 * (1 - 8 * float(jnp.finfo(count.dtype).eps))
    accuracy = bins.hit / jnp.where(enough, count, 1)
    variance = accuracy * (1 - accuracy) / jnp.where(enough, count - 1, 1)
    squared = jnp.where(enough, jnp.square(bins.gap) - variance, 0)
    # Propagate NaN even when no bin has two examples.
    squared = squared + 0 * (bins.confidence + bins.hit)
    estimate = ratio(jnp.sum(count * squared), jnp.sum(count))
    # The derivative of the root at 0 is infinite, and 0 times it NaN. A NaN is not clipped.
    clipped = estimate <= 0
    return jnp.where(clipped, 0, jnp.sqrt(jnp.where(clipped, 1, estimate)))


@metric(confidence_bins, biased=True)
def debiased_rms_calibration_error(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the debiased root mean square calibration error, over bins of equal width.

    $$\sqrt{\max\Bigl(0, \sum_{b : n_b \ge 2} \frac{n_b}{n}
      \Bigl( (c_b - a_b)^2 - \frac{a_b (1 - a_b)}{n_b - 1} \Bigr) \Bigr)}$$

    Without the variance term it is `rms_calibration_error`, which is positive even for a
    calibrated model. A negative estimate is clipped to 0 before the root.

    References:
      Kumar, Liang and Ma, Verified uncertainty calibration, NeurIPS 2019.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]))
    >>> metrics.debiased_rms_calibration_error(logits, jnp.array([1, 1, 0, 1]))
    Array(0.6, dtype=float32)
    """
    return _debiased_rms(bin_sums(sums))


@metric(confidences, biased=True)
def adaptive_debiased_rms_calibration_error(
    ranked: Ranked, *, num_bins: int = 15, excluded_class: int | None = None
) -> Scalar:
    r"""Compute the debiased root mean square calibration error, over bins of equal mass.

    It uses the formula of `debiased_rms_calibration_error` and the bins of `adaptive_ece`, which
    split an example at a boundary, so that $n_b = n / B$.

    Args:
      ranked: the examples' confidences and hits.
      num_bins: number of bins; it may exceed the number of examples.

    References:
      Kumar, Liang and Ma, Verified uncertainty calibration, NeurIPS 2019.
    """
    return _debiased_rms(equal_mass(ranked, num_bins, "mass")[0])
