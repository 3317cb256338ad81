r"""How large is a binned calibration error, and is it larger than noise?

    bound = inference.noise_bound(metrics.ece, logits, labels, key=jax.random.key(0))
    bound.value, bound.low, bound.high     0.028, 0.0, 0.049
    bound.floor                            0.027, the mean value of a calibrated model
    bound.p_value                          0.43, exact, of "the model is calibrated"

The interval contains the value, and it is valid when the true error is 0, where every bootstrap
interval fails. The measured gaps are $m = d + e$, the true gaps d plus noise e, and the metric
is a norm N of m. Two inequalities hold for every d:

$$N(m) - N(d) \le N(e), \qquad N(m) \ge \langle g, m \rangle
  \ \text{where}\ \langle g, d \rangle = N(d) .$$

The first bounds the truth from below by a quantile of the noise. In bins whose gap is certainly
not 0, only the noise in the direction of the gap counts. The second says that noise increases the
value on average, so the upper end needs no correction: it is the upper end of a mean, with Wilson's
terms, which matter if errors are rare. The lower end is 0 unless the exact test rejects at half of
1 - level, so the interval and the p-value never contradict each other.

The true error is the error in the same bins, given the confidences. An error that changes its sign
inside a bin is larger without bins. Bins of equal mass are chosen from the confidences alone.

`ecce` and `ks_error` have no bins; `running_sums.py` bounds them by the same two inequalities.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.inference.bin_gaps import BinGaps, Cells, Draws, Key, bins_of, gaps_of_top_label
from calib_jax.inference.class_gaps import gaps_of_classes
from calib_jax.inference.draws import p_of_draws
from calib_jax.inference.evaluation import Evaluation, evaluated
from calib_jax.inference.running_sums import PATHS, path_noise
from calib_jax.metrics.contract.metric import Metric, one_or_several

_ENTRIES = 2**16  # of draws at a time


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
    metrics: Mapping[str, Metric[..., Any]],
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
        share outcomes of blocks of examples; the p-value is exact, see `draws.py`.
      clusters: `[*batch]`, the cluster of each example, such as the image of a pixel, as integers
        or strings. The draws then flip the signs of the clusters' sums instead of drawing
        outcomes, except in bins of the top label in which a calibrated model has only some hits or
        misses. The p-value is approximate: with 100 clusters the test at 5 % rejected 4 to
        8 % of true hypotheses in simulations, and up to 10 % for `classwise_ece`. Fewer than some
        30 clusters give intervals that are often too narrow. The k copies of an example of weight
        k are in its cluster.

    Returns:
      A `NoiseBound`; a dictionary by name for several metrics.

    >>> import jax
    >>> from calib_jax import metrics
    >>> logits = jax.numpy.tile(jax.numpy.array([[1.0, 0.0], [0.0, 2.0]]), (50, 1))
    >>> bound = noise_bound(metrics.ece, logits, jax.numpy.zeros(100, int), key=jax.random.key(0))
    >>> round(bound.value, 3), round(bound.high, 3)  # low, floor and p_value depend on the draws
    (0.575, 0.696)
    """
    checks.random_key(key)
    checks.level(level)
    checks.whole("num_resamples", num_resamples, least_draws(level), f" at level {level}")
    for metric in metrics.values():
        if not has_noise_bound(metric):
            raise ValueError(
                f"noise_bound does not take {metric!r}.\n"
                f"It takes {', '.join(BOUNDED)}, without options of released code."
            )
    evaluation = evaluated("noise_bound", logits, labels, weights, clusters)
    options: dict[str, Any] = {"key": key, "num_resamples": num_resamples}
    gaps: dict[Key, BinGaps] = {}
    bounds: dict[str, NoiseBound] = {}
    for name, metric in metrics.items():
        if metric.name in PATHS:
            bounds[name] = _bound_of_path(metric, evaluation, level, **options)
            continue
        bins = bins_of(metric)
        if bins not in gaps and metric.name == "classwise_ece":
            gaps[bins] = next(
                gaps_of_classes(metric, evaluation, draws_at_a_time=num_resamples, **options)
            )
        elif bins not in gaps:
            gaps[bins] = gaps_of_top_label(metric, evaluation, **options)
        bounds[name] = _bound(metric, gaps[bins], level)
    return bounds


def least_draws(level: float) -> int:
    """Compute the fewest draws whose smallest p-value is below (1 - level) / 2."""
    return math.ceil(round(2 / (1 - level), 6))


def has_noise_bound(metric: Metric[..., Any]) -> bool:
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
    scale: Callable[[Cells], Cells]
    size: Callable[[Any], Any] = np.abs


def _inverse(share: Cells) -> Cells:
    return np.where(share > 0, 1 / np.where(share > 0, share, 1), 0)


def _mean_inverse(share: Cells) -> Cells:
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


BOUNDED = (*_NORMS, *PATHS)


def _value(norm: _Norm, scale: Cells, gap: Any) -> Any:
    if gap.ndim == 2:
        return _by_chunk(functools.partial(_value_of_rows, norm, scale), gap)
    return _value_of_rows(norm, scale, gap)


def _by_chunk(
    function: Callable[[Draws], Float[np.ndarray, " draws"]], draws: Draws
) -> Float[np.ndarray, " draws"]:
    """Apply a function to few draws at a time, to keep the intermediate arrays small."""
    step = max(1, _ENTRIES // draws.shape[1])
    parts = [function(draws[start : start + step]) for start in range(0, len(draws), step)]
    return np.concatenate(parts)


def _value_of_rows(norm: _Norm, scale: Cells, gap: Any) -> Any:
    size = norm.size(gap)
    if norm.combine == "max":
        return np.max(scale * size, axis=-1)
    return size @ scale if norm.combine == "sum" else np.sqrt(np.square(size) @ scale)


def _excess(norm: _Norm, scale: Cells, gaps: BinGaps) -> Float[np.ndarray, " draws"]:
    """Compute how much noise can increase the value, for every draw of the noise."""
    if norm.combine != "sum":
        return _value(norm, scale, gaps.noise)
    certain = np.abs(gaps.gap) > np.sqrt(np.log(gaps.num_rows) * gaps.variance)
    # The size of a certain gap changes linearly, with the slope -1, 0 or 1.
    sign = np.sign(gaps.gap)
    slope = norm.size(sign) * sign

    def excess(noise: Draws) -> Float[np.ndarray, " draws"]:
        return np.where(certain[None], slope * noise, norm.size(noise)) @ scale

    return _by_chunk(excess, gaps.noise)


def _upper_end(norm: _Norm, scale: Cells, gaps: BinGaps, value: float, z: float) -> float:
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


def _bound(metric: Metric[..., Any], gaps: BinGaps, level: float) -> NoiseBound:
    norm = _NORMS[metric.name]
    scale = norm.scale(gaps.share) / gaps.num_classes
    value = float(_value(norm, scale, gaps.gap))
    # Sums over all classes are of the size of 1, as the slack of ties assumes.
    sums = gaps.num_classes * value, gaps.num_classes * _value(norm, scale, gaps.ranked)
    p_value = p_of_draws(*sums)
    upper = functools.partial(_upper_end, norm, scale, gaps, value)
    null = _value(norm, scale, gaps.null)
    return _of_draws(value, p_value, null, _excess(norm, scale, gaps), upper, level)


def _bound_of_path(
    metric: Metric[..., Any], evaluation: Evaluation, level: float, **options: Any
) -> NoiseBound:
    excluded = (metric.defaults() | dict(metric.options))["excluded_class"]
    noise = path_noise(metric.name, evaluation, excluded, **options)
    p_value = p_of_draws(noise.value, noise.null)
    upper = functools.partial(_wilson, noise.value, noise.moment, 1.0, noise.num_rows)
    # Draws of a calibrated model contain errors that are too rare to be in the data.
    excess = np.maximum(np.sort(noise.excess), np.sort(noise.null))
    return _of_draws(noise.value, p_value, noise.null, excess, upper, level)


def _of_draws(
    value: float,
    p_value: float,
    null: Float[np.ndarray, " draws"],
    excess: Float[np.ndarray, " draws"],
    upper: Callable[[float], Any],
    level: float,
) -> NoiseBound:
    """Build the bound from draws of a calibrated model and of the noise.

    Args:
      value: the measured error.
      p_value: the p-value of a calibrated model.
      null: draws of the error of a calibrated model.
      excess: draws of how much noise can increase the error.
      upper: computes the upper end from a quantile of the normal distribution.
      level: the nominal coverage.
    """
    tail = (1 - level) / 2
    low = value - float(np.quantile(excess, 1 - tail))
    high = float(upper(NormalDist().inv_cdf(1 - tail)))
    return NoiseBound(
        value=value,
        low=0.0 if p_value >= tail else float(np.clip(low, 0, value)),
        high=float(np.clip(high, 0, 1)),
        floor=float(np.mean(null)),
        p_value=p_value,
    )
