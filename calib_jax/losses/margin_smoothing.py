"""Margin-based label smoothing: a penalty on logits that are far below the largest one."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import of_classes, times
from calib_jax.core.types import Labels, Logits, Numbers, PerExample, SoftLabels
from calib_jax.losses.cross_entropy import cross_entropy_and_gaps
from calib_jax.losses.objectives import register_loss

REDUCTIONS = ("mean", "sum")


@checks.takes_logits(soft_labels=True)
def margin_smoothing(
    logits: Logits,
    labels: Labels | SoftLabels,
    *,
    margin: Numbers = 10.0,
    alpha: Numbers = 0.1,
    class_reduction: str = "mean",
) -> PerExample:
    r"""Compute cross-entropy plus a penalty on logits further than a margin below the largest.

    $$\ell = -\log p_y + \frac{\alpha}{K} \sum_k \max(0, \max_j z_j - z_k - m)$$

    Label smoothing pulls all logits together; the margin limits their distances instead, so the
    penalty is 0 for logits within m of the largest. A class of logit -inf makes it infinite.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      margin: m, at least 0; 0 penalises every distance.
      alpha: the weight of the penalty, at least 0; 0 is cross-entropy.
      class_reduction: "mean" over the classes, as in the released code, whose alpha of 0.1 is the
        published value; "sum", the formula of the paper, which is K times as large.

    Returns:
      One value per example, in float32 or float64.

    References:
      Liu et al. 2022, The Devil is in the Margin: Margin-based Label Smoothing for Network
      Calibration. Zhou et al. 2025, MaxSup: Overcoming Representation Collapse in Label
      Smoothing, whose max z - mean z is the case m = 0 with the mean.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.array([[30.0, 0.0]]), jnp.array([0])
    >>> margin_smoothing(logits, labels)                                 # 0.1 (30 - 10) / 2
    Array([1.], dtype=float32)
    """
    checks.at_least("margin", margin, 0)
    checks.at_least("alpha", alpha, 0)
    checks.one_of("class_reduction", class_reduction, REDUCTIONS)
    losses, gaps = cross_entropy_and_gaps(logits, labels)
    if not (isinstance(margin, float) and margin == 0):  # no gap is negative
        excess = gaps - of_classes(checks.per_example("margin", margin, losses))
        gaps = jnp.where(excess > 0, excess, 0)
    penalty = jnp.sum(gaps, axis=-1)
    if class_reduction == "mean":
        penalty = penalty / logits.shape[-1]
    weight = jnp.asarray(checks.per_example("alpha", alpha, losses), losses.dtype)
    return losses + times(jnp.broadcast_to(weight, losses.shape), penalty)


register_loss("margin_smoothing", margin_smoothing)
# The mean distance of all logits below the largest is max z - mean z, the penalty of MaxSup.
register_loss("max_suppression", margin_smoothing, margin=0.0, class_reduction="mean")
