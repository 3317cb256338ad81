"""Objectives: one interface from training loops to all losses, and functions to compose them.

A loop calls `value` for every batch. When the clock of the objective ticks, it calls `evidence`,
merges the result with `all_reduce` over devices and `+` over batches, and calls `update`. The
loop is the same for all losses, stateless ones included:

    state = objective.init(num_classes, class_counts)
    terms = objective.value(state, logits, labels, weights)         # [*batch]
    loss = jnp.sum(weigh(terms, weights))                           # or the weighted mean
    ...
    evidence = objective.evidence(state, logits, labels, weights).all_reduce(axis_name)
    state = objective.update(state, evidence, Progress(steps, epochs, num_epochs))

The functions of an objective validate their arguments once, and call the losses without further
checks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from calib_jax.core import arrays, checks, numerics
from calib_jax.core.arrays import TakesSoft, as_array, as_numbers, with_auto_axes
from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import Array, AxisName, Numbers, PyTree, Stat
from calib_jax.core.types import Progress as Progress

State: TypeAlias = PyTree
Clock: TypeAlias = Literal["never", "step", "epoch", "validation"]


class Value(Protocol):
    """The type of `Objective.value`."""

    def __call__(
        self, state: Any, logits: Any, labels: Any, weights: Any = None, *, axis_name: Any = None
    ) -> Array:
        """Compute the terms of the loss."""
        ...


def _no_state(num_classes: int) -> State:
    return ()


def _no_evidence(state: State, logits: Array, labels: Array, weights: Any) -> Stat:
    return NOTHING


def _same_state(state: State, stat: Any, progress: Progress) -> State:
    return state


def _no_table(state: State, stat: Any) -> dict[str, Array]:
    return {}


class Objective(NamedTuple):
    """A loss with its state, as a tuple of functions.

    Attributes:
      init: `(num_classes, class_counts=None) -> state`; `()` when stateless. Of the objectives
        here only `class_weighted`, `ldam` and `logit_adjusted` need `class_counts`, the number of
        training examples of each class.
      value: `(state, logits, labels, weights, *, axis_name=None) -> [*batch]`. Terms before
        weighting; a row of weight 0 gives 0. The state gets no gradient. A penalty's scalar is
        added to every term, so that the weighted sum and the weighted mean of the terms are
        both the papers' objective.
      evidence: `(state, logits, labels, weights) -> Stat`, the statistics for `update`.
      update: `(state, stat, progress) -> state`; pure. With clock "epoch" or "validation" it is
        called after an epoch's last step, and the next epoch uses the new state.
      clock: when the loop gathers evidence and updates: "never", "step" (before the step uses
        the state), "epoch" (evidence is empty), "validation" (evidence of a validation pass).
    """

    init: Callable[..., State]
    value: Value
    evidence: Callable[..., Any]
    update: Callable[[State, Any, Progress], State]
    clock: Clock

    @property
    def name(self) -> str:
        """The name and the options, for display; a mark of `value`."""
        return getattr(self.value, "name", "of your own")

    def table(self, state: State, stat: Any) -> dict[str, Array]:
        """Compute the columns to log for a state and the evidence it was computed from.

        Most objectives have none. The function is a mark of `update`, see `make_objective`.
        """
        columns: dict[str, Array] = getattr(self.update, "table", _no_table)(state, stat)
        return columns

    def __repr__(self) -> str:
        return f"<objective {self.name}, clock {self.clock!r}>"


def make_objective(
    value: Callable[..., Array],
    *,
    init: Callable[..., State] = _no_state,
    evidence: Callable[..., Stat] = _no_evidence,
    update: Callable[[State, Any, Progress], State] = _same_state,
    clock: Clock = "never",
    table: Callable[[State, Any], dict[str, Array]] = _no_table,
    soft_labels: TakesSoft = False,
) -> Objective:
    """Build an objective with a state, or with terms that depend on the whole batch.

    Args:
      value: `(state, logits, labels, weights, *, axis_name) -> [*batch]`; it may leave out the
        weights and `axis_name`. Rows of weight 0 are passed with label 0 and logits 0, the state
        without gradient.
      init, evidence, update, clock: as in `Objective`; `evidence` gets such rows, too, and `init`
        needs a parameter `class_counts` only if it uses it.
      table: `(state, stat) -> {column: values}`, the columns to log for a state and the evidence
        it was computed from.
      soft_labels: whether labels may also be distributions `[*batch, classes]`; "or_zeros" if
        a row may also be 0 for every class.

    >>> from calib_jax import losses
    >>> def value(state, logits, labels):
    ...     return losses.focal(logits, labels, gamma=state)
    >>> growing = losses.make_objective(
    ...     value,
    ...     init=lambda num_classes: jnp.zeros(()),
    ...     update=lambda gamma, stat, progress: gamma + 1,
    ...     clock="epoch",
    ... )
    >>> growing.value(growing.init(2), jnp.zeros((1, 2)), jnp.array([0])).round(4)
    Array([0.6931], dtype=float32)
    """

    def checked_evidence(state: State, logits: Any, labels: Any, weights: Any = None) -> Stat:
        examples = (lax.stop_gradient(logits), labels, weights)
        return with_auto_axes(evidence_of, *examples, state, per_row=False)

    def evidence_of(logits: Any, labels: Any, weights: Any, state: State) -> Stat:
        return evidence(state, *examples_of(logits, labels, weights, soft_labels))

    checked = _checked(value, soft_labels)
    return Objective(_counted(init), checked, checked_evidence, marked(update, table=table), clock)


def marked(function: Callable[..., Any], **marks: Any) -> Any:
    """Return a copy of a function with further attributes."""
    copy = functools.update_wrapper(functools.partial(function), function)
    vars(copy).update(marks)
    return copy


def examples_of(
    logits: Any, labels: Any, weights: Any, soft_labels: TakesSoft
) -> tuple[Array, Array, Array | None]:
    """Validate the examples of an objective; rows of weight 0 become zeros."""
    examples = arrays.batch_of(
        "objective", logits, labels, weights, soft_labels=soft_labels, least_classes=2
    )
    return arrays.masked(*examples, soft_labels)


def _counted(init: Callable[..., State]) -> Callable[..., State]:
    """Wrap `init` to accept class counts, which most functions do not use."""
    if "class_counts" in inspect.signature(init).parameters:
        return lambda num_classes, class_counts=None: init(num_classes, class_counts)
    return lambda num_classes, class_counts=None: init(num_classes)


def needed_counts(name: str, num_classes: int, class_counts: Any) -> Array:
    """Convert the class counts of an objective that needs them; raise ValueError without them."""
    if class_counts is None or np.shape(class_counts) != (num_classes,):
        raise ValueError(
            f"{name} needs the number of training examples of each of the {num_classes} classes:"
            " give class_counts to init, or to train.create."
        )
    counts = jnp.asarray(as_numbers(name, "class_counts", class_counts), float)
    checks.at_least("class_counts", counts, 0)
    return counts


def classes_of_state(num_classes: int, logits: Array) -> None:
    """Validate that a state has as many classes as the logits."""
    if num_classes != (given := logits.shape[-1]):
        raise ValueError(
            f"the state has {num_classes} classes and the logits {given}: use init({given})."
        )


def _checked(
    value: Callable[..., Array], soft_labels: TakesSoft, name: str = "the objective"
) -> Callable[..., Array]:
    """Wrap a function with every objective's handling of arguments, weights and gradients.

    A label out of range gives NaN, also where the function would wrap it around to a class.
    """
    value = _of_batch(value)

    def checked(
        state: State, logits: Any, labels: Any, weights: Any = None, *, axis_name: AxisName = None
    ) -> Array:
        others = (weights, lax.stop_gradient(state), axis_name)
        return with_auto_axes(terms_of, logits, labels, *others)

    def terms_of(
        logits: Any, labels: Any, weights: Any, state: State, axis_name: AxisName
    ) -> Array:
        logits, labels, weights = examples_of(logits, labels, weights, soft_labels)
        terms = value(state, logits, labels, weights, axis_name=axis_name)
        one_per_example(name, terms, logits.shape[:-1])
        if labels.ndim < logits.ndim:
            terms = jnp.where(numerics.valid(labels, logits.shape[-1]), terms, jnp.nan)
        return terms if weights is None else jnp.where(weights == 0, 0, terms)

    return arrays.mark_checked(checked, value, soft_labels)


def _of_batch(value: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a function to accept weights and `axis_name`, even if it does not take them."""
    parameters = inspect.signature(value).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_weights = len(positional) > 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_axis = any(p.name == "axis_name" or p.kind is p.VAR_KEYWORD for p in parameters)
    if takes_weights and takes_axis:
        return value

    def of_batch(*args: Any, axis_name: AxisName) -> Array:
        axis = {"axis_name": axis_name} if takes_axis else {}
        return value(*(args if takes_weights else args[:3]), **axis)

    return of_batch


def as_objective(loss: Callable[..., Array]) -> Objective:
    """Build an objective from a loss `(logits, labels) -> [*batch]`; see also `make_objective`.

    >>> from calib_jax import losses
    >>> sharp = losses.as_objective(lambda logits, labels: losses.focal(logits, labels, gamma=5.0))
    >>> sharp.value((), jnp.zeros((1, 2)), jnp.array([0]), None).round(4)
    Array([0.0217], dtype=float32)
    """
    terms = arrays.unchecked(loss)

    def value(state: State, logits: Array, labels: Array) -> Array:
        return terms(logits, labels)

    soft_labels = arrays.takes_soft_labels(loss)
    name = getattr(loss, "__name__", "the loss")
    checked = _checked(value, soft_labels, name)
    return make_objective(value)._replace(value=marked(checked, name=f"of {name}"))


def regularized(
    loss: Objective | Callable[..., Array], penalty: Callable[..., Array], scale: Numbers
) -> Objective:
    r"""Add a penalty to a loss: $\ell_n + \lambda P$.

    Args:
      loss: an objective, or a function of `(logits, labels)`.
      penalty: `(logits, labels, weights=None, *, axis_name=None)`, a scalar for the whole batch
        or one value per example.
      scale: $\lambda$.

    >>> import jax
    >>> from calib_jax import losses
    >>> mine = losses.regularized(losses.focal, losses.mmce_penalty, 2.0)
    >>> jax.jit(mine.value)((), jnp.zeros((2, 2)), jnp.array([0, 1]), None).round(4)
    Array([0.0866, 0.0866], dtype=float32)
    """
    base = loss if isinstance(loss, Objective) else as_objective(loss)
    base_value, extra = arrays.unchecked(base.value), arrays.unchecked(penalty)

    def value(
        state: State, logits: Array, labels: Array, weights: Any, *, axis_name: AxisName
    ) -> Array:
        terms = base_value(state, logits, labels, weights, axis_name=axis_name)
        of_examples = per_example("scale", scale, terms)
        return terms + of_examples * extra(logits, labels, weights, axis_name=axis_name)

    soft_labels = arrays.takes_soft_labels(penalty) and arrays.takes_soft_labels(base.value)
    return base._replace(value=marked(_checked(value, soft_labels), name=base.name))


def with_options(function: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    """Fix options of a loss or a penalty, which needs no further checks in an objective."""
    fixed = functools.partial(arrays.unchecked(function), **options)
    return arrays.mark_checked(fixed, fixed, arrays.takes_soft_labels(function))


def of_loss(loss: Callable[..., Array], **fixed: Any) -> Callable[..., Objective]:
    """Return a function that builds a stateless objective of a loss from the options of the loss.

    Args:
      loss: a function `(logits, labels, *, options)`.
      **fixed: options that are fixed; the others stay options.
    """

    def make(**options: Any) -> Objective:
        return as_objective(with_options(loss, **fixed, **options))

    parameters = inspect.signature(loss).parameters
    options = [parameters[name] for name in checks.options_of(loss) if name not in fixed]
    make.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    make.__doc__, make.__name__ = loss.__doc__, loss.__name__
    return make


# ------------------------------------------------------------------------------------------------
# Objectives by name.

OBJECTIVES: dict[str, Callable[..., Objective]] = {}  # filled from `table.py`


def catalogue() -> dict[str, Callable[..., Objective]]:
    """Return the table of all objectives: a name, and the function that builds the objective.

    `objective` finds entries that are added to the table by their names.

    >>> from calib_jax import losses
    >>> losses.catalogue()["flsd53"]().clock
    'never'
    """
    return OBJECTIVES


def objective(loss: str | Callable[..., Array], /, **options: Any) -> Objective:
    """Build an objective by the name that its paper uses, or from a loss function.

    Args:
      loss: one of `losses.catalogue()`, or a function `(logits, labels, *, options) -> [*batch]`.
      **options: the options of the objective or of the function.

    >>> from calib_jax import losses
    >>> flsd = losses.objective("flsd53")
    >>> flsd.clock
    'never'
    >>> losses.objective(lambda logits, labels: 2 * losses.brier(logits, labels)).clock
    'never'
    >>> losses.objective("flsd35")
    Traceback (most recent call last):
    ValueError: no objective is called 'flsd35'; did you mean 'flsd53'?
    """
    if callable(loss):
        return as_objective(functools.partial(loss, **options) if options else loss)
    checks.one_of("objective", loss, OBJECTIVES)
    checks.check_options(loss, OBJECTIVES[loss], options)
    given = ", ".join(f"{option}={value!r}" for option, value in options.items())
    made = OBJECTIVES[loss](**options)
    return made._replace(value=marked(made.value, name=f"{loss}({given})"))


def per_example(name: str, value: Any, like: jax.Array) -> Any:
    """Convert an option with one number for each example to an array of the type of the loss.

    A number becomes a Python float, or an array of this type, so that it does not widen the loss.

    Args:
      name: the name of the option, for the error message.
      value: a number, or numbers `[*batch]`.
      like: an array `[*batch]` of the type in which the loss is computed.
    """
    value = as_array(value)
    shape = np.shape(value)
    if not shape:
        return value.astype(like.dtype) if hasattr(value, "astype") else value
    if shape != like.shape:
        each = f" or have shape {like.shape}, one for each example" if like.ndim else ""
        raise ValueError(f"{name} must be a number{each}, got {shape}.")
    return jnp.asarray(value, like.dtype)


def one_per_example(name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Validate that a function returned one value per example; other shapes would broadcast."""
    if np.shape(values) != shape:
        raise ValueError(
            f"{name} must return one value for each example, shape {shape}, got {np.shape(values)}:"
            " sum over the classes alone, and leave the mean over the examples to the training."
        )
