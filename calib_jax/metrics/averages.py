r"""Means over examples: accuracy, error, top-k accuracy, NLL, Brier score."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Scalar
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns


def _hits(predictions: Predictions, *, excluded_class: int | None = None) -> Columns:
    return Columns({"hit": predictions.without(excluded_class).hit})


@metric(_hits)
def accuracy(sums: Sums, *, excluded_class: int | None = None) -> Scalar:
    r"""Compute the share of examples whose true class has the largest probability.

    $$\frac1n \sum_i [\hat y_i = y_i]$$

    Ties go to the class with the smallest index.

    Args:
      excluded_class: a class that is never predicted, such as the neutral class of the SST.

    >>> from calib_jax import metrics
    >>> metrics.accuracy(jnp.array([[2.0, 1.0], [3.0, 0.0]]), jnp.array([0, 1]))
    Array(0.5, dtype=float32)
    """
    return ratio(sums["hit"], sums["weight"])


@metric(_hits)
def error(sums: Sums, *, excluded_class: int | None = None) -> Scalar:
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


@metric(_top_hits)
def top_k(sums: Sums, *, k: int = 5) -> Scalar:
    r"""Compute the share of examples whose true class is among the k most probable classes.

    $$\frac1n \sum_i [\#\{j : p_{ij} > p_{i y_i}\} < k]$$

    Among equal probabilities, classes of smaller index come first, as in `accuracy`.

    Args:
      k: number of most probable classes; with k equal to the number of classes, the share is 1.

    >>> from calib_jax import metrics
    >>> metrics.top_k(jnp.array([[2.0, 1.0, 0.0], [3.0, 0.0, 1.0]]), jnp.array([1, 1]), k=2)
    Array(0.5, dtype=float32)
    """
    return ratio(sums["hit"], sums["weight"])


def _log_losses(predictions: Predictions) -> Columns:
    return Columns({"loss": -predictions.log_true})


@metric(_log_losses)
def nll(sums: Sums) -> Scalar:
    r"""Compute the mean negative log-likelihood, in nats.

    $$-\frac1n \sum_i \log p_{i y_i}$$

    The papers report it times 100.

    >>> from calib_jax import metrics
    >>> metrics.nll(jnp.log(jnp.array([[0.5, 0.5], [0.25, 0.75]])), jnp.array([0, 1]))
    Array(0.490, dtype=float32)
    """
    return ratio(sums["loss"], sums["weight"])


def _squared_distances(predictions: Predictions) -> Columns:
    if predictions.stated is not None:
        square = jnp.square(predictions.confidence - predictions.hit)
        return Columns({"distance": predictions.if_valid(square)})
    distance = predictions.square_sum + 1 - 2 * jnp.exp(predictions.log_true)
    # Rounding can make the distance of a confident, correct prediction slightly negative.
    return Columns({"distance": predictions.if_valid(jnp.maximum(distance, 0))})


@metric(_squared_distances)
def brier(sums: Sums) -> Scalar:
    r"""Compute the Brier score, summed over the classes; it lies in [0, 2].

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
    return ratio(sums["distance"], sums["weight"])
