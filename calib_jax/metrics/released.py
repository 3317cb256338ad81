r"""Computations of released code that no metric option covers, to reproduce published numbers.

Other differences in convention are options of metrics (`edges`, `binning`, `zero_counts`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import arrays, checks
from calib_jax.core.types import Array, Labels, Number, PerClass, Scalar
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns

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
    probabilities: PerClass,
    labels: Labels,
    *,
    inverse_temperature: Number = 1.0,
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
    distance = jnp.square(view.p - view.is_true)
    return MmceScript(
        brier=jnp.mean(view.if_valid(jnp.sum(distance, axis=-1))),
        nll=-jnp.mean(view.log_true),
        ece=jnp.sum(sums["weight"] * gap) / jnp.sum(sums["weight"]),
        confidence=means["confidence"],
        accuracy=means["hit"],
        weight=sums["weight"],
    )
