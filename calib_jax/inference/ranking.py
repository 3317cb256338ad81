r"""Which of several models really differ? Ranks with ties, as a table of models needs.

Every pair of models is compared by a paired test of the mean difference of a proper score, and the
p-values of all pairs are corrected by Holm. With the set $B_m$ of models that are significantly
better than m, and the set $W_m$ of models that are significantly worse, model m of M has the ranks

$$1 + |B_m|, \ldots, M - |W_m| .$$

With probability 1 - size or more, all of these ranges contain the rank of the true mean scores.
Two models are tied if their test does not reject. Ties are not transitive: the first model and the
third can differ although both are tied with the second.

References:
  Mogstad, Romano, Shaikh and Wilhelm, Inference for ranks with applications to mobility across
  neighbourhoods and academic achievement across countries, Review of Economic Studies 2024.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.rows import of_few_shapes
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.evaluation import Evaluation, on_same_examples
from calib_jax.inference.normal import Column, holm, paired_test
from calib_jax.metrics.averages import brier, nll
from calib_jax.metrics.contract.metric import Metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Columns

_SCORES = {"nll": nll, "brier": brier}


class Rank(NamedTuple):
    """The place of one model among several.

    Attributes:
      name: the name of the model.
      mean: its mean score.
      low: lower end of the interval of the mean score.
      high: upper end of the interval of the mean score.
      best_rank: the best rank that the tests leave possible; 1 is the best of all.
      worst_rank: the worst rank that the tests leave possible.
      tied_with: the names of the models that the tests cannot tell from this one, best first.
    """

    name: str
    mean: float
    low: float
    high: float
    best_rank: int
    worst_rank: int
    tied_with: tuple[str, ...]


def ranks(
    models: Mapping[str, Any],
    labels: Any = None,
    weights: Any = None,
    *,
    score: str = "nll",
    size: float = 0.05,
    level: float = 0.9,
    clusters: Any = None,
) -> list[Rank]:
    """Order models by a proper score, and say which of them the examples cannot tell apart.

    The tests are Student's. With fewer than 10 examples or clusters the ends are NaN, and no model
    differs from another.

    Args:
      models: logits `[*batch, classes]`, stated confidences or an `Evaluation`, by name.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      score: "nll" or "brier"; smaller is better.
      size: the probability with which a false difference may be found among all pairs.
      level: the nominal coverage of the intervals, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings.

    Returns:
      One `Rank` per model, best first.

    >>> from calib_jax import inference
    >>> random = np.random.default_rng(0)
    >>> z = 2.0 * random.normal(size=(1000, 5))
    >>> labels = (z + random.gumbel(size=z.shape)).argmax(axis=1)
    >>> models = {"sharp": 3 * z, "true": z, "noisy": z + 0.1 * z[::-1]}
    >>> for rank in inference.ranks(models, labels):
    ...     print(rank.name, round(rank.mean, 3), rank.best_rank, rank.worst_rank, rank.tied_with)
    true 0.911 1 2 ('noisy',)
    noisy 0.918 1 2 ('true',)
    sharp 1.477 3 3 ()
    """
    checks.one_of("score", score, tuple(_SCORES))
    checks.level(level)
    if not isinstance(models, Mapping) or len(models) < 2:
        raise ValueError("ranks compares several models: give {name: logits, name: logits, ...}.")
    evaluations = on_same_examples("ranks", [*models.values()], labels, weights, clusters)
    columns = {
        name: _losses_of(name, score, evaluation)
        for name, evaluation in zip(models, evaluations, strict=True)
    }
    cluster = evaluations[0].cluster
    names = sorted(columns, key=lambda name: float(np.mean(columns[name])))
    pairs = list(itertools.combinations(range(len(names)), 2))
    test = functools.partial(paired_test, cluster=cluster, level=level, student=True)
    p_values = [test(columns[names[b]] - columns[names[a]]).p_value for a, b in pairs]
    apart = np.zeros((len(names), len(names)), bool)
    for (a, b), p_value in zip(pairs, holm(p_values), strict=True):
        apart[a, b] = apart[b, a] = p_value <= size
    return [
        Rank(
            name,
            *test(columns[name])[:3],
            1 + int(np.sum(apart[place, :place])),
            len(names) - int(np.sum(apart[place, place:])),
            tuple(other for at, other in enumerate(names) if at != place and not apart[place, at]),
        )
        for place, name in enumerate(names)
    ]


def _losses_of(name: str, score: str, evaluation: Evaluation) -> Column:
    """Compute the score of each example."""
    function = functools.partial(_losses, _SCORES[score])
    column = of_few_shapes(function, evaluation.copies.logits, evaluation.copies.labels)
    infinite = int(np.sum(np.isinf(column)))
    if infinite:
        raise ValueError(
            f"ranks: {name!r} gives the true class of {infinite} examples the probability 0, and"
            ' its NLL is infinite. Use score="brier", or probabilities above 0.'
        )
    return np.asarray(column, np.float64)


@functools.partial(jax.jit, static_argnums=0)
def _losses(metric: Metric[..., Any], logits: Logits, labels: Labels) -> Array:
    terms = metric.terms_of(Predictions(logits, labels))
    (column,) = cast(Columns, terms).values.values()
    return column
