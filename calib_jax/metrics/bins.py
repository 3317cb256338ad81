r"""Calibration errors over bins: of the prediction's confidence, or of every class's probability.

Bins of equal width are (lo, hi], the first also closed on the left, compared in float32. All
metrics here are functions of three sums per bin, written as the number of examples $n_b$, the mean
confidence $c_b$ and the accuracy $a_b$, with $\Delta_b = c_b - a_b$.

*Errors without the bias of the plug-in estimate.* The squared gap of a bin, $\Delta_b^2$, is too
large on average by the variance of its accuracy $a_b$. The debiased metrics subtract the unbiased
estimate of that variance, $a_b (1 - a_b) / (n_b - 1)$, where $n_b$ is the sum of the weights in the
bin, so that a weight k equals k copies. A bin with $n_b < 2$ has no variance estimate and
contributes 0 to the sum, but its examples count in n.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import arrays, checks
from calib_jax.core.binning import BINNING_RULES, BinSums, equal_mass_bins, whole_example_bins
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, Scalar, Vector
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.terms import ClassGaps, Columns, Kept, Ranked, ratio


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
        float64, as in the released metrics of lists of confidences.
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


def _calibration_error(sums: Sums) -> Scalar:
    bins = bin_sums(sums)
    return jnp.sum(jnp.abs(bins.confidence - bins.hit)) / jnp.sum(bins.weight)


@metric(confidence_bins, _calibration_error, biased=True)
def ece(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    num_bins: int = 15,
    edges: str = "right",
    excluded_class: int | None = None,
) -> Scalar:
    r"""Compute the expected calibration error.

    $$\sum_b \frac{n_b}{n} |c_b - a_b|$$

    with the number $n_b$, the mean confidence $c_b$ and the accuracy $a_b$ of the examples whose
    confidence lies in bin b.

    Args:
      num_bins: number of bins of equal width.
      edges: "right" for bins (lo, hi]; "left" for [lo, hi), the last bin closed, as in the MMCE
        script and in BSCE-GRA's confidence plots; "ceil" for the index ceil(B c) - 1 in float64, as
        in the released metrics of lists of confidences.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Naeini et al., Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
      Guo et al., On calibration of modern neural networks, ICML 2017.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]))
    >>> metrics.ece(logits, jnp.array([0, 1, 1]))
    Array(0.4, dtype=float32)
    """


@ece.variant(biased=True)
def mce(sums: Sums) -> Scalar:
    r"""Compute the maximum calibration error over non-empty bins.

    $$\max_b |c_b - a_b|$$

    A single example alone in a bin can determine the value, so report it with its interval.

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Naeini et al., Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    """
    bins = bin_sums(sums)
    return jnp.where(jnp.sum(bins.weight) > 0, jnp.max(jnp.abs(bins.gap)), jnp.nan)


@ece.variant(biased=True)
def average_calibration_error(sums: Sums) -> Scalar:
    r"""Compute the average calibration error, the unweighted mean over non-empty bins.

    $$\frac{1}{|\{b : n_b > 0\}|} \sum_{b : n_b > 0} |c_b - a_b|$$

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Neumann et al., Relaxed softmax: efficient confidence auto-calibration for safe
      pedestrian detection, 2018.
    """
    bins = bin_sums(sums)
    return ratio(jnp.sum(jnp.abs(bins.gap)), jnp.sum(bins.weight > 0, dtype=bins.gap.dtype))


@ece.variant(biased=True)
def rms_calibration_error(sums: Sums) -> Scalar:
    r"""Compute the root mean square calibration error, the L2 form of ECE.

    $$\sqrt{\sum_b \frac{n_b}{n} (c_b - a_b)^2}$$

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """
    bins = bin_sums(sums)
    # Divide before multiplying: tiny weights times squared gaps underflow.
    share = ratio(bins.weight, jnp.sum(bins.weight))
    return jnp.sqrt(jnp.sum(share * jnp.square(bins.gap)))


@ece.variant(biased=True)
def overconfidence(sums: Sums) -> Scalar:
    r"""Compute the part of ECE from bins whose confidence exceeds their accuracy.

    $$\sum_b \frac{n_b}{n} \max(c_b - a_b, 0)$$

    `overconfidence` + `underconfidence` is the ECE, and `overconfidence` - `underconfidence` is
    the `signed_gap`.

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """
    bins = bin_sums(sums)
    excess = jnp.maximum(bins.confidence - bins.hit, 0)
    return ratio(jnp.sum(excess), jnp.sum(bins.weight))


@ece.variant(biased=True)
def underconfidence(sums: Sums) -> Scalar:
    r"""Compute the part of ECE from bins whose accuracy exceeds their confidence.

    $$\sum_b \frac{n_b}{n} \max(a_b - c_b, 0)$$

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """
    bins = bin_sums(sums)
    lack = jnp.maximum(bins.hit - bins.confidence, 0)
    return ratio(jnp.sum(lack), jnp.sum(bins.weight))


class BrierParts(NamedTuple):
    """The terms of a binned score: reliability - resolution + uncertainty."""

    reliability: Scalar
    resolution: Scalar
    uncertainty: Scalar


@ece.variant(biased=True)
def brier_decomposition(sums: Sums) -> BrierParts:
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

    Args:
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

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


# --------------------------------------------------------------------------------------------
# Released code that no option covers.

_EPSILON = 1e-5  # added by the script to probabilities and counts


class MmceScript(NamedTuple):
    """The script's results; the arrays per bin have one more entry than there are bins."""

    brier: Scalar
    nll: Scalar
    ece: Scalar
    confidence: Float[Array, " bins_and_one"]
    accuracy: Float[Array, " bins_and_one"]
    weight: Float[Array, " bins_and_one"]


@arrays.takes_logits()
def mmce_script(
    probabilities: Array,
    labels: Array,
    *,
    inverse_temperature: float | Array = 1.0,
    num_bins: int = 10,
) -> MmceScript:
    r"""Compute the results of MMCE's calibration script.

    With $p' = \mathrm{softmax}(T \log(p + 10^{-5}))$ the script computes the NLL and Brier score of
    $p'$, bins its confidences by $\lfloor B c \rfloor$, and divides the sums of each bin by its
    count plus $10^{-5}$. Entry B, of confidences that are exactly 1, is merged into the previous
    entry and left empty.

    Args:
      probabilities: `[*batch, classes]`.
      labels: the true classes.
      inverse_temperature: T; it multiplies logarithms, so it is an inverse temperature.
      num_bins: B.

    References:
      Kumar et al., Trainable calibration measures for neural networks from kernel mean
      embeddings, ICML 2018; get_calibration.py of its repository.
    """
    checks.num_bins(num_bins)
    logits = inverse_temperature * jnp.log(probabilities + _EPSILON)
    view = Predictions(logits, labels)
    cell = jnp.minimum(jnp.floor(num_bins * view.confidence).astype(jnp.int32), num_bins - 1)
    columns = {"confidence": view.confidence, "hit": view.hit}
    sums = Columns(columns, cell, num_bins + 1).weigh(None)
    means = {name: sums[name] / (sums["weight"] + _EPSILON) for name in columns}
    gap = jnp.abs(means["confidence"] - means["hit"])
    brier = jnp.mean(view.if_valid(jnp.sum(jnp.square(view.p - view.is_true), axis=-1)))
    ece = jnp.sum(sums["weight"] * gap) / jnp.sum(sums["weight"])
    of_bins = means["confidence"], means["hit"], sums["weight"]
    return MmceScript(brier, -jnp.mean(view.log_true), ece, *of_bins)


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
    return equal_mass_bins(ranked.score, ranked["hit"], ranked.weight, num_bins)


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


# --------------------------------------------------------------------------------------------
# Every class, not only the predicted one.


def class_gaps(
    predictions: Predictions,
    *,
    num_bins: int = 15,
    zero_counts: bool = True,
    excluded_class: int | None = None,
) -> ClassGaps:
    """Sum probability minus occurrence per class and bin.

    Args:
      predictions: view of the logits and labels.
      num_bins: number of bins (lo, hi] of equal width.
      zero_counts: whether a probability of exactly 0 falls into the first bin; in the released
        code it falls into no bin.
      excluded_class: a class whose probability is set to 0 without renormalising.
    """
    checks.num_bins(num_bins)
    view = predictions.without(excluded_class)
    return ClassGaps(view.p, view.labels, num_bins, zero_counts)


def _classwise_ece(sums: Sums, *, classes: str = "all") -> Scalar:
    checks.one_of("classes", classes, ("all", "released"))
    errors = jnp.sum(jnp.abs(sums["gap"]), axis=-1)
    index = jnp.arange(len(errors))
    last = jnp.max(jnp.where(sums["weight"] > 0, index, -1))
    included = index <= (len(errors) if classes == "all" else last)
    total = jnp.sum(jnp.where(included, errors, 0)) / jnp.sum(included, dtype=errors.dtype)
    return ratio(total, jnp.sum(sums["weight"]))


@metric(class_gaps, _classwise_ece, biased=True)
def classwise_ece(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    classes: str = "all",
    num_bins: int = 15,
    zero_counts: bool = True,
    excluded_class: int | None = None,
) -> Scalar:
    r"""Compute the classwise ECE, also called static calibration error (SCE).

    $$\frac1K \sum_k \sum_b \frac{n_{kb}}{n} |\bar p_{kb} - \bar o_{kb}|$$

    Args:
      classes: "all" averages over all K classes; "released" averages over the first
        max(label) + 1 classes, as the released code does: fewer than K if the last classes have no
        examples.
      num_bins: number of bins of equal width.
      zero_counts: whether a probability of exactly 0 falls into the first bin; in the released
        code it falls into no bin.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Nixon et al., Measuring calibration in deep learning, 2019.
      Kull et al., Beyond temperature scaling, NeurIPS 2019.
    """


sce = classwise_ece  # the name in Nixon et al. and in the text experiments' released code


@classwise_ece.variant(biased=True)
def per_class_ece(sums: Sums, *, classes: str = "all") -> Float[Array, " classes"]:
    r"""Compute the ECE of each class's probability against its occurrence.

    $$\mathrm{ECE}_k = \sum_b \frac{n_{kb}}{n} |\bar p_{kb} - \bar o_{kb}|$$

    The sum is over all examples, whatever their class; $\bar o_{kb}$ is the share of class k among
    the examples whose $p_k$ lies in bin b.

    Args:
      classes: "all", or "released" for NaN in the classes above the largest label.
      num_bins: number of bins of equal width.
      zero_counts: whether a probability of exactly 0 falls into the first bin; in the released
        code it falls into no bin.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """
    checks.one_of("classes", classes, ("all", "released"))
    errors = ratio(jnp.sum(jnp.abs(sums["gap"]), axis=-1), jnp.sum(sums["weight"]))
    labelled = jnp.cumsum(sums["weight"][::-1])[::-1] > 0
    return errors if classes == "all" else jnp.where(labelled, errors, jnp.nan)
