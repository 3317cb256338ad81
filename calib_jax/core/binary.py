"""Convert the single logit of a binary model to two classes."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.inputs.arrays import as_numbers
from calib_jax.core.types import Array


def binary(score: Any) -> Float[Array, "*batch 2"]:
    r"""Convert one logit per example to the logits of two classes: columns [0, z].

    $\mathrm{softmax}([0, z])_1 = \sigma(z)$, so every loss, metric and calibrator accepts these
    logits of a binary model, with labels 0 and 1. A probability p has the logit
    $\log p - \log(1 - p)$.

    Args:
      score: `[*batch]`, the logit of class 1. If the network's output is `[batch, 1]`, pass
        `score[:, 0]`.

    >>> binary(jnp.array([2.0, -1.0]))
    Array([[ 0.,  2.],
           [ 0., -1.]], dtype=float32)
    """
    score = jnp.asarray(as_numbers("binary", "the score", score))
    if not jnp.issubdtype(score.dtype, jnp.floating):
        raise TypeError(f"binary: the score must be floating point, got {score.dtype}.")
    return jnp.stack([jnp.zeros_like(score), score], axis=-1)
