r"""Bootstrap: how much a metric would vary between test sets of the same size.

    samples = bootstrap(metrics.ece, logits, labels, key=jax.random.key(0))       [1000]
    interval(samples, level=0.9)                                                  low, high
    estimates({"ece": metrics.ece, "nll": metrics.nll}, logits, labels, key=key)  value, low, high
    paired_bootstrap(metrics.ece, logits_a, logits_b, labels, key=key)            difference, p
    bootstrap(metrics.ece, logits, labels, key=key, clusters=image_of_pixel)      whole images drawn

Resampling only changes the weights of the examples. Softmax, binning and sorting are therefore
computed once (`terms`), each resample is a row of multiplicities, and one matrix product computes
the sums of all metrics for a chunk of resamples.

Calibration errors are biased upwards: a sum of absolute values is never negative, so noise in a
bin increases it, and resampling adds more noise. For a well calibrated model the resampled ECE is
larger than the ECE, which is larger than the true error. The reported value is therefore always
the metric of the data itself, never the mean of the samples. The "basic" interval reflects the
samples around that value, which removes one such bias.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Integer

from calib_jax.core import checks
from calib_jax.core.arrays import as_array, as_numbers, gathered
from calib_jax.core.numerics import wide
from calib_jax.core.rows import padded_size, present
from calib_jax.core.types import Array, ArrayLike, Labels, Number, PyTree
from calib_jax.inference.bounds.noise_bound import (
    NoiseBound,
    has_noise_bound,
    least_draws,
    noise_bound,
)
from calib_jax.inference.evaluation import Evaluation, bytes_of, evaluated, on_same_examples
from calib_jax.inference.resamples import prepared_terms, resampling
from calib_jax.metrics.contract.metric import Members, Metric, one_or_several, owners, terms_of
from calib_jax.metrics.contract.predictions import terms_in_blocks
from calib_jax.metrics.contract.terms import Terms

INTERVALS = ("percentile", "basic")
SHARES = ("accuracy", "top_k", "error")  # of the examples


class Interval(NamedTuple):
    """Lower and upper end of an interval, each with the shape of the metric's value."""

    low: PyTree
    high: PyTree


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


class Difference(NamedTuple):
    """The change of a metric from predictions a to predictions b.

    Attributes:
      value: metric of b minus metric of a.
      low: lower end of its interval.
      high: upper end of its interval.
      p_value: two-sided, the smallest 1 - level at which the interval excludes 0. NaN differences
        are dropped; NaN if none is left. For a `biased` metric (`ece` and every other plug-in
        calibration error) it does not test calibration, because the less sharp of two
        calibrated models has the larger error.
      samples: resampled differences, with a leading axis of resamples.
    """

    value: PyTree
    low: PyTree
    high: PyTree
    p_value: PyTree
    samples: PyTree


@checks.needs_key
@one_or_several
def bootstrap(
    metrics: Mapping[str, Metric[..., Any]],
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    num_resamples: int = 1000,
    by_class: bool = False,
    clusters: Any = None,
    max_bytes: int = 2**28,
) -> dict[str, Any]:
    """Compute metrics on resampled data, with the same resamples for all of them.

    Args:
      metrics: one metric, or several by name.
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`; resampled examples keep their weights, and weight 0 is never drawn.
      key: PRNG key; it determines the resamples of a given number of examples.
      num_resamples: number of resamples.
      by_class: whether to keep the number of examples of every class.
      clusters: `[*batch]`, the cluster of each example, such as the image of a pixel or the
        document of a sentence, as integers or strings. Whole clusters are drawn instead of
        examples, so their examples may depend on each other; `by_class` then keeps the number
        of clusters of every class. Intervals need some 30 clusters or more.
      max_bytes: approximate memory of the resamples in progress; it does not change the values.

    Returns:
      Samples of the metric's value with a leading axis; a dictionary by name for several metrics.
      A sample is NaN if the metric is undefined on the drawn examples: `auroc` without two
      classes, or the recall of a class that was not drawn. `interval` and `difference` drop
      such samples.

    >>> from calib_jax import metrics
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0], [0.0, 1.0]]), (50, 1))
    >>> labels = jnp.tile(jnp.array([0, 0]), 50)
    >>> samples = bootstrap(metrics.accuracy, logits, labels, key=jax.random.key(0))
    >>> samples.shape
    (1000,)
    """
    _check_draws(key, num_resamples, max_bytes)
    evaluation = evaluated("bootstrap", logits, labels, weights, clusters)
    draws = ("samples", *bytes_of(key), num_resamples, by_class)
    known: dict[Metric[..., Any], Any] = evaluation.once(draws, dict)
    missing = {name: metric for name, metric in metrics.items() if metric not in known}
    if missing:
        options = (num_resamples, by_class, max_bytes)
        samples = _resampled(tuple(missing.items()), evaluation, key, *options)
        known.update({metric: samples[name] for name, metric in missing.items()})
    return {name: known[metric] for name, metric in metrics.items()}


def _resampled(
    members: Members,
    evaluation: Evaluation,
    key: Array,
    num_resamples: int,
    by_class: bool,
    max_bytes: int,
) -> dict[str, Any]:
    """Compute metrics on resamples of the rows of positive weight."""
    logits, labels, weights, kept = _present(evaluation)
    ids = evaluation.clusters
    num_rows, padding = len(labels), len(labels) - len(kept)
    num_drawn, size, cluster, classes = len(kept), num_rows, None, None
    if by_class:
        classes = np.asarray(labels)[:num_drawn]
    if ids is not None:
        _, first, cluster = np.unique(ids[kept], return_index=True, return_inverse=True)
        if classes is not None:
            classes = _classes_of_clusters(classes, first, cluster)
        num_drawn = len(first)
        size = padded_size(num_drawn) if padding else num_drawn
        cluster = np.pad(cluster, (0, padding))
    if classes is not None:
        classes = np.pad(classes, (0, size - num_drawn), constant_values=logits.shape[-1])
    terms = _terms(members, logits, labels)
    entries = {name: prepared_terms.large_entries(part) for name, part in terms.items()}
    prepared = _prepare(terms, weights, entries)
    in_progress = 6 * num_rows + 3 * sum(len(large.row) for large in entries.values())
    most_keys = min(32, -(-num_resamples // resampling.PER_KEY))
    keys_at_a_time = int(np.clip(max_bytes // (16 * in_progress), 1, most_keys))
    return _samples(
        members,
        prepared,
        key,
        classes,
        cluster,
        resampling.drawn(num_drawn),
        size=size,
        num_resamples=num_resamples,
        keys_at_a_time=keys_at_a_time,
    )


def _check_draws(key: Any, num_resamples: int, max_bytes: int) -> None:
    """Validate the options of a bootstrap."""
    checks.random_key(key)
    checks.whole("num_resamples", num_resamples)
    checks.at_least("max_bytes", max_bytes, 1)


@overload
def interval(
    samples: Mapping[str, Any],
    level: float = 0.9,
    *,
    method: str = "percentile",
    estimate: Any = None,
) -> dict[str, Interval]: ...


@overload
def interval(
    samples: ArrayLike, level: float = 0.9, *, method: str = "percentile", estimate: Any = None
) -> Interval: ...


def interval(
    samples: Any, level: float = 0.9, *, method: str = "percentile", estimate: Any = None
) -> Any:
    r"""Compute the interval of resampled metric values.

    With $q_\alpha$ the quantiles of the samples and $\alpha = (1 - \mathrm{level}) / 2$:
    "percentile" is $[q_\alpha, q_{1-\alpha}]$; "basic" is
    $[2 e - q_{1-\alpha}, 2 e - q_\alpha]$ around the estimate e, the metric of the data itself.
    NaN samples (a class that was not drawn) are dropped; if no sample is left, both ends are NaN.
    Infinite samples (the NLL when a true class of probability 0 was drawn) are kept.

    Args:
      samples: the result of `bootstrap`.
      level: the nominal coverage, a fraction.
      method: "percentile" or "basic".
      estimate: the metric's value on the data itself; required by "basic".

    >>> low, high = interval(jnp.arange(101.0), level=0.9)
    >>> float(low), float(high)
    (5.0, 95.0)
    """
    _check_interval(level, method)
    if method == "basic" and estimate is None:
        raise ValueError('method="basic" reflects around the estimate: give estimate=metric(...).')
    if isinstance(samples, Mapping):
        return {
            name: interval(
                sample, level, method=method, estimate=None if estimate is None else estimate[name]
            )
            for name, sample in samples.items()
        }
    caller = "interval", "samples"
    samples = jax.tree.map(lambda leaf: gathered(*caller, as_numbers(*caller, leaf)), samples)
    low, high = (
        jax.tree.map(functools.partial(_quantile, at=at), samples)
        for at in ((1 - level) / 2, (1 + level) / 2)
    )
    if method == "basic":
        low, high = (
            jax.tree.map(lambda e, q: 2 * as_array(e) - q, estimate, q) for q in (high, low)
        )
    return Interval(low, high)


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
    _check_draws(key, num_resamples, max_bytes)
    evaluation = evaluated("estimates", logits, labels, weights, clusters)
    by_name: dict[str, Estimate] = {}
    if method == "valid" and evaluation.counts and not by_class:
        bounded = {name: metric for name, metric in metrics.items() if has_noise_bound(metric)}
        draws = max(num_resamples, least_draws(level))
        options = {"key": key, "level": level, "num_resamples": draws}
        bounds = noise_bound(bounded, evaluation, **options) if bounded else {}
        by_name = {name: _of_bound(bound, evaluation) for name, bound in bounds.items()}
    kind = "percentile" if method == "valid" else method
    others = {name: metric for name, metric in metrics.items() if name not in by_name}
    if others:
        values = evaluation.values(others)
        samples = bootstrap(
            others,
            evaluation,
            key=key,
            num_resamples=num_resamples,
            by_class=by_class,
            max_bytes=max_bytes,
        )
        ends = interval(samples, level, method=kind, estimate=values)
        for name, (low, high) in ends.items():
            estimate = Estimate(values[name], low, high, kind)
            if method == "valid" and is_constant(estimate):
                estimate = of_constant(metrics[name], estimate.value, num_units(evaluation), level)
            by_name[name] = estimate
    return {name: by_name[name] for name in metrics}


def without_interval(value: PyTree) -> Estimate:
    """Return a value without an interval, whose ends are NaN."""
    nothing = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), value)
    return Estimate(value, nothing, nothing, "none")


def of_constant(metric: Metric[..., Any], value: Any, num: float, level: float) -> Estimate:
    r"""Return the interval of a value that no resample changes; only a share of 0 or 1 has one.

    With all of n examples right, an accuracy p is rejected if $p^n < (1 - \mathrm{level}) / 2$.

    References:
      Clopper and Pearson, The use of confidence or fiducial limits illustrated in the case of the
      binomial, Biometrika 1934.
    """
    if metric.name not in SHARES or float(value) not in (0.0, 1.0):
        return without_interval(value)
    reach = 1 - ((1 - level) / 2) ** (1 / num)
    ends = (0.0, reach) if float(value) == 0 else (1 - reach, 1.0)
    low, high = (jnp.full_like(value, end) for end in ends)
    return Estimate(value, low, high, "Clopper-Pearson")


def num_units(evaluation: Evaluation) -> float:
    """Count the independent units: clusters, or examples; other weights by their effective size."""
    if evaluation.clusters is not None:
        return len(np.unique(evaluation.clusters[evaluation.present]))
    if evaluation.weights is None:
        return len(evaluation.labels)
    weights = np.asarray(evaluation.weights, np.float64)
    total = float(np.sum(weights))
    return total if evaluation.counts else total**2 / float(np.sum(np.square(weights)))


def is_constant(estimate: Estimate) -> bool:
    """Check whether both ends are the value, up to rounding."""

    def near(value: Any, end: Any) -> bool:
        return bool(np.all(np.abs(end - value) <= 1e-6 * np.abs(value)))

    ends = (jax.tree.map(near, estimate.value, end) for end in (estimate.low, estimate.high))
    return all(all(jax.tree.leaves(end)) for end in ends)


def _of_bound(bound: NoiseBound, evaluation: Evaluation) -> Estimate:
    dtype = wide(evaluation.logits.dtype)  # as of other metrics
    value, low, high = (jax.device_put(np.asarray(number, dtype)) for number in bound[:3])
    return Estimate(value, low, high, "noise bound", bound.floor, bound.p_value)


@checks.needs_key
@one_or_several
def paired_bootstrap(
    metrics: Mapping[str, Metric[..., Any]],
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    level: float = 0.9,
    method: str = "percentile",
    num_resamples: int = 1000,
    by_class: bool = False,
    clusters: Any = None,
    max_bytes: int = 2**28,
) -> dict[str, Difference]:
    """Compare two sets of predictions for the same examples: two models, or before and after.

    Both are evaluated on the same resamples, so their common variation (hard examples) cancels.
    The interval of a difference is often much narrower than the two separate intervals suggest.

    Args:
      metrics: one metric, or several by name.
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`.
      key: see `bootstrap`.
      level: the nominal coverage of the interval, a fraction.
      method: "percentile" or "basic", see `interval`; the p-value uses the same method.
      num_resamples: see `bootstrap`.
      by_class: see `bootstrap`.
      clusters: see `bootstrap`.
      max_bytes: see `bootstrap`.
    """
    options: dict[str, Any] = {
        "num_resamples": num_resamples,
        "by_class": by_class,
        "max_bytes": max_bytes,
    }
    models = on_same_examples("paired_bootstrap", (logits_a, logits_b), labels, weights, clusters)
    # The same key draws the same resamples.
    samples = [bootstrap(metrics, model, key=key, **options) for model in models]
    values = [model.values(metrics) for model in models]
    return {
        name: difference(
            *((value[name], sample[name]) for value, sample in zip(values, samples, strict=True)),
            level=level,
            method=method,
            error=interpolation_error(metric, models[0]),
        )
        for name, metric in metrics.items()
    }


def interpolation_error(metric: Metric[..., Any], evaluation: Evaluation) -> float:
    """Return the size up to which differences of a metric are errors of its interpolation."""
    if not metric.interpolation_error:
        return 0.0
    weights = evaluation.weights
    total = len(evaluation.labels) if weights is None else float(np.sum(np.asarray(weights)))
    return metric.interpolation_error / max(total, 1.0) + 2e-6


def difference(
    a: tuple[PyTree, PyTree],
    b: tuple[PyTree, PyTree],
    *,
    level: float = 0.9,
    method: str = "percentile",
    error: float = 0.0,
) -> Difference:
    """Compute the difference of a metric between two models resampled with the same key.

    Args:
      a: (value, samples) of the first model.
      b: (value, samples) of the second model.
      level: the nominal coverage of the interval, a fraction.
      method: "percentile" or "basic", see `interval`; the p-value uses the same method.
      error: the size up to which a difference counts as 0.
    """

    def change(first: Any, second: Any) -> Array:
        minus = jnp.subtract(second, first)
        return jnp.where(jnp.abs(minus) <= error, 0, minus) if error else minus

    a, b = jax.tree.map(as_array, (a, b))
    value, samples = (
        jax.tree.map(change, first, second) for first, second in zip(a, b, strict=True)
    )
    low, high = interval(samples, level, method=method, estimate=value)
    p_value = jax.tree.map(functools.partial(_p_value, method=method), samples, value)
    return Difference(value, low, high, p_value, samples)


def _check_interval(level: float, method: str) -> None:
    checks.level(level)
    checks.one_of("method", method, INTERVALS)


@jax.jit
def _quantile(samples: Any, at: Number) -> Array:
    if not np.shape(samples) or not len(samples):
        raise ValueError(
            "samples must be arrays with at least one entry along their first axis, got the shape"
            f" {np.shape(samples)}: give np.asarray(samples) for a list."
        )
    linear, lower, higher = (
        jnp.nanquantile(jnp.asarray(samples), at, axis=0, method=method)
        for method in ("linear", "lower", "higher")
    )
    # Next to an infinite sample, linear interpolation computes inf x 0 = NaN.
    return jnp.where(jnp.isnan(linear), jnp.where(lower == higher, lower, higher), linear)


def _p_value(samples: Any, value: Any, method: str) -> Array:
    samples = jnp.asarray(samples)
    if method == "basic":
        samples = 2 * value - samples
    # A NaN sample is in neither tail, so exclude it from the total as well.
    count = jnp.sum(~jnp.isnan(samples), axis=0)
    # Count the data itself as one more resample, so that no p-value is 0.
    tail = [1 + jnp.sum(side, axis=0) for side in (samples <= 0, samples >= 0)]
    p_value = jnp.minimum(1.0, 2 * jnp.minimum(*tail) / (1 + count))
    return jnp.where(count > 0, p_value, jnp.nan)


def _present(evaluation: Evaluation) -> tuple[Array, Array, Array, Int[np.ndarray, " kept"]]:
    """Select the rows of positive weight.

    The kept rows come first, and their indices are also returned. Rows of weight 0 follow as
    padding, up to a size that other sets share, but never more rows than there were.
    """
    logits, labels, weights = evaluation.logits, evaluation.labels, evaluation.weights
    kept = np.flatnonzero(evaluation.present)
    if weights is None:
        return logits, labels, jax.device_put(np.ones(labels.shape, wide(logits.dtype))), kept
    if len(kept) < len(labels):
        rows = np.pad(kept, (0, min(len(labels), padded_size(len(kept))) - len(kept)))
        logits, labels, weights = _first_rows(logits, labels, weights, rows, len(kept))
    return logits, labels, weights, kept


@jax.jit
def _first_rows(
    logits: Array, labels: Array, weights: Array, rows: Array, number: Number
) -> tuple[Array, Array, Array]:
    """Take rows, and make the rows after the first ones absent."""
    weights = jnp.where(jnp.arange(len(rows)) < number, weights[rows], 0)
    return present(logits[rows], labels[rows], weights)


def _classes_of_clusters(
    labels: Integer[np.ndarray, " rows"],
    first: Int[np.ndarray, " clusters"],
    cluster: Int[np.ndarray, " rows"],
) -> Integer[np.ndarray, " clusters"]:
    """Return the class of each cluster, whose examples must all have the same class."""
    class_of_cluster = labels[first]
    num_mixed = len(np.unique(cluster[labels != class_of_cluster[cluster]]))
    if num_mixed:
        raise ValueError(
            f"by_class needs clusters of one class each, but {num_mixed} of {len(first)} contain"
            " several. Leave out by_class."
        )
    return class_of_cluster


# --------------------------------------------------------------------------------------------
# Compiled functions: compute the terms once, then the metrics of chunks of resamples.


@functools.partial(jax.jit, static_argnums=0)
def _terms(members: Members, logits: Array, labels: Array) -> dict[str, Terms]:
    return terms_in_blocks(functools.partial(terms_of, members), logits, labels)


@jax.jit
def _prepare(
    terms: dict[str, Terms], weights: Array, entries: dict[str, prepared_terms.Entries]
) -> dict[str, prepared_terms.Ready]:
    return {name: prepared_terms.of(part, weights, entries[name]) for name, part in terms.items()}


@functools.partial(jax.jit, static_argnames=("members", "size", "num_resamples", "keys_at_a_time"))
def _samples(
    members: Members,
    prepared: dict[str, prepared_terms.Ready],
    key: Array,
    classes: Labels | None,
    cluster: Integer[Array, " rows"] | Int[np.ndarray, " rows"] | None,
    drawn: resampling.Drawn,
    *,
    size: int,
    num_resamples: int,
    keys_at_a_time: int,
) -> dict[str, PyTree]:
    owner = owners(members)
    # Concatenate the matrices of all metrics, so that each chunk needs one product.
    designs = {name: part.design for name, part in prepared.items()}
    widths = [design.shape[1] for design in designs.values()]
    matrix = jnp.concatenate(list(designs.values()), axis=1)
    cuts = np.cumsum(widths)[:-1]

    def of_chunk(_: None, numbers: Integer[Array, " keys"]) -> tuple[None, dict[str, PyTree]]:
        # Use one key per four resamples, so that the draws do not depend on the chunks.
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(numbers)
        counts = resampling.multiplicities(keys, size, classes, drawn)
        counts = counts.astype(matrix.dtype)
        counts = counts if cluster is None else counts[:, cluster]
        product = jnp.matmul(counts, matrix, precision=jax.lax.Precision.HIGHEST)
        # A product of many resamples takes half the time; all other operations are fastest on few,
        # which stay in the cache of a CPU.
        shape = (resampling.PER_KEY, keys_at_a_time)
        few = [leaf.reshape(*shape, leaf.shape[1]) for leaf in (counts, product)]
        values = jax.lax.map(of_few, few)
        return None, jax.tree.map(lambda leaf: leaf.reshape(len(counts), *leaf.shape[2:]), values)

    def of_few(resamples: list[Array]) -> dict[str, PyTree]:
        counts, product = resamples
        sums = dict(zip(designs, jnp.split(product, cuts, axis=1), strict=True))
        stats = {name: part.stats(counts, sums[name]) for name, part in prepared.items()}
        return {
            name: prepared[owner[name]].values(metric.finished, stats[owner[name]])
            for name, metric in members
        }

    def flat(values: Array) -> Array:  # [chunks, resamples, ...] to [resamples, ...]
        values = jax.vmap(resampling.in_order)(values)
        return values.reshape(-1, *values.shape[2:])[:num_resamples]

    num_chunks = -(-num_resamples // (resampling.PER_KEY * keys_at_a_time))
    numbers = jnp.arange(num_chunks * keys_at_a_time).reshape(num_chunks, keys_at_a_time)
    return jax.tree.map(flat, jax.lax.scan(of_chunk, None, numbers)[1])
