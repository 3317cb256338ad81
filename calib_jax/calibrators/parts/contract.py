"""The door of the calibrators: `fit(logits, labels, weights) -> Params`, `apply(params, logits)`.

Every file of this subpackage that defines `Params`, `fit` and `apply` is a calibrator. `Params` is
a NamedTuple of plain arrays, so fitted calibrators can be stacked, vmapped, saved and passed
through `jit`. Its field `state` holds how the fit ended and the NLL before and after.

Outside `jit`, unusable examples (NaN logits, wrong labels, no weight) raise an error. Inside
`jit`, the parameters become NaN and the state becomes `unusable`.

A logit of -inf marks an impossible class: its probability is 0 and stays 0. If it is the true
class, the NLL of the row is infinite for all parameters, so the fit ignores the row; a calibrator
of each class against the rest still counts it in the questions of the other classes, as a no.
Calibrators that mix classes cannot be fitted to such logits, and give NaN for them.

Calibrators of two classes also take an event, a pair of confidences and correctness: see `event`.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.parts import event
from calib_jax.calibrators.parts.event import OfProbability, OfScore, Scored
from calib_jax.core import arrays, checks, numerics, values
from calib_jax.core.arrays import as_numbers, gathered, with_auto_axes
from calib_jax.core.numerics import present, valid, weigh, widened
from calib_jax.core.types import Array, Logits, Scalar, Vector
from calib_jax.core.values import Stated, two_classes

PENDING: Any = None  # the state of parameters before `finished` or `ended`
MIX_CLASSES = ("dirichlet", "matrix", "sms")  # they cannot handle impossible classes


class Code(enum.IntEnum):
    """How a fit ended, from good to bad.

    Attributes:
      CONVERGED: the parameters are the optimum. Isotonic, binned and Venn-Abers fits always have
        one, also if all answers are right: their criterion is not the NLL.
      INDISTINCT: all confidences are equal: base rates could be fitted, a slope could not.
      NO_OPTIMUM: the NLL approaches a limit that no finite parameters reach; the best parameters
        found.
      STOPPED: the iterations or the floating-point precision ran out before the optimum.
      UNUSABLE: the parameters are NaN because of NaN logits, a label out of range or no weight
        inside `jit`, or because of an overflow.
    """

    CONVERGED = 0
    INDISTINCT = 1
    NO_OPTIMUM = 2
    STOPPED = 3
    UNUSABLE = 4


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
        wrong = values.not_finite(logits) | ~valid(labels, max(2, logits.shape[-1]))
        if mixes_classes:
            wrong |= jnp.any(logits == -jnp.inf, axis=1)
        total = jnp.sum(weight)
        usable = ~jnp.any(wrong) & (total > 0) & (total < jnp.inf)
        return FitRows(logits, widened(labels), weight, usable)


def shares(weight: Float[Array, "*batch rows"]) -> Float[Array, "*batch rows"]:
    """Divide weights by their sum; return zeros where the sum is 0."""
    total = jnp.sum(weight, axis=-1, keepdims=True)
    return weight / jnp.where(total > 0, total, 1)


def examples(name: str, logits: Any, labels: Any, weights: Any) -> FitData:
    """Flatten leading axes and validate the arguments of `fit`.

    Args:
      name: the name of the calibrator, for error messages.
      logits, labels, weights: the arguments of `fit`.
    """
    if isinstance(logits, Stated | Scored):
        event.refuse_kind(name, logits)
    if labels is None:
        raise TypeError(f"{name}: logits need labels, or give a metrics.Stated.")
    data = _checked(name, logits, labels, weights, False)
    if name in MIX_CLASSES and checks.concrete(*data):
        marked = np.any(np.asarray(data.logits) == -np.inf, axis=1)
        marked = marked if data.weights is None else marked[np.asarray(data.weights) != 0]
        if marked.any():
            raise ValueError(
                f"{name}: {marked.sum()} of {marked.size} rows have a logit of -inf, a class of"
                f" probability 0, and {name} mixes classes.\nUse one that keeps them apart, such as"
                " vector or temperature, or remove the class."
            )
    return data


def _checked(name: str, logits: Any, labels: Any, weights: Any, is_event: bool) -> FitData:
    batch = map(gathered, (logits, labels, weights))
    data = FitData(*values.flat_rows(name, *batch, least_classes=1 if is_event else 2))
    if checks.concrete(*data):
        values.judge(name, *data)
    return data


def given(
    name: str, logits: Any, labels: Any, weights: Any
) -> tuple[FitData, Callable[[Any], Any]]:
    """Validate the arguments of a `fit` that takes logits and labels, or an event.

    Returns:
      The examples, and a function that marks the parameters of an event as such.
    """
    if not isinstance(logits, Stated | Scored):
        return examples(name, logits, labels, weights), lambda params: params
    event.refuse_kind(name, logits)
    kind, of_score = type(logits), isinstance(logits, Scored)
    if labels is not None:
        raise TypeError(f"{name}: a {kind.__name__} holds its labels: leave out labels.")
    parts = [gathered(part) for part in vars(logits).values()]
    column, correct = kind(*parts).columns(name)
    column, correct, weights = arrays.batch_of(name, column, correct, gathered(weights))
    given = column[..., 0]
    if not of_score:
        _checked(name, column, correct, weights, True)
    by_place = of_score and event.WAYS[name] == "place"
    scores = event.sorted_scores(given, weights) if by_place else None
    rows = event.logits_of(name, given, scores, of_score=of_score)

    def marked(params: Any) -> Any:
        before = jnp.nan if of_score else event.mean_nll(given, correct, weights)
        before = jnp.asarray(before, params.state.nll_before.dtype)
        params = params._replace(state=params.state._replace(nll_before=before))
        return OfScore(params, scores) if of_score else OfProbability(params)

    return _checked(name, rows, correct, weights, True), marked


def on_cpu(fit: Callable[[FitData], Any], examples: FitData) -> Any:
    """Fit concrete examples on the CPU, where loops over rows are fast, not on an accelerator."""
    if jax.default_backend() == "cpu" or not checks.concrete(*examples):
        return fit(examples)
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names the accelerator alone
        return fit(examples)
    (device,) = examples.labels.devices()
    return jax.device_put(fit(jax.device_put(examples, cpu)), device)


def losses_of(logits: Logits, rows: FitRows) -> Vector:
    """Compute the NLL of each row; one column holds the probability of an event."""
    logits = two_classes(logits)
    return jax.nn.logsumexp(logits, axis=-1) - numerics.true_class(logits, rows.labels)


def finished(params: Any, code: Any, rows: FitRows, calibrated: Logits) -> Any:
    """Compute the NLL before and after, and set the state of fitted parameters."""
    share = rows.weight / jnp.sum(rows.weight)
    before, after = (
        jnp.sum(weigh(losses_of(logits, rows), share)) for logits in (rows.logits, calibrated)
    )
    return ended(params, code, rows.usable, before, after)


def ended(params: Any, code: Any, usable: Any, before: Scalar, after: Scalar) -> Any:
    """Set the state of fitted parameters; replace unusable parameters by NaN."""
    leaves = jax.tree.leaves(params._replace(state=None))
    usable = usable & jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    code = jnp.where(usable, jnp.asarray(code, jnp.int32), Code.UNUSABLE)

    def masked(leaf: Array) -> Array:
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.where(usable, leaf, jnp.nan) if floating else leaf

    return jax.tree.map(masked, params._replace(state=State(code, before, after)))


def name_of(kind: Any) -> str:
    """Return the name of the calibrator with this type of parameters."""
    return str(kind.__module__.rpartition(".")[2])


def logits_for(name: str, logits: Any, num_classes: int | None) -> Logits:
    """Convert logits to an array and validate it against the parameters.

    Invalid rows (NaN, +inf, all -inf) become NaN. Logits that look like probabilities are accepted:
    `fit` has checked all rows of the data of the fit.
    """
    logits = as_numbers(name, "logits", logits)
    zeros = np.zeros if checks.concrete(logits) else jnp.zeros  # `jax.export` has symbolic sizes
    logits, _, _ = arrays.batch_of(name, logits, zeros(np.shape(logits)[:-1], int))
    if num_classes is not None and logits.shape[-1] != num_classes:
        raise ValueError(
            f"{name}: it was fitted on {num_classes} classes and the logits {logits.shape} have"
            f" {logits.shape[-1]}."
        )
    return _nan_unless_valid(numerics.at_least_float32(logits), mixes_classes=name in MIX_CLASSES)


@functools.partial(jax.jit, static_argnames="mixes_classes")
def _nan_unless_valid(logits: Logits, *, mixes_classes: bool) -> Logits:
    wrong = values.not_finite(logits) | (mixes_classes & jnp.any(logits == -jnp.inf, axis=-1))
    return jnp.where(wrong[..., None], jnp.nan, logits)


def fitted_of(name: str, kind: type, params: Any) -> Any:
    """Validate the type of parameters; return those of the calibrator, also of an event."""
    fitted = params.fitted if isinstance(params, OfProbability | OfScore) else params
    if not isinstance(fitted, kind):
        raise TypeError(
            f"{name}: it needs {kind.__name__}, and these are {type(fitted).__name__}: use the"
            " calibrator they come from."
        )
    return fitted


def applied(kind: type, function: Callable[[Any, Array], Array], params: Any, logits: Any) -> Any:
    """Validate parameters and logits of any leading axes, and apply a function of rows.

    Args:
      kind: the type of the parameters.
      function: `(params, rows) -> results`, one row of results for each row of logits.
      params: the parameters, also of an event.
      logits: `[*batch, classes]`; with parameters of an event the confidences or scores `[*batch]`,
        or a `Stated` or `Scored`, which gives a `Stated`.
    """
    name = name_of(kind)
    if fitted_of(name, kind, params) is not params:
        return _applied_to_event(name, function, params, logits)

    def of_logits(logits: Any, _: None, params: Any) -> Array:
        logits = logits_for(name, logits, _num_classes(params))
        results = function(params, logits.reshape(-1, logits.shape[-1]))
        return results.reshape(*logits.shape[:-1], results.shape[-1])

    return with_auto_axes(of_logits, logits, None, params)


def _num_classes(params: Any) -> int | None:
    """Return the number of classes of a fit, from its number or the axes; None if any fits."""
    if hasattr(params, "num_classes"):
        return int(params.num_classes) if checks.concrete(params.num_classes) else None
    for field, hint in params.__annotations__.items():
        axis = "" if field == "state" else hint.dim_str.partition(" ")[0]
        if axis in ("classes", "questions"):
            size = len(getattr(params, field))
            return max(2, size) if axis == "questions" else size
    return None


def _applied_to_event(
    name: str, function: Callable[[Any, Array], Array], params: event.OfEvent, answers: Any
) -> Any:
    def of_values(given: Array, _: None, params: event.OfEvent) -> Array:
        scores = params.scores if isinstance(params, OfScore) else None
        of_score = isinstance(params, OfScore)
        rows = event.logits_of(name, given.reshape(-1), scores, of_score=of_score)
        results = function(params.fitted, rows)
        if event.WAYS[name] == "odds":
            results = jnp.exp(results[:, 1:])
        shape = given.shape if results.shape[1] == 1 else (*given.shape, results.shape[1])
        return results.reshape(shape)

    given = event.values_of(name, params, answers)
    results = with_auto_axes(of_values, given, None, params)
    if isinstance(answers, Stated | Scored) and results.shape == given.shape:
        return Stated(results, answers.correct)
    return results
