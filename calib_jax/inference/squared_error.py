r"""How large is the squared calibration error of the top label, without the bias of noise?

The noise of a bin's mean makes the squared gap too large on average. The mean product of two
different examples of the bin, $r_i r_j$ with $r = c - a$, has no such bias: the debiased squared
error

$$\sum_b \frac{n_b}{n} \frac{1}{n_b (n_b - 1)} \sum_{i \ne j \in b} r_i r_j
  = \frac1n \sum_{b : n_b \ge 2} \frac{S_b^2 - Q_b}{n_b - 1}, \quad
  S_b = \sum_{i \in b} r_i, \quad Q_b = \sum_{i \in b} r_i^2$$

is unbiased given the bins, up to bins with one example, which contribute 0. It can be negative.
With clusters, only products of examples of different clusters count.
`debiased_rms_calibration_error` subtracts the variance of the hits alone, as Kumar et al. do; the
two agree if the confidence is constant in every bin.

*Two models.* The plug-in error of a calibrated model depends on its sharpness, so a difference of
plug-in errors is not centered at 0, and no test of the difference keeps its level. The debiased
squared errors are centered. Their difference D is asymptotically normal with the variance $V_1$ of
the linear terms if an error is not 0. If both are 0, it is a degenerate U-statistic with variance
$V_2$, and there $V_1$ is on average $2 V_2$. Hence $\max(V_1 - V_2, V_2)$ is the variance in both
cases. In simulations of 1,000 and 10,000 examples the test rejected 1
to 7 % of true hypotheses at 5 %. With fewer than 1,000 examples n, or clusters, both are estimated
badly: of $V_1 - V_2$ only the share n / 1000 of $V_2$ is subtracted, and Student's t of $n / 10 /
(1 - n / 1000)$ degrees of freedom replaces the normal distribution. In 1,000 sets of 100, 200, 300
and 500 examples the test then rejected up to 4.0, 4.8, 5.4 and 5.2 % of true hypotheses in any of
eleven pairs of models, where it had rejected up to 13.3, 10.0, 8.4 and 6.8 %. Where errors are
rare, the variance of the outcomes has a lower bound (`Moments.scarcity`): in exact
enumerations of a single bin with .3 to 40 expected errors the test rejected at most 5.3 % of true
hypotheses, and 90 % intervals covered 89.9 % or more.

*Variances.* A sum of the errors of several models on the same examples, with factors of either
sign, is a sum of products of residuals. If some error is not 0, the sum is asymptotically normal,
with the variance $V_1$ of its linear terms. If all errors are 0, it is a degenerate U-statistic
with the variance $V_2$. For independent examples and factors $f_m$ of models m,

$$V_1 = \tfrac1n \operatorname{var}_i \sum_m f_m
    (2 r^m_i \bar r^m_{b(i)} - (\bar r^m_{b(i)})^2), \quad
  V_2 = \tfrac{2}{n^2} \sum_{m, m'} f_m f_{m'}
    \sum_{b, b'} \frac{(X^{m m'}_{b b'})^2}{n^m_b n^{m'}_{b'}},$$

where X sums $r^m r^{m'}$ over the examples in bin b of m and b' of m', without bins of a single
example. For one model, X is the larger of this sum and $\sum c (1 - c)$, the sum of a calibrated
model.

An observed variance is too small where errors are rare, and 0 without errors. The variance of
the outcomes then needs a lower bound: `scarcity` adds three hits and three errors of average
influence (Agresti and Coull), and `wilson_reach` bounds each bin's gap by the score interval of its
accuracy.

In clusters, let the sums $S_{g \beta}$ of cluster g be columns $\beta$, one for each model and bin,
with factors $f_\beta = f_m (n_b / n) / (n_b^2 - \sum_g n_{g b}^2)$. Then

$$D = \sum_\beta f_\beta \Bigl(S_\beta^2 - \sum_g S_{g \beta}^2\Bigr), \quad
  V_1 = \sum_g (u_g - \bar u)^2, \quad
  V_2 = 2 \sum_{\beta, \beta'} f_\beta f_{\beta'} \Bigl(\sum_g S_{g \beta} S_{g \beta'}\Bigr)^2,$$
$$u_g = \sum_\beta \Bigl( 2 f_\beta S_{g \beta} (S_\beta - S_{g \beta})
  - f_m \frac{n_{g b}}{n} \widehat{\delta_b^2} \Bigr)$$

with the debiased squared gap $\widehat{\delta_b^2}$ of a bin.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from calib_jax.core import checks
from calib_jax.inference.evaluation import Evaluation, evaluated, runs_of_two
from calib_jax.inference.gaps import memberships, sums_of_units
from calib_jax.inference.p_values import (
    LEAST_UNITS,
    Column,
    Indices,
    Matrix,
    effective,
    normal_test,
)
from calib_jax.metrics.bins import ece


class SquaredError(NamedTuple):
    """The debiased squared calibration error with its interval, and its root, as Python floats.

    Attributes:
      value: the debiased squared error, negative in about half of all calibrated models; NaN if no
        bin has two examples.
      low: lower end, 0 if the test of a squared error of 0 does not reject.
      high: upper end.
      root: the root of `value`, a calibration error; 0 if `value` is negative.
      root_low: the root of `low`.
      root_high: the root of `high`.
    """

    value: float
    low: float
    high: float
    root: float
    root_low: float
    root_high: float


def debiased_squared_error(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    num_bins: int = 15,
    level: float = 0.9,
    clusters: Any = None,
) -> SquaredError:
    r"""Compute the debiased squared calibration error of the top label, with its interval.

    It widens the interval of Sun et al. at both ends. Their upper end is too low where most
    examples lie in one bin and its gap is small, as for accurate networks: there nominal 90 %
    intervals covered 77 %. The squared mean gap of a bin, times the bin's share of the examples,
    contains noise of expectation $\lambda = \sigma_b^2 / n$. The largest $\lambda$ times $1 + z^2$
    is added, so that the upper end is $(|m| + z \sqrt\lambda)^2$ for a single bin of mean gap m.
    Where errors are rare, both of their ends are too close, because an observed variance of 0 is no
    certainty: for 1,000 examples of confidence .99 and accuracy .999 they covered 63 %. So the
    score interval of each bin's accuracy also bounds the gap (`wilson_reach`).

    In simulations of 200 to 10,000 examples nominal 90 % intervals covered 89 to 100 %, and for
    one confidence, 100 to 3,000 examples and error rates of .0002 to .3, exact enumerations gave
    90 to 100 %. The examples must be independent, or independent between `clusters`, and no
    calibrator may have been fitted on them.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      num_bins: number of bins of equal width.
      level: the nominal coverage of the interval, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. In
        simulations nominal 90 % intervals covered 86 to 98 % with 50 clusters of 20 examples, and
        89 to 99 % with 500; the ends are NaN with fewer than 10.

    References:
      Sun, Chaudhari, Barnett and Dobriban, A confidence interval for the expected calibration
      error, 2024.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.log(jnp.array([[0.9, 0.1]])), (100, 1))
    >>> error = inference.debiased_squared_error(logits, (jnp.arange(100) < 40).astype(int))
    >>> round(error.value, 4), round(error.root_low, 2), round(error.root_high, 2)
    (0.0876, 0.21, 0.38)
    """
    checks.level(level)
    evaluation = evaluated("debiased_squared_error", logits, labels, weights, clusters)
    return interval_of([(1.0, binned(evaluation, num_bins=num_bins))], level)


def interval_of(models: Models, level: float) -> SquaredError:
    """Compute a weighted mean of errors with the interval of Sun et al., widened at both ends."""
    _, value, linear, degenerate, _, _, largest = moments(models)
    if math.isnan(value + linear):
        positive = max(0.0, value) if value == value else value
        return SquaredError(value, math.nan, math.nan, math.sqrt(positive), math.nan, math.nan)
    null_deviation, step = math.sqrt(degenerate), math.sqrt(linear)
    z_one, z_two = (NormalDist().inv_cdf(at) for at in (level, (1 + level) / 2))
    positive = max(0.0, value)
    below, above = wilson_reach(models, z_two)
    low = max(positive - z_two * step, min(positive / 2, positive - z_one * step))
    low = max(0.0, min(low, positive - below)) if positive >= z_one * null_deviation else 0.0
    # The second term is exact for a single bin, and small beside the first for many.
    high = positive + max(z_two * step + (1 + z_two**2) * largest, above + largest)
    high = min(1.0, high)
    return SquaredError(value, low, high, *map(math.sqrt, (positive, low, high)))


# --------------------------------------------------------------------------------------------
# Two models.


class CalibrationDifference(NamedTuple):
    """The change of the debiased squared calibration error from model a to model b.

    Attributes:
      value: debiased squared error of b minus the error of a; negative if b is better calibrated.
      low: lower end of the interval of the value.
      high: upper end of the interval of the value.
      p_value: two-sided, of the hypothesis that both squared errors are equal; 1 for equal
        predictions. It holds its size from 100 examples on. The value, the ends and the p-value
        are NaN if no bin of a model has two examples; the ends and the p-value are NaN
        with fewer than 10 clusters.
      error_a: the squared error of model a, or the mean error of its runs, with interval and root.
      error_b: the squared error of model b, or the mean error of its runs, with interval and root.
    """

    value: float
    low: float
    high: float
    p_value: float
    error_a: SquaredError
    error_b: SquaredError


def compare_calibration(
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    num_bins: int = 15,
    level: float = 0.9,
    clusters: Any = None,
) -> CalibrationDifference:
    """Compare the calibration of the top labels of two models on the same examples.

    The examples must be independent, or independent between `clusters`. A large p-value does not
    prove equal calibration: read the interval. No calibrator may have
    been fitted on these examples.

    Args:
      logits_a: `[*batch, classes]`, or a list of such arrays: runs whose mean error is compared.
      logits_b: the logits of the other model; the numbers of classes and of runs may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      num_bins: number of bins of equal width, for both models; at most a fifth of the number of
        examples, or 15.
      level: the nominal coverage of the intervals, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. Use a few hundred:
        in simulations the test at 5 % rejected up to 10 % of true hypotheses with 50 clusters of
        20 examples, and up to 6 % with 500.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0]]), (100, 1))
    >>> labels = (jnp.arange(100) < 40).astype(int)
    >>> change = inference.compare_calibration(3 * logits, logits, labels)
    >>> round(change.value, 3), change.p_value < 0.01
    (-0.079, True)
    """
    checks.level(level)
    runs, cut = runs_of_two("compare_calibration", logits_a, logits_b, labels, weights, clusters)
    bins = [binned_for_pairs(run, num_bins) for run in runs]
    return difference_of_errors(bins[:cut], bins[cut:], level)


def binned_for_pairs(run: Evaluation, num_bins: int, excluded_class: int | None = None) -> Binned:
    """Apply `binned`; raise for so many bins that the test of two errors rejects too often."""
    checks.num_bins(num_bins)
    num_rows = len(run.copies.row)
    most = max(15, num_rows // 5)  # the default number is accepted for any number of examples
    if num_bins > most:
        raise ValueError(
            f"compare_calibration: {num_bins} bins for {num_rows} examples: the test rejects too"
            f" often above one bin for 5 examples; give at most {most} bins."
        )
    return binned(run, num_bins=num_bins, excluded_class=excluded_class)


def difference_of_errors(
    runs_a: list[Binned], runs_b: list[Binned], level: float
) -> CalibrationDifference:
    """Compare the mean debiased squared errors of the runs of two models."""
    a, b = ([(1 / len(runs), bins) for bins in runs] for runs in (runs_a, runs_b))
    difference = moments([*b, *((-share, bins) for share, bins in a)])
    test = normal_test(difference.value, difference.variance, level, difference.degrees)
    errors = (interval_of(models, level) for models in (a, b))
    return CalibrationDifference(*test, *errors)


MANY_UNITS = 1000  # with fewer, a difference of errors has a wider interval than the normal one


class Binned(NamedTuple):
    """Residuals c - a of all examples, and their sums per bin of equal width.

    Attributes:
      confidence: the confidence of each example.
      residual: the residual of each example.
      bin: the bin of each example.
      size: number of examples in each bin.
      total: sum of the residuals.
      square: sum of the squared residuals.
      spread: sum of c (1 - c), the expected squares of a calibrated model.
      in_clusters: the sums of residuals and the numbers of examples of every cluster in each bin;
        None for independent examples.
    """

    confidence: Column
    residual: Column
    bin: Indices
    size: Column
    total: Column
    square: Column
    spread: Column
    in_clusters: tuple[Matrix, Matrix] | None = None

    @property
    def value(self) -> float:
        """The debiased squared error; NaN if no bin has two examples, or two clusters."""
        if self.in_clusters is None:
            return float(debiased(self.size, self.total, self.square))
        return float(debiased_in_clusters(*self.in_clusters))

    @property
    def mean(self) -> Column:
        """The mean residual of each bin, 0 in an empty bin."""
        return self.total / np.maximum(self.size, 1)


Models: TypeAlias = Sequence[tuple[float, Binned]]  # with the factors of their errors


class Moments(NamedTuple):
    """A weighted sum of debiased squared errors, with variances of the sum.

    All variances are NaN with fewer examples or clusters than `LEAST_UNITS`.

    Attributes:
      units: the number of independent examples, or the effective number of clusters.
      value: the sum.
      linear: the variance of the sum if an error is not 0.
      degenerate: the variance of the sum if all errors are 0, at least as for calibrated models.
      observed: the variance if all errors are 0, from the observed residuals alone.
      scarcity: the variance that three further hits and three further errors add to `linear`.
      largest: the largest variance of a bin's mean gap, times the bin's share of the examples;
        summed over models, as if their noise were the same.
    """

    units: float
    value: float
    linear: float
    degenerate: float
    observed: float
    scarcity: float
    largest: float

    @property
    def variance(self) -> float:
        """The variance of a difference of two errors, whether both are 0 or not.

        If both are 0, `linear` is on average twice `observed`. Of few units, the difference of the
        two is often much too small, so only a part of `observed` is subtracted.
        """
        if math.isnan(self.linear):
            return math.nan
        known = min(1.0, self.units / MANY_UNITS)
        return max(self.linear - known * self.observed + self.scarcity, self.degenerate, 0.0)

    @property
    def degrees(self) -> float:
        """The degrees of freedom of the variance of a difference; infinite for many units."""
        known = self.units / MANY_UNITS
        return self.units / 10 / (1 - known) if known < 1 else math.inf


def binned(evaluation: Evaluation, *, num_bins: int, excluded_class: int | None = None) -> Binned:
    """Sum the residuals of the examples of an evaluation in bins of equal width, once."""

    def compute() -> Binned:
        metric = ece.with_options(num_bins=num_bins, excluded_class=excluded_class)
        members = memberships(metric, evaluation)
        confidence, hit = evaluation.top_label(excluded_class)
        bins = in_bins(confidence, hit, np.argmax(members, axis=1), num_bins)
        if evaluation.cluster is None:
            return bins
        in_clusters = sums_of_units(members, bins.residual, evaluation.cluster)
        return bins._replace(in_clusters=in_clusters)

    return evaluation.once(("binned", num_bins, excluded_class), compute)


def in_bins(confidence: Column, hit: Column, number: Indices, num_bins: int) -> Binned:
    """Sum the residuals of examples in given bins."""
    residual = confidence - hit
    columns = (np.ones_like(residual), residual, np.square(residual), confidence * (1 - confidence))
    size, total, square, spread = (np.bincount(number, column, num_bins) for column in columns)
    return Binned(confidence, residual, number, size, total, square, spread)


def debiased(size: Column, total: Any, square: Any) -> Any:
    """Compute the debiased squared error from the sums of each bin; NaN if no bin has two rows."""
    enough = size >= 2
    terms = (np.square(total) - square) / np.where(enough, size - 1, 1)
    value = np.sum(np.where(enough, terms, 0), axis=-1) / np.sum(size)
    return np.where(np.any(enough), value, np.nan)


def debiased_in_clusters(sums: Matrix, counts: Matrix, total: Any = None) -> Any:
    """Compute the debiased squared error from the sums of each cluster; NaN without any pair.

    Args:
      sums: the sums of the residuals.
      counts: numbers of examples.
      total: `[*draws, bins]`, the sums over all clusters; None for the sums of `sums`.
    """
    factors = pair_factors(counts)
    total = np.sum(sums, axis=0) if total is None else total
    value = (np.square(total) - np.sum(np.square(sums), axis=0)) @ factors
    return np.where(np.any(factors > 0), value, np.nan)


def pair_factors(counts: Matrix) -> Column:
    """Compute the factor of a product of two clusters' sums in each bin, 0 without two clusters."""
    size = np.sum(counts, axis=0)
    pairs = np.square(size) - np.sum(np.square(counts), axis=0)
    return size / np.sum(size) / np.where(pairs > 0, pairs, np.inf)


def moments(models: Models) -> Moments:
    """Compute the weighted sum of the errors of models on the same examples, and its variances."""
    value = sum(factor * bins.value for factor, bins in models)
    bins = models[0][1]
    sizes = np.ones(len(bins.residual)) if bins.in_clusters is None else bins.in_clusters[1]
    units = effective(np.sum(sizes.reshape(len(sizes), -1), axis=1))
    if math.isnan(value) or units < LEAST_UNITS:
        return Moments(0, value, *5 * (math.nan,))
    return Moments(units, value, *(_of_clusters if bins.in_clusters else _of_rows)(models))


def _of_rows(models: Models) -> tuple[float, ...]:
    num_rows = len(models[0][1].residual)
    linear = np.zeros(num_rows)
    degenerate = observed = largest = 0.0
    for number, (factor, bins) in enumerate(models):
        mean = bins.mean[bins.bin]
        linear += factor * (2 * bins.residual * mean - np.square(mean))
        weight = share(bins)
        variance = weight * np.maximum(bins.square, bins.spread)
        degenerate += factor**2 * np.sum(np.square(variance))
        observed += factor**2 * np.sum(np.square(weight * bins.square))
        largest += abs(factor) * np.max(variance) / num_rows
        for other_factor, other in models[:number]:
            joint = 2 * factor * other_factor * shared(bins, other)
            degenerate += joint
            observed += joint
    of_all_zero, of_observed = (
        max(0.0, 2 * float(total) / num_rows**2) for total in (degenerate, observed)
    )
    of_linear = float(np.var(linear)) / num_rows
    return of_linear, of_all_zero, of_observed, _scarcity(models), float(largest)


def share(bins: Binned) -> Column:
    """Compute 1 / size of each bin; 0 for bins with one example, which the error leaves out."""
    return np.where(bins.size >= 2, 1 / np.maximum(bins.size, 1), 0)


def shared(a: Binned, b: Binned) -> float:
    """Sum the squared sums of products of two models' residuals, each divided by both sizes."""
    num_bins = len(a.size)
    products = np.bincount(a.bin * num_bins + b.bin, a.residual * b.residual, num_bins**2)
    sizes = share(a)[:, None] * share(b)[None]
    return float(np.sum(np.square(products.reshape(num_bins, num_bins)) * sizes))


def _scarcity(models: Models) -> float:
    r"""Compute the variance that three further hits and three further errors add to `linear`.

    A hit moves the sum by its influence $g_i / n = \sum_m 2 f_m \bar r^m_{b(i)} / n$. The variance
    of the hits is computed with three more of each outcome, so it is not 0 where no error was
    observed. In exact enumerations of a single bin the test of a pair at 5 % rejected up to
    6.5 % of true hypotheses with two more, and up to 5.3 % with three.

    References:
      Agresti and Coull, Approximate is better than "exact" for interval estimation of binomial
      proportions, The American Statistician 1998.
    """
    num_rows = len(models[0][1].residual)
    influence = sum(
        factor * 2 * (bins.mean * (bins.size >= 2))[bins.bin] for factor, bins in models
    )
    added = 0.0
    for _, bins in models:
        hits = float(np.sum(bins.confidence - bins.residual))
        smoothed = (hits + 3) / (num_rows + 6)
        added = max(added, smoothed * (1 - smoothed) - hits / num_rows * (1 - hits / num_rows))
    return added * float(np.mean(np.square(influence))) / num_rows


def wilson_reach(models: Models, z: float) -> tuple[float, float]:
    r"""Bound the sum of errors by the score intervals of the accuracy in each bin.

    A score interval keeps its level where errors are rare, because it uses the variance at the
    bound.
    With the interval $[l_b, u_b]$ of $\delta_b^2$, the distance of the sum from its lower bound is
    $\sqrt{\sum_b (n_b / n)^2 (\hat\delta_b^2 - l_b)^2}$, and likewise for the upper bound (Zou and
    Donner). The noise of several models is added as if it were equal. Factors are positive.

    References:
      Zou and Donner, Construction of confidence limits about effect measures: a general approach,
      Statistics in Medicine 2008.
    """
    below = above = 0.0
    for factor, bins in models:
        occupied = bins.size >= 2
        size = np.where(occupied, bins.size, 1)
        gap = np.where(occupied, bins.mean, 0)
        confidence = np.bincount(bins.bin, bins.confidence, len(size)) / np.maximum(bins.size, 1)
        accuracy = confidence - gap
        center = (accuracy + z**2 / (2 * size)) / (1 + z**2 / size)
        noise = np.maximum(accuracy * (1 - accuracy), 0) / size + (z / (2 * size)) ** 2
        half = z * np.sqrt(noise) / (1 + z**2 / size)
        ends = np.abs(confidence - np.stack([center - half, center + half]))
        crosses = np.abs(confidence - center) <= half
        least, most = np.where(crosses, 0, np.min(ends, axis=0)), np.max(ends, axis=0)
        weight = factor * np.where(occupied, bins.size / np.sum(bins.size), 0)
        below += math.sqrt(np.sum(np.square(weight * (gap**2 - np.minimum(least**2, gap**2)))))
        above += math.sqrt(np.sum(np.square(weight * (np.maximum(most**2, gap**2) - gap**2))))
    return below, above


def _of_clusters(models: Models) -> tuple[float, ...]:
    columns, factors, linear, largest = [], [], [], 0.0
    for factor, bins in models:
        sums, counts = bins.in_clusters or (np.zeros((0, 0)),) * 2
        total, pairs = np.sum(sums, axis=0), pair_factors(counts)
        squares = np.sum(np.square(sums), axis=0)
        # Each bin's debiased squared gap, times 1 / n of every example in it.
        share = (np.square(total) - squares) * pairs / np.maximum(bins.size, 1)
        linear.append(factor * (2 * (sums * (total - sums)) @ pairs - counts @ share))
        columns.append(sums)
        factors.append(factor * pairs)
        largest += abs(factor) * float(np.max(pairs * squares))
    u = functools.reduce(np.add, linear)
    stacked, of_columns = np.concatenate(columns, axis=1), np.concatenate(factors)
    degenerate = max(0.0, float(2 * of_columns @ np.square(stacked.T @ stacked) @ of_columns))
    of_linear = float(np.sum(np.square(u - np.mean(u))))
    return of_linear, degenerate, degenerate, _scarcity(models), largest
