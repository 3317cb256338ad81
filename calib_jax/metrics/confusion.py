r"""The confusion matrix and the metrics derived from it, for images or pixels.

`shot_accuracy` is the mean recall of classes with many, some and few training examples, for
long-tailed data.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, Number, Scalar
from calib_jax.metrics.contract import Labels, Logits, Metric, Predictions, Weights, metric
from calib_jax.metrics.terms import Columns, ratio


def _pairs(predictions: Predictions) -> Columns:
    num_classes = predictions.num_classes
    pair = predictions.labels * num_classes + predictions.predicted
    # Count invalid rows in an extra cell, which makes the value NaN.
    cell = jnp.where(predictions.valid, pair, num_classes**2)
    ones = jnp.ones(cell.shape, wide(predictions.logits.dtype))
    return Columns({"weight": ones}, cell, num_classes**2 + 1)


def _confusion_counts(sums: Sums) -> Array:
    weight = jnp.asarray(sums["weight"])
    num_classes = math.isqrt(weight.shape[0])
    counts = weight[:-1].reshape(num_classes, num_classes)
    return jnp.where(weight[-1] > 0, jnp.nan, counts)


@metric(_pairs, _confusion_counts)
def confusion_counts(logits: Logits, labels: Labels = None, weights: Weights = None) -> Array:
    r"""Count how often class i (row) is predicted as class j (column), by weight.

    $$n_{ij} = \sum_m w_m [y_m = i] [\hat y_m = j]$$

    >>> from calib_jax import metrics
    >>> metrics.confusion_counts(2 * np.eye(2)[[0, 1, 1]], [0, 0, 1])
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


def _by_class(predictions: Predictions, classes: Array) -> Columns:
    """Count the hits in a cell for each class, because a square of many classes fills memory."""
    num_classes = predictions.num_classes
    hit = predictions.predicted == predictions.labels
    # Rows with a NaN or a label out of range are counted in an extra cell.
    cell = jnp.where(predictions.valid, classes, num_classes)
    return Columns({"hit": hit.astype(wide(predictions.logits.dtype))}, cell, num_classes + 1)


def _by_label(predictions: Predictions) -> Columns:
    return _by_class(predictions, predictions.labels)


def _by_prediction(predictions: Predictions) -> Columns:
    return _by_class(predictions, predictions.predicted)


def _share_of_hits(sums: Sums) -> Float[Array, " classes"]:
    weight, hit = jnp.asarray(sums["weight"]), jnp.asarray(sums["hit"])
    return jnp.where(weight[-1] > 0, jnp.nan, ratio(hit[:-1], weight[:-1]))


@metric(_by_label, _share_of_hits)
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


@confusion_counts.variant()
def mean_recall(sums: Sums) -> Scalar:
    r"""Compute the mean of `per_class_recall` over the classes that have examples.

    Also called balanced accuracy, and mean class accuracy in segmentation.
    """
    hits, labels, _ = _hits_labels_predictions(sums)
    return _mean_of_defined(ratio(hits, labels), labels)


@metric(_by_prediction, _share_of_hits)
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


@confusion_counts.variant()
def mean_precision(sums: Sums) -> Scalar:
    r"""Compute the mean of `per_class_precision` over the classes that were predicted."""
    hits, _, predictions = _hits_labels_predictions(sums)
    return _mean_of_defined(ratio(hits, predictions), predictions)


@confusion_counts.variant()
def per_class_iou(sums: Sums) -> Float[Array, " classes"]:
    r"""Compute each class's intersection over union of labels and predictions.

    $$\frac{n_{kk}}{\sum_j n_{kj} + \sum_i n_{ik} - n_{kk}}$$

    NaN for a class that neither occurs nor is predicted; 0 for one that is predicted but absent.

    References:
      Everingham et al., The PASCAL visual object classes challenge, IJCV 2010.

    >>> from calib_jax import metrics
    >>> metrics.per_class_iou(2 * jnp.eye(2)[jnp.array([0, 1, 1])], jnp.array([0, 0, 1]))
    Array([0.5, 0.5], dtype=float32)
    """
    hits, labels, predictions = _hits_labels_predictions(sums)
    return ratio(hits, labels + predictions - hits)


@confusion_counts.variant()
def mean_iou(sums: Sums) -> Scalar:
    r"""Compute the mean of `per_class_iou` over the classes that occur or were predicted."""
    hits, labels, predictions = _hits_labels_predictions(sums)
    union = labels + predictions - hits
    return _mean_of_defined(ratio(hits, union), union)


@confusion_counts.variant()
def frequency_weighted_iou(sums: Sums) -> Scalar:
    r"""Compute the mean of `per_class_iou`, weighted by each class's share of the examples.

    $$\sum_k \frac{n_k}{n} \mathrm{IoU}_k, \qquad n_k = \sum_j n_{kj}$$
    """
    hits, labels, predictions = _hits_labels_predictions(sums)
    iou = ratio(hits, labels + predictions - hits)
    return ratio(jnp.sum(jnp.where(labels == 0, 0, labels * iou)), jnp.sum(labels))


# --------------------------------------------------------------------------------------------
# Classes by the number of their training examples.

SHOTS = ("many", "medium", "few")


class ShotAccuracy(NamedTuple):
    """The mean recall of the classes of each group; NaN for a group without examples."""

    many: Scalar
    medium: Scalar
    few: Scalar


def shots_of_classes(class_counts: Any, *, many: Number = 100, few: Number = 20) -> np.ndarray:
    """Return the group of each class: "many", "medium" or "few" training examples.

    Pass it to `group_errors` for the calibration error by class frequency. The group of an example
    must be the group of the predicted class: a group chosen by the label is never calibrated.

    Args:
      class_counts: the number of training examples of each class.
      many: a class with more examples than this is "many".
      few: a class with fewer examples than this is "few".

    References:
      Liu et al. 2019, Large-Scale Long-Tailed Recognition in an Open World.

    >>> shots_of_classes([500, 100, 20, 19]).tolist()
    ['many', 'medium', 'medium', 'few']
    """
    checks.at_least("class_counts", class_counts, 0)
    checks.at_least("many", many, few, ", as is few")
    counts = np.asarray(class_counts)
    return np.where(counts > many, "many", np.where(counts < few, "few", "medium"))


def shot_accuracy(
    class_counts: Any, *, many: Number = 100, few: Number = 20, only: str | None = None
) -> Metric[..., Any]:
    """Build the metric `ShotAccuracy`: the mean recall of many-, medium- and few-shot classes.

    It works with `Stream` and intervals like every metric.

    Args:
      class_counts: the number of training examples of each class; `dataset.class_counts`.
      many, few: as in `shots_of_classes`.
      only: "many", "medium" or "few", for a metric that returns this number alone; None returns
        all three.

    References:
      Liu et al. 2019, Large-Scale Long-Tailed Recognition in an Open World.

    >>> metric = shot_accuracy([500, 50, 5])
    >>> logits = 2 * np.eye(3)[[0, 1, 1, 0]]
    >>> [float(group) for group in metric(logits, [0, 1, 1, 2])]
    [1.0, 1.0, 0.0]
    """
    shots = shots_of_classes(class_counts, many=many, few=few)
    if only is not None:
        checks.one_of("only", only, SHOTS)
    return _SHOT_METRICS[only].with_options(groups=tuple(shots.tolist()))


def _shot_metric(only: str | None) -> Metric[..., Any]:
    def declared(
        logits: Logits, labels: Labels = None, weights: Weights = None, *, groups: Any = ()
    ) -> Any:
        """Compute the mean recall of the classes of a group; `groups` has the group of each."""

    def value(sums: Sums, *, groups: tuple[str, ...] = ()) -> Any:
        weight, hit = jnp.asarray(sums["weight"]), jnp.asarray(sums["hit"])
        if len(groups) != len(weight) - 1:
            raise ValueError(f"shot_accuracy: {len(groups)} counts for {len(weight) - 1} classes.")
        recall = ratio(hit[:-1], weight[:-1])
        invalid = jnp.where(weight[-1] > 0, jnp.nan, 0.0)
        shots = np.array(SHOTS if only is None else (only,))
        member = (np.array(groups) == shots[:, None]) & (weight[None, :-1] > 0)
        totals = jnp.sum(jnp.where(member, recall[None], 0), axis=1)
        means = ratio(totals, jnp.sum(member, axis=1, dtype=recall.dtype)) + invalid
        return ShotAccuracy(*means) if only is None else means[0]

    declared.__name__ = "shot_accuracy" if only is None else f"{only}_shot_accuracy"
    return Metric(declared, _by_label, value)


_SHOT_METRICS = {only: _shot_metric(only) for only in (None, *SHOTS)}
