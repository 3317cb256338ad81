"""LogitNorm: cross-entropy of logits of constant norm."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import Labels, Logits, Numbers, PerExample, SoftLabels
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.objectives import register_loss

_ADDED_TO_NORM = 1e-7  # as released, so that logits of 0 have a gradient


@checks.takes_logits(soft_labels=True)
def logit_norm(logits: Logits, labels: Labels | SoftLabels, *, tau: Numbers = 0.04) -> PerExample:
    r"""Compute the cross-entropy of the logits divided by their norm and a temperature.

    $$\ell = -\log \mathrm{softmax}\Bigl(\frac{z}{\tau (\lVert z \rVert_2 + 10^{-7})}\Bigr)_y$$

    The norm of the logits carries no confidence in training; predictions still use $z$. Other than
    the softmax, the loss depends on a constant that is added to all logits. A class of logit -inf
    is no class, and takes no part in the norm. Where all logits are 0 the gradient is of the size
    $10^7 / \tau$, which float16 cannot hold.

    Args:
      logits: unnormalised log-probabilities, whose sum of squares matters.
      labels: the true classes, or a distribution q over the classes for each example.
      tau: the temperature, greater than 0. The norm of the softmax's input is 1 / tau, so the
        smallest possible loss is about $\log(1 + (K - 1) e^{-1/\tau})$.

    Returns:
      One value per example, in float32 or float64.

    References:
      Wei et al. 2022, Mitigating Neural Network Overconfidence with Logit Normalization. The
      added 1e-7 is in their released code.

    >>> import jax.numpy as jnp
    >>> small, large = jnp.array([[3.0, 4.0]]), jnp.array([[30.0, 40.0]])
    >>> logit_norm(small, jnp.array([0]), tau=1.0).round(4)           # CE of (0.6, 0.8)
    Array([0.7981], dtype=float32)
    >>> logit_norm(large, jnp.array([0]), tau=1.0).round(4)
    Array([0.7981], dtype=float32)
    """
    checks.above("tau", tau, 0)
    rows = at_least_float32(logits)
    possible = rows != -jnp.inf
    rows = jnp.where(possible, rows, 0)
    # The square of a large logit overflows, so divide by the largest first.
    largest = lax.stop_gradient(jnp.max(jnp.abs(rows), axis=-1))
    scale = jnp.where(largest > 0, largest, 1)
    square = jnp.sum(jnp.square(rows / scale[..., None]), axis=-1)
    # The root has no derivative at 0, where the norm is 0.
    norm = scale * jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    factor = 1 / (checks.per_example("tau", tau, norm) * (norm + _ADDED_TO_NORM))
    normalized = rows * factor[..., None]
    return unchecked_cross_entropy(jnp.where(possible, normalized, -jnp.inf), labels)


register_loss("logit_norm", logit_norm)
