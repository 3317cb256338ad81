"""The confidence and the correctness of the prediction."""

import jax.numpy as jnp

from calib_jax.core.numerics import first_argmax, top_confidence, valid
from calib_jax.core.types import Labels, Logits, PerExample


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Compute the top-label confidence and the hit, 1 if the prediction is right and else 0.

    Gradients flow only through the confidence. Both are NaN if the label is out of range.
    """
    confidence = top_confidence(logits)
    # Multiplying by NaN sends NaN gradients back to the row; multiplying by 1 changes no bit.
    confidence *= jnp.where(valid(labels, logits.shape[-1]), 1, jnp.nan).astype(confidence.dtype)
    hit = (first_argmax(logits) == labels).astype(confidence.dtype)
    return confidence, jnp.where(jnp.isnan(confidence), jnp.nan, hit)
