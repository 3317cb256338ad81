"""The confidence and the correctness of the prediction."""

import jax.numpy as jnp

from calib_jax.core.numerics import first_argmax, true_class
from calib_jax.core.probabilities import prepare
from calib_jax.core.types import Labels, Logits, PerExample


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Compute the top-label confidence and the hit, 1 if the prediction is right and else 0.

    Gradients flow only through the confidence. Both are NaN if the label is out of range.
    """
    p = prepare(logits, labels)
    predicted = first_argmax(p.logits)
    confidence = jnp.exp((true_class(p.logits, predicted) - p.offset) - p.log_total)
    hit = (predicted == labels).astype(confidence.dtype)
    return confidence, jnp.where(jnp.isnan(confidence), jnp.nan, hit)
