r"""How much do two models differ, with the interval and the test that are valid for each metric?

A regular metric, such as the error or a proper score, is tested by the paired bootstrap of its
difference. A plug-in calibration error cannot be tested this way: noise raises it, by an amount
that depends on the sharpness of the model. The test of `BY_SQUARED_ERROR` uses the difference of
the debiased squared errors of the same top labels instead, see `compare_calibration`. The interval
of a difference of ECEs, over bins of equal width or mass, is that of `compare_ece`; other metrics
of `BY_SQUARED_ERROR` have no interval.

Over several runs, such as seeds, the test and the interval concern the difference of the means of
the runs, over the test examples. They hold for these trained runs, and do not cover the choice of
seeds.

*Two ECEs.* No bootstrap interval of the difference of two plug-in errors covers the truth: noise
raises both errors, by amounts that depend on the models' sharpness. For one model with the measured
gaps $m = d + e$, true gaps d plus noise e,

$$\sum_b \operatorname{sign}(d_b) e_b \le \sum_b |m_b| - \sum_b |d_b|
  \le \sum_{b\ \text{certain}} \operatorname{sign}(m_b) e_b + \sum_{b\ \text{uncertain}} |e_b|,$$

where a bin is certain if its gap is far from 0. Both bounds are resampled, with the same examples
for both models, and their quantiles give the interval. In an uncertain bin the sign of d is
unknown, so the lower bound takes the sign that makes the difference vary most: where few bins hold
all examples, the noise of both models is the same, and the measured sign is often wrong. It covers
and is wide: `compare_calibration` is the test. The bins are fixed by the confidences, so bins of
equal mass have the same bounds. The mean error of several runs is a sum of norms, and its bounds
are the means of the runs' bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.random import Generator

from calib_jax.core import checks, values
from calib_jax.core.types import Array, PyTree
from calib_jax.inference.bootstrap import INTERVALS, bootstrap, paired
from calib_jax.inference.evaluation import Evaluation, on_same_examples, runs_of_two
from calib_jax.inference.gaps import bins_of, memberships, sums_of_units, with_variance
from calib_jax.inference.p_values import Column, Matrix, host_generator
from calib_jax.inference.resampling import resamples_on_host
from calib_jax.inference.squared_error import binned_for_pairs, difference_of_errors
from calib_jax.metrics.bins import adaptive_ece, ece
from calib_jax.metrics.contract import AnyMetric, Members, Metrics, Predictions, one_or_several

# These measure the gaps of the top label in bins, as the debiased squared error does.
BY_SQUARED_ERROR = (
    *("ece", "adaptive_ece", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)


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
    metrics: Metrics,
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
      clusters: `[*batch]`, the cluster of each example, as integers or strings; with one cluster
        the ends and the p-value are NaN.

    Returns:
      A `MetricDifference`; a dictionary by name for several metrics.

    >>> import jax, numpy as np
    >>> from calib_jax import inference, metrics
    >>> logits = np.tile([[2.0, 0.0]], (100, 1))
    >>> labels = (np.arange(100) < 40).astype(int)
    >>> several = {"ece": metrics.ece, "nll": metrics.nll}
    >>> key = jax.random.key(0)
    >>> changes = inference.compare_metrics(several, 3 * logits, logits, labels, key=key)
    >>> {name: (change.interval, change.p_value < 0.01) for name, change in changes.items()}
    {'ece': ('noise bound', True), 'nll': ('percentile', Array(True, dtype=bool))}
    """
    checks.one_of("method", method, ("valid", *INTERVALS))
    runs, cut = runs_of_two("compare_metrics", logits_a, logits_b, labels, weights, clusters)
    valid, kind = method == "valid", "percentile" if method == "valid" else method
    counts = valid and runs[0].counts
    bounded = {name: m for name, m in metrics.items() if counts and _is_bounded(m)}
    others = {name: metric for name, metric in metrics.items() if name not in bounded}
    without_interval = BY_SQUARED_ERROR if valid else ()
    resampled = {name: m for name, m in others.items() if m.name not in without_interval}
    values = [run.values(others) if others else {} for run in runs]
    draws: dict[str, Any] = {"key": key, "num_resamples": num_resamples}
    samples = [bootstrap(resampled, run, **draws) if resampled else {} for run in runs]
    excesses = _excesses(bounded, runs, **draws)

    def changed(name: str, metric: AnyMetric) -> MetricDifference:
        p_value: PyTree | None = None
        if metric.name in BY_SQUARED_ERROR and runs[0].counts:
            excluded = dict(metric.options).get("excluded_class")
            bins = [binned_for_pairs(run, num_bins, excluded) for run in runs]
            p_value = difference_of_errors(bins[:cut], bins[cut:], level).p_value
        if name in bounded:
            change = _difference_of_eces([run[name] for run in excesses], cut, level)
            return MetricDifference(*change[:3], "noise bound", p_value)
        a, b = (_mean([run[name] for run in part]) for part in (values[:cut], values[cut:]))
        if name not in resampled:
            return MetricDifference(b - a, np.nan, np.nan, "none", p_value)
        of_a, of_b = (_mean([run[name] for run in part]) for part in (samples[:cut], samples[cut:]))
        found = paired(metric, runs[0], (a, of_a), (b, of_b), level=level, method=kind)
        p_value = p_value if metric.biased else found.p_value
        return MetricDifference(*found[:3], kind, p_value)

    return {name: changed(name, metric) for name, metric in metrics.items()}


def _mean(of_runs: Sequence[PyTree]) -> PyTree:
    """Average over runs."""
    return jax.tree.map(lambda *leaves: np.mean(np.stack(leaves), axis=0), *of_runs)


def _is_bounded(metric: AnyMetric) -> bool:
    """Check whether `compare_ece` bounds the noise of a metric."""
    binning = dict(metric.options).get("binning", "mass")
    return binning == "mass" and metric.name in ("ece", "adaptive_ece")


class EceDifference(NamedTuple):
    """The change of the ECE from model a to model b; it has no p-value.

    Attributes:
      value: the ECE of model b minus the ECE of model a.
      low: the lower end of the interval of the value.
      high: the upper end of the interval of the value.
      ece_a: the ECE of model a, or the mean ECE of its runs.
      ece_b: the ECE of model b, or the mean ECE of its runs.
    """

    value: float
    low: float
    high: float
    ece_a: float
    ece_b: float


class Excess(NamedTuple):
    """An ECE, and draws of the noise of its gaps.

    Attributes:
      value: the ECE.
      sign: the sign of every gap.
      certain: whether a gap is so far from 0 that its sign is the sign of the true gap.
      noise: draws of the noise of every gap; None with fewer than two units, examples or clusters,
        which show no noise.
    """

    value: float
    sign: Column
    certain: np.ndarray
    noise: Matrix | None


@checks.needs_key
def compare_ece(
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    num_bins: int = 15,
    equal_mass: bool = False,
    level: float = 0.9,
    num_resamples: int = 1000,
    clusters: Any = None,
) -> EceDifference:
    """Compute an interval of the difference of two models' ECEs on the same examples.

    In simulations nominal 90 % intervals covered 94 to 100 %, and were 1.2 to 3 times as wide as
    percentile intervals, which do not cover. In exact enumerations of 18 pairs of constant models,
    whose examples are in one bin or two, they covered 89 to 100 %. Use `compare_calibration` to
    test for a difference. `compare_metrics` returns the same interval for the same key.

    Args:
      logits_a: `[*batch, classes]`, or a list of such arrays: runs whose mean ECE is compared. The
        interval holds for these runs, and does not cover the choice of seeds.
      logits_b: the logits of the other model; the numbers of classes and of runs may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the resamples.
      num_bins: number of bins, for both models.
      equal_mass: whether bins have equal mass, as in `adaptive_ece`, instead of equal width.
      level: the nominal coverage of the interval, a fraction.
      num_resamples: number of resamples.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. Intervals
        covered in simulations of 50 clusters; the ends are -1 and 1 with one cluster.

    >>> import jax, numpy as np
    >>> from calib_jax import inference
    >>> logits = np.tile([[2.0, 0.0]], (100, 1))
    >>> labels = (np.arange(100) < 40).astype(int)
    >>> change = inference.compare_ece(3 * logits, logits, labels, key=jax.random.key(0))
    >>> round(change.value, 3), change.high < 0
    (-0.117, True)
    """
    metric = (adaptive_ece if equal_mass else ece).with_options(num_bins=num_bins)
    runs, cut = runs_of_two("compare_ece", logits_a, logits_b, labels, weights, clusters)
    excesses = _excesses({"ece": metric}, runs, key, num_resamples)
    return _difference_of_eces([run["ece"] for run in excesses], cut, level)


def _difference_of_eces(runs: Sequence[Excess], cut: int, level: float) -> EceDifference:
    """Compare the mean ECEs of the first runs, up to `cut`, and of the others."""
    runs_a, runs_b = runs[:cut], runs[cut:]
    ece_a, ece_b = (float(np.mean([run.value for run in runs])) for runs in (runs_a, runs_b))
    value, low, high = ece_b - ece_a, -1.0, 1.0
    if runs_a[0].noise is not None:
        a, b = _noise_of_mean(runs_a), _noise_of_mean(runs_b)
        tail = (1 - level) / 2
        high_a, high_b = _most(*a), _most(*b)
        low = value - float(np.quantile(high_b - _least(*a, high_b), 1 - tail))
        high = value + float(np.quantile(high_a - _least(*b, high_a), 1 - tail))
    low, high = np.clip((low, high), -1.0, 1.0).tolist()
    return EceDifference(value, low, high, ece_a, ece_b)


def _noise_of_mean(runs: Sequence[Excess]) -> tuple[Matrix, Column, np.ndarray]:
    """Concatenate the bins of runs, whose mean ECE is the sum of all sizes over the runs."""
    noise = np.concatenate([np.asarray(run.noise) / len(runs) for run in runs], axis=1)
    sign, certain = (np.concatenate(part) for part in list(zip(*runs, strict=True))[1:3])
    return noise, sign, certain


def _most(noise: Matrix, sign: Column, certain: np.ndarray) -> Column:
    """Bound from above how much noise increases an ECE."""
    return np.sum(np.where(certain, sign * noise, np.abs(noise)), axis=1)


def _least(noise: Matrix, sign: Column, certain: np.ndarray, other: Column) -> Column:
    """Bound from below how much noise increases an ECE, for a difference from another bound.

    A true gap whose sign is uncertain may have either sign: the sign that makes the difference
    vary most is taken.
    """
    against = -np.sign((other - np.mean(other)) @ noise)
    return noise @ np.where(certain, sign, against)


def _excesses(
    metrics: Metrics, runs: Sequence[Evaluation], key: Array, num_resamples: int
) -> list[dict[str, Excess]]:
    """Bound the noise of the ECEs of every run, once; all runs resample the same units.

    Args:
      metrics: `ece` or `adaptive_ece` with options.
      runs: the runs. The noise of bins that are equal in all resamples depends on the place of a
        run among them.
      key: the key of the resamples.
      num_resamples: number of resamples.
    """

    @functools.cache
    def resamples(num_units: int) -> list[Any]:
        return resamples_on_host(key, num_units, num_resamples)

    def of_run(place: int, run: Evaluation) -> dict[str, Excess]:
        def compute(missing: Members) -> dict[str, Excess]:
            return {
                name: _excess(metric, run, resamples, host_generator(key, place + 1))
                for name, metric in missing
            }

        return run.of_metrics(("excesses", place, num_resamples), metrics, compute, key)

    return [of_run(place, run) for place, run in enumerate(runs)]


def _excess(
    metric: AnyMetric, evaluation: Evaluation, draws: Callable[..., list[Any]], generator: Generator
) -> Excess:
    members = memberships(metric, evaluation)
    confidence, hit = evaluation.top_label(bins_of(metric)[-1])
    sums, counts = sums_of_units(members, confidence - hit, evaluation.cluster)
    total, in_bin, size = np.sum(sums, axis=0), np.sum(counts, axis=0), np.sum(counts, axis=1)
    mean, gap = total / np.where(in_bin > 0, in_bin, 1), total / len(hit)
    of_calibrated = (confidence * (1 - confidence)) @ np.square(members)
    observed = np.sum(np.square(sums - counts * mean), axis=0)
    variance = np.maximum(of_calibrated, observed) / len(hit) ** 2
    certain = np.abs(gap) > np.sqrt(np.log(len(hit)) * variance)
    noise = None
    if len(size) >= 2:
        residuals = sums - size[:, None] * gap
        columns = np.concatenate([size[:, None], residuals], axis=1)
        totals = np.concatenate([chunk @ columns for chunk in draws(len(size))])
        of_draws = np.sum(np.square(residuals), axis=0) / np.sum(size) ** 2
        noise = with_variance(totals[:, 1:] / totals[:, :1], of_draws, variance, generator)
    return Excess(float(np.sum(np.abs(gap))), np.sign(gap), certain, noise)


class Flips(NamedTuple):
    """Numbers of examples by what changes from model a to model b, as Python integers.

    Attributes:
      to_right: a is wrong, b is right.
      to_wrong: a is right, b is wrong.
      between_wrong: both are wrong, with different classes.
      same: both predict the same class; of stated confidences, both are right or both wrong.
    """

    to_right: int
    to_wrong: int
    between_wrong: int
    same: int

    @property
    def share(self) -> float:
        """The share of examples whose predicted class changes (churn)."""
        return 1 - self.same / sum(self)


class McNemar(NamedTuple):
    """McNemar's test of equal accuracy.

    Attributes:
      to_right: examples that only model b predicts right.
      to_wrong: examples that only model a predicts right.
      p_value: exact and two-sided; 1 if no example distinguishes the models.
      mid_p: the p-value with half the probability of the observed outcome. It is less conservative,
        and the size of the test exceeds the nominal size slightly at times.
    """

    to_right: int
    to_wrong: int
    p_value: float
    mid_p: float


def flips(logits_a: Any, logits_b: Any, labels: Any = None, weights: Any = None) -> Flips:
    """Count the predictions that change from model a to model b.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> a, b = jnp.array([[2.0, 0], [2, 0], [0, 2]]), jnp.array([[0.0, 2], [2, 0], [2, 0]])
    >>> inference.flips(a, b, jnp.array([0, 0, 0]))
    Flips(to_right=1, to_wrong=1, between_wrong=0, same=1)
    """
    models = on_same_examples("flips", (logits_a, logits_b), labels, weights)
    (class_a, hit_a), (class_b, hit_b) = (model.columns(_predicted) for model in models)
    # Answers without classes are the same if both are right, or both wrong.
    stated = any(values.is_stated(model.logits) for model in models)
    changed = hit_a != hit_b if stated else class_a != class_b
    numbers = (~hit_a & hit_b, hit_a & ~hit_b, changed & ~hit_a & ~hit_b, ~changed)
    return Flips(*(int(np.sum(number)) for number in numbers))


def mcnemar(logits_a: Any, logits_b: Any, labels: Any = None, weights: Any = None) -> McNemar:
    r"""Test whether two models have the same accuracy on the same, independent examples.

    Only the m examples that one model alone predicts right distinguish the models: $n_{01}$ that
    model b predicts right, and $n_{10}$ that model a does. If the accuracies are equal, each of
    these examples favours either model with probability 1/2:

    $$p = \min(1, 2 P(\mathrm{Bin}(m, 1/2) \le \min(n_{01}, n_{10})))$$

    It does not test calibration. For examples in clusters use `compare_metrics` with
    `metrics.error`.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.

    References:
      McNemar, Note on the sampling error of the difference between correlated proportions, 1947.

    >>> import numpy as np
    >>> from calib_jax import inference
    >>> a = np.tile([[2.0, 0.0]], (14, 1))
    >>> test = inference.mcnemar(a, -a, (np.arange(14) >= 3).astype(int))
    >>> test.to_right, test.to_wrong, round(test.p_value, 4), round(test.mid_p, 4)
    (11, 3, 0.0574, 0.0352)
    """
    from scipy.special import bdtr

    models = on_same_examples("mcnemar", (logits_a, logits_b), labels, weights)
    models[0].refuse_clusters("mcnemar", "; use compare_metrics(metrics.error, ...)")
    discordant = flips(*models)[:2]
    fewer, total = min(discordant), sum(discordant)
    at_most = float(bdtr(fewer, total, 0.5))
    less = float(bdtr(fewer - 1, total, 0.5)) if fewer else 0.0
    return McNemar(*discordant, min(1.0, 2 * at_most), min(1.0, at_most + less))


def _predicted(view: Predictions) -> tuple[Array, Array]:
    return view.predicted, view.rank == 0
