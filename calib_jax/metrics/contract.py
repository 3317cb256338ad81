r"""The metric contract: terms, their weighted statistic, and the value of the statistic.

    metrics.ece(logits, labels, weights, num_bins=15)       the value, compiled
    metrics.ece.terms(logits, labels)                       the contribution of each example
    metrics.ece.stat(logits, labels, weights)               mergeable by `+` and all_reduce
    metrics.ece.value(stat)                                 the final value, divided once
    metrics.ece.with_options(num_bins=20)                   the metric with other defaults

Calling a metric computes `value(stat(...))` over blocks of rows that fit the processor's cache.
To add a metric, decorate a function from a statistic to its value with its terms:

    @metric(hits)
    def accuracy(sums: Sums) -> Scalar:
        return sums["hit"] / sums["weight"]
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from calib_jax.core import checks
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.rows import present
from calib_jax.core.statistics import Stat
from calib_jax.core.types import PyTree
from calib_jax.metrics import whole
from calib_jax.metrics.predictions import Predictions
from calib_jax.metrics.ranked import ranked_if_scored
from calib_jax.metrics.terms import Terms

_CATALOGUE: Catalogue[Metric]


@dataclasses.dataclass(frozen=True, repr=False)
class Metric:
    """A metric with a mergeable statistic; created by `metric`, called like a function.

    Attributes:
      name: name in error messages and in the catalogue.
      prepare: `(Predictions, **options) -> Terms`.
      finish: `(statistic, **options) -> value`; scored rows arrive as `Ranked`.
      options: options that differ from their defaults, as sorted pairs.
      biased: whether noise alone increases the value, as for absolute, squared and largest gaps.
        A calibrated model then has a positive value, which depends on its sharpness and on the
        number of rows. The p-value of a difference therefore does not test which of two models
        is better calibrated, and no report prints it.
    """

    name: str
    prepare: Callable[..., Terms]
    finish: Callable[..., PyTree]
    options: tuple[tuple[str, Any], ...] = ()
    biased: bool = False

    def __post_init__(self) -> None:
        # help() and notebooks read these attributes from the instance.
        for attribute, value in {
            "__doc__": self.finish.__doc__,
            "__name__": self.name,
            "__module__": self.finish.__module__,
            "__signature__": self._signature(),
            "__wrapped__": self.finish,
        }.items():
            object.__setattr__(self, attribute, value)

    def __call__(self, logits: Any, labels: Any, weights: Any = None, **options: Any) -> Any:
        """Compute the metric; outside `jit`, raise on inputs that would make it NaN."""
        return whole.values_of({self.name: self.with_options(**options)}, logits, labels, weights)[
            self.name
        ]

    def terms(self, logits: Any, labels: Any, **options: Any) -> Terms:
        """Compute the unweighted contribution of each example."""
        chosen = self.with_options(**options)
        logits, labels = checks.batch_of(self.name, logits, labels, soft_labels=False)
        return chosen.terms_of(Predictions(logits, labels))

    def stat(self, logits: Any, labels: Any, weights: Any = None, **options: Any) -> Any:
        """Compute the statistic of these examples; it merges with that of others."""
        logits, labels = checks.batch_of(self.name, logits, labels, soft_labels=False)
        weights = checks.weights_for(logits, weights)
        logits, labels = present(logits, labels, weights)
        return self.terms(logits, labels, **options).weigh(weights)

    def value(self, stat: Stat, **options: Any) -> Any:
        """Compute the metric from a statistic; NaN if its weight is 0."""
        return self.with_options(**options).finished(ranked_if_scored(stat))

    def finished(self, stat: Any) -> Any:
        """Compute the value with the chosen options; scored rows must be `Ranked`."""
        return self.finish(stat, **self.chosen_for(self.finish))

    def with_options(self, **options: Any) -> Metric:
        """Return the metric with the given options as defaults."""
        if not options:
            return self
        known = self.defaults()
        for name in options:
            if name not in known:
                has = f"it has {', '.join(sorted(known))}" if known else "it has none"
                others = [
                    other
                    for other, member in _CATALOGUE.items()
                    if other.endswith(f"_{self.name}") and name in member.defaults()
                ]
                hint = f"; {others[0]!r} has it." if others else checks.nearest(name, known)
                raise TypeError(f"{self.name!r} has no option {name!r} ({has}){hint}")
        changed = {**dict(self.options), **options}
        for name, value in changed.items():
            try:
                hash(value)
            except TypeError:
                raise TypeError(
                    f"{self.name}: the option {name} must be a number, a string or a tuple, got"
                    f" {value!r}."
                ) from None
        pairs = {name: value for name, value in changed.items() if value != known[name]}
        return dataclasses.replace(self, options=tuple(sorted(pairs.items())))

    def defaults(self) -> dict[str, Any]:
        """Return the default value of every option."""
        return checks.options_of(self.prepare) | checks.options_of(self.finish)

    def chosen_for(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Select the options that `prepare` or `finish` accepts."""
        return {k: v for k, v in self.options if k in checks.options_of(function)}

    def terms_of(self, predictions: Predictions) -> Terms:
        """Compute the terms from a shared view of the predictions."""
        return self.prepare(predictions, **self.chosen_for(self.prepare))

    @property
    def terms_key(self) -> tuple[Any, ...]:
        """The key of the terms; metrics with equal keys share one statistic."""
        return (self.prepare, tuple(sorted(self.chosen_for(self.prepare).items())))

    def __repr__(self) -> str:
        values = self.defaults() | dict(self.options)
        options = "".join(f", {name}={value!r}" for name, value in values.items())
        return f"{self.name}(logits, labels, weights=None{', *' if options else ''}{options})"

    def _signature(self) -> inspect.Signature:
        kind = inspect.Parameter
        arguments = [
            kind("logits", kind.POSITIONAL_OR_KEYWORD, annotation="Logits"),
            kind("labels", kind.POSITIONAL_OR_KEYWORD, annotation="Labels"),
            kind("weights", kind.POSITIONAL_OR_KEYWORD, default=None, annotation="Weights | None"),
        ]
        values = self.defaults() | dict(self.options)
        arguments += [kind(k, kind.KEYWORD_ONLY, default=v) for k, v in values.items()]
        returns = self.finish.__annotations__.get("return", inspect.Signature.empty)
        return inspect.Signature(arguments, return_annotation=returns)


_CATALOGUE = Catalogue("metric")


def metric(
    prepare: Callable[..., Terms], *, biased: bool = False
) -> Callable[[Callable[..., Any]], Metric]:
    """Decorate a function from a statistic to its value as a metric with the given terms.

    Args:
      prepare: `(Predictions, **options) -> Terms`. The metric's options are the keyword options
        of both functions.
      biased: whether noise alone increases the value; see `Metric`.
    """

    def decorate(finish: Callable[..., Any]) -> Metric:
        made = Metric(finish.__name__, prepare, finish, biased=biased)
        _CATALOGUE.register(made.name)(made)
        return made

    return decorate


def catalogue() -> Mapping[str, Metric]:
    """Return every metric by name."""
    return _CATALOGUE


def named(name: str, **options: Any) -> Metric:
    """Return the metric of this name with these options.

    >>> named("ece", num_bins=20)
    ece(logits, labels, weights=None, *, num_bins=20, edges='right', excluded_class=None)
    """
    if name in RENAMED:
        raise ValueError(renamed(name))
    checks.one_of("metric", name, _CATALOGUE)
    return _CATALOGUE[name].with_options(**options)


# Former names of metrics, which were mistaken for those of classifier metrics.
RENAMED = {name: f"ood_{name}" for name in ("aupr", "fpr95", "roc_curve")}


def renamed(name: str) -> str:
    """Return the error message for a renamed metric."""
    return (
        f"the metric {name!r} is now called {RENAMED[name]!r}: it detects out-of-distribution data."
    )


def ratio(total: Any, weight: Any) -> Any:
    """Divide a total by its weight; NaN where the weight is 0."""
    weighed = weight > 0
    return jnp.where(weighed, total / jnp.where(weighed, weight, 1), jnp.nan)
