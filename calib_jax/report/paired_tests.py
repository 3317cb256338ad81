"""Intervals and tests of differences, and their correction for several comparisons.

A regular metric, such as the error or a proper score, is tested by the paired bootstrap of the
difference. A plug-in calibration error cannot be tested this way: noise raises it, by an amount
that depends on the sharpness of the model. The test uses the difference of the debiased squared
errors of the same top labels instead, see `inference.compare_calibration`. The interval of a
difference of ECEs, over bins of equal width or mass, comes from `inference.compare_ece`; root mean
square errors have no interval.

Over several runs, such as seeds, the test and the interval concern the difference of the runs' mean
errors, over the test examples. They hold for these trained runs, and do not cover the choice of
seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax import inference, metrics
from calib_jax.core.types import Array
from calib_jax.inference.pairs.compare_calibration import check_bins, difference_of_errors
from calib_jax.inference.pairs.compare_ece import Excess, difference_of_eces, excesses_of, units_of
from calib_jax.inference.residuals import Binned, binned
from calib_jax.inference.whole_examples import are_counts, counted_in_clusters

# These measure the gaps of the top label in bins, as the debiased squared error does.
BY_SQUARED_ERROR = (
    *("ece", "adaptive_ece", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)
WITH_NOISE_BOUND = ("ece", "adaptive_ece")
NOISE_BOUND = "noise bound"
NO_INTERVAL = "none"
STAR = 0.05


class Residuals(NamedTuple):
    """Statistics of one run, from which differences of calibration errors are tested.

    Attributes:
      squared: the residuals in bins, for the debiased squared error.
      excesses: the ECEs by name, with bounds of their noise.
    """

    squared: Binned
    excesses: dict[str, Excess]


class Side(NamedTuple):
    """A metric of one model in a difference of two models.

    Attributes:
      value: the mean over the runs.
      samples: the mean of the bootstrap samples, which resample the same examples for both models.
      residuals: the residuals of every run; None if the weights do not count examples.
    """

    value: Any
    samples: Any
    residuals: Sequence[Residuals | None]


class Difference(NamedTuple):
    """A difference, and the interval and the test that are valid for it.

    Attributes:
      value: point estimate.
      low: lower end of the interval; NaN without one.
      high: upper end of the interval; NaN without one.
      interval: kind of the interval: "percentile", "basic", "noise bound" or "none".
      p_value: two-sided; None without a valid test.
    """

    value: float
    low: float
    high: float
    interval: str
    p_value: float | None


def residuals_of(
    chosen: Mapping[str, metrics.Metric[..., Any]],
    logits: Any,
    labels: Any,
    weights: Any = None,
    clusters: Any = None,
    *,
    num_bins: int,
    key: Array,
    number: int,
    num_resamples: int,
) -> Residuals | None:
    """Prepare the tests and intervals of a run; None if its weights do not count examples.

    Args:
      chosen: metrics by name.
      logits: `[n, classes]`.
      labels: `[n]`.
      weights: `[n]`.
      clusters: `[n]`.
      num_bins: number of bins of the debiased squared error.
      key: the key of the resamples, the same for all compared runs.
      number: the number of the run among all compared runs.
      num_resamples: number of resamples.
    """
    if not are_counts(weights):
        return None
    data = counted_in_clusters("compare_calibration", logits, labels, weights, clusters)
    check_bins(num_bins, len(data[1]))
    bounded = {name: metric for name, metric in chosen.items() if _has_noise_bound(metric)}
    excesses: list[Excess] = []
    if bounded:
        units = [units_of(metric, *data) for metric in bounded.values()]
        excesses = excesses_of(units, key, number, num_resamples)
    by_name = dict(zip(bounded, excesses, strict=True))
    return Residuals(binned(*data, num_bins=num_bins), by_name)


def _has_noise_bound(metric: metrics.Metric[..., Any]) -> bool:
    binning = dict(metric.options).get("binning", "mass")
    return metric.name in WITH_NOISE_BOUND and binning == "mass"


def difference(
    name: str,
    metric: metrics.Metric[..., Any],
    before: Side,
    after: Side,
    *,
    level: float,
    method: str = "valid",
) -> Difference:
    """Compute the difference of a metric between two models, with its interval and p-value.

    Args:
      name: the name of the metric in `Residuals.excesses`.
      metric: the metric.
      before: the model whose value is subtracted.
      after: the model from whose value it is subtracted.
      level: nominal coverage of the interval, a fraction.
      method: "valid" for the noise bounds of ECEs and percentiles of other metrics; "percentile"
        or "basic" for bootstrap intervals of all metrics.
    """
    kind = "percentile" if method == "valid" else method
    change = inference.difference(before[:2], after[:2], level=level, method=kind)
    value, low, high = map(float, change[:3])
    if metric.name not in BY_SQUARED_ERROR:
        p_value = None if metric.biased else float(change.p_value)
        return Difference(value, low, high, kind, p_value)
    runs = [[run for run in side.residuals if run is not None] for side in (before, after)]
    p_value, bounds = None, None
    if sum(map(len, runs)) == len(before.residuals) + len(after.residuals):
        squared_before, squared_after = ([run.squared for run in side] for side in runs)
        p_value = difference_of_errors(squared_before, squared_after, level).p_value
        if _has_noise_bound(metric):
            ece_before, ece_after = ([run.excesses[name] for run in side] for side in runs)
            bounds = difference_of_eces(ece_before, ece_after, level)
    if method == "valid":
        kind = NO_INTERVAL if bounds is None else NOISE_BOUND
        low, high = (np.nan, np.nan) if bounds is None else (bounds.low, bounds.high)
    return Difference(value, low, high, kind, p_value)


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by `inference.holm`; None stays None and is not counted.

    >>> adjusted([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    given = np.array([np.nan if p is None else p for p in p_values], float)
    corrected = inference.holm(given).tolist()
    return [None if p is None else q for p, q in zip(p_values, corrected, strict=True)]


def starred(p_holm: float | None) -> str:
    """Return a star for an adjusted p-value below 5 %."""
    return "*" if p_holm is not None and p_holm < STAR else ""


def least_p(metric: str, num_resamples: int) -> float:
    """Return the smallest possible p-value of a metric's difference; 0 for an asymptotic test."""
    return 0.0 if metric in BY_SQUARED_ERROR else 2 / (num_resamples + 1)


def least_p_of_bound(num_resamples: int, level: float) -> float:
    """Return the smallest possible p-value of a noise bound, or an upper bound for few resamples.

    >>> least_p_of_bound(num_resamples=199, level=0.9)
    0.005
    """
    return min(1 / (num_resamples + 1), (1 - level) / 2)
