r"""Ranking metrics of a classifier, from each class's probability against the other classes.

The examples are ranked by the odds $p_k / (1 - p_k)$ of a class k, or for two classes by the
difference of their logits. This is the order of $p_k$ without the ties that rounding causes near 1.
Examples of equal odds form one group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core.types import Scalar, Vector
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.ranked import (
    Ranked,
    RankedClasses,
    ScoredClasses,
    area_under_roc,
    average_precision_of,
)
from calib_jax.metrics.contract.terms import ClassRanking, ratio


def _odds(predictions: Predictions) -> ClassRanking:
    if predictions.num_classes == 2:
        # Class 1 is the positive class; class 0 has the reverse ranking.
        scores, first_class = predictions.logits[..., 1:] - predictions.logits[..., :1], 1
    else:
        scores, first_class = predictions.odds, 0
    scores = jnp.where(predictions.valid[..., None], scores, jnp.nan)
    return ClassRanking(scores, predictions.labels, first_class)


@functools.partial(jax.jit, static_argnames="value_of")
def _mean_over_classes(
    ranked: ScoredClasses | RankedClasses, value_of: Callable[[Ranked, Vector], Scalar]
) -> Scalar:
    """Average over the classes whose value is not NaN."""
    # Map over the classes: the running sums of all classes at once would take several times the
    # memory of the logits.
    columns = jnp.arange(ranked.num_columns, dtype=ranked.column.dtype)
    values = lax.map(lambda column: value_of(*ranked.ranked(column)), columns)
    defined = ~jnp.isnan(values)
    return ratio(jnp.sum(jnp.where(defined, values, 0)), jnp.sum(defined, dtype=values.dtype))


@metric(_odds, lambda ranked: _mean_over_classes(ranked, area_under_roc))
def auroc(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the area under the ROC curve, one class against the rest, averaged over classes.

    $$\frac{1}{|\mathcal K|} \sum_{k \in \mathcal K} \frac{1}{n_k (n - n_k)}
      \sum_{i : y_i = k} \sum_{j : y_j \ne k} [p_{ik} > p_{jk}] + \tfrac12 [p_{ik} = p_{jk}]$$

    It is the share of pairs in which the example of class k has the higher probability of k.
    $\mathcal K$ is the set of classes with both positive and negative examples; the value is NaN
    if the set is empty. For two classes only class 1 counts. With all classes present the value is
    scikit-learn's `roc_auc_score(labels, p, multi_class="ovr", average="macro")`, and for two
    classes `roc_auc_score(labels, p[:, 1])`. Uninformative probabilities give 0.5.

    The statistic keeps the odds of every example and class; the value sorts one class at a time.

    References:
      Fawcett, An introduction to ROC analysis, Pattern Recognition Letters 2006.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.auroc(logits, jnp.array([0, 0, 1, 1]))
    Array(0.75, dtype=float32)
    """


@metric(_odds, lambda ranked: _mean_over_classes(ranked, average_precision_of))
def average_precision(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the average precision, one class against the rest, averaged over classes.

    $$\frac{1}{|\mathcal K|} \sum_{k \in \mathcal K} \sum_t (R_{kt} - R_{k,t-1}) P_{kt}$$

    with recall R and precision P of class k at the distinct values of $p_k$ as thresholds, without
    interpolation. $\mathcal K$ is the set of classes that have examples. For two classes
    only class 1 counts. With all classes present the value is scikit-learn's
    `average_precision_score(labels, p, average="macro")`, and for two classes
    `average_precision_score(labels, p[:, 1])`. Uninformative probabilities give the share of
    positive examples.

    References:
      Davis and Goadrich, The relationship between precision-recall and ROC curves, ICML 2006.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.8, 0.2]]))
    >>> metrics.average_precision(logits, jnp.array([0, 0, 1, 1]))
    Array(0.8333, dtype=float32)
    """
