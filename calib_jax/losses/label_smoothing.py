"""Label smoothing: cross-entropy against smoothed labels."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32, is_true_class, of_classes, times, wide
from calib_jax.core.probabilities import prepare
from calib_jax.core.types import Labels, Logits, Numbers, PerClass, PerExample, SoftLabels
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.objectives import register_loss


@checks.takes_logits(soft_labels=True)
def label_smoothing(
    logits: Logits, labels: Labels | SoftLabels, *, alpha: Numbers = 0.05, spread: str = "others"
) -> PerExample:
    r"""Compute the cross-entropy against smoothed labels.

    $$\ell = -(1 - \alpha) \log p_y - \frac{\alpha}{K-1} \sum_{k \ne y} \log p_k$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or distributions, which are smoothed in the same way.
      alpha: the probability taken from the true class; the papers use 0.05 and 0.1.
      spread: the classes that share it equally. "others": the wrong classes, as in the papers.
        "all": every class including the true one, as in optax; "all" with $\alpha K / (K-1)$
        equals "others" with $\alpha$.

    Returns:
      One value per example, in float32 or float64.

    References:
      Mukhoti et al. 2020, Calibrating Deep Neural Networks using Focal Loss, section 5.

    >>> import jax.numpy as jnp
    >>> label_smoothing(jnp.array([[3.0, 0.0, 0.0]]), jnp.array([0]), alpha=0.1).round(4)
    Array([0.3949], dtype=float32)
    """
    checks.between("alpha", alpha, 0, 1)
    checks.one_of("spread", spread, ("others", "all"))
    if labels.ndim == logits.ndim:
        labels = labels.astype(wide(logits.dtype))
        return unchecked_cross_entropy(logits, smooth(labels, alpha, spread))
    num_classes = logits.shape[-1]
    p = prepare(logits, labels)
    taken = jnp.asarray(checks.per_example("alpha", alpha, p.log_true), p.log_true.dtype)
    # Take a mean and not a sum, because logits may be huge; mask the true class and do not
    # subtract it, because its logit may be -inf.
    share = 1 / max(num_classes - 1, 1)
    wrong = jnp.where(is_true_class(labels, num_classes), 0, share)
    mean = jnp.sum(jnp.where(wrong > 0, wrong * (p.logits - p.offset[..., None]), 0), axis=-1)
    others = p.log_total - mean if num_classes > 1 else jnp.zeros_like(mean)
    # "all" moves alpha / K from the true class to each of the others.
    moved = taken * (num_classes - 1) / num_classes if spread == "all" else taken
    moved = jnp.broadcast_to(moved, others.shape)
    return times(1 - moved, -p.log_true) + times(moved, others)


def smooth(labels: SoftLabels, alpha: Numbers, spread: str = "others") -> PerClass:
    r"""Smooth distributions over the classes, as `label_smoothing` does."""
    num_classes = labels.shape[-1]
    like = at_least_float32(labels[..., 0])
    taken = of_classes(checks.per_example("alpha", alpha, like))
    if spread == "all":
        return (1 - taken) * labels + taken / num_classes
    return (1 - taken) * labels + taken / max(num_classes - 1, 1) * (1 - labels)


register_loss("label_smoothing", label_smoothing)
