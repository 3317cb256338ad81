r"""Calibration errors of the prediction's confidence, over bins of equal width.

Bins are (lo, hi], the first also closed on the left, compared in float32. All metrics here are
functions of three sums per bin, written as the number of examples $n_b$, the mean confidence $c_b$
and the accuracy $a_b$, with $\Delta_b = c_b - a_b$.
"""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.binning import BINNING_RULES, BinSums, calibration_error
from calib_jax.core.inputs import checks
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns


def confidence_bins(
    predictions: Predictions,
    *,
    num_bins: int = 15,
    edges: str = "right",
    excluded_class: int | None = None,
) -> Columns:
    """Sum weight, confidence and hits per bin; every metric of this module has these options.

    Args:
      predictions: view of the logits and labels.
      num_bins: number of bins of equal width.
      edges: "right" for bins (lo, hi]; "left" for [lo, hi), the last bin closed, as in the
        MMCE script and in BSCE-GRA's confidence plots; "ceil" for the index ceil(B c) - 1 in
        float64, as in the released list metrics.
      excluded_class: a class whose probability is set to 0 without renormalising, so that it is
        never predicted; the released SST evaluation excludes its neutral class this way.
    """
    checks.num_bins(num_bins)
    checks.one_of("edges", edges, BINNING_RULES)
    view = predictions.without(excluded_class)
    cell = BINNING_RULES[edges](view.confidence, num_bins)
    return Columns({"confidence": view.confidence, "hit": view.hit}, cell, num_bins)


def bin_sums(sums: Sums) -> BinSums:
    """View the statistic of `confidence_bins` as sums per bin."""
    return BinSums(sums["weight"], sums["confidence"], sums["hit"])


@metric(confidence_bins, biased=True)
def ece(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the expected calibration error.

    $$\sum_b \frac{n_b}{n} |c_b - a_b|$$

    References:
      Naeini et al., Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
      Guo et al., On calibration of modern neural networks, ICML 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]))
    >>> metrics.ece(logits, jnp.array([0, 1, 1]))
    Array(0.4, dtype=float32)
    """
    return calibration_error(bin_sums(sums))


@metric(confidence_bins, biased=True)
def mce(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the maximum calibration error over non-empty bins.

    $$\max_b |c_b - a_b|$$

    A single example alone in a bin can determine the value, so report it with its interval.

    References:
      Naeini et al., Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    """
    bins = bin_sums(sums)
    return jnp.where(jnp.sum(bins.weight) > 0, jnp.max(jnp.abs(bins.gap)), jnp.nan)


@metric(confidence_bins, biased=True)
def ace(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the average calibration error, the unweighted mean over non-empty bins.

    $$\frac{1}{|\{b : n_b > 0\}|} \sum_{b : n_b > 0} |c_b - a_b|$$

    References:
      Neumann et al., Relaxed softmax: efficient confidence auto-calibration for safe
      pedestrian detection, 2018.
    """
    bins = bin_sums(sums)
    return ratio(jnp.sum(jnp.abs(bins.gap)), jnp.sum(bins.weight > 0, dtype=bins.gap.dtype))


@metric(confidence_bins, biased=True)
def rms_calibration_error(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the root mean square calibration error, the L2 form of ECE.

    $$\sqrt{\sum_b \frac{n_b}{n} (c_b - a_b)^2}$$
    """
    bins = bin_sums(sums)
    # Divide before multiplying: tiny weights times squared gaps underflow.
    share = ratio(bins.weight, jnp.sum(bins.weight))
    return jnp.sqrt(jnp.sum(share * jnp.square(bins.gap)))


@metric(confidence_bins, biased=True)
def overconfidence(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the part of ECE from bins whose confidence exceeds their accuracy.

    $$\sum_b \frac{n_b}{n} \max(c_b - a_b, 0)$$

    `overconfidence` + `underconfidence` is the ECE, and `overconfidence` - `underconfidence` is
    the `signed_gap`.
    """
    bins = bin_sums(sums)
    excess = jnp.maximum(bins.confidence - bins.hit, 0)
    return ratio(jnp.sum(excess), jnp.sum(bins.weight))


@metric(confidence_bins, biased=True)
def underconfidence(
    sums: Sums, *, num_bins: int = 15, edges: str = "right", excluded_class: int | None = None
) -> Scalar:
    r"""Compute the part of ECE from bins whose accuracy exceeds their confidence.

    $$\sum_b \frac{n_b}{n} \max(a_b - c_b, 0)$$
    """
    bins = bin_sums(sums)
    lack = jnp.maximum(bins.hit - bins.confidence, 0)
    return ratio(jnp.sum(lack), jnp.sum(bins.weight))
