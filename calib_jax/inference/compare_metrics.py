"""How much do metrics of two models differ, with the interval and the test that are valid for each?

A regular metric, such as the error or a proper score, is tested by the paired bootstrap of its
difference. A plug-in calibration error cannot be tested this way: noise raises it, by an amount
that depends on the sharpness of the model. The test of `BY_SQUARED_ERROR` uses the difference of
the debiased squared errors of the same top labels instead, see `compare_calibration`. The interval
of a difference of ECEs, over bins of equal width or mass, is that of `compare_ece`; other metrics
of `BY_SQUARED_ERROR` have no interval.

Over several runs, such as seeds, the test and the interval concern the difference of the means of
the runs, over the test examples. They hold for these trained runs, and do not cover the choice of
seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.types import PyTree
from calib_jax.inference.bootstrap import INTERVALS, bootstrap, difference, interpolation_error
from calib_jax.inference.compare_ece import difference_of_eces, excess_of
from calib_jax.inference.evaluation import on_same_examples, runs_of
from calib_jax.inference.squared_error import binned_for_pairs, difference_of_errors
from calib_jax.metrics.contract.metric import Metric, one_or_several

# These measure the gaps of the top label in bins, as the debiased squared error does.
BY_SQUARED_ERROR = (
    *("ece", "adaptive_ece", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)
_BY_NOISE = ("ece", "adaptive_ece")


class MetricDifference(NamedTuple):
    """The change of a metric from model a to model b.

    Attributes:
      value: metric of b minus metric of a.
      low: lower end of the interval of the value; NaN without one.
      high: upper end of the interval of the value; NaN without one.
      interval: kind of the interval: "percentile", "basic", "noise bound" or "none".
      p_value: two-sided; None without a valid test.
    """

    value: PyTree
    low: PyTree
    high: PyTree
    interval: str
    p_value: PyTree | None


@checks.needs_key
@one_or_several
def compare_metrics(
    metrics: Mapping[str, Metric[..., Any]],
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    level: float = 0.9,
    method: str = "valid",
    num_bins: int = 15,
    num_resamples: int = 1000,
    clusters: Any = None,
) -> dict[str, MetricDifference]:
    """Compare metrics of two models on the same examples, each by a method that is valid for it.

    No calibrator may have been fitted on these examples. A calibration error that is not among
    `BY_SQUARED_ERROR` has a bootstrap interval, which contains noise of both errors, and no
    p-value.

    Args:
      metrics: one metric, or several by name.
      logits_a: `[*batch, classes]` or an `Evaluation`; a list of them are runs whose mean is
        compared.
      logits_b: the other model; the numbers of classes and of runs may differ.
      labels: `[*batch]`.
      weights: `[*batch]`; calibration errors have a test and a valid interval only for counts.
      key: PRNG key of the resamples.
      level: the nominal coverage of the intervals, a fraction.
      method: "valid" as above; "percentile" or "basic" for bootstrap intervals of all metrics,
        with the same p-values.
      num_bins: number of bins of the debiased squared error.
      num_resamples: number of resamples.
      clusters: `[*batch]`, the cluster of each example, as integers or strings.

    Returns:
      A `MetricDifference`; a dictionary by name for several metrics.

    >>> from calib_jax import inference, metrics
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0]]), (400, 1))
    >>> labels = (jnp.arange(400) < 160).astype(int)
    >>> several = {"ece": metrics.ece, "nll": metrics.nll}
    >>> key = jax.random.key(0)
    >>> changes = inference.compare_metrics(several, 3 * logits, logits, labels, key=key)
    >>> {name: (change.interval, change.p_value < 0.01) for name, change in changes.items()}
    {'ece': ('noise bound', True), 'nll': ('percentile', Array(True, dtype=bool))}
    """
    checks.random_key(key)
    checks.level(level)
    checks.one_of("method", method, ("valid", *INTERVALS))
    runs_a, runs_b = runs_of(logits_a), runs_of(logits_b)
    models = [*runs_a, *runs_b]
    runs = on_same_examples("compare_metrics", models, labels, weights, clusters)
    cut = len(runs_a)
    valid, kind = method == "valid", "percentile" if method == "valid" else method
    bounded = [metric for metric in metrics.values() if _is_bounded(metric)]
    bounded = bounded if valid and runs[0].counts else []
    others = {name: metric for name, metric in metrics.items() if metric not in bounded}
    resampled = {
        name: metric
        for name, metric in others.items()
        if not (valid and metric.name in BY_SQUARED_ERROR)
    }
    values = [run.values(others) if others else {} for run in runs]
    draws: dict[str, Any] = {"key": key, "num_resamples": num_resamples}
    samples = [bootstrap(resampled, run, **draws) if resampled else {} for run in runs]

    def changed(name: str, metric: Metric[..., Any]) -> MetricDifference:
        p_value: PyTree | None = None
        if metric.name in BY_SQUARED_ERROR and runs[0].counts:
            excluded = dict(metric.options).get("excluded_class")
            bins = [binned_for_pairs(run, num_bins, excluded) for run in runs]
            p_value = difference_of_errors(bins[:cut], bins[cut:], level).p_value
        if metric in bounded:
            places = enumerate(runs)
            of_runs = [excess_of(metric, run, key, at, num_resamples) for at, run in places]
            change = difference_of_eces(of_runs[:cut], of_runs[cut:], level)
            return MetricDifference(*change[:3], "noise bound", p_value)
        a, b = (_mean([run[name] for run in part]) for part in (values[:cut], values[cut:]))
        if name not in resampled:
            return MetricDifference(b - a, np.nan, np.nan, "none", p_value)
        of_a, of_b = (_mean([run[name] for run in part]) for part in (samples[:cut], samples[cut:]))
        error = interpolation_error(metric, runs[0])
        paired = difference((a, of_a), (b, of_b), level=level, method=kind, error=error)
        p_value = p_value if metric.biased else paired.p_value
        return MetricDifference(*paired[:3], kind, p_value)

    return {name: changed(name, metric) for name, metric in metrics.items()}


def _mean(of_runs: Sequence[PyTree]) -> PyTree:
    """Average over runs."""
    if len(of_runs) == 1:
        return of_runs[0]
    return jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *of_runs)


def _is_bounded(metric: Metric[..., Any]) -> bool:
    """Check whether `compare_ece` bounds the noise of a metric."""
    binning = dict(metric.options).get("binning", "mass")
    return metric.name in _BY_NOISE and binning == "mass"
