"""The prediction, how sure it is and whether it is right."""

import jax.numpy as jnp

from calib_jax.core.numerics import first_argmax, true_class
from calib_jax.core.probabilities import prepare
from calib_jax.core.types import Labels, Logits, PerExample


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Give the top-label confidence, and 1 where the prediction is right or else 0.

    Gradients flow through the confidence alone. Where the label is out of range both are NaN.
    """
    p = prepare(logits, labels)
    predicted = first_argmax(p.logits)
    confidence = jnp.exp((true_class(p.logits, predicted) - p.offset) - p.log_total)
    hit = (predicted == labels).astype(confidence.dtype)
    return confidence, jnp.where(jnp.isnan(confidence), jnp.nan, hit)
