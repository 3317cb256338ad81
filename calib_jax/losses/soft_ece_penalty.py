"""Soft-binned calibration error (DECE): ECE with soft bins and a soft accuracy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.top_label import TopLabel, cross_entropy_and_top_label
from calib_jax.core.types import (
    Array,
    AxisName,
    Labels,
    Logits,
    Number,
    Numbers,
    PerExample,
    Scalar,
    Weights,
)
from calib_jax.losses.cross_entropy import with_top_label_penalty
from calib_jax.losses.objectives import Objective, register


@checks.takes_logits()
def soft_ece_penalty(
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    *,
    num_bins: int = 15,
    rank_sharpness: Number = 100.0,
    bin_temperature: Number = 0.01,
    axis_name: AxisName = None,
) -> Scalar:
    r"""Compute a differentiable surrogate of the expected calibration error of a batch.

    $$\frac{1}{N} \sum_b W_b \, |\mathrm{acc}_b - \mathrm{conf}_b|, \qquad
      W_b = \sum_n w_{nb}, \quad
      w_{n \cdot} = \mathrm{softmax}_b \Bigl(\frac{c_n b - \sum_{i \le b} (i-1)/B}{t_b}\Bigr)$$

    with c the top probability and means weighted by the memberships w. The accuracy of an
    example is $\mathrm{relu}(2 - \mathrm{rank})$ with the soft rank
    $\tfrac12 + \sum_k \sigma(t_a (p_k - p_y))$, which is 1 for a right prediction.

    It is one value for the whole batch: add it to a loss with `regularized`.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      num_bins: B.
      rank_sharpness: $t_a$.
      bin_temperature: $t_b$.
      axis_name: a device axis, over which the bins are summed.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Bohdal, Yang and Hospedales 2023, Meta-Calibration (DECE); the parameters are from
      the code of Lin et al. 2025.

    >>> import jax.numpy as jnp
    >>> sure = jnp.array([[9.0, 0.0]])
    >>> soft_ece_penalty(sure, jnp.array([0])).round(3)
    Array(0., dtype=float32)
    >>> soft_ece_penalty(sure, jnp.array([1])).round(3)
    Array(1., dtype=float32)
    """
    top = cross_entropy_and_top_label(logits, labels)
    return _of_top_label(
        top,
        weights,
        axis_name,
        num_bins=num_bins,
        rank_sharpness=rank_sharpness,
        bin_temperature=bin_temperature,
    )


def _of_top_label(
    top: TopLabel,
    weights: Weights | None,
    axis_name: AxisName,
    *,
    num_bins: int,
    rank_sharpness: Number,
    bin_temperature: Number,
) -> Scalar:
    checks.num_bins(num_bins)
    checks.above("bin_temperature", bin_temperature, 0)
    confidence = top.confidence

    # Bins are rows: few columns would be slow on a CPU.
    number = np.arange(1, num_bins + 1)
    offset = (np.cumsum(number - 1) / num_bins).astype(confidence.dtype)
    number = number.astype(confidence.dtype)
    affinity = (confidence.reshape(1, -1) * number[:, None] - offset[:, None]) / bin_temperature
    floor = 1e-6  # as released, so that no bin is empty
    membership = (jax.nn.softmax(affinity, axis=0) + floor) / (1 + (num_bins + 1) * floor)

    p = jnp.exp(-top.gaps) * confidence[..., None]
    ahead = jax.nn.sigmoid(rank_sharpness * (p - jnp.exp(-top.loss)[..., None]))
    accuracy = jax.nn.relu(1.5 - jnp.sum(ahead, axis=-1))  # 2 - rank

    def in_bins(values: PerExample) -> Float[Array, " bins"]:
        rows = membership * weigh(values, weights).reshape(1, -1)
        return jnp.sum(rows, axis=1)

    count = jnp.sum(weigh(jnp.ones_like(confidence), weights))
    gap, count = total((in_bins(accuracy - confidence), count), axis_name)
    return jnp.sum(jnp.abs(gap)) / jnp.maximum(count, 1e-30)


@register("soft_ece")
def _soft_ece(
    *,
    scale: Numbers = 1.0,
    cross_entropy_scale: Numbers = 1.0,
    num_bins: int = 15,
    rank_sharpness: Number = 100.0,
    bin_temperature: Number = 0.01,
) -> Objective:
    """Cross-entropy plus `scale` times soft ECE; the released code has cross_entropy_scale 0."""
    options: dict[str, Any] = {
        "num_bins": num_bins,
        "rank_sharpness": rank_sharpness,
        "bin_temperature": bin_temperature,
    }
    penalty = functools.partial(_of_top_label, **options)
    return with_top_label_penalty(penalty, scale, cross_entropy_scale)
