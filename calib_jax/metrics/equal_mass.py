r"""Calibration errors over bins of equal mass."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.binning import (
    BinSums,
    calibration_error,
    equal_mass_of_sorted,
    whole_example_bins,
)
from calib_jax.core.inputs import checks
from calib_jax.core.types import Scalar, Vector
from calib_jax.metrics.contract.metric import metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.ranked import Ranked
from calib_jax.metrics.contract.terms import Ranking


def confidences(predictions: Predictions, *, excluded_class: int | None = None) -> Ranking:
    """Return the confidence and hit of every example, to be ranked by confidence.

    Args:
      predictions: view of the logits and labels.
      excluded_class: a class whose probability is set to 0 without renormalising.
    """
    view = predictions.without(excluded_class)
    # A NaN confidence has no rank, so its hit carries the NaN into every sum.
    return Ranking(view.confidence, {"hit": view.hit + 0 * view.confidence})


def equal_mass(ranked: Ranked, num_bins: int, binning: str) -> tuple[BinSums, Vector]:
    """Divide ranked confidences into bins of equal mass; return the sums per bin and the edges."""
    checks.num_bins(num_bins)
    checks.one_of("binning", binning, ("mass", "released"))
    if binning == "released":
        return whole_example_bins(ranked.score, ranked["hit"], ranked.weight, num_bins)
    return equal_mass_of_sorted(ranked.score, ranked["hit"], ranked.weight, num_bins)


@metric(confidences, biased=True)
def adaptive_ece(
    ranked: Ranked, *, num_bins: int = 15, binning: str = "mass", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the adaptive ECE, over bins of equal mass instead of equal width.

    $$\frac1B \sum_b |c_b - a_b|$$

    An example at a boundary between bins is split, and examples of equal confidence are split
    alike, so that the value depends neither on the order of the rows nor on whether an example
    is given k times or once with weight k.

    Args:
      ranked: the examples' confidences and hits.
      num_bins: number of bins. It may exceed the number of examples: an example that spans
        several bins is split over them.
      binning: "mass" as above; "released" as in the code of Mukhoti et al., which assigns whole
        examples to bins (lo, hi] and examples of the lowest confidence to no bin.

    References:
      Nixon et al., Measuring calibration in deep learning, 2019.
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.
    """
    bins, _ = equal_mass(ranked, num_bins, binning)
    if binning == "released":  # divides by all examples, binned or not
        return jnp.sum(jnp.abs(bins.confidence - bins.hit)) / jnp.sum(ranked.weight)
    return calibration_error(bins)


@metric(confidences, biased=True)
def adaptive_mce(
    ranked: Ranked, *, num_bins: int = 15, binning: str = "mass", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the largest gap over bins of equal mass, $\max_b |c_b - a_b|$.

    Every bin holds n/B examples, so no single example can determine the value as in `mce`.

    Args:
      ranked: the examples' confidences and hits.
      num_bins: number of bins; it may exceed the number of examples.
      binning: "mass" or "released", see `adaptive_ece`.
    """
    bins, edges = equal_mass(ranked, num_bins, binning)
    return jnp.where(jnp.isnan(edges[0]), jnp.nan, jnp.max(jnp.abs(bins.gap)))
