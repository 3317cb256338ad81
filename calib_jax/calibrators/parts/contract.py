"""The calibrator interface: `fit(logits, labels, weights) -> Params`, `apply(params, logits)`.

Every file of this subpackage that defines `Params`, `fit` and `apply` is a calibrator. `Params` is
a NamedTuple of plain arrays, so fitted calibrators can be stacked, vmapped, saved and passed
through `jit`. Its field `state` holds how the fit ended and the NLL before and after.

Outside `jit`, unusable examples (NaN logits, wrong labels, no weight) raise an error. Inside
`jit`, the parameters become NaN and the state becomes `unusable`.

A logit of -inf marks an impossible class: its probability is 0 and stays 0. If it is the true
class, the NLL of the row is infinite for all parameters, so the fit ignores the row. Calibrators
that mix classes raise an error for such logits.

Calibrators of two classes also take an event, a pair of confidences and correctness: see `event`.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.parts import event
from calib_jax.core import numerics, values
from calib_jax.core.arrays import as_numbers, concrete, refuse_part, with_auto_axes
from calib_jax.core.numerics import valid, widened
from calib_jax.core.rows import present, weigh
from calib_jax.core.types import Array, Logits, PyTree, Scalar, Vector
from calib_jax.core.values import not_finite, num_classes_of, two_classes

_Params = TypeVar("_Params", bound=PyTree)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Code(enum.IntEnum):
    """How a fit ended, from good to bad."""

    CONVERGED = 0
    """The parameters are the optimum."""
    INDISTINCT = 1
    """All confidences are equal: base rates could be fitted, a slope could not."""
    NO_OPTIMUM = 2
    """The NLL approaches a limit that no finite parameters reach; the best parameters found."""
    STOPPED = 3
    """The iterations or the floating-point precision ran out before the optimum."""
    UNUSABLE = 4
    """The parameters are NaN because of NaN logits, a label out of range or no weight inside `jit`,
    or because of an overflow."""


class State(NamedTuple):
    """How a fit ended, and the mean NLL of the examples of the fit.

    Attributes:
      code: the value of a `Code`.
      nll_before: the mean NLL of the uncalibrated logits.
      nll_after: the mean NLL of the calibrated logits.
    """

    code: Integer[Array, ""]
    nll_before: Scalar
    nll_after: Scalar

    @property
    def converged(self) -> Any:
        """Whether the parameters are the optimum."""
        return self.code == Code.CONVERGED

    @property
    def name(self) -> Any:
        """The name of the code, or an array of names for stacked fits; not available in `jit`."""
        code = np.asarray(self.code)
        names = np.array([code.name.lower() for code in Code])[code]
        return names if code.ndim else str(names)


class FitRows(NamedTuple):
    """Prepared examples: rows of weight 0 are safe to sum; `usable` is False if a fit must fail."""

    logits: Float[Array, "rows classes"]
    labels: Integer[Array, " rows"]
    weight: Vector
    usable: Bool[Array, ""]

    @property
    def share(self) -> Vector:
        """The weights, normalised to sum to 1."""
        return self.weight / jnp.sum(self.weight)

    @property
    def decisive(self) -> Vector:
        """The normalised weights of rows whose true class is possible; all 0 if there are none."""
        true = numerics.true_class(self.logits, self.labels)
        return shares(jnp.where(true == -jnp.inf, 0, self.weight))


class FitData(NamedTuple):
    """The arguments of `fit`, with checked shapes and dtypes."""

    logits: Float[Array, "rows classes"]
    labels: Integer[Array, " rows"]
    weights: Vector | None

    def rows(self, *, mixes_classes: bool = False) -> FitRows:
        """Prepare the rows inside a compiled function."""
        logits, labels, weights = present(self.logits, self.labels, self.weights)
        logits = numerics.at_least_float32(logits)
        weight = weigh(jnp.ones(labels.shape, logits.dtype), weights).astype(logits.dtype)
        wrong = unusable_rows(logits, labels)
        if mixes_classes:
            wrong |= jnp.any(logits == -jnp.inf, axis=1)
        total = jnp.sum(weight)
        usable = ~jnp.any(wrong) & (total > 0) & (total < jnp.inf)
        return FitRows(logits, widened(labels), weight, usable)


def unusable_rows(
    logits: Float[Array, "rows classes"], labels: Integer[Array, " rows"]
) -> Bool[Array, " rows"]:
    """Mark rows with a label out of range, with NaN, or whose differences overflow."""
    # If a difference of two logits overflows, 2 z overflows for one of the two, and 0 * inf is NaN.
    wrong = ~jnp.isfinite(jnp.sum(0 * (logits + logits), axis=1))
    wrong = lax.cond(jnp.any(wrong), _overflows, lambda logits: wrong, logits)
    return wrong | ~valid(labels, num_classes_of(logits.shape))


def _overflows(logits: Float[Array, "rows classes"]) -> Bool[Array, " rows"]:
    """Mark rows with NaN, +inf or no possible class, or whose differences overflow."""
    top = jnp.max(logits, axis=1, keepdims=True)
    lowest = jnp.min(jnp.where(logits == -jnp.inf, top, logits), axis=1)
    return not_finite(logits) | ~jnp.isfinite(top[:, 0] - lowest)


def shares(weight: Float[Array, "*batch rows"]) -> Float[Array, "*batch rows"]:
    """Divide weights by their sum; return zeros where the sum is 0."""
    total = jnp.sum(weight, axis=-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)


def examples(
    name: str, logits: Any, labels: Any, weights: Any, *, mixes_classes: bool = False
) -> FitData:
    """Flatten leading axes and validate the arguments of `fit`.

    Args:
      name: the name of the calibrator, for error messages.
      logits, labels, weights: the arguments of `fit`.
      mixes_classes: whether the calibrator cannot handle impossible classes.
    """
    column = logits.values if isinstance(logits, event.Column) else None
    logits = logits if column is None else column
    logits, labels, weights = values.flat_rows(name, logits, labels, weights)
    if column is None:
        check_classes(name, logits.shape[1])
    if concrete(logits, labels, weights):
        values.judge(name, logits, labels, weights)
        if mixes_classes:
            _refuse_impossible(name, logits, weights)
    return FitData(logits, labels, weights)


def check_classes(name: str, num_classes: int) -> None:
    """Raise an error for a single class."""
    if num_classes == 1:
        raise ValueError(
            f"{name}: one class leaves nothing to calibrate; where the column is the one logit of a"
            " binary model, calib_jax.binary(logits[..., 0]) makes two classes of it."
        )


_not_finite = jax.jit(not_finite)


@jax.jit
def _with_impossible(logits: Logits) -> Bool[Array, "*batch"]:
    """Mark rows with an impossible class."""
    return jnp.any(logits == -jnp.inf, axis=-1)


def _refuse_impossible(name: str, logits: Logits, weights: Any = None) -> None:
    marked = np.asarray(_with_impossible(logits))
    marked = marked if weights is None else marked & (np.asarray(weights) != 0)
    if marked.any():
        raise ValueError(
            f"{name}: {marked.sum()} of {marked.size} rows have a logit of -inf, a class of"
            f" probability 0, and {name} mixes classes.\nUse a calibrator that keeps them apart,"
            " such as vector or temperature, or remove the class."
        )


def losses_of(logits: Logits, rows: FitRows) -> Vector:
    """Compute the NLL of each row; one column holds the probability of an event."""
    logits = two_classes(logits)
    return jax.nn.logsumexp(logits, axis=-1) - numerics.true_class(logits, rows.labels)


def mean_nll(logits: Logits, rows: FitRows) -> Scalar:
    """Compute the mean NLL of calibrated logits."""
    return jnp.sum(weigh(losses_of(logits, rows), rows.share))


def placeholder(dtype: Any) -> State:
    """Return a placeholder state of a dtype, which `finished` or `ended` replaces."""
    nothing = jnp.zeros((), dtype)
    return State(jnp.zeros((), jnp.int32), nothing, nothing)


def finished(params: _Params, code: Any, rows: FitRows, calibrated: Logits) -> _Params:
    """Compute the NLL before and after, and set the state of fitted parameters."""
    before, after = mean_nll(rows.logits, rows), mean_nll(calibrated, rows)
    return ended(params, code, rows.usable, before, after)


def ended(
    params: _Params,
    code: Any,
    usable: Bool[Array, ""] | bool,
    nll_before: Scalar,
    nll_after: Scalar,
) -> _Params:
    """Set the state of fitted parameters; replace unusable parameters by NaN."""
    finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params._replace(state=None))]
    usable = usable & jnp.all(jnp.stack(finite))
    state = State(
        code=jnp.where(usable, jnp.asarray(code, jnp.int32), Code.UNUSABLE),
        nll_before=nll_before,
        nll_after=nll_after,
    )

    def masked(leaf: Array) -> Array:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.where(usable, leaf, jnp.nan) if floating else leaf

    return jax.tree.map(masked, params._replace(state=state))


def takes(kind: type) -> Callable[[_Function], _Function]:
    """Decorate a function of a calibrator's parameters; another calibrator's raise an error."""

    def decorate(function: _Function) -> _Function:
        name = function.__module__.rpartition(".")[2]

        def of_logits(logits: Any, _: None, params: Any, args: Any, options: Any) -> Any:
            return function(params, logits, *args, **options)

        @functools.wraps(function)
        def checked(params: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(params, kind):
                raise TypeError(
                    f"{name}: it needs its own parameters, and these are {owner_of(params)}; use"
                    " the calibrator they come from."
                )
            if not args:  # logits by name, or none
                return function(params, **options)
            return with_auto_axes(of_logits, args[0], None, params, args[1:], options)

        return cast(_Function, checked)

    return decorate


def owner_of(params: Any) -> str:
    """Describe the owner of parameters, for error messages.

    >>> owner_of(3)
    'an object of type int'
    """
    package, _, name = type(params).__module__.rpartition(".")
    if package == "calib_jax.calibrators":
        return f"parameters of {name}"
    return f"an object of type {type(params).__name__}"


def logits_for(
    name: str, logits: Any, num_classes: int | None = None, *, mixes_classes: bool = False
) -> Logits:
    """Convert logits to an array and validate it against the parameters.

    Invalid rows (NaN, +inf, all -inf) raise an error outside `jit` and become NaN inside. Logits
    that look like probabilities are accepted: `fit` has checked all rows of the data of the fit.
    """
    logits = jnp.asarray(as_numbers(name, "logits", logits))
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"{name}: logits must be floating point, got {logits.dtype}.")
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(
            f"{name}: logits must have shape [*batch, classes] with at least one class, got"
            f" {logits.shape}."
        )
    if num_classes is not None and logits.shape[-1] != num_classes:
        raise ValueError(
            f"{name}: it was fitted on {num_classes} classes and the logits {logits.shape} have"
            f" {logits.shape[-1]}."
        )
    logits = numerics.at_least_float32(logits)
    if not concrete(logits):
        wrong = not_finite(logits)
        wrong = wrong | _with_impossible(logits) if mixes_classes else wrong
        return jnp.where(wrong[..., None], jnp.nan, logits)
    refuse_part(name, "logits", logits)
    marked = np.asarray(_not_finite(logits))
    if marked.any():
        raise ValueError(
            f"{name}: {marked.sum()} of {marked.size} rows have NaN or infinite logits (-inf beside"
            " finite ones is fine); find their cause, or leave them out."
        )
    if mixes_classes:
        _refuse_impossible(name, logits)
    return logits


def on_rows(
    name: str,
    function: Callable[[Any, Array], Array],
    params: Any,
    logits: Any,
    num_classes: int,
    *,
    mixes_classes: bool = False,
) -> Logits:
    """Validate logits with any leading axes and apply a function of rows to them."""
    if isinstance(logits, event.Column):
        logits = logits.values
    else:
        logits = logits_for(name, logits, num_classes, mixes_classes=mixes_classes)
    return function(params, logits.reshape(-1, logits.shape[-1])).reshape(logits.shape)
