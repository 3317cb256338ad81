r"""The metric contract: terms, their weighted statistic, and the value of the statistic.

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
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
    runtime_checkable,
)

import jax
import numpy as np

from calib_jax.core import arrays, checks, values
from calib_jax.core.arrays import as_array, concrete, with_auto_axes
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.names import short
from calib_jax.core.rows import present
from calib_jax.core.statistics import Joint, Stat
from calib_jax.core.types import ArrayLike
from calib_jax.core.types import Labels as LabelsArray
from calib_jax.core.types import Logits as LogitsArray
from calib_jax.core.types import Weights as WeightsArray
from calib_jax.core.values import InvalidValues, Stated, count_invalid_values, refuse, rows_of
from calib_jax.metrics.contract.predictions import Predictions, stats_in_blocks
from calib_jax.metrics.contract.ranked import ranked_if_scored
from calib_jax.metrics.contract.terms import Terms

# The arguments of every metric. Labels are missing beside a `Stated`, which holds its own.
Logits: TypeAlias = ArrayLike | Stated
Labels: TypeAlias = ArrayLike | None
Weights: TypeAlias = ArrayLike | None

_Arguments = ParamSpec("_Arguments")
_Options = ParamSpec("_Options")
_Value = TypeVar("_Value")
_Result = TypeVar("_Result")


@functools.cache
def _options(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword options of a function with their defaults."""
    parameters = inspect.signature(function).parameters
    return {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


class Metric(Generic[_Arguments, _Value]):
    """A metric with a mergeable statistic; created by `metric`, called like a function.

    Metrics with the same functions and options are equal: programs are compiled once for equal
    metrics.

    Args:
      function: the declaration; its name, signature and docstring are those of the metric.
      prepare: `(Predictions, **options) -> Terms`.
      finish: `(statistic, **options) -> value`; scored rows arrive as `Ranked`.
      options: options that differ from their defaults, as sorted pairs.
      biased: whether noise alone increases the value, as for absolute, squared and largest gaps.
        A calibrated model then has a positive value, which depends on its sharpness and on the
        number of rows. The p-value of a difference therefore does not test which of two models
        is better calibrated, and no report prints it.
      interpolation_error: the error of interpolated values, times the number of examples.
        Comparisons count smaller differences as 0.
    """

    def __init__(
        self,
        function: Callable[_Arguments, _Value],
        prepare: Callable[..., Terms],
        finish: Callable[..., _Value],
        options: tuple[tuple[str, Any], ...] = (),
        biased: bool = False,
        interpolation_error: float = 0.0,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = function.__name__
        self.function, self.prepare, self.finish = function, prepare, finish
        self.options, self.biased = options, biased
        self.interpolation_error = interpolation_error

    @property
    def _identity(self) -> tuple[Any, ...]:
        return self.function, self.prepare, self.finish, self.options

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metric) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.options)})"

    def __call__(self, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Value:
        """Compute the metric; outside `jit`, raise on inputs that would make it NaN.

        A `Stated` in place of the logits holds its labels.
        """
        return self._compute(*args, **options)

    def _compute(
        self, logits: Any, labels: Any = None, weights: Any = None, **options: Any
    ) -> _Value:
        chosen = self.with_options(**options)
        value: _Value = values_of({self.name: chosen}, logits, labels, weights)[self.name]
        return value

    def terms(self, logits: Logits, labels: Labels = None, **options: Any) -> Terms:
        """Compute the unweighted contribution of each example."""
        terms = self.with_options(**options)._terms
        return with_auto_axes(terms, *rows_of(self.name, logits, labels))

    def _terms(self, logits: Any, labels: Any) -> Terms:
        logits, labels = arrays.batch_of(self.name, logits, labels, soft_labels=False)
        return self.terms_of(Predictions(logits, labels))

    def stat(
        self, logits: Logits, labels: Labels = None, weights: Weights = None, **options: Any
    ) -> Any:
        """Compute the statistic of these examples; it merges with statistics of other examples.

        Inputs that would raise an error in a call make the value NaN.
        """
        stat = self.with_options(**options)._stat
        logits, labels = rows_of(self.name, logits, labels)
        return with_auto_axes(stat, logits, labels, weights, per_row=False)

    def _stat(self, logits: Any, labels: Any, weights: Any) -> Stat:
        logits, labels = arrays.batch_of(self.name, logits, labels, soft_labels=False)
        weights = arrays.weights_for(logits, weights)
        logits, labels, weights = present(logits, labels, weights)
        return self._terms(logits, labels).weigh(weights)

    def value(self, stat: Stat, **options: Any) -> _Value:
        """Compute the metric from a statistic; NaN if its weight is 0."""
        return self.with_options(**options).finished(ranked_if_scored(stat))

    def finished(self, stat: Any) -> _Value:
        """Compute the value with the chosen options; scored rows must be `Ranked`."""
        return self.finish(stat, **self.chosen_for(self.finish))

    def with_options(self, **options: Any) -> Metric[_Arguments, _Value]:
        """Return the metric with the given options as defaults."""
        if not options:
            return self
        known = self.defaults()
        for name in options:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                variants = [
                    variant
                    for variant, member in _CATALOGUE.items()
                    if variant.endswith(f"_{self.name}") and name in member.defaults()
                ]
                hint = f"; {variants[0]!r} has it." if variants else checks.nearest(name, known)
                raise TypeError(f"{self.name!r} has no option {name!r} ({has}){hint}")
        changed = {**dict(self.options), **{k: _as_tuple(v) for k, v in options.items()}}
        for name, value in changed.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{self.name}: the option {name} must be a number, a string or a tuple, got"
                    f" {value!r}."
                ) from None
        pairs = {name: value for name, value in changed.items() if value != known[name]}
        chosen = tuple(sorted(pairs.items()))
        kept = self.biased, self.interpolation_error
        return Metric(self.function, self.prepare, self.finish, chosen, *kept)

    def defaults(self) -> dict[str, Any]:
        """Return the default value of every option."""
        return _options(self.function)

    def chosen_for(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Select the options that `prepare` or `finish` accepts."""
        return {k: v for k, v in self.options if k in _options(function)}

    def terms_of(self, predictions: Predictions) -> Terms:
        """Compute the terms from a shared view of the predictions."""
        return self.prepare(predictions, **self.chosen_for(self.prepare))

    @property
    def terms_key(self) -> tuple[Any, ...]:
        """The key of the terms; metrics with equal keys share one statistic."""
        return (self.prepare, tuple(sorted(self.chosen_for(self.prepare).items())))


def _as_tuple(value: Any) -> Any:
    """Return an array as nested tuples of Python numbers, which can be hashed and compared."""
    if not isinstance(value, np.ndarray | jax.Array) or isinstance(value, jax.core.Tracer):
        return value
    rows = np.asarray(as_array(value)).tolist()
    return tuple(_as_tuple(np.asarray(row)) for row in rows) if np.ndim(value) else rows


# --------------------------------------------------------------------------------------------
# Several metrics in one pass.

Metrics: TypeAlias = Mapping[str, Metric[..., Any]]
Members: TypeAlias = tuple[tuple[str, Metric[..., Any]], ...]  # hashable items of `Metrics`


def members_of(metrics: Metric[..., Any] | Metrics) -> Members:
    """Return metrics with their names; raise TypeError for anything else."""
    given = {metrics.name: metrics} if isinstance(metrics, Metric) else metrics
    by_name = isinstance(given, Mapping) and bool(given)
    if not (by_name and all(isinstance(metric, Metric) for metric in given.values())):
        raise TypeError(
            f"metrics must be a metric or a mapping from names to metrics, got {short(given)}:"
            " metrics.named(NAME) finds one."
        )
    return tuple(given.items())


@runtime_checkable
class FunctionOfMetrics(Protocol[_Options, _Result]):
    """A function of one metric, or of several by name, for which it returns results by name."""

    @overload
    def __call__(
        self, metrics: Metric[..., Any], *args: _Options.args, **options: _Options.kwargs
    ) -> _Result: ...

    @overload
    def __call__(
        self, metrics: Metrics, *args: _Options.args, **options: _Options.kwargs
    ) -> dict[str, _Result]: ...


def one_or_several(
    function: Callable[Concatenate[Metrics, _Options], dict[str, _Result]],
) -> FunctionOfMetrics[_Options, _Result]:
    """Decorate a function of metrics by name, so that it also takes one metric."""

    @functools.wraps(function)
    def of_metrics(metrics: Any, *args: Any, **options: Any) -> Any:
        by_name = function(dict(members_of(metrics)), *args, **options)
        return by_name[metrics.name] if isinstance(metrics, Metric) else by_name

    return cast(FunctionOfMetrics[_Options, _Result], of_metrics)


def values_of(
    metrics: Metric[..., Any] | Metrics, logits: Any, labels: Any = None, weights: Any = None
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
    logits, labels = rows_of(_names(dict(members)), logits, labels)
    return with_auto_axes(_values_of, logits, labels, weights, members, per_row=False)


def _values_of(logits: Any, labels: Any, weights: Any, members: Members) -> dict[str, Any]:
    by_name = dict(members)
    logits, labels, weights = _flat_rows(by_name, logits, labels, weights)
    if not concrete(logits, labels, weights):
        return values_of_stats(by_name, stats_of(by_name, logits, labels, weights))
    values, invalid = checked_values(members, logits, labels, weights)
    refuse(_names(by_name), invalid, logits.shape)
    return values


def stats_of(metrics: Metrics, logits: Any, labels: Any = None, weights: Any = None) -> Joint:
    """Compute the statistics of all metrics, each statistic once, for `values_of_stats`."""
    members = tuple(metrics.items())
    logits, labels = rows_of(_names(metrics), logits, labels)
    return with_auto_axes(_stats_of, logits, labels, weights, members, per_row=False)


def _stats_of(logits: Any, labels: Any, weights: Any, members: Members) -> Joint:
    logits, labels, weights = _flat_rows(dict(members), logits, labels, weights, merges=True)
    terms = functools.partial(terms_of, members)
    return stats_in_blocks(terms, logits, labels, weights)[0]


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


def checked_stats(
    members: Members, logits: LogitsArray, labels: LabelsArray, weights: WeightsArray | None
) -> tuple[Joint, InvalidValues]:
    """Compute the statistics and count the invalid inputs of the rows in one pass."""
    terms = functools.partial(terms_of, members)
    stats, not_finite = stats_in_blocks(terms, logits, labels, weights)
    return stats, count_invalid_values(logits, labels, weights)._replace(
        not_finite=not_finite["rows"]
    )


@functools.partial(jax.jit, static_argnums=0)
def checked_values(
    members: Members, logits: LogitsArray, labels: LabelsArray, weights: WeightsArray | None
) -> tuple[dict[str, Any], InvalidValues]:
    """Compute every metric, and count the invalid inputs of the rows in the same pass."""
    stats, invalid = checked_stats(members, logits, labels, weights)
    return values_of_stats(dict(members), stats), invalid


def _flat_rows(
    metrics: Metrics, logits: Any, labels: Any, weights: Any, *, merges: bool = False
) -> Any:
    return values.flat_rows(
        _names(metrics), logits, labels, weights, merges=merges, stays_sharded=True
    )


def _names(metrics: Metrics) -> str:
    return ", ".join(metrics)


# --------------------------------------------------------------------------------------------
# The catalogue.

_CATALOGUE: Catalogue[Metric[..., Any]] = Catalogue("metric")

ACE = (
    "ace has two meanings: average_calibration_error is the mean over bins of equal width (Neumann"
    " et al. 2018), adaptive_ece has bins of equal mass (Nixon et al. 2019)."
)


def register(metric: Metric[_Arguments, _Value]) -> Metric[_Arguments, _Value]:
    """Add a metric of your own to the catalogue under its name, and return it."""
    _CATALOGUE.register(metric.name)(metric)
    return metric


def metric(
    terms: Callable[..., Terms],
    value: Callable[..., Any],
    *,
    biased: bool = False,
    interpolation_error: float = 0.0,
) -> Callable[[Callable[_Arguments, _Value]], Metric[_Arguments, _Value]]:
    """Decorate the declaration of a metric, and register it.

    Args:
      terms: `(Predictions, **options) -> Terms`.
      value: `(statistic, **options) -> value`. The metric declares the options of both functions.
      biased: whether noise alone increases the value; see `Metric`.
      interpolation_error: see `Metric`.
    """

    def decorate(function: Callable[_Arguments, _Value]) -> Metric[_Arguments, _Value]:
        return register(Metric(function, terms, value, (), biased, interpolation_error))

    return decorate


def catalogue() -> Mapping[str, Metric[..., Any]]:
    """Return every metric by name."""
    return _CATALOGUE


def named(name: str, **options: Any) -> Metric[..., Any]:
    """Return the metric of this name with these options.

    >>> named("ece", num_bins=20)
    ece(num_bins=20)
    """
    if name == "ace":
        raise ValueError(ACE)
    _CATALOGUE.check_name(name)
    return _CATALOGUE[name].with_options(**options)
