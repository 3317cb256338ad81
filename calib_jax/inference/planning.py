r"""How many rows with labels does a question need, and which of several models really differ?

*Rows.* The answers are computed from a pilot: some rows of the same kind, of which the confidences,
the accuracy and the noise of a temperature are used. With the quantiles $z_q$ of the normal
distribution, $k = z_{1 - \mathrm{size} / 2} + z_{\mathrm{power}}$ and the residuals $r = c - a$:

*An ECE of x.* Let every confidence be too high by x. The gap of bin b is then $d_b = x w_b$, with
the share $w_b$ of the rows, plus noise of the variance $C_b / n$ with the mean $C_b$ of $c (1 - c)$
over the rows in b. The number of rows is the smallest n with

$$P\Bigl(\sum_b |d_b + e_b| > q\Bigr) \ge \mathrm{power}, \qquad
  P\Bigl(\sum_b |e_b| > q\Bigr) = \mathrm{size},$$

computed from draws of normal noise. Its mean without an error, $\sum_b E|e_b|$, is the noise floor.

*Two error rates that differ by y.* The paired difference of errors has the variance $s^2 = D -
y^2$, for the share D of the rows that only one of two models predicts right, at most y more than in
the pilot: $n = k^2 s^2 / y^2$.

*Two ECEs that differ by y.* Every confidence of model a is too high by y, and model b is
calibrated. The debiased squared errors differ by $y^2$, with the variance $v / n + w / n^2$, where
$v = 4 y^2 E[(c - y) (1 - c + y)]$ and $w = 2 (\sum_b s_{ab}^4 + \sum_b s_{bb}^4 - 2 \sum_{b, b'}
X_{b b'}^2 / (w_b w_{b'}))$ (`compare_calibration`). So n solves $y^4 n^2 = k^2 (v n + w)$.

*A temperature within a share x.* $n = (z_{(1 + \mathrm{level}) / 2}\, s / \log(1 + x))^2$ with the
standard deviation s of a row's influence on the logarithm of the fitted temperature.

*Ranks with ties, as a table of models needs.* Every pair of models is compared by a paired test of
the mean difference of a proper score, and the p-values of all pairs are corrected by Holm. With the
set $B_m$ of models that are significantly better than m, and the set $W_m$ of models that are
significantly worse, model m of M has the ranks

$$1 + |B_m|, \ldots, M - |W_m| .$$

With probability 1 - size or more, all of these ranges contain the rank of the true mean scores.
Two models are tied if their test does not reject. Ties are not transitive: the first model and the
third can differ although both are tied with the second.

References:
  Mogstad, Romano, Shaikh and Wilhelm, Inference for ranks with applications to mobility across
  neighbourhoods and academic achievement across countries, Review of Economic Studies 2024.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np

from calib_jax.core import checks, population, values
from calib_jax.core.types import Array
from calib_jax.inference.ce2 import influence_on_temperature
from calib_jax.inference.evaluation import Evaluation, on_same_examples
from calib_jax.inference.p_values import Column, holm, paired_test
from calib_jax.inference.squared_error import Binned, binned, share, shared
from calib_jax.metrics.averages import brier, nll
from calib_jax.metrics.contract import AnyMetric, Predictions
from calib_jax.metrics.terms import Columns

_DRAWS = 4096
_MOST_ROWS = 2**40
_PILOT_OF_TEMPERATURE = 10_000  # rows, which determine the noise of a temperature to 1 %


class RowsNeeded(NamedTuple):
    """Numbers of rows, as Python integers; None for what is not asked.

    Attributes:
      ece: rows that detect the ECE.
      error_difference: rows that detect the difference of two error rates.
      ece_difference: rows that detect the difference of two ECEs.
      temperature: rows that fit a temperature as precisely as asked; None also for stated
        confidences, for logits of -inf, and for a pilot without a best temperature.
    """

    ece: int | None
    error_difference: int | None
    ece_difference: int | None
    temperature: int | None


def rows_needed(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    other: Any = None,
    ece: float | None = 0.02,
    error_difference: float | None = 0.01,
    ece_difference: float | None = 0.02,
    temperature: float | None = 0.05,
    size: float = 0.05,
    power: float = 0.8,
    level: float = 0.9,
    num_bins: int = 15,
) -> RowsNeeded:
    """Compute how many independent rows answer each of four questions, from the rows of a pilot.

    With fewer rows than computed, "no difference was found" says little. A pilot of some 200 rows
    is enough. Rows in clusters, such as pixels, need more. In simulations at a power of 80 %, the
    test of an ECE found it in 77 to 82 % of sets, tests of error rates in 81 to 87 %, and the test
    of two ECEs in 77 to 90 %, and in 95 % or more where all confidences are equal.

    Args:
      logits: `[*batch, classes]`, the pilot.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      other: the logits of a second model for the same rows, for both differences. Without it, they
        are computed for a model of the same accuracy and confidences whose errors are independent
        of the first model's. Models that err on the same rows need fewer rows.
      ece: the ECE to be found larger than its noise floor by the test of `noise_bound`.
      error_difference: the difference of the error rates to be found by a paired test.
      ece_difference: the ECE of one model, to be told from a calibrated one by
        `compare_calibration`.
      temperature: the relative error that a fitted temperature may have with probability `level`.
      size: the size of the tests, which are two-sided for differences.
      power: the probability with which a test finds what is asked.
      level: the probability of `temperature`.
      num_bins: number of bins of equal width.

    >>> from calib_jax import inference
    >>> random = np.random.default_rng(0)
    >>> logits = 2.0 * random.normal(size=(1000, 10))
    >>> labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    >>> inference.rows_needed(logits, labels, ece=0.02, temperature=0.05)
    RowsNeeded(ece=8696, error_difference=39840, ece_difference=21542, temperature=1133)
    """
    asked = dict(ece=ece, error_difference=error_difference, ece_difference=ece_difference)
    asked |= dict(temperature=temperature, size=size, power=power)
    for name, value in asked.items():
        if value is not None and not 0 < value < 1:
            raise ValueError(
                f"rows_needed: {name} must be a fraction between 0 and 1, got {value}."
            )
    checks.level(level)
    given = (logits,) if other is None else (logits, other)
    models = on_same_examples("rows_needed", given, labels, weights)
    for model in models:
        model.refuse_clusters("rows_needed")
    bins = [binned(model, num_bins=num_bins) for model in models]
    normal = NormalDist()
    effect = normal.inv_cdf(1 - size / 2) + normal.inv_cdf(power)
    return RowsNeeded(
        ece=_for_ece(bins[0], ece, size, power) if ece else None,
        error_difference=_for_errors(bins, error_difference, effect) if error_difference else None,
        ece_difference=_for_eces(bins, ece_difference, effect) if ece_difference else None,
        temperature=_for_temperature(models[0], temperature, level) if temperature else None,
    )


def _for_ece(bins: Binned, ece: float, size: float, power: float) -> int:
    confidence, num_bins, num_rows = bins.confidence, len(bins.size), len(bins.confidence)
    accuracy = np.maximum(confidence - ece, 0)
    columns = confidence - accuracy, confidence * (1 - confidence), accuracy * (1 - accuracy)
    gap, of_null, of_truth = (
        np.bincount(bins.bin, column, num_bins) / num_rows for column in columns
    )
    random = np.random.default_rng(0)
    normal, noise = random.standard_normal((2, _DRAWS, num_bins))
    # Gaps times the root of n: their noise does not depend on n.
    threshold = np.quantile(np.abs(normal) @ np.sqrt(of_null), 1 - size)
    noise *= np.sqrt(of_truth)

    def detects(number: int) -> bool:
        values = np.abs(gap * math.sqrt(number) + noise).sum(axis=1)
        return float(np.mean(values > threshold)) >= power

    # At least one error must be seen, however certain the model is.
    least = math.ceil(math.log(1 - power) / math.log(1 - ece))
    return least + bisect.bisect_left(range(least, _MOST_ROWS), True, key=detects)


def _for_errors(bins: list[Binned], difference: float, effect: float) -> int:
    hits = [np.round(of_model.confidence - of_model.residual) for of_model in bins]
    accuracy = float(np.mean(hits[0]))
    apart = float(np.mean(hits[0] != hits[1])) if len(hits) == 2 else 2 * accuracy * (1 - accuracy)
    # A difference adds examples that only one of the models predicts right.
    return math.ceil(effect**2 * ((apart + difference) / difference**2 - 1))


def _for_eces(bins: list[Binned], difference: float, effect: float) -> int:
    spread = [np.sum(np.square(of_model.spread * share(of_model))) for of_model in bins]
    # A second model that is not given has the same spread and independent errors.
    degenerate = 2 * spread[0] if len(bins) == 1 else sum(spread) - 2 * shared(*bins)
    accuracy = np.maximum(bins[0].confidence - difference, 0)
    linear = 4 * difference**2 * np.mean(accuracy * (1 - accuracy))
    linear, degenerate = effect**2 * linear, 2 * effect**2 * max(degenerate, 0.0)
    root = math.sqrt(linear**2 + 4 * difference**4 * degenerate)
    return math.ceil((linear + root) / (2 * difference**4))


def _for_temperature(model: Evaluation, error: float, level: float) -> int | None:
    logits, labels = (np.asarray(part) for part in model.copies[:2])
    if values.is_stated(logits) or not np.all(np.isfinite(logits)):
        return None
    step = -(-len(labels) // _PILOT_OF_TEMPERATURE)
    rows, labels = population.rows_of(logits[::step], labels[::step])

    def high_enough(log_t: float) -> bool:
        return float(population.slopes(rows, labels, log_t).mean()) <= 0

    # Steps of 1e-4 are enough, and a search of them needs no import of SciPy's solvers.
    grid = np.linspace(math.log(1e-3), math.log(1e3), 2**17)
    at = bisect.bisect_left(grid, True, key=high_enough)
    if at in (0, len(grid)):  # the NLL has no minimum
        return None
    deviation = float(np.std(influence_on_temperature(rows, labels, grid[at])))
    quantile = NormalDist().inv_cdf((1 + level) / 2)
    return math.ceil((quantile * deviation / math.log1p(error)) ** 2)


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
    checks.between("size", size, 0, 1)
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
    column = evaluation.columns(_losses, _SCORES[score])
    infinite = int(np.sum(np.isinf(column)))
    if infinite:
        raise ValueError(
            f"ranks: {name!r} gives the true class of {infinite} examples the probability 0, and"
            ' its NLL is infinite. Use score="brier", or probabilities above 0.'
        )
    return np.asarray(column, np.float64)


def _losses(view: Predictions, metric: AnyMetric) -> Array:
    (column,) = cast(Columns, metric.terms_of(view)).values.values()
    return column
