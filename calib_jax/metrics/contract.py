r"""The metric contract: predictions, terms, their weighted statistic, the value of the statistic.

    metrics.ece(logits, labels, weights, num_bins=15)       the value, compiled
    metrics.ece.terms(logits, labels)                       the contribution of each example
    metrics.ece.stat(logits, labels, weights)               mergeable by `+` and all_reduce
    metrics.ece.value(stat)                                 the final value, divided once
    metrics.ece.with_options(num_bins=20)                   the metric with other defaults

Several metrics are computed in one compiled pass (`values_of`), in which metrics with the same
terms (ECE and MCE) share one statistic. Calling a metric runs this pass with one metric.

A metric is declared by its signature and its docstring; the decorator names the function of its
terms and the function of its value, and the declared function has no body. The catalogue then
lists the metric by its name:

    @metrics.metric(
        lambda predictions: metrics.Columns({"hit": predictions.hit}),
        lambda sums: metrics.ratio(sums["hit"], sums["weight"]),
    )
    def my_accuracy(logits, labels=None, weights=None):
        "Compute the share of hits."

    metrics.named("my_accuracy")

A family of metrics with the same terms and the same options writes its signature once: the other
members are functions of the statistic, declared with `Metric.variant`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.core import arrays, checks, numerics, types, values
from calib_jax.core.statistics import Joint, Sums, merged_scan
from calib_jax.core.types import Array, ArrayLike, PerClass, PerExample, Stat
from calib_jax.metrics.terms import Terms, ranked_if_scored


class Predictions:
    r"""A lazy view of logits and labels.

    Quantities that depend on the label are NaN where the label is out of range; all quantities
    are NaN where a logit is NaN.

    One column in place of the logits is a stated confidence, and the label 1 means a right answer:
    see `Stated`. The stated answer is then class 1, also where its probability is below 1/2.

    Args:
      logits: `[*batch, classes]`, or `[*batch, 1]`.
      labels: `[*batch]`; converted to int32 or wider.
      excluded_class: see `without`.

    Attributes:
      stated: the stated confidence, or None.
      num_classes: the number of classes.
      log_total: $\log \sum_k e^{z_k}$.
      finite: whether no logit is NaN or +inf, and not all of them are -inf.
      valid: whether the row is finite and its label in range. Single logits may be -inf.
    """

    def __init__(
        self, logits: types.Logits, labels: types.Labels, excluded_class: int | None = None
    ) -> None:
        self.stated = logits[..., 0] if values.is_stated(logits) else None
        self.logits = numerics.at_least_float32(values.two_classes(logits))
        self.num_classes: int = self.logits.shape[-1]
        # Cell indices are labels times bins, which would overflow a narrow integer type.
        self.labels = numerics.widened(labels)
        self.excluded_class = excluded_class
        self._top_logit = jnp.max(self.logits, axis=-1)
        self._shifted = self.logits - self._top_logit[..., None]
        self._spread = jnp.exp(self._shifted)
        self._total = jnp.sum(self._spread, axis=-1)
        self.log_total = self._top_logit + jnp.log(self._total)
        # The maximum does not detect NaN: from 64 classes on, XLA drops NaN from it on a CPU.
        self.finite = jnp.isfinite(self._total)
        self.valid = numerics.valid(self.labels, self.num_classes) & self.finite

    def without(self, excluded_class: int | None) -> Predictions:
        """Set a class's probability to 0 without renormalising, so that it is never predicted."""
        if excluded_class is None:
            return self
        if self.stated is not None:
            raise TypeError("excluded_class needs classes, and a stated confidence has none.")
        checks.between("excluded_class", excluded_class, 0, self.num_classes - 1)
        checks.whole("excluded_class", excluded_class, 0)
        return Predictions(self.logits, self.labels, excluded_class)

    @functools.cached_property
    def p(self) -> PerClass:
        """The probabilities."""
        p = self._spread / self._total[..., None]
        return p if self.excluded_class is None else p.at[..., self.excluded_class].set(0)

    @functools.cached_property
    def _candidates(self) -> PerClass:
        """The logits, -inf for the excluded class, so that classes beside it do not round to 0."""
        excluded = self.excluded_class
        return self.logits if excluded is None else self.logits.at[..., excluded].set(-jnp.inf)

    @functools.cached_property
    def odds(self) -> PerClass:
        r"""$p_k / (1 - p_k)$ of the softmax, accurate even where $p_k$ rounds to 1.

        It uses no logarithms, because compilers round logarithms at the end of a vector
        differently, and equal rows must have equal odds.
        """
        top = numerics.is_true_class(numerics.first_argmax(self.logits), self.num_classes)
        of_others = jnp.sum(jnp.where(top, 0, self._spread), axis=-1, keepdims=True)
        return self._spread / jnp.where(top, of_others, self._total[..., None] - self._spread)

    @functools.cached_property
    def square_sum(self) -> PerExample:
        r"""$\sum_k p_k^2$, of the softmax."""
        return jnp.sum(jnp.square(self._spread), axis=-1) / jnp.square(self._total)

    def if_valid(self, values: Float[Array, "*batch"]) -> PerExample:
        """Replace values by NaN where the label is out of range or a logit is NaN."""
        return jnp.where(self.valid, values, jnp.nan)

    @functools.cached_property
    def log_true(self) -> PerExample:
        r"""$\log p_y$."""
        margin = numerics.true_class(self.logits, self.labels) - self._top_logit
        return self.if_valid(margin - jnp.log(self._total))

    @functools.cached_property
    def predicted(self) -> types.Labels:
        """The class of the largest probability; ties go to the smallest index."""
        if self.stated is not None:
            return jnp.ones_like(self.labels)
        return numerics.first_argmax(self._candidates)

    @functools.cached_property
    def rank(self) -> Integer[Array, "*batch"]:
        """The number of classes ranked before the true one, 0 where it is predicted.

        Ties go to the smaller index. It takes one pass over the classes and compares no entry with
        itself, because a compiler may compute the two operands separately.
        """
        if self.stated is not None:
            return jnp.where(self.labels == 1, 0, 1)
        rows, labels = self._candidates, self.labels[..., None]
        true = numerics.true_class(rows, self.labels)[..., None]
        index = lax.broadcasted_iota(labels.dtype, rows.shape, rows.ndim - 1)
        before = jnp.where(index < labels, rows >= true, rows > true) & (index != labels)
        return jnp.sum(jnp.where(before, 1.0, 0.0), axis=-1).astype(jnp.int32)

    @functools.cached_property
    def confidence(self) -> PerExample:
        """The probability of the predicted class."""
        if self.stated is not None:
            return jnp.where(self.finite, self.stated, jnp.nan)
        if self.excluded_class is None:
            return 1 / self._total  # the largest probability is e^0 over the total
        return jnp.max(self.p, axis=-1)

    @functools.cached_property
    def hit(self) -> PerExample:
        """1 where the predicted class is the true one, else 0."""
        return self.if_valid((self.rank == 0).astype(self.logits.dtype))

    @functools.cached_property
    def entropy(self) -> PerExample:
        r"""$-\sum_k p_k \log p_k$, of the softmax, with $0 \log 0 = 0$."""
        # A class of probability 0 contributes 0, even if its logit is -inf.
        shifted = jnp.where(self._spread == 0, 0, self._shifted)
        mean = jnp.sum(self._spread * shifted, axis=-1) / self._total
        return jnp.log(self._total) - mean

    @functools.cached_property
    def is_true(self) -> Bool[Array, "*batch classes"]:
        """The one-hot label."""
        return numerics.is_true_class(self.labels, self.num_classes)


# The arguments of every metric. Labels are missing beside a `Stated`, which holds its own.
Logits: TypeAlias = ArrayLike | values.Stated
Labels: TypeAlias = ArrayLike | None
Weights: TypeAlias = ArrayLike | None

_P = ParamSpec("_P")
_V = TypeVar("_V")
_W = TypeVar("_W")


@functools.cache
def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword options of a function with their defaults."""
    parameters = inspect.signature(function).parameters
    return {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


@dataclasses.dataclass(unsafe_hash=True, repr=False)
class Metric(Generic[_P, _V]):
    """A metric with a mergeable statistic; created by `metric`, called like a function.

    Metrics with the same functions and options are equal: programs are compiled once for equal
    metrics.

    Attributes:
      function: the declaration, which has the signature.
      prepare: `(Predictions, **options) -> Terms`.
      finish: `(statistic, **options) -> value`; scored rows arrive as `Ranked`.
      options: options that differ from their defaults, as sorted pairs.
      biased: whether noise alone increases the value, as for absolute, squared and largest gaps.
        A calibrated model then has a positive value, which depends on its sharpness and on the
        number of rows. The p-value of a difference therefore does not test which of two models
        is better calibrated, and no report prints it.
      interpolation_error: the error of interpolated values, times the number of examples.
        Comparisons count smaller differences as 0.
      described: the function with the name, the docstring and the type of the value; None is the
        declaration.
    """

    function: Callable[_P, Any]
    prepare: Callable[..., Terms]
    finish: Callable[..., _V]
    options: tuple[tuple[str, Any], ...] = ()
    biased: bool = dataclasses.field(default=False, compare=False)
    interpolation_error: float = dataclasses.field(default=0.0, compare=False)
    described: Callable[..., _V] | None = None

    def __post_init__(self) -> None:
        described = self.described or self.function
        functools.update_wrapper(self, described)
        self.name = described.__name__
        result = inspect.signature(described).return_annotation
        self.__signature__ = inspect.signature(self.function).replace(return_annotation=result)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options)})"

    def __call__(self, *args: _P.args, **options: _P.kwargs) -> _V:
        """Compute the metric; outside `jit`, raise on inputs that would make it NaN.

        A `Stated` in place of the logits holds its labels.
        """
        return self._compute(*args, **options)

    def _compute(self, logits: Any, labels: Any = None, weights: Any = None, **options: Any) -> _V:
        chosen = self.with_options(**options)
        value: _V = values_of({self.name: chosen}, logits, labels, weights)[self.name]
        return value

    def terms(self, logits: Logits, labels: Labels = None, **options: Any) -> Terms:
        """Compute the unweighted contribution of each example."""
        terms = self.with_options(**options)._terms
        return arrays.with_auto_axes(terms, *values.rows_of(self.name, logits, labels))

    def _terms(self, logits: Any, labels: Any) -> Terms:
        logits, labels, _ = arrays.batch_of(self.name, logits, labels)
        return self.terms_of(Predictions(logits, labels))

    def stat(
        self, logits: Logits, labels: Labels = None, weights: Weights = None, **options: Any
    ) -> Any:
        """Compute the statistic of these examples; it merges with statistics of other examples.

        Inputs that would raise an error in a call make the value NaN.
        """
        stat = self.with_options(**options)._stat
        logits, labels = values.rows_of(self.name, logits, labels)
        return arrays.with_auto_axes(stat, logits, labels, weights, per_row=False)

    def _stat(self, logits: Any, labels: Any, weights: Any) -> Stat:
        rows = numerics.present(*arrays.batch_of(self.name, logits, labels, weights))
        return self.terms_of(Predictions(*rows[:2])).weigh(rows[2])

    def value(self, stat: Stat, **options: Any) -> _V:
        """Compute the metric from a statistic; NaN if its weight is 0."""
        return self.with_options(**options).finished(ranked_if_scored(stat))

    def finished(self, stat: Any) -> _V:
        """Compute the value with the chosen options; scored rows must be `Ranked`."""
        return self.finish(stat, **self._chosen_for(self.finish))

    def with_options(self, **options: Any) -> Metric[_P, _V]:
        """Return the metric with the given options as defaults."""
        if not options:
            return self
        known = self.defaults()
        checks.known_options(self.name, known, options)
        changed = dict(self.options) | {name: _static(value) for name, value in options.items()}
        chosen = tuple(sorted((k, v) for k, v in changed.items() if v != known[k]))
        return dataclasses.replace(self, options=chosen)

    def defaults(self) -> dict[str, Any]:
        """Return the default value of every option."""
        return _options(self.function)

    def _chosen_for(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Select the options that `prepare` or `finish` accepts."""
        return {k: v for k, v in self.options if k in _options(function)}

    def terms_of(self, predictions: Predictions) -> Terms:
        """Compute the terms from a shared view of the predictions."""
        return self.prepare(predictions, **self._chosen_for(self.prepare))

    @property
    def terms_key(self) -> tuple[Any, ...]:
        """The key of the terms; metrics with equal keys share one statistic."""
        return self.prepare, tuple(self._chosen_for(self.prepare).items())

    def variant(self, *, biased: bool = False) -> Callable[[Callable[..., _W]], Metric[_P, _W]]:
        """Decorate the value of another metric with the terms and the options of this metric.

        The function takes the statistic, and those of the options that it uses. Its name and its
        docstring are those of the metric, which is registered.

        Args:
          biased: as in `Metric`.
        """

        def decorate(value: Callable[..., _W]) -> Metric[_P, _W]:
            made = Metric(self.function, self.prepare, value, biased=biased, described=value)
            return _CATALOGUE.register(made.name)(made)

        return decorate


def _static(value: Any) -> Any:
    """Return an option that can be hashed: an array or a list becomes nested tuples."""
    if isinstance(value, np.ndarray | jax.Array) and checks.concrete(value):
        value = np.asarray(arrays.as_array(value)).tolist()
    return tuple(map(_static, value)) if isinstance(value, list) else value


# --------------------------------------------------------------------------------------------
# Several metrics in one pass.

AnyMetric: TypeAlias = Metric[..., Any]
Metrics: TypeAlias = Mapping[str, AnyMetric]
Members: TypeAlias = tuple[tuple[str, AnyMetric], ...]  # hashable items of `Metrics`


def members_of(metrics: AnyMetric | Metrics) -> Members:
    """Return metrics with their names; raise TypeError for anything else."""
    given = {metrics.name: metrics} if isinstance(metrics, Metric) else metrics
    each = [*given.values()] if isinstance(given, Mapping) else []
    if not (each and all(isinstance(metric, Metric) for metric in each)):
        raise TypeError(
            "metrics must be a metric or a mapping from names to metrics, got"
            f" {checks.short(given)}: metrics.named(NAME) finds one."
        )
    return tuple(given.items())


@typing.runtime_checkable
class FunctionOfMetrics(Protocol[_P, _V]):
    """A function of one metric, or of several by name, for which it returns results by name."""

    @overload
    def __call__(self, metrics: AnyMetric, *args: _P.args, **options: _P.kwargs) -> _V: ...

    @overload
    def __call__(self, metrics: Metrics, *args: _P.args, **kwargs: _P.kwargs) -> dict[str, _V]: ...


def one_or_several(
    function: Callable[Concatenate[Metrics, _P], dict[str, _V]],
) -> FunctionOfMetrics[_P, _V]:
    """Decorate a function of metrics by name, so that it also takes one metric."""

    @functools.wraps(function)
    def of_metrics(metrics: Any, *args: Any, **options: Any) -> Any:
        by_name = function(dict(members_of(metrics)), *args, **options)
        return by_name[metrics.name] if isinstance(metrics, Metric) else by_name

    return of_metrics


def values_of(
    metrics: AnyMetric | Metrics, logits: Any, labels: Any = None, weights: Any = None
) -> dict[str, Any]:
    """Compute several metrics in one pass; outside `jit`, raise on inputs that would make them NaN.

    A `Stated` in place of the logits holds its labels.

    >>> import jax.numpy as jnp
    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> values = metrics.values_of(
    ...     {"accuracy": metrics.accuracy, "ece": metrics.ece}, logits, jnp.array([0, 1, 1])
    ... )
    >>> {name: round(float(value), 3) for name, value in values.items()}
    {'accuracy': 0.667, 'ece': 0.433}
    """
    members = members_of(metrics)
    name = ", ".join(name for name, _ in members)

    def compute(*rows: Any) -> dict[str, Any]:
        flat = _flat(*rows) or values.flat_rows(name, *rows)
        if not checks.concrete(*flat):
            return values_of_stats(dict(members), _stats(members, *flat)[0])
        computed, invalid, fine = checked_values(members, *flat)
        if not fine:
            values.refuse(name, invalid, flat[0].shape)
        values.refuse_probabilities(name, flat[0], flat[2])
        return computed

    rows = *values.rows_of(name, logits, labels), weights
    return arrays.with_auto_axes(compute, *rows, per_row=False)


def _flat(logits: Any, labels: Any, weights: Any) -> Any:
    """Return rows that need no conversion, which takes longer than a small metric; else None."""
    if weights is not None or not (isinstance(logits, jax.Array) and isinstance(labels, jax.Array)):
        return None
    is_plain = logits.dtype == np.float32 and labels.dtype == np.int32 and logits.ndim == 2
    fits = labels.shape == logits.shape[:1] and logits.size > 0
    return (logits, labels, None) if is_plain and fits else None


def stats_of(metrics: Metrics, logits: Any, labels: Any = None, weights: Any = None) -> Joint:
    """Compute the statistics of all metrics, each statistic once, for `values_of_stats`."""
    members, name = tuple(metrics.items()), ", ".join(metrics)

    def stats(*rows: Any) -> Joint:
        return _stats(members, *values.flat_rows(name, *rows, merges=True))[0]

    rows = *values.rows_of(name, logits, labels), weights
    return arrays.with_auto_axes(stats, *rows, per_row=False)


def values_of_stats(metrics: Metrics, stats: Joint) -> dict[str, Any]:
    """Compute every metric from the merged statistics of `stats_of`."""
    owner = owners(tuple(metrics.items()))
    return {name: metric.value(stats[owner[name]]) for name, metric in metrics.items()}


def owners(members: Members) -> dict[str, str]:
    """Map each metric to the first metric with the same terms, which computes them."""
    first: dict[Any, str] = {}
    return {name: first.setdefault(metric.terms_key, name) for name, metric in members}


def terms_of(members: Members, predictions: Predictions) -> dict[str, Terms]:
    """Compute the terms of every metric, each once, from one view of the predictions."""
    owner = owners(members)
    return {name: metric.terms_of(predictions) for name, metric in members if owner[name] == name}


def _stats(members: Members, logits: Any, labels: Any, weights: Any) -> tuple[Joint, Any]:
    return stats_in_blocks(functools.partial(terms_of, members), logits, labels, weights)


def checked_stats(
    members: Members, logits: Any, labels: Any, weights: Any
) -> tuple[Joint, values.InvalidValues]:
    """Compute the statistics and count the invalid inputs of the rows in one pass."""
    stats, not_finite = _stats(members, logits, labels, weights)
    invalid = values.count_invalid_values(logits, labels, weights)
    return stats, invalid._replace(not_finite=not_finite["rows"])


@functools.partial(jax.jit, static_argnums=0)
def checked_values(members: Members, logits: Any, labels: Any, weights: Any) -> tuple[Any, ...]:
    """Compute every metric, the invalid inputs, and whether the inputs need no closer look."""
    stats, invalid = checked_stats(members, logits, labels, weights)
    fine = (invalid.not_finite + invalid.wrong_label == 0) & (weights is None)
    return values_of_stats(dict(members), stats), invalid, fine


# --------------------------------------------------------------------------------------------
# Blocks of rows: the softmax of a block stays in the processor's cache while every metric uses it,
# and sums over blocks keep more digits than one long float32 sum.

TermsOf = Callable[[Predictions], dict[str, Terms]]


def stats_in_blocks(
    terms_of: TermsOf, logits: Array, labels: Array, weights: Array | None
) -> tuple[Joint, Sums]:
    """Compute the statistic of every term, and the number of non-finite rows as "rows".

    If there are several devices, a block has rows of all of up to 64 equal parts, so that rows that
    are sharded over the devices stay where they are.
    """
    num_rows, size = len(logits), _block_rows(*logits.shape)

    def weighed(rows: tuple[Any, Any, Any], fresh: Array | None) -> tuple[Joint, Sums]:
        logits, labels, weights = numerics.present(*rows)
        predictions = Predictions(logits, labels)
        if fresh is not None:
            weights = fresh.astype(jnp.float32) if weights is None else jnp.where(fresh, weights, 0)
        not_finite = ~predictions.finite if weights is None else ~predictions.finite & (weights > 0)
        stats = {name: terms.weigh(weights) for name, terms in terms_of(predictions).items()}
        return Joint(stats), Sums({"rows": jnp.sum(not_finite)})

    if size == num_rows:
        return weighed((logits, labels, weights), None)
    num_parts = math.gcd(num_rows, 64) if jax.device_count() > 1 else 1
    of_part = num_rows // num_parts
    width = max(1, size // num_parts)

    def in_parts(array: Array) -> Array:
        return array if num_parts == 1 else array.reshape(num_parts, of_part, *array.shape[1:])

    def of_block(index: Array) -> tuple[Joint, Sums]:
        # The last block ends at the end of the parts; rows of the block before get weight 0.
        start = jnp.minimum(index * width, of_part - width)

        def rows_of(array: Array) -> Array:
            axis = 0 if num_parts == 1 else 1
            block = lax.dynamic_slice_in_dim(in_parts(array), start, width, axis)
            return block.reshape(num_parts * width, *array.shape[1:])

        fresh = jnp.tile(start + jnp.arange(width) >= index * width, num_parts)
        rows = jax.tree.map(rows_of, (logits, labels, weights))
        return weighed(rows, fresh if of_part % width else None)

    return merged_scan(of_block, jnp.arange(-(-of_part // width)))


def terms_in_blocks(terms_of: TermsOf, logits: Array, labels: Array) -> dict[str, Terms]:
    """Compute the terms of all rows, a block at a time."""

    def of_row(row: tuple[Array, Array]) -> dict[str, Terms]:
        return terms_of(Predictions(*row))

    return lax.map(of_row, (logits, labels), batch_size=_block_rows(*logits.shape))


def _block_rows(num_rows: int, num_classes: int) -> int:
    """Choose the rows per block, to fit a core's cache or an accelerator's memory."""
    entries = 2**20 if jax.default_backend() == "cpu" else 2**26
    return int(min(num_rows, max(64, entries // num_classes)))


# --------------------------------------------------------------------------------------------
# The catalogue.

_CATALOGUE: checks.Catalogue[AnyMetric] = checks.Catalogue("metric")

ACE = (
    "ace is average_calibration_error (Neumann et al.) or adaptive_ece (Nixon et al.): choose one."
)


def metric(
    terms: Callable[..., Terms],
    value: Callable[..., Any],
    *,
    biased: bool = False,
    interpolation_error: float = 0.0,
) -> Callable[[Callable[_P, _V]], Metric[_P, _V]]:
    """Decorate the declaration of a metric, and register it.

    Args:
      terms: `(Predictions, **options) -> Terms`.
      value: `(statistic, **options) -> value`. The metric declares the options of both functions.
      biased: whether noise alone increases the value; see `Metric`.
      interpolation_error: see `Metric`.
    """

    def decorate(function: Callable[_P, _V]) -> Metric[_P, _V]:
        made = Metric(function, terms, value, (), biased, interpolation_error)
        return _CATALOGUE.register(made.name)(made)

    return decorate


def catalogue() -> Mapping[str, AnyMetric]:
    """Return every metric by name."""
    return _CATALOGUE


def named(name: str, **options: Any) -> AnyMetric:
    """Return the metric of this name with these options.

    >>> named("ece", num_bins=20)
    ece(num_bins=20)
    """
    if name == "ace":
        raise ValueError(ACE)
    return _CATALOGUE[name].with_options(**options)
