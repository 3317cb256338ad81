r"""Metrics with intervals, each by a method that is valid for it; noise bounds of binned errors.

    estimates({"ece": metrics.ece, "nll": metrics.nll}, logits, labels, key=key)  value, low, high

    bound = inference.noise_bound(metrics.ece, logits, labels, key=jax.random.key(0))
    bound.value, bound.low, bound.high     0.028, 0.0, 0.049
    bound.floor                            0.027, the mean value of a calibrated model
    bound.p_value                          0.43, exact, of "the model is calibrated"

The interval of a noise bound contains the value, and it is valid when the true error is 0, where
every bootstrap interval fails. The measured gaps are $m = d + e$, the true gaps d plus noise e, and
the metric is a norm N of m. Two inequalities hold for every d:

$$N(m) - N(d) \le N(e), \qquad N(m) \ge \langle g, m \rangle
  \ \text{where}\ \langle g, d \rangle = N(d) .$$

The first bounds the truth from below by a quantile of the noise. In bins whose gap is certainly
not 0, only the noise in the direction of the gap counts. The second says that noise increases the
value on average, so the upper end needs no correction: it is the upper end of a mean, with Wilson's
terms, which matter if errors are rare. The lower end is 0 unless the exact test rejects at half of
1 - level, so the interval and the p-value never contradict each other.

The true error is the error in the same bins, given the confidences. An error that changes its sign
inside a bin is larger without bins. Bins of equal mass are chosen from the confidences alone.

*Errors without bins*, `ecce` and `ks_error`, are bounded by the same two inequalities, from running
sums. The path is $m_k = \frac1n \sum_{i \le k} (c_i - a_i)$ in the order of the confidences, with
$m_0 = 0$, at the last example of each confidence. It is the true path d plus noise e, and both
errors are a largest difference D of two points of the path, or of a point and 0. The noise is drawn
as $\frac1n \sum_{i \le k} \xi_i (c_i - a_i)$ with random signs $\xi_i$, one for each cluster.

*Lower end.* Wherever D is attained, the true error is at least D minus the noise there. The place
depends on the data. With probability of some .95 it is among the points within $\kappa = 2.5
\sigma$ of the extreme values of the path, with $\sigma^2 = \frac1{n^2} \sum_i (c_i - a_i)^2$: 2.5
is the .95 quantile of the range of a Brownian motion. So the largest noise among those points is
subtracted.

*Upper end.* The true error is the difference of d between two fixed points, and D is at least the
difference of m between them. So it is the upper end of a mean, with at most the variance of all
examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from calib_jax.core import checks, numerics
from calib_jax.core.types import Array, PyTree
from calib_jax.inference import p_values
from calib_jax.inference.bootstrap import INTERVALS, bootstrap, interval
from calib_jax.inference.class_gaps import gaps_of_classes
from calib_jax.inference.evaluation import Evaluation, evaluated, in_order
from calib_jax.inference.gaps import BinGaps, bins_of, gaps_of, hits_in_chunks, p_of_draws
from calib_jax.inference.p_values import LEAST_UNITS, Clusters, Column, Indices, Matrix, widened
from calib_jax.metrics.contract import AnyMetric, Metrics, one_or_several


class NoiseBound(NamedTuple):
    """A calibration error with its interval and its test, as Python floats.

    Attributes:
      value: the metric on the data.
      low: lower end; 0 unless `p_value` is below (1 - level) / 2.
      high: upper end.
      floor: the noise floor, the mean value if the model is calibrated.
      p_value: the p-value of the hypothesis that the model is calibrated; at least 1 / (draws + 1).
    """

    value: float
    low: float
    high: float
    floor: float
    p_value: float

    def __str__(self) -> str:
        value, low, high, floor = (100 * part for part in self[:4])
        return f"{value:.1f} % [{low:.1f}, {high:.1f}], noise floor {floor:.1f} %"


@checks.needs_key
@one_or_several
def noise_bound(
    metrics: Metrics,
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    level: float = 0.9,
    num_resamples: int = 1000,
    clusters: Any = None,
) -> dict[str, NoiseBound]:
    """Compute calibration errors with intervals, noise floors and p-values.

    The examples must be independent, or independent between `clusters`, and no calibrator may have
    been fitted on them. If float32 rounds a confidence to 1, a calibrated model makes no error
    at that confidence.

    Args:
      metrics: one metric, or several by name: `ece`, `adaptive_ece`, `mce`, `adaptive_mce`, `ace`,
        `rms_calibration_error`, `overconfidence`, `underconfidence` or `classwise_ece`, with any
        options except the options of released code; or `ecce` or `ks_error`, without bins.
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the draws.
      level: the nominal coverage of the interval, a fraction.
      num_resamples: number of draws of a calibrated model's outcomes. With many examples, draws
        share outcomes of blocks of examples; the p-value is exact, see `gaps.py`.
      clusters: `[*batch]`, the cluster of each example, such as the image of a pixel, as integers
        or strings. The draws then flip the signs of the clusters' sums instead of drawing
        outcomes, except in bins of the top label in which a calibrated model has only some hits or
        misses. The p-value is approximate: with 100 clusters the test at 5 % rejected 4 to
        8 % of true hypotheses in simulations, and up to 10 % for `classwise_ece`. With 2 to 30
        clusters of equal and unequal sizes, nominal 90 % intervals covered 94 to 100 %. The k
        copies of an example of weight k are in its cluster.

    Returns:
      A `NoiseBound`; a dictionary by name for several metrics.

    >>> import jax
    >>> from calib_jax import metrics
    >>> logits = jax.numpy.tile(jax.numpy.array([[1.0, 0.0], [0.0, 2.0]]), (50, 1))
    >>> bound = noise_bound(metrics.ece, logits, jax.numpy.zeros(100, int), key=jax.random.key(0))
    >>> round(bound.value, 3), round(bound.high, 3)  # low, floor and p_value depend on the draws
    (0.575, 0.696)
    """
    checks.at_least("num_resamples", num_resamples, least_draws(level), f" at level {level}")
    for metric in metrics.values():
        if not has_noise_bound(metric):
            raise ValueError(
                f"noise_bound does not take {metric!r}.\n"
                f"It takes {', '.join(BOUNDED)}, without options of released code."
            )
    evaluation = evaluated("noise_bound", logits, labels, weights, clusters)
    options: dict[str, Any] = {"key": key, "num_resamples": num_resamples}
    binned = {bins_of(metric): metric for metric in metrics.values() if metric.name not in PATHS}
    gaps: dict[Any, BinGaps] = {}
    for bins, metric in binned.items():
        if metric.name == "classwise_ece":
            (gaps[bins],) = gaps_of_classes(metric, evaluation, key, num_resamples, num_resamples)
    for excluded in {bins[-1] for bins in binned if bins not in gaps}:
        same = {b: m for b, m in binned.items() if b[-1] == excluded and b not in gaps}
        gaps.update(zip(same, gaps_of([*same.values()], evaluation, **options), strict=True))
    return {
        name: _bound_of_path(metric, evaluation, level, **options)
        if metric.name in PATHS
        else _bound(metric, gaps[bins_of(metric)], level)
        for name, metric in metrics.items()
    }


def least_draws(level: float) -> int:
    """Compute the fewest draws whose smallest p-value is below (1 - level) / 2."""
    return math.ceil(round(2 / (1 - level), 6))


def has_noise_bound(metric: AnyMetric) -> bool:
    """Check whether `noise_bound` takes a metric with these options."""
    options = metric.defaults() | dict(metric.options)
    released = "released" in options.values() or options.get("zero_counts") is False
    return metric.name in BOUNDED and not released


# --------------------------------------------------------------------------------------------
# The norms.


class _Norm(NamedTuple):
    """A norm of the gaps: the sum, the maximum or the root mean square of their scaled sizes.

    Attributes:
      combine: "sum", "max" or "root".
      scale: the factor of every bin, from its share of the examples.
      size: the size of a gap; positive parts are sublinear, which suffices for the bound.
    """

    combine: str
    scale: Callable[[Column], Column]
    size: Callable[[Any], Any] = np.abs


def _inverse(share: Column) -> Column:
    return np.where(share > 0, 1 / np.where(share > 0, share, 1), 0)


def _mean_inverse(share: Column) -> Column:
    return _inverse(share) / np.sum(share > 0)


_NORMS = {
    "ece": _Norm("sum", np.ones_like),
    "adaptive_ece": _Norm("sum", np.ones_like),
    "classwise_ece": _Norm("sum", np.ones_like),
    "average_calibration_error": _Norm("sum", _mean_inverse),
    "overconfidence": _Norm("sum", np.ones_like, lambda gap: np.maximum(gap, 0)),
    "underconfidence": _Norm("sum", np.ones_like, lambda gap: np.maximum(-gap, 0)),
    "mce": _Norm("max", _inverse),
    "adaptive_mce": _Norm("max", _inverse),
    "rms_calibration_error": _Norm("root", _inverse),
}

# --------------------------------------------------------------------------------------------
# Errors without bins: running sums.

_PATH_ENTRIES = 2**22  # of draws at a time
_RANGE = 2.5  # the .95 quantile of the range of a Brownian motion on [0, 1]

PATHS: dict[str, Callable[[Any], Any]] = {
    "ecce": lambda path: np.ptp(path, axis=-1),
    "ks_error": lambda path: np.max(np.abs(path), axis=-1),
}


def _paths(residuals: Matrix, ends: Indices) -> Matrix:
    """Compute the running sums at the last example of each confidence, from 0 on."""
    sums = np.cumsum(residuals, axis=1)[:, ends] / residuals.shape[1]
    return np.pad(sums, ((0, 0), (1, 0)))


def _noise_near(name: str, path: Column, value: float, margin: float) -> Callable[[Any], Any]:
    """Return the function that computes the largest noise at the places that may attain D."""
    if name == "ks_error":
        up, down = path >= value - margin, path <= margin - value
        both = lambda noise: np.concatenate([noise[:, up], -noise[:, down]], axis=1)  # noqa: E731
        return lambda noise: np.max(both(noise), axis=1)
    up, down = path >= np.max(path) - margin, path <= np.min(path) + margin
    return lambda noise: np.max(noise[:, up], axis=1) - np.min(noise[:, down], axis=1)


def _signs(
    generator: Generator, cluster: Clusters | None, num_rows: int, num_resamples: int
) -> Iterator[Matrix]:
    """Draw a sign for each example, the same within a cluster, some draws at a time."""
    num_signs = num_rows if cluster is None else int(np.max(cluster)) + 1
    step = max(1, min(num_resamples, _PATH_ENTRIES // num_rows))
    for start in range(0, num_resamples, step):
        count = min(step, num_resamples - start)
        drawn = p_values.signs(generator, count, num_signs)
        yield drawn if cluster is None else drawn[:, cluster]


BOUNDED = (*_NORMS, *PATHS)


def _values(norm: _Norm, scale: Column, gaps: Matrix) -> Column:
    """Compute the norm of every draw of the gaps."""
    size = norm.size(gaps)
    if norm.combine == "max":
        return np.max(scale * size, axis=-1)
    return size @ scale if norm.combine == "sum" else np.sqrt(np.square(size) @ scale)


def _excess(norm: _Norm, scale: Column, gaps: BinGaps) -> Column:
    """Compute how much noise can increase the value, for every draw of the noise."""
    if norm.combine != "sum":
        return _values(norm, scale, gaps.noise)
    certain = np.abs(gaps.gap) > np.sqrt(np.log(gaps.num_rows) * gaps.variance)
    # The size of a certain gap changes linearly, with the slope -1, 0 or 1.
    sign = np.sign(gaps.gap)
    slope = norm.size(sign) * sign
    return gaps.noise @ (certain * slope * scale) + norm.size(gaps.noise) @ (~certain * scale)


def _upper_end(norm: _Norm, scale: Column, gaps: BinGaps, value: float, z: float) -> float:
    sign = np.sign(gaps.gap)
    if norm.combine == "max":  # a bound for every bin; one bin attains the true maximum
        sizes, largest = scale * norm.size(gaps.gap), scale * gaps.design
        return float(np.max(_wilson(sizes, scale**2 * gaps.moment, largest, gaps.num_rows, z)))
    if norm.combine == "sum":
        moments = gaps.moment_of(scale, norm.size(sign) * sign)
        return float(_wilson(value, *moments, gaps.num_rows, z))
    # The root's terms are weighted by the gaps, with a mean square weight of 1.
    weights = scale * norm.size(gaps.gap) / value if value else 0 * scale
    weighted, _ = gaps.moment_of(weights, sign)
    moment, largest = gaps.moment_of(np.ones_like(scale), sign)
    return float(_wilson(value, np.maximum(moment, weighted), largest, gaps.num_rows, z))


def _wilson(value: Any, moment: Any, largest: Any, num_rows: int, z: float) -> Any:
    """Compute the upper end of a mean of terms up to `largest` with the second moment `moment`."""
    half = largest * z / (2 * num_rows)
    return value + z * (half + np.sqrt(moment + np.square(half)))


def _bound(metric: AnyMetric, gaps: BinGaps, level: float) -> NoiseBound:
    norm = _NORMS[metric.name]
    scale = norm.scale(gaps.share) / gaps.num_classes
    value = float(_values(norm, scale, gaps.gap[None])[0])
    null, ranked = (_values(norm, scale, draws) for draws in (gaps.null, gaps.ranked))
    # Sums over all classes are of the size of 1, as the slack of ties assumes.
    p_value = p_of_draws(gaps.num_classes * value, gaps.num_classes * ranked)
    high = _upper_end(norm, scale, gaps, value, _quantile(level))
    return _of_draws(value, high, p_value, null, _excess(norm, scale, gaps), level)


def _bound_of_path(
    metric: AnyMetric, evaluation: Evaluation, level: float, key: Array, num_resamples: int
) -> NoiseBound:
    """Compute the error without bins and draw its noise, on the host in float64."""
    confidence, hit = evaluation.top_label(bins_of(metric)[-1])
    order = in_order(confidence, hit)
    confidence, hit = confidence[order], hit[order]
    cluster = None if evaluation.cluster is None else evaluation.cluster[order]
    residual, size, n = confidence - hit, PATHS[metric.name], len(hit)
    ends = np.flatnonzero(np.diff(confidence, append=np.inf))
    path = _paths(residual[None], ends)[0]
    value = float(size(path))
    units = residual if cluster is None else p_values.sums_of(cluster, residual)
    independent = float(np.maximum(residual @ residual, confidence @ (1 - confidence)))
    moment = float(np.maximum(independent, units @ units))
    design = moment / independent if independent else 1.0
    near = _noise_near(metric.name, path, value, _RANGE * np.sqrt(moment) / n)
    null, excess = [], []
    for flips in _signs(p_values.host_generator(key, 1), cluster, n, num_resamples):
        noise = _paths(flips * residual, ends)
        excess.append(near(noise))
        if cluster is not None:
            null.append(size(noise))
    if cluster is None:
        for hits in hits_in_chunks(p_values.host_generator(key), confidence, num_resamples):
            null.append(size(_paths(confidence - hits, ends)))
    of_null, of_noise = np.concatenate(null), np.concatenate(excess)
    high = _wilson(value, moment / n**2, design, n, _quantile(level))
    # Draws of a calibrated model contain errors that are too rare to be in the data.
    of_noise = np.maximum(np.sort(of_noise), np.sort(of_null))
    return _of_draws(value, high, p_of_draws(value, of_null), of_null, of_noise, level)


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


def _of_draws(
    value: float, high: Any, p_value: float, null: Column, excess: Column, level: float
) -> NoiseBound:
    """Build the bound from draws of a calibrated model and of the noise.

    Args:
      value: the measured error.
      high: the upper end.
      p_value: the p-value of a calibrated model.
      null: draws of the error of a calibrated model.
      excess: draws of how much noise can increase the error.
      level: the nominal coverage.
    """
    low = 0.0
    if p_value < (1 - level) / 2:
        low = float(np.clip(value - np.quantile(excess, (1 + level) / 2), 0, value))
    return NoiseBound(value, low, float(np.clip(high, 0, 1)), float(np.mean(null)), p_value)


_SHARES = ("accuracy", "top_k", "error")  # of the examples


class Estimate(NamedTuple):
    """A metric's value on the data, and its interval.

    Attributes:
      value: the metric on the data.
      low: lower end of its interval.
      high: upper end of its interval.
      interval: how the interval was computed: "percentile", "basic", "noise bound",
        "Clopper-Pearson" or "none".
      floor: the mean value of a calibrated model; None without a noise bound.
      p_value: the p-value of the hypothesis that the model is calibrated; None without a noise
        bound.
    """

    value: PyTree
    low: PyTree
    high: PyTree
    interval: str = "percentile"
    floor: float | None = None
    p_value: float | None = None

    def __repr__(self) -> str:
        shown = {name: _plain(value) for name, value in self._asdict().items() if value is not None}
        return f"Estimate({', '.join(f'{name}={value}' for name, value in shown.items())})"


def _plain(value: Any) -> Any:
    """Return a number with six digits, and anything else as Python shows it."""
    if isinstance(value, jax.core.Tracer) or np.ndim(value) or not hasattr(value, "__float__"):
        return repr(value)
    return f"{float(value):.6g}"


@checks.needs_key
@one_or_several
def estimates(
    metrics: Metrics,
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    level: float = 0.9,
    method: str = "valid",
    num_resamples: int = 1000,
    by_class: bool = False,
    clusters: Any = None,
    max_bytes: int = 2**28,
) -> dict[str, Estimate]:
    """Compute metrics with intervals; the value comes from the data, never from a bootstrap mean.

    For a calibrated model, a bootstrap interval of a binned calibration error does not contain the
    true error. Metrics that `has_noise_bound` accepts get the interval of `noise_bound`, a noise
    floor and a p-value, unless `by_class` is given or the weights are not counts 0, 1, 2, ...; the
    field `interval` names the kind. No valid interval is known of other calibration errors
    (`metric.biased`), such as `smooth_ece`: their percentiles can exclude the true error.

    Args:
      metrics: one metric, or several by name.
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
      key: see `bootstrap`.
      level: the nominal coverage, a fraction.
      method: "valid" as above, with percentiles for all other metrics. Where all resamples have
        the value, it is not certain: an accuracy, a top-k accuracy or an error of 0 or 1 has the
        interval of Clopper and Pearson, with the clusters in place of the examples, as if all
        examples of a cluster were equal; other metrics have none, and neither have any with fewer
        than 10 examples or clusters. "percentile" or "basic" for a
        bootstrap interval of every metric, see `interval`.
      num_resamples: see `bootstrap`; also the number of draws of a noise bound, but at least
        2 / (1 - level) are drawn.
      by_class: see `bootstrap`.
      clusters: see `bootstrap`.
      max_bytes: see `bootstrap`.
    """
    checks.one_of("method", method, ("valid", *INTERVALS))
    checks.at_least("max_bytes", max_bytes, 1)
    evaluation = evaluated("estimates", logits, labels, weights, clusters)
    by_name: dict[str, Estimate] = {}
    if method == "valid" and evaluation.counts and not by_class:
        bounded = {name: metric for name, metric in metrics.items() if has_noise_bound(metric)}
        draws = max(num_resamples, least_draws(level))
        options = {"key": key, "level": level, "num_resamples": draws}
        bounds = noise_bound(bounded, evaluation, **options) if bounded else {}
        dtype = numerics.wide(evaluation.logits.dtype)  # as of other metrics
        for name, bound in bounds.items():
            value, low, high = (jax.device_put(np.asarray(part, dtype)) for part in bound[:3])
            by_name[name] = Estimate(value, low, high, "noise bound", *bound[3:])
    others = {name: metric for name, metric in metrics.items() if name not in by_name}
    if others:
        how: dict[str, Any] = dict(by_class=by_class, max_bytes=max_bytes)
        samples = bootstrap(others, evaluation, key=key, num_resamples=num_resamples, **how)
        values, units = evaluation.values(others), evaluation.num_units
        for name, metric in others.items():
            by_name[name] = of_samples(metric, values[name], samples[name], level, method, units)
    return {name: by_name[name] for name in metrics}


def of_samples(
    metric: AnyMetric, value: PyTree, samples: PyTree, level: float, method: str, units: float
) -> Estimate:
    r"""Compute the interval of a metric from resampled values.

    A share p of n units that is 1 in all resamples is rejected if $p^n < (1 - \mathrm{level}) / 2$.

    References:
      Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of the
      binomial, Biometrika 1934.
    """
    kind = "percentile" if method == "valid" else method
    if units >= LEAST_UNITS:
        low, high = interval(samples, widened(level, units), method=kind, estimate=value)
        if method != "valid" or not _equal(low, high):
            return Estimate(value, low, high, kind)
    if method != "valid" or metric.name not in _SHARES or float(value) not in (0.0, 1.0):
        return without_interval(value)
    reach = 1 - ((1 - level) / 2) ** (1 / units)
    ends = (0.0, reach) if float(value) == 0 else (1 - reach, 1.0)
    low, high = (jnp.full_like(value, end) for end in ends)
    return Estimate(value, low, high, "Clopper-Pearson")


def without_interval(value: PyTree) -> Estimate:
    """Return a value without an interval, whose ends are NaN."""
    nothing = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), value)
    return Estimate(value, nothing, nothing, "none")


def _equal(low: PyTree, high: PyTree) -> bool:
    """Check whether the ends of an interval are equal, up to the rounding of sums near 1."""
    pairs = zip(jax.tree.leaves(low), jax.tree.leaves(high), strict=True)
    return all(np.all(np.isclose(a, b, 1e-6, 1e-6) & np.isfinite(b)) for a, b in pairs)
