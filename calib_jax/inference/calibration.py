r"""Is the model calibrated at all? Tests by name, each with a statistic and a p-value.

    inference.calibration_test("ece", logits, labels, key=jax.random.key(0))     exact, by draws
    inference.calibration_test("kuiper", logits, labels)                         no bins, asymptotic
    inference.calibration_tests()                                                every test by name

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
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.checks import Catalogue
from calib_jax.core.names import check_options
from calib_jax.core.numerics import true_class
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.draws import hits_in_chunks, p_of_draws
from calib_jax.inference.evaluation import Evaluation, evaluated, in_order
from calib_jax.inference.noise_bound import BOUNDED, noise_bound
from calib_jax.inference.normal import (
    LEAST_UNITS,
    Clusters,
    Column,
    clipped,
    flipped,
    p_of_z,
    sums_of,
    z_of,
)
from calib_jax.inference.squared_error import Binned, binned, debiased, debiased_in_clusters
from calib_jax.metrics.contract.metric import named
from calib_jax.metrics.contract.predictions import Predictions


class CalibrationTest(NamedTuple):
    """A test of the hypothesis that the model is calibrated, as Python floats.

    Attributes:
      statistic: the test's statistic; see the test.
      p_value: two-sided where the statistic has a sign.
    """

    statistic: float
    p_value: float


_TESTS: Catalogue[Callable[..., CalibrationTest]] = Catalogue("calibration test")


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
      name: one of `calibration_tests()`. "ece" tests the reported ECE, "kuiper" is stronger
        against over- and underconfidence and has no bins, "temperature" is the strongest against a
        wrong temperature and does not detect other errors.
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
        check_options(name, test, options)
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
    bins = binned(evaluation, num_bins=num_bins)
    if math.isnan(bins.value):
        return CalibrationTest(math.nan, math.nan)
    if bins.in_clusters is not None:
        totals = flipped(key, num_resamples, bins.in_clusters[0])
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
    chunks = hits_in_chunks(key, c, num_resamples)
    hits = np.concatenate([chunk.astype(np.float32) @ columns for chunk in chunks])
    hits = hits.astype(np.float64)
    total = c @ members - hits[:, :num_bins]
    square = np.square(c) @ members + hits[:, num_bins:]
    draws: np.ndarray = debiased(bins.size, total, square)
    return draws


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
    statistic = float(np.ptp(path))
    if _hit_variance(confidence) < 1:
        return CalibrationTest(statistic, math.nan)
    return CalibrationTest(
        statistic, _survival_of_range(statistic * len(hit) / math.sqrt(_hit_variance(confidence)))
    )


def _survival_of_range(x: float) -> float:
    """Compute the probability that the range of a Brownian motion on [0, 1] exceeds x."""
    if x < 0.5:
        return 1.0  # to 1e-7, where the alternating series converges slowly
    tails = (math.erfc(k * x / math.sqrt(2)) / 2 for k in range(1, 60))
    total = 8 * sum((-1) ** (k - 1) * k * tail for k, tail in enumerate(tails, 1))
    return clipped(total, high=1.0)


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
    return _normal(slope * (confidence - hit), variance, confidence, evaluation.cluster)


@_TESTS.register("temperature")
def temperature(evaluation: Evaluation) -> CalibrationTest:
    r"""Test whether the temperature 1 is right, by the score of the NLL with respect to 1/T.

    $$z = \frac{\sum_i (\mathrm{E}_{p_i} z - z_{i y})}{\sqrt{\sum_i \operatorname{Var}_{p_i} z}}$$

    It is positive for overconfident models. It is NaN if all logits of every row are equal.
    """
    score, variance, confidence = (
        np.asarray(part, np.float64)
        for part in temperature_terms(evaluation.copies.logits, evaluation.copies.labels)
    )
    return _normal(score, variance, confidence, evaluation.cluster)


@jax.jit
def temperature_terms(logits: Logits, labels: Labels) -> tuple[Array, Array, Array]:
    """Compute each example's score of the NLL by log 1/T, the score's variance, the confidence."""
    view = Predictions(logits, labels)
    below = view.logits - jnp.max(view.logits, axis=-1, keepdims=True)
    possible = jnp.where(view.p > 0, below, 0)  # a class of probability 0 may have logit -inf
    expected = jnp.sum(view.p * possible, axis=-1)
    variance = jnp.sum(view.p * jnp.square(possible - expected[..., None]), axis=-1)
    return expected - true_class(below, view.labels), variance, view.confidence


def _normal(
    scores: Column, variance: Column, confidence: Column, cluster: Clusters | None
) -> CalibrationTest:
    if not np.any(variance):
        return CalibrationTest(math.nan, math.nan)
    if cluster is None:
        z = float(np.sum(scores)) / math.sqrt(float(np.sum(variance)))
    else:
        z = z_of(scores, cluster)
    return CalibrationTest(z, p_of_z(z) if _hit_variance(confidence) >= 1 else math.nan)


@_TESTS.register("cox")
def cox(evaluation: Evaluation) -> CalibrationTest:
    r"""Test the intercept 0 and slope 1 of hits regressed on the logit of the confidence.

    The statistic is the score test of $\operatorname{logit} P(a = 1) = \alpha + \beta
    \operatorname{logit} c$ at (0, 1): chi-squared with two degrees of freedom, or one if all
    confidences are equal.

    References:
      Cox, Two further applications of a model for binary regression, Biometrika 1958.
    """
    logits, labels, _, cluster = evaluation.copies
    log_odds, confidence, hit = (np.asarray(part, np.float64) for part in _log_odds(logits, labels))
    if _hit_variance(confidence) < 1:
        return CalibrationTest(math.nan, math.nan)
    spread = confidence * (1 - confidence)
    # Centered, so that the two scores are uncorrelated.
    center = np.sum(spread * log_odds) / np.sum(spread)
    slope = log_odds - center
    residual = hit - confidence
    information = float(np.sum(spread * slope**2))
    if cluster is not None:
        return _cox_in_clusters(residual, slope, cluster)
    statistic = float(np.sum(residual) ** 2 / np.sum(spread))
    if information <= 1e-9 * float(np.sum(spread)) * max(1.0, center**2):
        return CalibrationTest(statistic, math.erfc(math.sqrt(statistic / 2)))
    statistic += float(np.sum(residual * slope) ** 2) / information
    return CalibrationTest(statistic, math.exp(-statistic / 2))


def _cox_in_clusters(residual: Column, slope: Column, cluster: Clusters) -> CalibrationTest:
    scores = sums_of(cluster, np.stack([residual, residual * slope], axis=1))
    if len(scores) < LEAST_UNITS:
        return CalibrationTest(math.nan, math.nan)
    total = np.sum(scores, axis=0)
    # With equal confidences only one score varies; the pseudo-inverse leaves out the other.
    inverse, rank = np.linalg.pinv(scores.T @ scores, 1e-9), np.linalg.matrix_rank(scores, 1e-5)
    statistic = float(total @ inverse @ total)
    if rank == 2:
        return CalibrationTest(statistic, math.exp(-statistic / 2))
    return CalibrationTest(statistic, p_of_z(math.sqrt(statistic)) if rank else math.nan)


@jax.jit
def _log_odds(logits: Logits, labels: Labels) -> tuple[Array, Array, Array]:
    view = Predictions(logits, labels)
    # Finite even where the confidence rounds to 1; only a certain prediction has infinite odds.
    odds = jnp.max(view.odds, axis=-1) if view.stated is None else view.odds[..., 1]
    limits = jnp.finfo(odds.dtype)
    return jnp.log(jnp.clip(odds, limits.tiny, limits.max)), view.confidence, view.hit
