r"""Calibration errors over bins of equal mass, and errors without the bias of the plug-in estimate.

The squared gap of a bin, $\Delta_b^2$, is too large on average by the variance of its accuracy
$a_b$. The debiased metrics subtract the unbiased estimate of that variance,
$a_b (1 - a_b) / (n_b - 1)$, where $n_b$ is the sum of the weights in the bin, so that a weight k
equals k copies. A bin with $n_b < 2$ has no variance estimate and contributes 0 to the sum, but its
examples count in n.
"""

import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.binning import BinSums, equal_mass_of_sorted, whole_example_bins
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar, Vector
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.ranked import Ranked
from calib_jax.metrics.contract.terms import Kept, ratio
from calib_jax.metrics.fixed_bins import bin_sums, ece


def confidences(predictions: Predictions, *, excluded_class: int | None = None) -> Kept:
    """Return the confidence and hit of every example, to be ranked by confidence.

    Args:
      predictions: view of the logits and labels.
      excluded_class: a class whose probability is set to 0 without renormalising.
    """
    view = predictions.without(excluded_class)
    # A NaN confidence has no rank, so its hit carries the NaN into every sum.
    return Kept({"score": view.confidence, "hit": view.hit + 0 * view.confidence})


def equal_mass(ranked: Ranked, num_bins: int, binning: str) -> tuple[BinSums, Vector]:
    """Divide ranked confidences into bins of equal mass; return the sums per bin and the edges."""
    checks.num_bins(num_bins)
    checks.one_of("binning", binning, ("mass", "released"))
    if binning == "released":
        return whole_example_bins(ranked.score, ranked["hit"], ranked.weight, num_bins)
    return equal_mass_of_sorted(ranked.score, ranked["hit"], ranked.weight, num_bins)


def _adaptive_ece(ranked: Ranked, *, num_bins: int = 15, binning: str = "mass") -> Scalar:
    bins, _ = equal_mass(ranked, num_bins, binning)
    # The released code divides by all examples, binned or not.
    weight = ranked.weight if binning == "released" else bins.weight
    return jnp.sum(jnp.abs(bins.confidence - bins.hit)) / jnp.sum(weight)


@metric(confidences, _adaptive_ece, biased=True)
def adaptive_ece(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    num_bins: int = 15,
    binning: str = "mass",
    excluded_class: int | None = None,
) -> Scalar:
    r"""Compute the adaptive ECE, over bins of equal mass instead of equal width.

    $$\frac1B \sum_b |c_b - a_b|$$

    An example at a boundary between bins is split, and examples of equal confidence are split
    alike, so that the value depends neither on the order of the rows nor on whether an example
    is given k times or once with weight k.

    Args:
      num_bins: number of bins. It may exceed the number of examples: an example that spans
        several bins is split over them.
      binning: "mass" as above; "released" as in the code of Mukhoti et al., which assigns whole
        examples to bins (lo, hi] and examples of the lowest confidence to no bin.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Nixon et al., Measuring calibration in deep learning, 2019.
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.
    """


@adaptive_ece.variant(biased=True)
def adaptive_mce(ranked: Ranked, *, num_bins: int = 15, binning: str = "mass") -> Scalar:
    r"""Compute the largest gap over bins of equal mass, $\max_b |c_b - a_b|$.

    Every bin holds n/B examples, so no single example can determine the value as in `mce`.

    Args:
      num_bins: number of bins; it may exceed the number of examples.
      binning: "mass" or "released", see `adaptive_ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """
    bins, edges = equal_mass(ranked, num_bins, binning)
    return jnp.where(jnp.isnan(edges[0]), jnp.nan, jnp.max(jnp.abs(bins.gap)))


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


@ece.variant(biased=True)
def debiased_rms_calibration_error(sums: Sums) -> Scalar:
    r"""Compute the debiased root mean square calibration error, over bins of equal width.

    $$\sqrt{\max\Bigl(0, \sum_{b : n_b \ge 2} \frac{n_b}{n}
      \Bigl( (c_b - a_b)^2 - \frac{a_b (1 - a_b)}{n_b - 1} \Bigr) \Bigr)}$$

    Without the variance term it is `rms_calibration_error`, which is positive even for a
    calibrated model. A negative estimate is clipped to 0 before the root.

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Kumar, Liang and Ma, Verified uncertainty calibration, NeurIPS 2019.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]))
    >>> metrics.debiased_rms_calibration_error(logits, jnp.array([1, 1, 0, 1]))
    Array(0.6, dtype=float32)
    """
    return _debiased_rms(bin_sums(sums))


@adaptive_ece.variant(biased=True)
def adaptive_debiased_rms_calibration_error(
    ranked: Ranked, *, num_bins: int = 15, binning: str = "mass"
) -> Scalar:
    r"""Compute the debiased root mean square calibration error, over bins of equal mass.

    It uses the formula of `debiased_rms_calibration_error` and the bins of `adaptive_ece`, which
    split an example at a boundary, so that $n_b = n / B$.

    Args:
      num_bins: number of bins; it may exceed the number of examples.
      binning: "mass" or "released", see `adaptive_ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Kumar, Liang and Ma, Verified uncertainty calibration, NeurIPS 2019.
    """
    return _debiased_rms(equal_mass(ranked, num_bins, binning)[0])
