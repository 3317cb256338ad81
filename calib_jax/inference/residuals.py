r"""Residuals c - a of the top label in bins: debiased squared errors, and variances of their sums.

A sum of the errors of several models on the same examples, with factors of either sign, is a sum
of products of residuals. If some error is not 0, the sum is asymptotically normal, with the
variance $V_1$ of its linear terms. If all errors are 0, it is a degenerate U-statistic with the
variance $V_2$. For independent examples and factors $f_m$ of models m,

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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Integer

from calib_jax.inference.bin_gaps import memberships
from calib_jax.inference.evaluation import Evaluation
from calib_jax.inference.normal import LEAST_UNITS, Column, sums_of
from calib_jax.metrics.fixed_bins import ece

MANY_UNITS = 1000  # with fewer, a difference of errors has a wider interval than the normal one

Bins: TypeAlias = Float[np.ndarray, " bins"]
ClusterSums: TypeAlias = Float[np.ndarray, "clusters bins"]


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
    bin: Integer[np.ndarray, " rows"]
    size: Bins
    total: Bins
    square: Bins
    spread: Bins
    in_clusters: tuple[ClusterSums, ClusterSums] | None = None

    @property
    def value(self) -> float:
        """The debiased squared error; NaN if no bin has two examples, or two clusters."""
        if self.in_clusters is None:
            return float(debiased(self.size, self.total, self.square))
        return float(debiased_in_clusters(*self.in_clusters))

    @property
    def mean(self) -> Bins:
        """The mean residual of each bin, 0 in an empty bin."""
        return self.total / np.maximum(self.size, 1)


class Moments(NamedTuple):
    """A weighted sum of debiased squared errors, with variances of the sum.

    All variances are NaN with fewer clusters than `LEAST_UNITS`.

    Attributes:
      units: the number of independent examples, or of clusters.
      value: the sum.
      linear: the variance of the sum if an error is not 0.
      degenerate: the variance of the sum if all errors are 0, at least as for calibrated models.
      observed: the variance if all errors are 0, from the observed residuals alone.
      scarcity: the variance that three further hits and three further errors add to `linear`.
      largest: the largest variance of a bin's mean gap, times the bin's share of the examples;
        summed over models, as if their noise were the same.
    """

    units: int
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
    return evaluation.once(
        ("binned", num_bins, excluded_class), lambda: _binned(evaluation, num_bins, excluded_class)
    )


def _binned(evaluation: Evaluation, num_bins: int, excluded_class: int | None) -> Binned:
    members = memberships(
        ece.with_options(num_bins=num_bins, excluded_class=excluded_class), evaluation
    )
    confidence, hit = evaluation.top_label(excluded_class)
    bins = in_bins(confidence, hit, np.argmax(members, axis=1), num_bins)
    if evaluation.cluster is None:
        return bins
    joint = np.concatenate([members * bins.residual[:, None], members], axis=1)
    sums, counts = np.split(sums_of(evaluation.cluster, joint), 2, axis=1)
    return bins._replace(in_clusters=(sums, counts))


def in_bins(
    confidence: Column, hit: Column, number: Integer[np.ndarray, " rows"], num_bins: int
) -> Binned:
    """Sum the residuals of examples in given bins."""
    residual = confidence - hit
    columns = (np.ones_like(residual), residual, np.square(residual), confidence * (1 - confidence))
    size, total, square, spread = (np.bincount(number, column, num_bins) for column in columns)
    return Binned(confidence, residual, number, size, total, square, spread)


def debiased(size: Bins, total: Any, square: Any) -> Any:
    """Compute the debiased squared error from the sums of each bin; NaN if no bin has two rows."""
    enough = size >= 2
    terms = (np.square(total) - square) / np.where(enough, size - 1, 1)
    value = np.sum(np.where(enough, terms, 0), axis=-1) / np.sum(size)
    return np.where(np.any(enough), value, np.nan)


def debiased_in_clusters(sums: ClusterSums, counts: ClusterSums, total: Any = None) -> Any:
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


def pair_factors(counts: ClusterSums) -> Bins:
    """Compute the factor of a product of two clusters' sums in each bin, 0 without two clusters."""
    size = np.sum(counts, axis=0)
    pairs = np.square(size) - np.sum(np.square(counts), axis=0)
    return size / np.sum(size) / np.where(pairs > 0, pairs, np.inf)


def moments(models: Sequence[tuple[float, Binned]]) -> Moments:
    """Compute the weighted sum of the errors of models on the same examples, and its variances."""
    value = sum(factor * bins.value for factor, bins in models)
    if math.isnan(value):
        return Moments(0, *6 * (math.nan,))
    bins = models[0][1]
    if bins.in_clusters is None:
        return Moments(len(bins.residual), value, *_of_rows(models))
    return Moments(len(bins.in_clusters[0]), value, *_of_clusters(models))


def _of_rows(models: Sequence[tuple[float, Binned]]) -> tuple[float, float, float, float, float]:
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


def share(bins: Binned) -> Bins:
    """Compute 1 / size of each bin; 0 for bins with one example, which the error leaves out."""
    return np.where(bins.size >= 2, 1 / np.maximum(bins.size, 1), 0)


def shared(a: Binned, b: Binned) -> float:
    """Sum the squared sums of products of two models' residuals, each divided by both sizes."""
    num_bins = len(a.size)
    products = np.bincount(a.bin * num_bins + b.bin, a.residual * b.residual, num_bins**2)
    sizes = share(a)[:, None] * share(b)[None]
    return float(np.sum(np.square(products.reshape(num_bins, num_bins)) * sizes))


def _scarcity(models: Sequence[tuple[float, Binned]]) -> float:
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


class Reach(NamedTuple):
    """How far a sum of squared errors can lie below and above its estimate."""

    below: float
    above: float


def wilson_reach(models: Sequence[tuple[float, Binned]], z: float) -> Reach:
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
    return Reach(below, above)


def _of_clusters(
    models: Sequence[tuple[float, Binned]],
) -> tuple[float, float, float, float, float]:
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
    if len(columns[0]) < LEAST_UNITS:
        return (math.nan,) * 5
    u = functools.reduce(np.add, linear)
    stacked, of_columns = np.concatenate(columns, axis=1), np.concatenate(factors)
    degenerate = max(0.0, float(2 * of_columns @ np.square(stacked.T @ stacked) @ of_columns))
    of_linear = float(np.sum(np.square(u - np.mean(u))))
    return of_linear, degenerate, degenerate, _scarcity(models), largest
