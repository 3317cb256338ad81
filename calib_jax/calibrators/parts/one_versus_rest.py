"""One-versus-rest calibration: K binary questions "this class or another?", then normalisation.

Two classes have one question, about class 1. With more classes, the K probabilities are divided
by their sum.

One column, in place of the classes, is a binary question on its own: the probability of an event or
the place of its score, see `event.py`.

A question is closed in a row if its class is impossible (a logit of -inf) or if no other class is
possible. The fit ignores such rows, and the probability of the class stays 0 or 1.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.calibrators.parts import contract
from calib_jax.calibrators.parts.contract import Code, FitRows
from calib_jax.core import checks, numerics
from calib_jax.core.types import Array, Number, Vector
from calib_jax.core.values import is_stated


def log_yes_and_no(
    logits: Float[Array, "rows classes"],
) -> tuple[Float[Array, "rows questions"], Float[Array, "rows questions"]]:
    """Compute log p and log(1 - p) for each question, precise for p near 0 and near 1.

    Where the question is closed, the values are finite and arbitrary.
    """
    if logits.shape[1] == 2:
        odds = log_odds(logits)
        return jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds)
    log_p = jax.nn.log_softmax(logits)
    dominant = log_p > -0.6931472
    log_others = jax.nn.logsumexp(jnp.where(dominant, -jnp.inf, log_p), axis=1, keepdims=True)
    log_no = jnp.where(dominant, log_others, jnp.log1p(-jnp.exp(jnp.where(dominant, -1.0, log_p))))
    still = open_questions(logits)
    return jnp.where(still, log_p, 0), jnp.where(still, log_no, 0)


def log_odds(logits: Float[Array, "rows classes"]) -> Float[Array, "rows questions"]:
    """Compute log p - log(1 - p) for each question: for two classes, the logits' difference."""
    if logits.shape[1] == 2:
        return jnp.where(open_questions(logits), logits[:, 1:] - logits[:, :1], 0)
    yes, no = log_yes_and_no(logits)
    return yes - no


def open_questions(logits: Float[Array, "rows classes"]) -> Bool[Array, "rows questions"]:
    """Mark the open questions of each row: those with two possible answers."""
    possible = logits != -jnp.inf
    if is_stated(logits):
        return possible
    two = jnp.sum(possible, axis=1, keepdims=True) > 1
    return two if logits.shape[1] == 2 else possible & two


def weights_of(rows: FitRows) -> Float[Array, "questions rows"]:
    """Return the row weights for each question, 0 in rows where the question is closed."""
    return jnp.where(open_questions(rows.logits), rows.weight[:, None], 0).T


def targets(rows: FitRows) -> Float[Array, "questions rows"]:
    """Return 1 where the row has the class of the question, else 0."""
    num_classes, dtype = rows.logits.shape[1], rows.logits.dtype
    if num_classes == 1:
        return (rows.labels == 1).astype(dtype)[None]
    yes = numerics.is_true_class(rows.labels, num_classes).T
    return (yes[1:] if num_classes == 2 else yes).astype(dtype)


def each(function: Callable[..., Any], *columns: Float[Array, "questions ..."]) -> Any:
    """Map a function over the questions: one at a time on the CPU, else in batches of 32."""
    at_once = None if jax.default_backend() == "cpu" else 32
    return lax.map(lambda parts: function(*parts), columns, batch_size=at_once)


def joined(
    odds: Float[Array, "rows questions"], logits: Float[Array, "rows classes"]
) -> Float[Array, "rows classes"]:
    """Convert the log-odds of the questions to normalised log-probabilities of the classes."""
    largest = jnp.finfo(odds.dtype).max
    odds = jnp.clip(odds, -largest, largest)
    log_yes = jax.nn.log_sigmoid(odds)
    if is_stated(logits):
        return jnp.where(jnp.isnan(logits), jnp.nan, jnp.exp(log_yes))
    if logits.shape[1] == 2:
        log_yes = jnp.concatenate([jax.nn.log_sigmoid(-odds), log_yes], axis=1)
    return jax.nn.log_softmax(jnp.where(logits == -jnp.inf, -jnp.inf, log_yes))


def code(
    score: Vector, target: Vector, share: Vector, settled: Bool[Array, ""], *, rising: bool
) -> Array:
    """Compute the state code of a curve fitted to one score.

    An optimum exists if both answers occur and no threshold separates them. For a curve that can
    only rise (`rising`), only a threshold with all positives above it counts. If the question is
    closed in all rows, the code is `CONVERGED`, because any curve is optimal.
    """
    counts = share > 0
    yes, no = counts & (target == 1), counts & (target == 0)
    lowest = lambda mark: jnp.min(jnp.where(mark, score, jnp.inf))  # noqa: E731
    highest = lambda mark: jnp.max(jnp.where(mark, score, -jnp.inf))  # noqa: E731
    separated = highest(no) <= lowest(yes)
    if not rising:
        separated |= highest(yes) <= lowest(no)
    both = jnp.any(yes) & jnp.any(no)
    ended = jnp.where(settled, Code.CONVERGED, Code.STOPPED)
    ended = jnp.where(both & ~separated, ended, Code.NO_OPTIMUM)
    ended = jnp.where(jnp.any(counts), ended, Code.CONVERGED)
    return jnp.where(both & (lowest(counts) == highest(counts)), Code.INDISTINCT, ended)


def yes(logits: Float[Array, "rows classes"]) -> Float[Array, "rows questions"]:
    """Compute the probability of the class of each question."""
    if is_stated(logits):
        return logits
    return jax.nn.softmax(logits)[:, 1:] if logits.shape[1] == 2 else jax.nn.softmax(logits)


def looked_up(
    index_of: Callable[[Array, Array], Array], edges: Array, values: Array, logits: Array
) -> Float[Array, "rows questions"]:
    """Gather for each question the value of the bin of its probability."""
    lookup = lambda edges, values, p: values[index_of(edges, p)]  # noqa: E731
    return jax.vmap(lookup, (0, 0, 1), 1)(edges, values, yes(logits))


def floored(
    answers: Float[Array, "rows questions"], logits: Float[Array, "rows classes"], floor: Number
) -> Float[Array, "rows classes"]:
    """Convert the probabilities of the questions to log-probabilities above about log(floor).

    Probabilities are raised to the floor (with two classes, both of them), then divided by their
    sum. Impossible classes keep probability 0. One column stays a column of probabilities.
    """
    if logits.shape[1] <= 2:
        answers = jnp.concatenate([1 - answers, answers], axis=1)
    # Not jnp.maximum, which drops NaN on some machines.
    answers = jnp.where(answers < floor, floor, answers)
    answers = jnp.where(logits == -jnp.inf, 0, answers)
    answers = jnp.where(jnp.isnan(logits), jnp.nan, answers)  # binning assigns a bin even to NaN
    answers = answers / jnp.sum(answers, axis=1, keepdims=True)
    return answers[:, 1:] if is_stated(logits) else jnp.log(answers)


def fitted(
    kind: Callable[..., Any],
    function: Callable[..., Any],
    answers: Callable[[Any, Array], Array],
    rows: FitRows,
    floor: Number,
) -> Any:
    """Fit every question of a calibrator of binned, floored probabilities.

    Args:
      kind: the type of the parameters: two arrays with a row per question, and the state.
      function: computes the two arrays from probabilities, targets and weights of a question.
      answers: computes the probabilities of the questions from the parameters and logits.
      rows: the prepared examples.
      floor: the lower limit of probabilities before they are divided by their sum.
    """
    p = yes(rows.logits)
    params = kind(*each(function, p.T, targets(rows), weights_of(rows)), contract.PENDING)
    calibrated = floored(answers(params, rows.logits), rows.logits, floor)
    return contract.finished(params, binned_code(p, rows), rows, calibrated)


def apply(
    kind: type, answers: Callable[[Any, Array], Array], params: Any, logits: Any, floor: Number
) -> Any:
    """Compute calibrated log-probabilities from parameters that `fitted` returned.

    Args:
      kind: the type of the parameters.
      answers: as in `fitted`.
      params: the parameters.
      logits: `[*batch, classes]`, or confidences or scores.
      floor: the lower limit of probabilities before they are divided by their sum.
    """
    checks.between("floor", floor, 0, 0.5)
    function = functools.partial(_on_rows, answers, floor)
    return contract.applied(kind, function, params, logits)


@functools.partial(jax.jit, static_argnums=0)
def _on_rows(
    answers: Callable[[Any, Array], Array],
    floor: Number,
    params: Any,
    logits: Float[Array, "rows classes"],
) -> Float[Array, "rows classes"]:
    return floored(answers(params, logits), logits, floor)


def binned_code(answers: Float[Array, "rows questions"], rows: FitRows) -> Array:
    """Compute the state code of a binned fit: `INDISTINCT` if all rows have one probability."""
    counts = weights_of(rows).T > 0
    lowest = jnp.min(jnp.where(counts, answers, jnp.inf), axis=0)
    highest = jnp.max(jnp.where(counts, answers, -jnp.inf), axis=0)
    return jnp.where(jnp.all(lowest >= highest), Code.INDISTINCT, Code.CONVERGED)
