r"""The confusion matrix and the metrics derived from it, for images or pixels."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.numerics import wide
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, Scalar
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns, ratio


def _pairs(predictions: Predictions) -> Columns:
    num_classes = predictions.num_classes
    pair = predictions.labels * num_classes + predictions.predicted
    # Count invalid rows in an extra cell, which makes the value NaN.
    cell = jnp.where(predictions.valid, pair, num_classes**2)
    ones = jnp.ones(cell.shape, wide(predictions.logits.dtype))
    return Columns({"weight": ones}, cell, num_classes**2 + 1)


def _confusion_counts(sums: Sums) -> Float[Array, "classes classes"]:
    weight = jnp.asarray(sums["weight"])
    num_classes = math.isqrt(weight.shape[0])
    counts = weight[:-1].reshape(num_classes, num_classes)
    return jnp.where(weight[-1] > 0, jnp.nan, counts)


@metric(_pairs, _confusion_counts)
def confusion_counts(
    logits: Logits, labels: Labels = None, weights: Weights = None
) -> Float[Array, "classes classes"]:
    r"""Count how often class i (row) is predicted as class j (column), by weight.

    $$n_{ij} = \sum_m w_m [y_m = i] [\hat y_m = j]$$

    >>> from calib_jax import metrics
    >>> metrics.confusion_counts(2 * jnp.eye(2)[jnp.array([0, 1, 1])], jnp.array([0, 0, 1]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """


def _hits_labels_predictions(sums: Sums) -> tuple[Array, Array, Array]:
    counts = confusion_counts.value(sums)
    return jnp.diagonal(counts), jnp.sum(counts, axis=1), jnp.sum(counts, axis=0)


def _mean_of_defined(values: Array, weight: Array) -> Scalar:
    # Not `nanmean`, because a NaN weight must propagate.
    defined = weight != 0
    number = jnp.sum(defined, dtype=values.dtype) + 0 * jnp.sum(weight)
    return ratio(jnp.sum(jnp.where(defined, values, 0)), number)


def _per_class_recall(sums: Sums) -> Float[Array, " classes"]:
    hits, labels, _ = _hits_labels_predictions(sums)
    return ratio(hits, labels)


@metric(_pairs, _per_class_recall)
def per_class_recall(
    logits: Logits, labels: Labels = None, weights: Weights = None
) -> Float[Array, " classes"]:
    r"""Compute the share of each class's examples that are predicted as that class.

    $$n_{kk} / \sum_j n_{kj}$$

    NaN for a class without examples.

    >>> from calib_jax import metrics
    >>> metrics.per_class_recall(2 * jnp.eye(2)[jnp.array([0, 1, 1])], jnp.array([0, 0, 1]))
    Array([0.5, 1. ], dtype=float32)
    """


def _mean_recall(sums: Sums) -> Scalar:
    hits, labels, _ = _hits_labels_predictions(sums)
    return _mean_of_defined(ratio(hits, labels), labels)


@metric(_pairs, _mean_recall)
def mean_recall(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean of `per_class_recall` over the classes that have examples.

    Also called balanced accuracy, and mean class accuracy in segmentation.
    """


def _per_class_precision(sums: Sums) -> Float[Array, " classes"]:
    hits, _, predictions = _hits_labels_predictions(sums)
    return ratio(hits, predictions)


@metric(_pairs, _per_class_precision)
def per_class_precision(
    logits: Logits, labels: Labels = None, weights: Weights = None
) -> Float[Array, " classes"]:
    r"""Compute the share of the examples predicted as each class that belong to it.

    $$n_{kk} / \sum_i n_{ik}$$

    NaN for a class that was never predicted.

    >>> from calib_jax import metrics
    >>> metrics.per_class_precision(2 * jnp.eye(2)[jnp.array([0, 1, 1])], jnp.array([0, 0, 1]))
    Array([1. , 0.5], dtype=float32)
    """


def _mean_precision(sums: Sums) -> Scalar:
    hits, _, predictions = _hits_labels_predictions(sums)
    return _mean_of_defined(ratio(hits, predictions), predictions)


@metric(_pairs, _mean_precision)
def mean_precision(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean of `per_class_precision` over the classes that were predicted."""


def _per_class_iou(sums: Sums) -> Float[Array, " classes"]:
    hits, labels, predictions = _hits_labels_predictions(sums)
    return ratio(hits, labels + predictions - hits)


@metric(_pairs, _per_class_iou)
def per_class_iou(
    logits: Logits, labels: Labels = None, weights: Weights = None
) -> Float[Array, " classes"]:
    r"""Compute each class's intersection over union of labels and predictions.

    $$\frac{n_{kk}}{\sum_j n_{kj} + \sum_i n_{ik} - n_{kk}}$$

    NaN for a class that neither occurs nor is predicted; 0 for one that is predicted but absent.

    References:
      Everingham et al., The PASCAL visual object classes challenge, IJCV 2010.

    >>> from calib_jax import metrics
    >>> metrics.per_class_iou(2 * jnp.eye(2)[jnp.array([0, 1, 1])], jnp.array([0, 0, 1]))
    Array([0.5, 0.5], dtype=float32)
    """


def _mean_iou(sums: Sums) -> Scalar:
    hits, labels, predictions = _hits_labels_predictions(sums)
    union = labels + predictions - hits
    return _mean_of_defined(ratio(hits, union), union)


@metric(_pairs, _mean_iou)
def mean_iou(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean of `per_class_iou` over the classes that occur or were predicted."""


def _frequency_weighted_iou(sums: Sums) -> Scalar:
    hits, labels, predictions = _hits_labels_predictions(sums)
    iou = ratio(hits, labels + predictions - hits)
    return ratio(jnp.sum(jnp.where(labels == 0, 0, labels * iou)), jnp.sum(labels))


@metric(_pairs, _frequency_weighted_iou)
def frequency_weighted_iou(
    logits: Logits, labels: Labels = None, weights: Weights = None
) -> Scalar:
    r"""Compute the mean of `per_class_iou`, weighted by each class's share of the examples.

    $$\sum_k \frac{n_k}{n} \mathrm{IoU}_k, \qquad n_k = \sum_j n_{kj}$$
    """
