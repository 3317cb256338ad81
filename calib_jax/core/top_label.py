"""The prediction, how sure it is and whether it is right."""

import jax
import jax.numpy as jnp

from calib_jax.core.numerics import at_least_float32, first_argmax
from calib_jax.core.rows import valid
from calib_jax.core.types import Labels, Logits, PerExample


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Give the top-label confidence, and 1 where the prediction is right or else 0.

    Gradients flow through the confidence alone. Where the label is out of range both are NaN.
    """
    logits = at_least_float32(logits)
    confidence = jnp.exp(jnp.max(logits, axis=-1) - jax.nn.logsumexp(logits, axis=-1))
    hit = (first_argmax(logits) == labels).astype(confidence.dtype)
    known = valid(labels, logits.shape[-1])
    return jnp.where(known, confidence, jnp.nan), jnp.where(known, hit, jnp.nan)
