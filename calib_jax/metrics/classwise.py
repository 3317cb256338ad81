r"""Calibration errors of the probabilities of all classes, not only of the predicted one."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, Scalar
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import ClassGaps, ratio


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


def _per_class_ece(sums: Sums) -> Float[Array, " classes"]:
    return ratio(jnp.sum(jnp.abs(sums["gap"]), axis=-1), jnp.sum(sums["weight"]))


@metric(class_gaps, _per_class_ece, biased=True)
def per_class_ece(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    num_bins: int = 15,
    zero_counts: bool = True,
    excluded_class: int | None = None,
) -> Float[Array, " classes"]:
    r"""Compute the ECE of each class's probability against its occurrence.

    $$\mathrm{ECE}_k = \sum_b \frac{n_{kb}}{n} |\bar p_{kb} - \bar o_{kb}|$$

    The sum is over all examples, whatever their class; $\bar o_{kb}$ is the share of class k among
    the examples whose $p_k$ lies in bin b.

    Args:
      num_bins: number of bins of equal width.
      zero_counts: whether a probability of exactly 0 falls into the first bin; in the released
        code it falls into no bin.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """


def _classwise_ece(sums: Sums, *, classes: str = "all") -> Scalar:
    checks.one_of("classes", classes, ("all", "released"))
    errors = jnp.sum(jnp.abs(sums["gap"]), axis=-1)
    num_classes = errors.shape[0]
    if classes == "all":
        return ratio(jnp.sum(errors) / num_classes, jnp.sum(sums["weight"]))
    index = jnp.arange(num_classes)
    count = jnp.max(jnp.where(sums["weight"] > 0, index, -1)) + 1
    total = jnp.sum(jnp.where(index < count, errors, 0))
    return ratio(total, count * jnp.sum(sums["weight"]))


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
