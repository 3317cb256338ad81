r"""Released code whose numbers differ from every metric here: for reproducing, not for measuring.

What differs by a convention is an option of a metric (`edges`, `binning`, `zero_counts`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.types import Array, Labels, Logits, Number, PerClass, Scalar
from calib_jax.metrics.predictions import Predictions
from calib_jax.metrics.terms import Columns

__all__ = ["MmceScript", "inverse_temperature", "mmce_script"]

_EPSILON = 1e-5  # what the script adds to probabilities and to counts


def inverse_temperature(probabilities: PerClass, inverse_temperature: Number) -> Logits:
    r"""Turn probabilities into logits as MMCE's calibration script does.

    $$z_{ik} = T \log(p_{ik} + 10^{-5})$$

    T multiplies, so that it is one over a temperature.

    Args:
      probabilities: of each class.
      inverse_temperature: T.

    References:
      Kumar et al., Trainable calibration measures for neural networks from kernel mean
      embeddings, ICML 2018; get_calibration.py of its repository.

    >>> inverse_temperature(jnp.array([0.5, 0.0]), 2.0)
    Array([ -1.386, -23.026], dtype=float32)
    """
    return inverse_temperature * jnp.log(probabilities + _EPSILON)


class MmceScript(NamedTuple):
    """What the script reports; the arrays per bin have an entry more than there are bins."""

    brier: Scalar
    nll: Scalar
    ece: Scalar
    confidence: Float[Array, " bins_and_one"]
    accuracy: Float[Array, " bins_and_one"]
    weight: Float[Array, " bins_and_one"]


@checks.takes_logits()
def mmce_script(
    probabilities: PerClass,
    labels: Labels,
    *,
    inverse_temperature: Number = 1.0,
    num_bins: int = 10,
) -> MmceScript:
    r"""Compute what MMCE's calibration script reports.

    With $p' = \mathrm{softmax}(T \log(p + 10^{-5}))$ it takes NLL and Brier score of $p'$, bins
    its confidences by $\lfloor B c \rfloor$, and divides the sums of every bin by its count plus
    $10^{-5}$. Entry B, of confidences that are exactly 1, is merged into the one before and
    left empty.

    Args:
      probabilities: of each class, `[*batch, classes]`.
      labels: the true classes.
      inverse_temperature: T.
      num_bins: B.

    References:
      Kumar et al., Trainable calibration measures for neural networks from kernel mean
      embeddings, ICML 2018; get_calibration.py of its repository.
    """
    checks.at_least("num_bins", num_bins, 1)
    view = Predictions(_tempered(probabilities, inverse_temperature), labels)
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


# Under a name that no option hides.
_tempered = inverse_temperature
