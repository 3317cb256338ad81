r"""Is the model calibrated at all, and in which classes and groups is it not?

    inference.calibration_test("ece", logits, labels, key=jax.random.key(0))     exact, by draws
    inference.calibration_test("kuiper", logits, labels)                         no bins, asymptotic
    inference.calibration_tests()                                                every test by name
    inference.class_errors(logits, labels, key=key)            the probability of every class
    inference.group_errors(logits, labels, groups, key=key)    the top label in every group

The hypothesis is that the probability of being right is the confidence, and that the examples are
independent. A calibrator that was fitted on the same examples makes every p-value here invalid, and
soft labels do not have the drawn distribution. Correct for the number of tests if several are
used. A large p-value does not prove calibration.

Tests with a key rank the statistic among draws of a calibrated model: they are exact for any
number of examples. The others are asymptotic, and NaN where a calibrated model would have less
than one unit of variance in its number of hits, because the p-value would be meaningless.

With `clusters`, whole clusters are independent instead of examples. Draws then flip the signs of
the clusters' sums, and asymptotic tests use the variance between clusters. Both are approximate:
with 100 clusters they rejected 4 to 8 % of true hypotheses at 5 % in simulations, "classwise_ece"
and "cox" up to 10 %.

*Classes and groups.* Every class and every group has the binned error of `ece`, the noise floor of
its size, and an exact p-value by draws of a calibrated model. Small groups have large errors by
noise alone, so compare each error with its floor, not with the error of a group of another size.
`p_holm` is corrected for the number of classes or groups: if all values below 5 % are called
miscalibrated, the probability of one mistake or more is at most 5 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks, numerics, values
from calib_jax.core.types import Array
from calib_jax.inference import p_values
from calib_jax.inference.class_gaps import gaps_of_classes
from calib_jax.inference.evaluation import Evaluation, evaluated, in_order
from calib_jax.inference.gaps import SLACK, hits_in_chunks, memberships, p_of_draws
from calib_jax.inference.noise_bound import BOUNDED, noise_bound
from calib_jax.inference.p_values import Column, Indices, Matrix
from calib_jax.inference.squared_error import Binned, binned, debiased, debiased_in_clusters
from calib_jax.metrics.bins import classwise_ece, ece
from calib_jax.metrics.contract import Predictions, named


class CalibrationTest(NamedTuple):
    """A test of the hypothesis that the model is calibrated, as Python floats.

    Attributes:
      statistic: the test's statistic; see the test.
      p_value: two-sided where the statistic has a sign.
    """

    statistic: float
    p_value: float


_TESTS: checks.Catalogue[Callable[..., CalibrationTest]] = checks.Catalogue("calibration test")


def calibration_test(
    name: str,
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    clusters: Any = None,
    **options: Any,
) -> CalibrationTest:
    """Test whether a model is calibrated.

    Args:
      name: one of `calibration_tests()`. "ece" tests the reported ECE. "kuiper" is more powerful
        against over- and underconfidence, and has no bins. "temperature" is the most powerful
        against a wrong temperature, and does not detect other errors.
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      clusters: `[*batch]`, the cluster of each example, such as the image of a pixel or the
        document of a token, as integers or strings. Use some 30 clusters or more: with fewer,
        draws rarely reject, and asymptotic p-values are NaN below 10. With 50 clusters of 20
        examples "cox" rejected up to 8 % of true hypotheses in simulations, the others 4 to 7 %.
        The k copies of an example of weight k are in its cluster.
      **options: options of the test. Tests by draws need `key` and take `num_resamples`, and so
        does "kuiper" with clusters; tests of a metric take the options of the metric.

    >>> from calib_jax import inference
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0]]), (100, 1))
    >>> labels = (jnp.arange(100) < 40).astype(int)
    >>> inference.calibration_test("spiegelhalter", logits, labels).p_value < 1e-6
    True
    """
    test = _TESTS[name]
    if name not in BOUNDED:  # the options of a metric are checked by the metric
        checks.check_options(name, test, options)
    evaluation = evaluated(f"calibration_test({name!r})", logits, labels, weights, clusters)
    return test(evaluation, **options)


def calibration_tests() -> Mapping[str, Callable[..., CalibrationTest]]:
    """Return every test by name, as functions of an `Evaluation` and the options of the test."""
    return _TESTS


def _key_given(name: str, key: Any | None) -> Array:
    """Return the key of a test by draws; raise TypeError without one."""
    if key is None:
        raise TypeError(f"calibration_test({name!r}) draws outcomes: give key=jax.random.key(0).")
    checks.random_key(key)
    return key


def _hit_variance(confidence: Column) -> float:
    r"""Compute $\sum c (1 - c)$, the variance of the number of hits of a calibrated model."""
    return float(np.sum(confidence * (1 - confidence)))


# --------------------------------------------------------------------------------------------
# By draws.


def _of_metric(
    name: str,
    evaluation: Evaluation,
    *,
    key: Any | None = None,
    num_resamples: int = 1000,
    **options: Any,
) -> CalibrationTest:
    """Test by a binned calibration error, against draws of a calibrated model."""
    metric, key = named(name, **options), _key_given(name, key)
    bound = noise_bound(metric, evaluation, key=key, num_resamples=num_resamples)
    return CalibrationTest(bound.value, bound.p_value)


for _name in BOUNDED:
    _TESTS.register(_name)(functools.partial(_of_metric, _name))


@_TESTS.register("squared_error")
def squared_error(
    evaluation: Evaluation,
    *,
    key: Array | None = None,
    num_resamples: int = 1000,
    num_bins: int = 15,
) -> CalibrationTest:
    """Test by the debiased squared error, against draws of a calibrated model.

    The error has a skewed distribution, so a normal approximation would reject too often. It is NaN
    if no bin has two examples, or two clusters where clusters are given.
    """
    key = _key_given("squared_error", key)
    checks.whole("num_resamples", num_resamples)
    bins = binned(evaluation, num_bins=num_bins)
    if math.isnan(bins.value):
        return CalibrationTest(math.nan, math.nan)
    if bins.in_clusters is not None:
        totals = p_values.flipped(p_values.host_generator(key), num_resamples, bins.in_clusters[0])
        draws = debiased_in_clusters(*bins.in_clusters, totals)
    else:
        draws = _squared_errors(key, bins, num_resamples)
    # In the mean, confident models differ from calibrated models by less than rounding.
    num_rows = len(bins.residual)
    return CalibrationTest(bins.value, p_of_draws(num_rows * bins.value, num_rows * draws))


def _squared_errors(key: Array, bins: Binned, num_resamples: int) -> np.ndarray:
    """Draw the debiased squared error of a calibrated model."""
    num_bins = len(bins.size)
    # The sums of r and r^2 are linear in the hits: r^2 = c^2 + (1 - 2 c) a. The rows are
    # sorted, so that the draws do not depend on the order of the rows.
    order = in_order(bins.confidence, bins.residual)
    c, members = bins.confidence[order], np.eye(num_bins)[bins.bin[order]]
    columns = np.concatenate([members, (1 - 2 * c)[:, None] * members], axis=1).astype(np.float32)
    chunks = hits_in_chunks(p_values.host_generator(key), c, num_resamples)
    hits = np.concatenate([chunk.astype(np.float32) @ columns for chunk in chunks])
    hits = hits.astype(np.float64)
    total = c @ members - hits[:, :num_bins]
    square = np.square(c) @ members + hits[:, num_bins:]
    return np.asarray(debiased(bins.size, total, square))


# --------------------------------------------------------------------------------------------
# Asymptotic.


@_TESTS.register("kuiper")
def kuiper(
    evaluation: Evaluation, *, key: Array | None = None, num_resamples: int = 1000
) -> CalibrationTest:
    r"""Test by the range of the cumulative differences of hits and confidences (ECCE-R).

    $$D_k = \frac1n \sum_{i \le k} (a_i - c_i), \qquad R = \max_k D_k - \min_k D_k$$

    over examples sorted by confidence. Tied confidences are treated as one step: the sum is read
    after the last tied example. Without clusters the p-value is computed from the range of a
    Brownian motion; with clusters it is computed from draws, which need a key.

    References:
      Arrieta-Ibarra et al., Metrics of calibration for probabilistic predictions, JMLR 2022.
    """
    if evaluation.cluster is not None:
        key = _key_given("kuiper", key)
        return _of_metric("ecce", evaluation, key=key, num_resamples=num_resamples)
    confidence, hit = evaluation.top_label()
    order = np.argsort(confidence, kind="stable")
    confidence, hit = confidence[order], hit[order]
    last = np.append(confidence[1:] > confidence[:-1], True)
    path = np.append(0.0, np.cumsum(hit - confidence)[last]) / len(hit)
    statistic, variance = float(np.ptp(path)), _hit_variance(confidence)
    if variance < 1:
        return CalibrationTest(statistic, math.nan)
    p_value = _survival_of_range(statistic * len(hit) / math.sqrt(variance))
    return CalibrationTest(statistic, p_value)


def _survival_of_range(x: float) -> float:
    """Compute the probability that the range of a Brownian motion on [0, 1] exceeds x."""
    if x < 0.5:
        return 1.0  # to 1e-7, where the alternating series converges slowly
    tails = (math.erfc(k * x / math.sqrt(2)) / 2 for k in range(1, 60))
    total = 8 * sum((-1) ** (k - 1) * k * tail for k, tail in enumerate(tails, 1))
    return float(np.clip(total, 0, 1))


@_TESTS.register("spiegelhalter")
def spiegelhalter(evaluation: Evaluation) -> CalibrationTest:
    r"""Test by Spiegelhalter's z, the expected Brier score of the top label minus the score.

    $$z = \frac{\sum (1 - 2 c) (c - a)}{\sqrt{\sum (1 - 2 c)^2 c (1 - c)}}$$

    The usual Z has the opposite sign: above a confidence of 1/2, z is negative for overconfident
    models and positive for underconfident models. It is also NaN if all confidences are 1/2.

    References:
      Spiegelhalter, Probabilistic prediction in patient management and clinical trials, 1986.
    """
    confidence, hit = evaluation.top_label()
    slope = 1 - 2 * confidence
    variance = slope**2 * confidence * (1 - confidence)
    return _normal(slope * (confidence - hit), variance, confidence, evaluation)


@_TESTS.register("temperature")
def temperature(evaluation: Evaluation) -> CalibrationTest:
    r"""Test whether the temperature 1 is right, by the score of the NLL with respect to 1/T.

    $$z = \frac{\sum_i (\mathrm{E}_{p_i} z - z_{i y})}{\sqrt{\sum_i \operatorname{Var}_{p_i} z}}$$

    It is positive for overconfident models. It is NaN if all logits of every row are equal.
    """
    score, variance, confidence = (
        column.astype(np.float64) for column in evaluation.columns(_temperature_terms)
    )
    return _normal(score, variance, confidence, evaluation)


def _temperature_terms(view: Predictions) -> tuple[Array, Array, Array]:
    """Compute each example's score of the NLL by log 1/T, the score's variance, the confidence."""
    below = view.logits - jnp.max(view.logits, axis=-1, keepdims=True)
    possible = jnp.where(view.p > 0, below, 0)  # a class of probability 0 may have logit -inf
    expected = jnp.sum(view.p * possible, axis=-1)
    variance = jnp.sum(view.p * jnp.square(possible - expected[..., None]), axis=-1)
    return expected - numerics.true_class(below, view.labels), variance, view.confidence


def _normal(
    scores: Column, variance: Column, confidence: Column, evaluation: Evaluation
) -> CalibrationTest:
    if evaluation.few_clusters or not np.any(variance):
        return CalibrationTest(math.nan, math.nan)
    if evaluation.cluster is not None:
        scores = p_values.sums_of(evaluation.cluster, scores)
        variance = np.square(scores)
    deviation = math.sqrt(float(np.sum(variance)))
    z = float(np.sum(scores)) / deviation if deviation else math.nan
    return CalibrationTest(z, p_values.p_of_z(z) if _hit_variance(confidence) >= 1 else math.nan)


@_TESTS.register("cox")
def cox(evaluation: Evaluation) -> CalibrationTest:
    r"""Test the intercept 0 and slope 1 of hits regressed on the logit of the confidence.

    The statistic is the score test of $\operatorname{logit} P(a = 1) = \alpha + \beta
    \operatorname{logit} c$ at (0, 1): chi-squared with two degrees of freedom, or one if all
    confidences are equal.

    References:
      Cox, Two further applications of a model for binary regression, Biometrika 1958.
    """
    columns, cluster = evaluation.columns(_log_odds), evaluation.cluster
    log_odds, confidence, hit = (column.astype(np.float64) for column in columns)
    if _hit_variance(confidence) < 1 or evaluation.few_clusters:
        return CalibrationTest(math.nan, math.nan)
    spread = confidence * (1 - confidence)
    # Centered, so that the two scores are uncorrelated.
    center = np.sum(spread * log_odds) / np.sum(spread)
    slope = log_odds - center
    residual = hit - confidence
    slope /= max(1.0, abs(center))
    scores = np.stack([residual, residual * slope], axis=1)
    variance = np.diag([np.sum(spread), np.sum(spread * slope**2)])
    if cluster is not None:
        scores = p_values.sums_of(cluster, scores)
        variance = scores.T @ scores
    total, rank = np.sum(scores, axis=0), np.linalg.matrix_rank(variance, 1e-9 * np.sum(spread))
    # With equal confidences only one score varies; the pseudo-inverse leaves out the other.
    statistic = float(total @ np.linalg.pinv(variance, 1e-9) @ total)
    if rank == 2:
        return CalibrationTest(statistic, math.exp(-statistic / 2))
    return CalibrationTest(statistic, p_values.p_of_z(math.sqrt(statistic)) if rank else math.nan)


def _log_odds(view: Predictions) -> tuple[Array, Array, Array]:
    # Finite even where the confidence rounds to 1; only a certain prediction has infinite odds.
    odds = jnp.max(view.odds, axis=-1) if view.stated is None else view.odds[..., 1]
    limits = jnp.finfo(odds.dtype)
    return jnp.log(jnp.clip(odds, limits.tiny, limits.max)), view.confidence, view.hit


_DRAWS_AT_A_TIME = 1000
_MOST_OUTCOMES = 2 * 10**8
_MOST_CELLS = 2**24  # of the bins of all classes and of all draws at a time


class PartError(NamedTuple):
    """The calibration error of a class or a group, with its test, as Python numbers.

    Attributes:
      name: the name of the class or group.
      size: the number of examples of the class or group.
      gap: mean probability minus share of occurrences; positive if overconfident.
      error: the binned calibration error.
      floor: the mean error of a calibrated model.
      p_value: the p-value of the hypothesis that the model is calibrated there.
      p_holm: the p-value corrected for the number of classes or groups.
    """

    name: str
    size: int
    gap: float
    error: float
    floor: float
    p_value: float
    p_holm: float


@checks.needs_key
def group_errors(
    logits: Any,
    labels: Any = None,
    groups: Any = None,
    weights: Any = None,
    *,
    key: Any,
    num_bins: int = 15,
    num_resamples: int | None = None,
    clusters: Any = None,
) -> list[PartError]:
    """Compute the ECE of every group with its noise floor and p-values.

    No calibrator may have been fitted on these examples, and no group chosen by their labels.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      groups: `[*batch]`, the group of each example, as integers, strings or booleans.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the draws.
      num_bins: number of bins of equal width.
      num_resamples: number of draws R. The smallest `p_holm` of m groups is m / (R + 1); the
        default is 40 m, but at least 1,000 and at most 2e8 outcomes.
      clusters: `[*batch]`, the cluster of each example, as integers or strings, if examples depend
        on each other. Draws then flip the signs of whole clusters; use some 30 or more per group.

    Returns:
      One record per group, in ascending order of the groups.

    >>> import jax, numpy as np
    >>> from calib_jax import inference
    >>> logits = np.tile([[2.0, 1.0]], (200, 1))  # 73 % confident
    >>> labels = (np.arange(200) % 4 == 0).astype(int)  # right in 75 %
    >>> labels[100:150] = 1  # but not among these
    >>> groups = ["new" if row >= 100 else "old" for row in range(200)]
    >>> parts = inference.group_errors(logits, labels, groups, key=jax.random.key(0))
    >>> [(part.name, part.size, round(part.gap, 2), part.p_holm < 0.01) for part in parts]
    [('new', 100, 0.35, True), ('old', 100, -0.02, False)]
    """
    checks.num_bins(num_bins)
    evaluation = evaluated("group_errors", logits, labels, weights, clusters)
    given = getattr(logits, "correct", evaluation.labels) if labels is None else labels
    of_row, cluster = values.ids_of("groups", groups, np.shape(given)), evaluation.cluster
    names, group = np.unique(of_row[evaluation.copies.row], return_inverse=True)
    members = memberships(ece.with_options(num_bins=num_bins), evaluation)
    confidence, hit = evaluation.top_label()
    cell = group * num_bins + np.argmax(members, axis=1)
    order = np.lexsort((hit, confidence, cell))
    cell, confidence, hit = cell[order], confidence[order], hit[order]
    first = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    of_cell = cell[first] // num_bins
    sizes = np.bincount(group)

    def errors(sums: Matrix) -> Matrix:
        starts = np.searchsorted(of_cell, np.arange(len(names)))
        return np.add.reduceat(np.abs(sums), starts, axis=1) / sizes

    residual = confidence - hit
    gaps = np.add.reduceat(residual, first)
    number = _num_resamples(num_resamples, len(names), len(hit))
    if cluster is None:
        null = [
            errors(np.add.reduceat(confidence - hits, first, axis=1))
            for hits in hits_in_chunks(p_values.host_generator(key), confidence, number)
        ]
    else:
        index = np.unique(cell, return_inverse=True)[1] + len(first) * cluster[order]
        shape = int(np.max(cluster)) + 1, len(first)
        sums = np.bincount(index, residual, math.prod(shape)).reshape(shape)
        null = [errors(p_values.flipped(p_values.host_generator(key), number, sums))]
    gap, error = np.bincount(of_cell, gaps) / sizes, errors(gaps[None])[0]
    draws = np.concatenate(null)
    tested = [p_of_draws(*each) for each in zip(error, draws.T, strict=True)]
    called = [str(name) for name in names]
    return _parts(called, sizes, gap, error, np.mean(draws, axis=0), tested)


@checks.needs_key
def class_errors(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    num_bins: int = 15,
    num_resamples: int | None = None,
    clusters: Any = None,
) -> list[PartError]:
    """Compute `per_class_ece` of every class with its noise floor and p-values.

    The hypothesis of each test is that the probabilities of all classes are calibrated together.
    The `size` is the number of examples of the class; its error is a mean over all examples.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the draws.
      num_bins: number of bins of equal width.
      num_resamples: number of draws; see `group_errors`.
      clusters: `[*batch]`, the cluster of each example; see `group_errors`.

    Returns:
      One record per class, named "0", "1", ...

    >>> import jax, numpy as np
    >>> from calib_jax import inference
    >>> logits = np.tile([[1.0, 1.0, 0.0]], (300, 1))
    >>> labels = (np.arange(300) < 90).astype(int)  # class 2, of 16 %, never occurs
    >>> parts = inference.class_errors(logits, labels, key=jax.random.key(0))
    >>> [round(part.gap, 2) for part in parts]
    [-0.28, 0.12, 0.16]
    """
    checks.num_bins(num_bins)
    evaluation = evaluated("class_errors", logits, labels, weights, clusters)
    evaluation.refuse_stated("class_errors")
    logits, labels, *_ = evaluation.copies
    metric = classwise_ece.with_options(num_bins=num_bins)
    num_classes = logits.shape[-1]
    number = _num_resamples(num_resamples, num_classes, len(labels))
    at_a_time = max(1, min(_DRAWS_AT_A_TIME, _MOST_CELLS // (num_classes * num_bins)))
    floor, larger = np.zeros(num_classes), np.zeros(num_classes)
    # Draws are counted and not kept: as many as classes would need a square of memory.
    for gaps in gaps_of_classes(metric, evaluation, key, number, at_a_time):
        gap, null, ranked = (
            part.reshape(-1, num_classes, num_bins) for part in (gaps.gap, gaps.null, gaps.ranked)
        )
        error = np.sum(np.abs(gap), axis=-1)
        floor += np.sum(np.abs(null), axis=(0, -1)) / number
        larger += np.sum(np.sum(np.abs(ranked), axis=-1) >= error - SLACK, axis=0)
    sizes = np.bincount(np.asarray(labels), minlength=num_classes)
    names = [str(name) for name in range(num_classes)]
    tested = ((1 + larger) / (1 + number)).tolist()
    return _parts(names, sizes, np.sum(gap, axis=-1)[0], error[0], floor, tested)


def _num_resamples(given: int | None, num_parts: int, num_rows: int) -> int:
    return given or max(1000, min(40 * num_parts, _MOST_OUTCOMES // num_rows))


def _parts(
    names: list[str], sizes: Indices, gap: Column, error: Column, floor: Column, tested: list[float]
) -> list[PartError]:
    columns = (names, sizes, gap, error, floor, tested, p_values.holm(tested))
    return [
        PartError(name, int(size), *map(float, numbers))
        for name, size, *numbers in zip(*columns, strict=True)
    ]
