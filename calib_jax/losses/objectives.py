"""Objectives: one interface from training loops to all losses, and functions to compose them.

A loop calls `value` for every batch. When the clock of the objective ticks, it calls `evidence`,
merges the result with `all_reduce` over devices and `+` over batches, and calls `update`. The
loop is the same for all losses, stateless ones included:

    state = objective.init(num_classes)
    terms = objective.value(state, logits, labels, weights)         # [*batch]
    loss = jnp.sum(weigh(terms, weights))                           # or the weighted mean
    ...
    evidence = objective.evidence(state, logits, labels, weights).all_reduce(axis_name)
    state = objective.update(state, evidence, Progress(steps, epochs, num_epochs))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax

from calib_jax.core import checks
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.progress import Progress
from calib_jax.core.rows import present
from calib_jax.core.statistics import NOTHING, Stat
from calib_jax.core.types import Array, AxisName, Number, PyTree

__all__ = [
    "Clock",
    "Objective",
    "Progress",
    "as_objective",
    "catalogue",
    "objective",
    "regularized",
]

State: TypeAlias = PyTree
Clock: TypeAlias = Literal["never", "step", "epoch", "validation"]

_CATALOGUE: Catalogue[Callable[..., "Objective"]] = Catalogue("objective")
register = _CATALOGUE.register


class Objective(NamedTuple):
    """A loss with its state, as a tuple of functions.

    Attributes:
      init: `(num_classes) -> state`; `()` when stateless.
      value: `(state, logits, labels, weights, *, axis_name=None) -> [*batch]`. Terms before
        weighting; a row of weight 0 gives 0. State gets no gradient. A penalty's scalar is
        added to every term, so that the weighted sum and the weighted mean of the terms are
        both the papers' objective.
      evidence: `(state, logits, labels, weights) -> Stat`, the statistics for `update`.
      update: `(state, stat, progress) -> state`; pure. With clock "epoch" or "validation" it is
        called after an epoch's last step, and the next epoch uses the new state.
      clock: when the loop gathers evidence and updates: "never", "step" (before the step uses
        the state), "epoch" (evidence is empty), "validation" (evidence of a validation pass).
      table: `(state, stat) -> {column: values}`, the columns to log for a state and the evidence
        it was computed from; empty for most objectives.
    """

    init: Callable[[int], State]
    value: Callable[..., Array]
    evidence: Callable[..., Any]
    update: Callable[[State, Any, Progress], State]
    clock: Clock
    table: Callable[[State, Any], dict[str, Array]] = lambda state, stat: {}


def as_objective(
    value: Callable[..., Array],
    *,
    init: Callable[[int], State] = lambda num_classes: (),
    evidence: Callable[..., Stat] = lambda state, logits, labels, weights: NOTHING,
    update: Callable[[State, Any, Progress], State] = lambda state, stat, progress: state,
    clock: Clock = "never",
    table: Callable[[State, Any], dict[str, Array]] = lambda state, stat: {},
) -> Objective:
    """Build an objective, with the handling of weights and gradients that all objectives share.

    Args:
      value: a function of `(logits, labels)` and of those among `state`, `weights` and
        `axis_name` that are its parameters. Rows of weight 0 are passed with label 0 and
        logits 0, the state without gradient.
      init, evidence, update, clock, table: as in `Objective`; `evidence` gets such rows, too.
    """
    wanted = inspect.signature(value).parameters.keys() & {"state", "weights", "axis_name"}

    def clean_value(
        state: State, logits: Any, labels: Any, weights: Any = None, *, axis_name: AxisName = None
    ) -> Array:
        logits, labels, weights = _clean(logits, labels, weights)
        offered = {"weights": weights, "axis_name": axis_name, "state": lax.stop_gradient(state)}
        terms = value(logits, labels, **{name: offered[name] for name in wanted})
        return terms if weights is None else jnp.where(weights > 0, terms, 0)

    def clean_evidence(state: State, logits: Any, labels: Any, weights: Any = None) -> Stat:
        logits, labels, weights = _clean(lax.stop_gradient(logits), labels, weights)
        return evidence(state, logits, labels, weights)

    return Objective(init, clean_value, clean_evidence, update, clock, table)


def _clean(logits: Any, labels: Any, weights: Any) -> tuple[Array, Array, Array | None]:
    logits, labels = checks.batch_of("objective", logits, labels, soft_labels=True)
    weights = checks.weights_for(logits, weights)
    return *present(logits, labels, weights), weights


def objective(name: str, /, **options: Any) -> Objective:
    """Build an objective by the name that its paper uses.

    Args:
      name: one of `losses.catalogue()`.
      **options: the options of the factory of that name; its signature has the defaults.

    >>> from calib_jax import losses
    >>> flsd = losses.objective("flsd53")
    >>> flsd.clock
    'never'
    >>> losses.objective("flsd35")
    Traceback (most recent call last):
    ValueError: no objective is called 'flsd35'; did you mean 'flsd53'?
    """
    made: Objective = _CATALOGUE.make(name, **options)
    return made


def catalogue() -> Catalogue[Callable[..., Objective]]:
    """Return the mapping from the name of every objective to its factory."""
    return _CATALOGUE


def regularized(
    loss: Objective | Callable[..., Array], penalty: Callable[..., Array], scale: Number
) -> Objective:
    r"""Add a penalty to a loss: $\ell_n + \lambda P$.

    Args:
      loss: an objective, or a function of `(logits, labels)`.
      penalty: a function of `(logits, labels)` and, if it has these parameters, `weights` and
        `axis_name`. It returns a scalar for the whole batch or one value per example.
      scale: $\lambda$.

    >>> from calib_jax import losses
    >>> mine = losses.regularized(losses.focal, losses.mmce_penalty, 2.0)
    >>> mine.clock
    'never'
    """
    base = loss if isinstance(loss, Objective) else as_objective(loss)
    extra = as_objective(penalty)

    def value(
        state: State, logits: Any, labels: Any, weights: Any = None, *, axis_name: AxisName = None
    ) -> Array:
        terms = base.value(state, logits, labels, weights, axis_name=axis_name)
        added = extra.value((), logits, labels, weights, axis_name=axis_name)
        return terms + scale * added

    return base._replace(value=value)


def simple(name: str, loss: Callable[..., Array], **fixed: Any) -> None:
    """Register a function `(logits, labels, *, options)` as a stateless objective.

    Args:
      name: its name in the catalogue.
      loss: the function.
      **fixed: options that are fixed for this name; the others stay options of the objective.
    """

    def factory(**options: Any) -> Objective:
        return as_objective(lambda logits, labels: loss(logits, labels, **{**fixed, **options}))

    signature = inspect.signature(loss)
    open_options = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name not in fixed
    ]
    factory.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=open_options, return_annotation=Objective
    )
    factory.__doc__ = loss.__doc__
    factory.__name__ = name
    register(name)(factory)
