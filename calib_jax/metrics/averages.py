r"""Means over examples: accuracy, NLL, Brier score, and summaries of confidence and entropy."""

from typing import NamedTuple

import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.terms import Columns, ratio


def _hits(predictions: Predictions, *, excluded_class: int | None = None) -> Columns:
    return Columns({"hit": predictions.without(excluded_class).hit})


@metric(_hits, lambda sums: ratio(sums["hit"], sums["weight"]))
def accuracy(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    excluded_class: int | None = None,
) -> Scalar:
    r"""Compute the share of right answers, or of true classes with the largest probability.

    $$\frac1n \sum_i [\hat y_i = y_i]$$

    Ties go to the class with the smallest index.

    Args:
      excluded_class: a class that is never predicted, such as the neutral class of the SST.

    >>> from calib_jax import metrics
    >>> metrics.accuracy(jnp.array([[2.0, 1.0], [3.0, 0.0]]), jnp.array([0, 1]))
    Array(0.5, dtype=float32)
    """


@accuracy.variant()
def error(sums: Sums) -> Scalar:
    r"""Compute the share of misclassified examples, 1 - accuracy.

    $$\frac1n \sum_i [\hat y_i \ne y_i]$$

    The papers report it in percent.

    Args:
      excluded_class: as for `accuracy`.

    >>> from calib_jax import metrics
    >>> metrics.error(jnp.array([[2.0, 1.0], [3.0, 0.0]]), jnp.array([0, 1]))
    Array(0.5, dtype=float32)
    """
    return ratio(sums["weight"] - sums["hit"], sums["weight"])


def _top_hits(predictions: Predictions, *, k: int = 5) -> Columns:
    checks.whole("k", k)
    hit = (predictions.rank < k).astype(predictions.logits.dtype)
    return Columns({"hit": predictions.if_valid(hit)})


@metric(_top_hits, lambda sums: ratio(sums["hit"], sums["weight"]))
def top_k(logits: Logits, labels: Labels = None, weights: Weights = None, *, k: int = 5) -> Scalar:
    r"""Compute the share of examples whose true class is among the k most probable classes.

    $$\frac1n \sum_i [\#\{j : p_{ij} > p_{i y_i}\} < k]$$

    Among equal probabilities, classes of smaller index come first, as in `accuracy`.

    Args:
      k: number of most probable classes; with k equal to the number of classes, the share is 1.

    >>> from calib_jax import metrics
    >>> metrics.top_k(jnp.array([[2.0, 1.0, 0.0], [3.0, 0.0, 1.0]]), jnp.array([1, 1]), k=2)
    Array(0.5, dtype=float32)
    """


def _log_losses(predictions: Predictions) -> Columns:
    return Columns({"loss": -predictions.log_true})


@metric(_log_losses, lambda sums: ratio(sums["loss"], sums["weight"]))
def nll(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean negative log-likelihood, in nats.

    $$-\frac1n \sum_i \log p_{i y_i}$$

    The papers report it times 100.

    >>> from calib_jax import metrics
    >>> metrics.nll(jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])), jnp.array([0, 1]))
    Array(0.490, dtype=float32)
    """


def _squared_distances(predictions: Predictions) -> Columns:
    if predictions.stated is not None:
        square = jnp.square(predictions.confidence - predictions.hit)
        return Columns({"distance": predictions.if_valid(square)})
    distance = predictions.square_sum + 1 - 2 * jnp.exp(predictions.log_true)
    # Rounding can make the distance of a confident, correct prediction slightly negative.
    return Columns({"distance": predictions.if_valid(jnp.maximum(distance, 0))})


@metric(_squared_distances, lambda sums: ratio(sums["distance"], sums["weight"]))
def brier(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the Brier score, summed over the classes, in [0, 2]; of answers in [0, 1].

    $$\frac1n \sum_i \sum_k (p_{ik} - [y_i = k])^2$$

    For two classes it is twice the Brier score of one class alone, which is the score of a
    `Stated` confidence.

    References:
      Brier, Verification of forecasts expressed in terms of probability, Monthly Weather
      Review 1950.

    >>> from calib_jax import metrics
    >>> metrics.brier(jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])), jnp.array([0, 1]))
    Array(0.3125, dtype=float32)
    """


def _cumulative_distances(predictions: Predictions) -> Columns:
    excess = jnp.cumsum(predictions.p - jnp.where(predictions.is_true, 1.0, 0.0), axis=-1)[..., :-1]
    return Columns({"distance": predictions.if_valid(jnp.mean(jnp.square(excess), axis=-1))})


@metric(_cumulative_distances, lambda sums: ratio(sums["distance"], sums["weight"]))
def ranked_probability_score(
    logits: Logits, labels: Labels = None, weights: Weights = None
) -> Scalar:
    r"""Compute the ranked probability score of ordered classes, divided by K - 1.

    $$\frac1n \sum_i \frac{1}{K - 1} \sum_{k=1}^{K-1}
      \Bigl( \sum_{j \le k} p_{ij} - [y_i \le k] \Bigr)^2$$

    The classes have an order, such as grades or age groups: probability far from the true class
    costs more than probability next to it. The score lies in [0, 1]; times K - 1 it is the score
    without normalisation. For two classes it is half of `brier`.

    References:
      Epstein, A scoring system for probability forecasts of ranked categories, Journal of Applied
      Meteorology 1969.
      Murphy, A note on the ranked probability score, Journal of Applied Meteorology 1971.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))
    >>> labels = jnp.array([0, 0])
    >>> metrics.ranked_probability_score(logits[:1], labels[:1])
    Array(0.125, dtype=float32)
    >>> metrics.ranked_probability_score(logits[1:], labels[1:])
    Array(0.25, dtype=float32)
    """


def _confidence_and_hit(predictions: Predictions) -> Columns:
    confidence = predictions.if_valid(predictions.confidence)
    return Columns({"confidence": confidence, "hit": predictions.hit})


@metric(_confidence_and_hit, lambda sums: ratio(sums["confidence"], sums["weight"]))
def mean_confidence(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean of the largest probability.

    $$\frac1n \sum_i \max_k p_{ik}$$

    >>> from calib_jax import metrics
    >>> metrics.mean_confidence(jnp.log(jnp.array([[0.9, 0.1], [0.4, 0.6]])), jnp.array([0, 0]))
    Array(0.75, dtype=float32)
    """


@mean_confidence.variant()
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


@metric(_entropies, lambda sums: ratio(sums["entropy"], sums["weight"]))
def mean_entropy(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean entropy of the predicted distributions, in nats.

    $$-\frac1n \sum_i \sum_k p_{ik} \log p_{ik}$$

    >>> from calib_jax import metrics
    >>> metrics.mean_entropy(jnp.zeros((3, 2)), jnp.array([0, 1, 1]))
    Array(0.693, dtype=float32)
    """


def _uncertainties(predictions: Predictions) -> Columns:
    # Use 1 - c, not c: most confidences are near 1, where the square of 1 - c keeps more digits.
    uncertainty = predictions.if_valid(1 - predictions.confidence)
    return Columns({"uncertainty": uncertainty, "square": jnp.square(uncertainty)})


def _sharpness(sums: Sums) -> Scalar:
    mean = ratio(sums["uncertainty"], sums["weight"])
    return jnp.maximum(ratio(sums["square"], sums["weight"]) - jnp.square(mean), 0)


@metric(_uncertainties, _sharpness)
def sharpness(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
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


def _by_correctness(sums: Sums) -> ByCorrectness:
    # Propagate NaN to both groups, because an invalid row may belong to either.
    weight = sums["weight"] + 0 * jnp.sum(sums["confidence"])
    share = ratio(weight, jnp.sum(weight))
    means = [ratio(sums[name], weight) for name in ("confidence", "entropy", "nll")]
    wrong, correct = (Group(*(column[group] for column in (share, *means))) for group in (0, 1))
    return ByCorrectness(correct, wrong)


@metric(_all_by_correctness, _by_correctness)
def by_correctness(logits: Logits, labels: Labels = None, weights: Weights = None) -> ByCorrectness:
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
