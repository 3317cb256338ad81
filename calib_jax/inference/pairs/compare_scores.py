"""Which of two models predicts better, by a proper score or by its error?

A proper score mixes calibration with sharpness. Two calibrated models of different sharpness have
different scores, and no test of scores is a test of calibration.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.evaluation import on_same_examples
from calib_jax.inference.normal import paired_test
from calib_jax.metrics.averages import brier, nll
from calib_jax.metrics.contract.metric import Metric
from calib_jax.metrics.contract.predictions import Predictions

SCORES = ("nll", "brier", "error")


class ScoreDifference(NamedTuple):
    """The change of a mean score from model a to model b; a smaller score is better.

    Attributes:
      value: mean score of b minus mean score of a; negative if b predicts better.
      low: lower end of the interval of the value.
      high: upper end of the interval of the value.
      p_value: two-sided, of equal scores; 1 for equal predictions. The p-value and the ends are
        asymptotic, and NaN with fewer than 10 examples or clusters.
      score: the name of the score.
    """

    value: float
    low: float
    high: float
    p_value: float
    score: str


def compare_scores(
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    score: str = "nll",
    level: float = 0.9,
    clusters: Any = None,
) -> ScoreDifference:
    """Compare a proper score, or the error, of two models on the same examples.

    The paired test of the mean difference compares predictions and not calibration: a
    sharper model has a better score, however well both are calibrated. If a true class has
    probability 0, the NLL is infinite and the result NaN or infinite.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      score: "nll", "brier" or "error"; `mcnemar` is the exact test of equal errors.
      level: the nominal coverage of the interval, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. Use some 30 or
        more.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0]]), (100, 1))
    >>> labels = (jnp.arange(100) < 12).astype(int)
    >>> inference.compare_scores(3 * logits, logits, labels).p_value < 0.01
    True
    """
    checks.level(level)
    checks.one_of("score", score, SCORES)
    models = on_same_examples("compare_scores", (logits_a, logits_b), labels, weights, clusters)
    cluster = models[0].cluster
    a, b = (
        np.asarray(_terms(score, model.copies.logits, model.copies.labels), np.float64)
        for model in models
    )
    with np.errstate(invalid="ignore"):  # inf - inf
        test = paired_test(b - a, cluster, level)
    return ScoreDifference(*test, score)


@functools.partial(jax.jit, static_argnums=0)
def _terms(score: str, logits: Logits, labels: Labels) -> Array:
    view = Predictions(logits, labels)
    if score == "error":
        return 1 - view.hit
    metric: Metric[..., Any] = {"nll": nll, "brier": brier}[score]
    (column,) = metric.terms_of(view).values.values()  # type: ignore[attr-defined]
    return column
