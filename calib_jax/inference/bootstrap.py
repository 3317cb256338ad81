r"""Bootstrap: how much a metric would vary between test sets of the same size.

    samples = bootstrap(metrics.ece, logits, labels, key=jax.random.key(0))       [1000]
    interval(samples, level=0.9)                                                  low, high
    paired_bootstrap(metrics.ece, logits_a, logits_b, labels, key=key)            difference, p
    bootstrap(metrics.ece, logits, labels, key=key, clusters=image_of_pixel)      whole images drawn

Resampling only changes the weights of the examples. Softmax, binning and sorting are therefore
computed once (`terms`), each resample is a row of multiplicities, one matrix product computes the
sums of all metrics for a chunk of resamples, and the values of the metrics are mapped over them.

Calibration errors are biased upwards: a sum of absolute values is never negative, so noise in a
bin increases it, and resampling adds more noise. For a well calibrated model the resampled ECE is
larger than the ECE, which is larger than the true error. The reported value is therefore always
the metric of the data itself, never the mean of the samples.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from calib_jax.core import arrays, checks, numerics
from calib_jax.core.types import Array, PyTree
from calib_jax.inference.evaluation import Evaluation, evaluated, on_same_examples, padded_size
from calib_jax.inference.p_values import LEAST_UNITS, Indices, p_of_resamples, widened
from calib_jax.inference.resampling import PER_KEY, Entries, drawn, large_entries, prepared
from calib_jax.metrics import contract
from calib_jax.metrics.bins import ece, overconfidence, underconfidence
from calib_jax.metrics.contract import AnyMetric, Members, Metrics, one_or_several
from calib_jax.metrics.terms import Kept, Terms

INTERVALS = ("percentile", "basic")
_OF_GAPS = {metric.finish for metric in (ece, overconfidence, underconfidence)}


class Interval(NamedTuple):
    """Lower and upper end of an interval, each with the shape of the metric's value."""

    low: PyTree
    high: PyTree


class Difference(NamedTuple):
    """The change of a metric from predictions a to predictions b.

    Attributes:
      value: metric of b minus metric of a.
      low: lower end of its interval.
      high: upper end of its interval.
      p_value: two-sided, the smallest 1 - level at which the interval excludes 0. NaN differences
        are dropped; NaN if none is left, or with fewer than 10 examples or clusters. For a `biased`
        metric (`ece` and every other plug-in calibration error) it does not test calibration,
        because the less sharp of two calibrated models has the larger error.
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
    metrics: Metrics,
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
        of clusters of every class. Intervals need 10 clusters or more.
      max_bytes: approximate memory of the resamples in progress; it does not change the values.

    Returns:
      Samples of the metric's value with a leading axis; a dictionary by name for several metrics.
      A sample is NaN if the metric is undefined on the drawn examples: `auroc` without two
      classes, or the recall of a class that was not drawn. `interval` and `difference` drop
      such samples.

    >>> import jax, numpy as np
    >>> from calib_jax import metrics
    >>> logits, labels = np.tile([[2.0, 0.0], [0.0, 1.0]], (50, 1)), np.zeros(100, int)
    >>> samples = bootstrap(metrics.accuracy, logits, labels, key=jax.random.key(0))
    >>> samples.shape
    (1000,)
    """
    checks.at_least("max_bytes", max_bytes, 1)
    evaluation = evaluated("bootstrap", logits, labels, weights, clusters)

    def resampled(missing: Members) -> dict[str, Any]:
        return _resampled(missing, evaluation, key, num_resamples, by_class, max_bytes)

    return evaluation.of_metrics(("samples", num_resamples, by_class), metrics, resampled, key)


def _resampled(
    members: Members,
    evaluation: Evaluation,
    key: Array,
    num_resamples: int,
    by_class: bool,
    max_bytes: int,
) -> dict[str, Any]:
    """Compute metrics on resamples of the rows of positive weight, which come first."""
    kept = np.flatnonzero(evaluation.present)
    if len(kept) < len(evaluation.labels):
        evaluation = evaluation.part(kept)
    logits, labels, weights = evaluation.rows
    if weights is None:
        weights = jax.device_put(np.ones(labels.shape, numerics.wide(logits.dtype)))
    num_rows, number, cluster = len(labels), len(kept), None
    size, classes = num_rows, np.asarray(labels)[:number] if by_class else None
    if evaluation.clusters is not None:
        ids = evaluation.clusters[:number]
        _, first, cluster = np.unique(ids, return_index=True, return_inverse=True)
        if classes is not None:
            classes = _classes_of_clusters(classes, first, cluster)
        cluster = np.pad(cluster, (0, num_rows - number))
        size = padded_size(len(first)) if number < num_rows else len(first)
        number = len(first)
    if classes is not None:  # padding is a class of its own
        classes = np.pad(classes, (0, size - number), constant_values=logits.shape[-1])
    terms = _terms(members, logits, labels)
    entries = {name: large_entries(part) for name, part in terms.items()}
    in_progress = 6 * num_rows + 3 * sum(len(large.row) for large in entries.values())
    num_keys = -(-num_resamples // PER_KEY)
    step = -(-num_keys // -(-PER_KEY * num_keys * size // max_bytes))
    chunk = PER_KEY * int(np.clip(max_bytes // (16 * in_progress), 1, min(32, step)))
    run = functools.partial(_samples, members, chunk, min(num_resamples, PER_KEY * step))
    draws = (drawn(key, at, step, size, number, classes) for at in range(0, num_keys, step))
    # One group after the other, so that the memory holds the multiplicities of one.
    values = [jax.block_until_ready(run(terms, entries, weights, cluster, each)) for each in draws]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:num_resamples], *values)


def _classes_of_clusters(labels: Indices, first: Indices, cluster: Indices) -> Indices:
    """Return the class of each cluster, whose examples must all have the same class."""
    class_of_cluster = labels[first]
    num_mixed = len(np.unique(cluster[labels != class_of_cluster[cluster]]))
    if num_mixed:
        raise ValueError(
            f"by_class needs clusters of one class each, but {num_mixed} of {len(first)} contain"
            " several. Leave out by_class."
        )
    return class_of_cluster


@functools.partial(jax.jit, static_argnums=0)
def _terms(members: Members, logits: Array, labels: Array) -> dict[str, Terms]:
    return contract.terms_in_blocks(functools.partial(contract.terms_of, members), logits, labels)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _samples(
    members: Members,
    chunk: int,
    num_resamples: int,
    terms: dict[str, Terms],
    entries: dict[str, Entries],
    weights: Array,
    cluster: Any,
    multiplicities: list[Array],
) -> dict[str, PyTree]:
    """Compute the metrics of the resamples of these multiplicities, a chunk at a time."""
    owner = contract.owners(members)
    parts = {}
    for name, part in terms.items():
        finish = {metric.finish for other, metric in members if owner[other] == name}
        parts[name] = prepared(part, weights, entries[name], only_gaps=finish <= _OF_GAPS)
    # Concatenate the columns of all metrics, so that each chunk needs one product.
    matrix = jnp.concatenate([part.columns for part in parts.values()], axis=1)
    cuts = np.cumsum([part.columns.shape[1] for part in parts.values()])[:-1]

    def of_resample(resample: tuple[Array, Array]) -> dict[str, PyTree]:
        counts, product = resample
        sums = zip(parts, jnp.split(product, cuts), strict=True)
        stats = {name: parts[name].stat(counts, of_part) for name, of_part in sums}
        return {name: metric.finished(stats[owner[name]]) for name, metric in members}

    # Metrics over all pairs of examples are large enough one resample at a time.
    kept = [{*part.columns} for part in terms.values() if isinstance(part, Kept)]
    pairs = any(columns.isdisjoint(("score", "scores")) for columns in kept)
    of_few = functools.partial(jax.lax.map, of_resample) if pairs else jax.vmap(of_resample)

    def of_chunk(_: None, each: Integer[Array, "chunk rows"]) -> tuple[None, dict[str, PyTree]]:
        counts = (each if cluster is None else each[:, cluster]).astype(matrix.dtype)
        product = jnp.matmul(counts, matrix, precision=jax.lax.Precision.HIGHEST)
        # A product of many resamples takes half the time; all other operations are fastest on few,
        # which stay in the cache of a CPU.
        shape = (PER_KEY, chunk // PER_KEY, -1)
        values = jax.lax.map(of_few, (counts.reshape(shape), product.reshape(shape)))
        return None, jax.tree.map(lambda leaf: leaf.reshape(chunk, *leaf.shape[2:]), values)

    counts = jnp.concatenate(multiplicities)[:num_resamples]
    counts = jnp.pad(counts, ((0, -num_resamples % chunk), (0, 0)), constant_values=1)
    values = jax.lax.scan(of_chunk, None, counts.reshape(-1, chunk, counts.shape[1]))[1]
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:num_resamples], values)


# --------------------------------------------------------------------------------------------
# Intervals.


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

    Returns:
      The `Interval`, in float32 or float64 also for samples of 16 bits; a dictionary by name for
      samples by name.

    >>> low, high = interval(jnp.arange(101.0), level=0.9)
    >>> float(low), float(high)
    (5.0, 95.0)
    """
    checks.level(level)
    checks.one_of("method", method, INTERVALS)
    if method == "basic" and estimate is None:
        raise ValueError('method="basic" reflects around the estimate: give estimate=metric(...).')
    if isinstance(samples, Mapping):
        of = dict.fromkeys(samples) if estimate is None else estimate
        return {
            name: interval(sample, level, method=method, estimate=of[name])
            for name, sample in samples.items()
        }
    samples = jax.tree.map(_on_host, samples)
    low, high = (
        jax.tree.map(functools.partial(_quantile, at=at), samples)
        for at in ((1 - level) / 2, (1 + level) / 2)
    )
    if method == "basic":
        estimate = jax.tree.map(_on_host, estimate)
        low, high = (jax.tree.map(lambda e, q: 2 * e - q, estimate, q) for q in (high, low))
    return Interval(*jax.device_put((low, high)))


def _on_host(values: Any) -> Any:
    """Return numbers as a NumPy array, since a program of so few takes longer to compile.

    Under `jit` and `vmap` they stay as they are.
    """
    values = arrays.gathered(arrays.as_numbers("interval", "samples", values))
    return values if isinstance(values, jax.core.Tracer) else np.asarray(values)


def _numpy_of(values: Any) -> Any:
    return jnp if isinstance(values, jax.core.Tracer) else np


def _quantile(samples: Any, at: float) -> Any:
    """Interpolate the quantile of the samples that are not NaN; NaN if there are none."""
    if not samples.ndim or not len(samples):
        raise ValueError(
            "samples must be arrays with at least one entry along their first axis, got the shape"
            f" {samples.shape}: give np.asarray(samples) for a list."
        )
    of = _numpy_of(samples)
    ordered = of.sort(samples, axis=0)  # NaN comes last
    place = at * of.maximum(of.sum(~of.isnan(ordered), axis=0) - 1, 0)
    below, above = (
        of.take_along_axis(ordered, end.astype("int32")[None], axis=0)[0]
        for end in (of.floor(place), of.ceil(place))
    )
    share = place - of.floor(place)
    with np.errstate(invalid="ignore"):  # inf x 0, which is not selected
        between = of.where(below == above, below, below * (1 - share) + above * share)
    return between.astype(numerics.wide(samples.dtype))


# --------------------------------------------------------------------------------------------
# Two models.


@checks.needs_key
@one_or_several
def paired_bootstrap(
    metrics: Metrics,
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
    how: dict[str, Any] = dict(num_resamples=num_resamples, by_class=by_class, max_bytes=max_bytes)
    models = on_same_examples("paired_bootstrap", (logits_a, logits_b), labels, weights, clusters)
    # The same key draws the same resamples.
    drawn = [(model.values(metrics), bootstrap(metrics, model, key=key, **how)) for model in models]
    how = dict(level=level, method=method)
    return {
        name: paired(metric, models[0], *((one[name], all_[name]) for one, all_ in drawn), **how)
        for name, metric in metrics.items()
    }


def paired(
    metric: AnyMetric, evaluation: Evaluation, a: Any, b: Any, *, level: float, method: str
) -> Difference:
    """Compute the `difference` of a metric; few examples or clusters do not show its noise."""
    units = evaluation.num_units
    if units < LEAST_UNITS:
        b, units = (b[0], jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), b[1])), LEAST_UNITS
    how: Any = dict(level=widened(level, units), error=interpolation_error(metric, evaluation))
    found = difference(a, b, method=method, **how)
    p_value = jax.tree.map(lambda p: jax.device_put(p_of_resamples(p, units)), found.p_value)
    return found._replace(p_value=p_value)


def interpolation_error(metric: AnyMetric, evaluation: Evaluation) -> float:
    """Return the size up to which differences of a metric are errors of its interpolation."""
    if not metric.interpolation_error:
        return 0.0
    return metric.interpolation_error / float(np.sum(evaluation.weight)) + 2e-6


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
      a: the metric of the first model on the data, and its samples by `bootstrap`.
      b: the same of the second model; both have the same key.
      level: the nominal coverage of the interval, a fraction.
      method: "percentile" or "basic", see `interval`; the p-value uses the same method.
      error: the size up to which a difference counts as 0, such as the error of a metric that
        interpolates.

    Returns:
      The `Difference`, b minus a.

    >>> first, second = jnp.linspace(0.1, 0.3, 99), jnp.linspace(0.2, 0.4, 99)
    >>> change = difference((0.2, first), (0.3, second))
    >>> round(float(change.value), 3), round(float(change.p_value), 3)
    (0.1, 0.02)
    """
    a, b = jax.tree.map(_on_host, (a, b))

    def change(first: Any, second: Any) -> Any:
        with np.errstate(invalid="ignore"):
            minus = second - first
        return _numpy_of(minus).where(abs(minus) <= error, 0, minus) if error else minus

    value, samples = jax.tree.map(change, a, b)
    low, high = interval(samples, level, method=method, estimate=value)
    p_value = jax.tree.map(functools.partial(_p_value, method=method), samples, value)
    return Difference(*jax.device_put((value, low, high, p_value, samples)))


def _p_value(samples: Any, value: Any, method: str) -> Any:
    of = _numpy_of(samples)
    if method == "basic":
        samples = 2 * value[None] - samples
    # A NaN sample is in neither tail, so exclude it from the total as well.
    count = of.sum(~of.isnan(samples), axis=0)
    # Count the data itself as one more resample, so that no p-value is 0.
    fewer = 1 + of.minimum(of.sum(samples <= 0, axis=0), of.sum(samples >= 0, axis=0))
    p_value = of.minimum(1.0, 2 * fewer / (1 + count))
    return of.where(count > 0, p_value, np.nan).astype(np.float32)
