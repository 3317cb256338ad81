r"""Metrics with intervals, each by a method that is valid for it.

    estimates({"ece": metrics.ece, "nll": metrics.nll}, logits, labels, key=key)  value, low, high

The value is always the metric of the data, never the mean of resamples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import PyTree
from calib_jax.inference.bootstrap import INTERVALS, bootstrap, interval
from calib_jax.inference.evaluation import Evaluation, evaluated
from calib_jax.inference.noise_bound import has_noise_bound, least_draws, noise_bound
from calib_jax.metrics.contract.metric import Metric, one_or_several

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
    metrics: Mapping[str, Metric[..., Any]],
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
        examples of a cluster were equal; other metrics have none. "percentile" or "basic" for a
        bootstrap interval of every metric, see `interval`.
      num_resamples: see `bootstrap`; also the number of draws of a noise bound, but at least
        2 / (1 - level) are drawn.
      by_class: see `bootstrap`.
      clusters: see `bootstrap`.
      max_bytes: see `bootstrap`.
    """
    checks.level(level)
    checks.one_of("method", method, ("valid", *INTERVALS))
    checks.random_key(key)
    checks.whole("num_resamples", num_resamples)
    checks.at_least("max_bytes", max_bytes, 1)
    evaluation = evaluated("estimates", logits, labels, weights, clusters)
    by_name: dict[str, Estimate] = {}
    if method == "valid" and evaluation.counts and not by_class:
        bounded = {name: metric for name, metric in metrics.items() if has_noise_bound(metric)}
        draws = max(num_resamples, least_draws(level))
        options = {"key": key, "level": level, "num_resamples": draws}
        bounds = noise_bound(bounded, evaluation, **options) if bounded else {}
        dtype = wide(evaluation.logits.dtype)  # as of other metrics
        for name, bound in bounds.items():
            value, low, high = (jax.device_put(np.asarray(part, dtype)) for part in bound[:3])
            kind = "noise bound"
            by_name[name] = Estimate(value, low, high, kind, bound.floor, bound.p_value)
    others = {name: metric for name, metric in metrics.items() if name not in by_name}
    if others:
        samples = bootstrap(
            others,
            evaluation,
            key=key,
            num_resamples=num_resamples,
            by_class=by_class,
            max_bytes=max_bytes,
        )
        values, units = evaluation.values(others), num_units(evaluation)
        for name, metric in others.items():
            by_name[name] = of_samples(metric, values[name], samples[name], level, method, units)
    return {name: by_name[name] for name in metrics}


def of_samples(
    metric: Metric[..., Any],
    value: PyTree,
    samples: PyTree,
    level: float,
    method: str,
    units: float,
) -> Estimate:
    r"""Compute the interval of a metric from resampled values.

    A share p of n units that is 1 in all resamples is rejected if $p^n < (1 - \mathrm{level}) / 2$.

    References:
      Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of the
      binomial, Biometrika 1934.
    """
    kind = "percentile" if method == "valid" else method
    low, high = interval(samples, level, method=kind, estimate=value)
    if method != "valid" or not (_near(value, low) and _near(value, high)):
        return Estimate(value, low, high, kind)
    if metric.name not in _SHARES or float(value) not in (0.0, 1.0):
        return without_interval(value)
    reach = 1 - ((1 - level) / 2) ** (1 / units)
    ends = (0.0, reach) if float(value) == 0 else (1 - reach, 1.0)
    low, high = (jnp.full_like(value, end) for end in ends)
    return Estimate(value, low, high, "Clopper-Pearson")


def without_interval(value: PyTree) -> Estimate:
    """Return a value without an interval, whose ends are NaN."""
    nothing = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), value)
    return Estimate(value, nothing, nothing, "none")


def num_units(evaluation: Evaluation) -> float:
    """Count the independent units: clusters, or examples; other weights by their effective size."""
    if evaluation.clusters is not None:
        return len(np.unique(evaluation.clusters[evaluation.present]))
    if evaluation.weights is None:
        return len(evaluation.labels)
    weights = np.asarray(evaluation.weights, np.float64)
    total = float(np.sum(weights))
    return total if evaluation.counts else total**2 / float(np.sum(np.square(weights)))


def _near(value: PyTree, end: PyTree) -> bool:
    """Check whether an end of an interval is the value, up to rounding."""

    def near(value: Any, end: Any) -> bool:
        return bool(np.all(np.abs(end - value) <= 1e-6 * np.abs(value)))

    return all(jax.tree.leaves(jax.tree.map(near, value, end)))
