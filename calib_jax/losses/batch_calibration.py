"""Penalties of the gap between confidence and accuracy over a batch: DCA, MDCA and soft ECE."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from calib_jax.core import arrays, checks
from calib_jax.core.binning import class_sums
from calib_jax.core.numerics import at_least_float32, times, weigh
from calib_jax.core.probabilities import (
    Probabilities,
    TopLabel,
    cross_entropy_and_top_label,
    cross_entropy_and_view,
    prepare,
)
from calib_jax.core.statistics import total
from calib_jax.core.types import (
    AnyLabels,
    Array,
    AxisName,
    Labels,
    Logits,
    Number,
    Numbers,
    Scalar,
    Vector,
    Weights,
)
from calib_jax.losses.focal import focal, focal_uncertainty, with_top_label_penalty
from calib_jax.losses.objectives import Objective, make_objective, per_example


@arrays.takes_logits()
def dca_penalty(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, axis_name: AxisName = None
) -> Scalar:
    r"""Compute the difference of the confidence and the accuracy of a batch.

    $$\Bigl| \frac{1}{N} \sum_i c_i - \frac{1}{N} \sum_i 1[\hat y_i = y_i] \Bigr|$$

    with $c$ the top-label confidence. It is one value for the whole batch: add it to a loss with
    `regularized`. Gradients flow through c; the accuracy is constant.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      axis_name: a device axis, over which the confidences and hits are summed.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Liang et al. 2020, Improved Trainable Calibration Method for Neural Networks on Medical
      Imaging Classification.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.6, 0.4]]))
    >>> dca_penalty(logits, jnp.array([0, 1])).round(4)               # |0.7 - 0.5|
    Array(0.2, dtype=float32)
    """
    return _dca_of(cross_entropy_and_top_label(logits, labels), weights, axis_name)


def _dca_of(top: TopLabel, weights: Weights | None, axis_name: AxisName) -> Scalar:
    count = jnp.sum(weigh(jnp.ones_like(top.hit), weights))
    gap, count = total((jnp.sum(weigh(top.confidence - top.hit, weights)), count), axis_name)
    return jnp.abs(gap) / jnp.maximum(count, 1e-30)


def dca(*, scale: Numbers = 1.0) -> Objective:
    """Cross-entropy plus `scale` times DCA."""
    return with_top_label_penalty(_dca_of, scale)


@arrays.takes_logits(soft_labels=True)
def mdca_penalty(
    logits: Logits, labels: AnyLabels, weights: Weights | None = None, *, axis_name: AxisName = None
) -> Scalar:
    r"""Compute the multi-class difference of confidence and accuracy of a batch.

    $$\frac{1}{K} \sum_k \Bigl| \frac{1}{N} \sum_i p_{ik} - \frac{1}{N} \sum_i q_{ik} \Bigr|$$

    with q the one-hot labels. It is one value for the whole batch: add it to a loss with
    `regularized`. A class that no example has, whose logits are all -inf, is left out of the mean.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      weights: the weight of each example; weight k equals k copies.
      axis_name: a device axis, over which the differences are summed.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Hebbalaguppe et al. 2022, A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for
      Improved Neural Network Calibration.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.6, 0.4]]))
    >>> mdca_penalty(logits, jnp.array([0, 1])).round(4)              # |0.7 - 0.5|
    Array(0.2, dtype=float32)
    """
    if labels.ndim == logits.ndim:
        num_classes = logits.shape[-1]
        p = jax.nn.softmax(at_least_float32(logits)).reshape(-1, num_classes)
        weight = weigh(jnp.ones(logits.shape[:-1], p.dtype), weights).reshape(-1)
        probability = weighted_sum(weight, p)
        share = weighted_sum(weight, labels.reshape(p.shape).astype(p.dtype))
        counted = some_possible(logits, weight, probability + share)
        return _mean_gap(probability - share, counted, weight, axis_name)
    return _mdca_of(logits, prepare(logits, labels), weights, axis_name)


def _mdca_of(
    logits: Logits, p: Probabilities, weights: Weights | None, axis_name: AxisName
) -> Scalar:
    # p - q is the probability of the wrong classes, and minus their sum at the true class.
    weight = weigh(jnp.ones_like(p.rest), weights).reshape(-1)
    rest, labels = weight * p.rest.reshape(-1), p.labels.reshape(-1)
    probability = weighted_sum(rest, p.share.reshape(-1, p.share.shape[-1]))
    gap = probability - class_sums(labels, rest, len(probability))
    share = class_sums(labels, weight, len(probability))
    counted = some_possible(logits, weight, probability + share)
    return _mean_gap(gap, counted, weight, axis_name)


def weighted_sum(weights: Vector, rows: Float[Array, "rows classes"]) -> Float[Array, " classes"]:
    """Sum weighted rows, also on accelerators in the full precision of float32.

    Many rows are summed in parts, as in `binning.class_sums`, because a long sum loses digits.
    """
    num_rows = len(rows)
    product = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)
    if num_rows <= 2**17:
        return product("n,nk->k", weights, rows)
    size = 2 ** (num_rows.bit_length() // 2)
    end = num_rows - num_rows % size
    parts = weights[:end].reshape(-1, size), rows[:end].reshape(-1, size, rows.shape[1])
    whole = jnp.sum(product("pn,pnk->pk", *parts), axis=0)
    return whole + product("n,nk->k", weights[end:], rows[end:]) if end < num_rows else whole


def some_possible(logits: Logits, weight: Array, mass: Array) -> Array:
    """Mark with 1 the classes that occur or are possible in some row of positive weight.

    A probability may round to 0 while the class is possible, so the logits are read where the
    mass of a class, the sum of its probabilities and labels, is 0.
    """

    def possible() -> Float[Array, " classes"]:
        rows = logits.reshape(-1, logits.shape[-1])
        some = jnp.any((rows > -jnp.inf) & (weight > 0)[:, None], axis=0)
        return (some | (mass != 0)).astype(mass.dtype)

    mass = lax.stop_gradient(mass)
    return lax.cond(jnp.all(mass != 0), lambda: jnp.ones_like(mass), possible)


def _mean_gap(gap: Array, counted: Array, weight: Array, axis_name: AxisName) -> Scalar:
    """Average the absolute gaps of the classes that count, over all devices."""
    gap, counted, count = total((gap, counted, jnp.sum(weight)), axis_name)
    mean = jnp.sum(jnp.abs(gap)) / jnp.maximum(jnp.sum(counted != 0, dtype=gap.dtype), 1)
    return mean / jnp.maximum(count, 1e-30)


def mdca(*, scale: Numbers = 1.0, focal_gamma: Numbers = 0.0) -> Objective:
    """Focal loss, cross-entropy with `focal_gamma` 0, plus `scale` times MDCA."""
    uncertainty = focal_uncertainty(gamma=focal_gamma)
    focal_loss = arrays.unchecked(focal)
    penalty = arrays.unchecked(mdca_penalty)

    def value(_: Any, logits: Logits, labels: AnyLabels, weights: Any, *, axis_name: Any) -> Array:
        if labels.ndim == logits.ndim:
            terms = focal_loss(logits, labels, gamma=focal_gamma)
            extra = penalty(logits, labels, weights, axis_name=axis_name)
        else:
            losses, view = cross_entropy_and_view(logits, labels)
            terms = times(uncertainty(view), losses)
            extra = _mdca_of(logits, view, weights, axis_name)
        return terms + per_example("scale", scale, terms) * extra

    return make_objective(value, soft_labels=True)


@arrays.takes_logits()
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
    return _soft_ece_of(top, weights, axis_name, num_bins, rank_sharpness, bin_temperature)


def _soft_ece_of(
    top: TopLabel,
    weights: Weights | None,
    axis_name: AxisName,
    num_bins: int,
    rank_sharpness: Number,
    bin_temperature: Number,
) -> Scalar:
    checks.num_bins(num_bins)
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

    def in_bins(values: Array) -> Float[Array, " bins"]:
        rows = membership * weigh(values, weights).reshape(1, -1)
        return jnp.sum(rows, axis=1)

    count = jnp.sum(weigh(jnp.ones_like(confidence), weights))
    gap, count = total((in_bins(accuracy - confidence), count), axis_name)
    return jnp.sum(jnp.abs(gap)) / jnp.maximum(count, 1e-30)


def soft_ece(
    *,
    scale: Numbers = 1.0,
    cross_entropy_scale: Numbers = 1.0,
    num_bins: int = 15,
    rank_sharpness: Number = 100.0,
    bin_temperature: Number = 0.01,
) -> Objective:
    """Cross-entropy plus `scale` times soft ECE; the released code has cross_entropy_scale 0."""

    def penalty(top: TopLabel, weights: Any, axis_name: AxisName) -> Scalar:
        return _soft_ece_of(top, weights, axis_name, num_bins, rank_sharpness, bin_temperature)

    return with_top_label_penalty(penalty, scale, cross_entropy_scale)
