r"""Calibration errors without the noise that finite bins add to the plug-in estimate.

The squared gap of a bin, $\Delta_b^2$, is too large on average by the variance of its accuracy
$a_b$. What is taken off is the unbiased estimate of that variance, $a_b (1 - a_b) / (n_b - 1)$,
with $n_b$ the sum of the weights in the bin, so that a weight k means k copies. A bin with
$n_b < 2$ has no estimate of its variance and adds nothing to the sum, though its examples count
in n.
"""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.binning import BinSums
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract import metric, ratio
from calib_jax.metrics.equal_mass import confidences, equal_mass
from calib_jax.metrics.fixed_bins import confidence_bins
from calib_jax.metrics.ranked import Ranked

__all__ = ["adaptive_debiased_rms_calibration_error", "debiased_rms_calibration_error"]


def _debiased_rms(bins: BinSums) -> Scalar:
    count = bins.weight
    # What is next to 2 by rounding is 2: bins of equal mass hold n / B, a fraction.
    enough = count >= 2 * (1 - 8 * float(jnp.finfo(count.dtype).eps))
    accuracy = bins.hit / jnp.where(enough, count, 1)
    variance = accuracy * (1 - accuracy) / jnp.where(enough, count - 1, 1)
    squared = jnp.where(enough, jnp.square(bins.gap) - variance, 0)
    # A NaN stays one, also where it makes no bin large enough.
    squared = squared + 0 * (bins.confidence + bins.hit)
    return jnp.sqrt(jnp.maximum(ratio(jnp.sum(count * squared), jnp.sum(count)), 0))


@metric(confidence_bins, biased=True)
def debiased_rms_calibration_error(sums: Sums) -> Scalar:
    r"""Compute the debiased root mean square calibration error, over bins of equal width.

    $$\sqrt{\max\Bigl(0, \sum_{b : n_b \ge 2} \frac{n_b}{n}
      \Bigl( (c_b - a_b)^2 - \frac{a_b (1 - a_b)}{n_b - 1} \Bigr) \Bigr)}$$

    Without the term that is taken off it is `rms_calibration_error`, which is positive even for
    a calibrated model. Before the root the estimate may be negative; it then counts as 0.

    References:
      Kumar, Liang and Ma, Verified uncertainty calibration, NeurIPS 2019.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]))
    >>> metrics.debiased_rms_calibration_error(logits, jnp.array([1, 1, 0, 1]))
    Array(0.6, dtype=float32)
    """
    return _debiased_rms(BinSums(sums["weight"], sums["confidence"], sums["hit"]))


@metric(confidences, biased=True)
def adaptive_debiased_rms_calibration_error(ranked: Ranked, *, num_bins: int = 15) -> Scalar:
    r"""Compute the debiased root mean square calibration error, over bins of equal mass.

    The formula is that of `debiased_rms_calibration_error`; the bins are those of
    `adaptive_ece`, where an example at a boundary is split, so that $n_b = n / B$.

    Args:
      ranked: the examples' confidences and hits.
      num_bins: how many bins; there may be fewer examples.

    References:
      Kumar, Liang and Ma, Verified uncertainty calibration, NeurIPS 2019.
    """
    return _debiased_rms(equal_mass(ranked, num_bins, "mass")[0])
