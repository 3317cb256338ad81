"""What a calibrator is: `fit(logits, labels, weights) -> Params`, `apply(params, logits)`.

Every file of this room that has a `Params`, a `fit` and an `apply` is a calibrator. `Params` is
a NamedTuple of plain arrays, so that fitted calibrators can be stacked, vmapped, saved and
handed through `jit`; its field `state` says how the fit ended and what it was good for.

Outside `jit`, examples that nothing can be learnt from (NaN logits, wrong labels, no weight) are
refused in one sentence. Inside, the parameters are NaN and the state says `unusable`.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from calib_jax.core import checks, numerics
from calib_jax.core.rows import present, valid, weigh, widened
from calib_jax.core.trouble import known, not_finite, refuse, trouble_in
from calib_jax.core.types import Array, Logits, PyTree, Scalar, Vector

_Params = TypeVar("_Params", bound=PyTree)


class Code(enum.IntEnum):
    """How a fit ended, from good to bad."""

    CONVERGED = 0
    """The parameters are the optimum."""
    INDISTINCT = 1
    """All confidences are equal: base rates could be fitted, a slope could not."""
    NO_OPTIMUM = 2
    """The NLL falls towards a limit that no finite parameters reach; these are the best met."""
    STOPPED = 3
    """The number of iterations, or of digits, ran out before the optimum."""
    UNUSABLE = 4
    """NaN logits, a label out of range or no weight, inside `jit`: the parameters are NaN."""


class State(NamedTuple):
    """How a fit ended, and the mean NLL of the examples it was fitted on.

    Attributes:
      code: one of `Code`, as a number.
      nll_before: of the logits as they came.
      nll_after: of the calibrated logits.
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
        """The code in a word, outside `jit`; an array of words for an array of fits."""
        code = np.asarray(self.code)
        names = np.array([one.name.lower() for one in Code])[code]
        return names if code.ndim else str(names)


class Rows(NamedTuple):
    """Examples ready to be summed over: harmless where absent, NaN where they cannot be used."""

    logits: Float[Array, "rows classes"]
    labels: Integer[Array, " rows"]
    weight: Vector
    usable: Bool[Array, ""]

    @property
    def share(self) -> Vector:
        """The weights, with sum 1."""
        return self.weight / jnp.sum(self.weight)


class Examples(NamedTuple):
    """What `fit` was given, of the right shapes and dtypes."""

    logits: Float[Array, "rows classes"]
    labels: Integer[Array, " rows"]
    weights: Vector | None

    def rows(self) -> Rows:
        """Prepare them; for the inside of a compiled function."""
        logits, labels = present(self.logits, self.labels, self.weights)
        logits = numerics.at_least_float32(logits)
        weight = weigh(jnp.ones(labels.shape, logits.dtype), self.weights).astype(logits.dtype)
        wrong = ~valid(labels, logits.shape[1]) | (not_finite(logits) > 0)
        usable = ~jnp.any(wrong) & (jnp.sum(weight) > 0)
        return Rows(logits, widened(labels), weight, usable)


def examples(name: str, logits: Any, labels: Any, weights: Any) -> Examples:
    """Flatten leading axes; say in one sentence what cannot be used, in `name`'s name."""
    logits, labels, weights = checks.flat_rows(name, logits, labels, weights)
    if logits.shape[1] == 1:
        raise ValueError(
            f"{name}: one class leaves nothing to calibrate; where the column is the one logit of a"
            " binary model, calib_jax.binary(logits[..., 0]) makes two classes of it."
        )
    if known(logits, labels, weights):
        refuse(name, _trouble_in(logits, labels, weights), logits.shape)
    return Examples(logits, labels, weights)


_trouble_in = jax.jit(trouble_in)


def mean_nll(logits: Logits, rows: Rows) -> Scalar:
    """Average the NLL of calibrated logits over the examples."""
    losses = jax.nn.logsumexp(logits, axis=-1) - numerics.true_class(logits, rows.labels)
    return jnp.sum(weigh(losses, rows.weight)) / jnp.sum(rows.weight)


def unknown_state(rows: Rows) -> State:
    """Stand in for the state until `finished` knows it."""
    nothing = jnp.zeros((), rows.logits.dtype)
    return State(jnp.zeros((), jnp.int32), nothing, nothing)


def finished(params: _Params, code: Any, rows: Rows, calibrated: Logits) -> _Params:
    """Enter the state into fitted parameters; they become NaN where the rows were unusable."""
    state = State(
        code=jnp.where(rows.usable, jnp.asarray(code, jnp.int32), Code.UNUSABLE),
        nll_before=mean_nll(rows.logits, rows),
        nll_after=mean_nll(calibrated, rows),
    )

    def judged(leaf: Array) -> Array:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.where(rows.usable, leaf, jnp.nan) if floating else leaf

    return jax.tree.map(judged, params._replace(state=state))


def logits_for(name: str, logits: Any, num_classes: int | None = None) -> Logits:
    """Make logits an array that the parameters fit, or say why not."""
    logits = jnp.asarray(logits)
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
    return numerics.at_least_float32(logits)


def on_rows(
    name: str,
    function: Callable[[Any, Array], Array],
    params: Any,
    logits: Any,
    num_classes: int,
) -> Logits:
    """Apply a calibrator of rows to logits with any leading axes; check that they fit."""
    logits = logits_for(name, logits, num_classes)
    return function(params, logits.reshape(-1, num_classes)).reshape(logits.shape)
