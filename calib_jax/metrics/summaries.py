r"""Summaries of confidence, entropy and NLL, over all examples or by correctness."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns


def _confidence_and_hit(predictions: Predictions) -> Columns:
    confidence = predictions.if_valid(predictions.confidence)
    return Columns({"confidence": confidence, "hit": predictions.hit})


@metric(_confidence_and_hit)
def mean_confidence(sums: Sums) -> Scalar:
    r"""Compute the mean of the largest probability.

    $$\frac1n \sum_i \max_k p_{ik}$$

    >>> from calib_jax import metrics
    >>> metrics.mean_confidence(jnp.log(jnp.array([[0.9, 0.1], [0.4, 0.6]])), jnp.array([0, 0]))
    Array(0.75, dtype=float32)
    """
    return ratio(sums["confidence"], sums["weight"])


@metric(_confidence_and_hit)
def signed_gap(sums: Sums) -> Scalar:
    r"""Compute mean confidence minus accuracy, positive for an overconfident model.

    $$\frac1n \sum_i (\max_k p_{ik} - [\hat y_i = y_i])$$

    ECE is at least the absolute value of the signed gap, whatever the bins.

    >>> from calib_jax import metrics
    >>> metrics.signed_gap(jnp.log(jnp.array([[0.9, 0.1], [0.4, 0.6]])), jnp.array([0, 0]))
    Array(0.25, dtype=float32)
    """
    return ratio(sums["confidence"] - sums["hit"], sums["weight"])


def _entropies(predictions: Predictions) -> Columns:
    return Columns({"entropy": predictions.if_valid(predictions.entropy)})


@metric(_entropies)
def mean_entropy(sums: Sums) -> Scalar:
    r"""Compute the mean entropy of the predicted distributions, in nats.

    $$-\frac1n \sum_i \sum_k p_{ik} \log p_{ik}$$

    >>> from calib_jax import metrics
    >>> metrics.mean_entropy(jnp.zeros((3, 2)), jnp.array([0, 1, 1]))
    Array(0.693, dtype=float32)
    """
    return ratio(sums["entropy"], sums["weight"])


def _uncertainties(predictions: Predictions) -> Columns:
    # Use 1 - c, not c: most confidences are near 1, where the square of 1 - c keeps more digits.
    uncertainty = predictions.if_valid(1 - predictions.confidence)
    return Columns({"uncertainty": uncertainty, "square": jnp.square(uncertainty)})


@metric(_uncertainties)
def sharpness(sums: Sums) -> Scalar:
    r"""Compute the variance of the largest probability over the examples.

    $$\frac1n \sum_i (c_i - \bar c)^2, \qquad c_i = \max_k p_{ik}$$

    A model of constant confidence can be calibrated and has sharpness 0. The divisor is n, not
    n - 1, so that k copies of the data have the same sharpness.

    References:
      Kuleshov et al., Accurate uncertainties for deep learning using calibrated regression,
      ICML 2018.

    >>> from calib_jax import metrics
    >>> metrics.sharpness(jnp.log(jnp.array([[0.9, 0.1], [0.5, 0.5]])), jnp.array([0, 0]))
    Array(0.04, dtype=float32)
    """
    mean = ratio(sums["uncertainty"], sums["weight"])
    return jnp.maximum(ratio(sums["square"], sums["weight"]) - jnp.square(mean), 0)


class Group(NamedTuple):
    """Means over a group of examples; if the group is empty, all but the share are NaN."""

    share: Scalar  # of all examples
    confidence: Scalar
    entropy: Scalar
    nll: Scalar


class ByCorrectness(NamedTuple):
    """Means over the right and over the wrong predictions."""

    correct: Group
    wrong: Group


def _all_by_correctness(predictions: Predictions) -> Columns:
    values = {
        "confidence": predictions.confidence,
        "entropy": predictions.entropy,
        "nll": -predictions.log_true,
    }
    values = {name: predictions.if_valid(value) for name, value in values.items()}
    return Columns(values, (predictions.predicted == predictions.labels).astype(jnp.int32), 2)


@metric(_all_by_correctness)
def by_correctness(sums: Sums) -> ByCorrectness:
    r"""Compute mean confidence, entropy and NLL of right and wrong predictions separately.

    $$\frac{\sum_i [\hat y_i = y_i]\, v_i}{\sum_i [\hat y_i = y_i]}, \qquad
      \frac{\sum_i [\hat y_i \ne y_i]\, v_i}{\sum_i [\hat y_i \ne y_i]}$$

    During training the means show which group a loss affects: cross-entropy keeps raising the NLL
    of the wrong predictions long after the accuracy has stopped improving.

    References:
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]]))
    >>> groups = metrics.by_correctness(logits, jnp.array([0, 0, 0]))
    >>> groups.correct.confidence, groups.wrong.confidence
    (Array(0.8, dtype=float32), Array(0.6, dtype=float32))
    """
    # Propagate NaN to both groups, because an invalid row may belong to either.
    weight = sums["weight"] + 0 * jnp.sum(sums["confidence"])
    share = ratio(weight, jnp.sum(weight))
    means = [ratio(sums[name], weight) for name in ("confidence", "entropy", "nll")]
    wrong, correct = (Group(*(column[group] for column in (share, *means))) for group in (0, 1))
    return ByCorrectness(correct, wrong)
