"""Calibrators of an event: a pair (confidence, correct) or (score, correct) in place of logits.

An event is one binary question with one number for each answer, such as the stated confidence of a
language model. The calibrators of two classes are the engine, in one of two ways:

    "odds"    Platt and beta read the two logits -z/2 and z/2. z is the score itself, or the
              log-odds of a confidence.
    "place"   The others read one column in [0, 1]: the confidence itself, or the place of the score
              among the distinct scores of the fit.

Places are interpolated between two scores, so a rising function of all scores changes no result at
the scores of the fit, and a line between two places is a line between two scores.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core import arrays
from calib_jax.core.arrays import as_numbers, concrete, gathered, with_auto_axes
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, ArrayLike, Scalar, Vector
from calib_jax.core.values import Stated

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Way: TypeAlias = Literal["odds", "place"]

# The log-odds of 0 and 1 are infinite: "odds" reads them as 1e-6 and 1 - 1e-6.
LEAST = 1e-6


class Member(NamedTuple):
    """The input of a calibrator of an event, and whether it may be scores."""

    way: _Way
    scores: bool


MEMBERS: dict[str, Member] = {}


@dataclasses.dataclass(frozen=True)
class Scored:
    """Scores of answers, where a higher score means a surer answer, and whether they are right.

    A score may be any real number: a log-probability, the number of samples that agree, or the
    grade of a judge from 1 to 10. It is no probability, so metrics do not take it. Calibrators turn
    it into one, which `metrics.Stated` takes.

    Attributes:
      score: `[*batch]`, finite.
      correct: `[*batch]`, True or 1 where the answer is right, else False or 0.

    >>> from calib_jax import calibrators
    >>> grades = calibrators.Scored([2, 5, 5, 9], [False, True, False, True])
    >>> params = calibrators.isotonic.fit(grades)
    >>> calibrators.isotonic.apply(params, np.array([5, 7])).round(3)
    Array([0.5 , 0.75], dtype=float32)
    """

    score: ArrayLike
    correct: ArrayLike

    def columns(self, name: str) -> tuple[Float[Array, "*batch 1"], Array]:
        """Validate the pair; return the scores as one column, and the labels.

        Args:
          name: the name of the caller, for error messages.
        """
        score = jnp.asarray(as_numbers(name, "score", self.score))
        correct = jnp.asarray(as_numbers(name, "correct", self.correct))
        if score.shape != correct.shape or score.ndim == 0:
            raise ValueError(
                f"{name}: score and correct need one value for each answer, got the shapes"
                f" {score.shape} and {correct.shape}."
            )
        _refuse_infinite(name, score)
        _, labels = Stated(jnp.zeros(correct.shape), correct).columns(name)
        return at_least_float32(score)[..., None], labels


jax.tree_util.register_dataclass(Scored)


class Column(NamedTuple):
    """One column in [0, 1] in place of logits, between this file and a calibrator."""

    values: Float[Array, "*batch 1"]


class OfProbability(NamedTuple):
    """A calibrator that was fitted to stated confidences.

    Attributes:
      fitted: the parameters of the calibrator, with one question.
    """

    fitted: Any

    @property
    def state(self) -> Any:
        """How the fit ended, and the NLL of the event before and after."""
        return self.fitted.state


class OfScore(NamedTuple):
    """A calibrator that was fitted to scores.

    Attributes:
      fitted: the parameters of the calibrator, with one question.
      scores: the sorted scores of the fit; None for Platt scaling, which reads the score itself.
    """

    fitted: Any
    scores: Vector | None

    @property
    def state(self) -> Any:
        """How the fit ended, and the NLL of the event after it; a score has no NLL before."""
        return self.fitted.state


OfEvent: TypeAlias = OfProbability | OfScore


def fits(
    way: _Way, *, scores: bool = True, of_scores: Mapping[str, Any] | None = None
) -> Callable[[_Function], _Function]:
    """Decorate the `fit` of a calibrator of two classes, so that it also takes an event.

    Args:
      way: what the calibrator reads, see above.
      scores: whether it takes scores that are no probabilities.
      of_scores: options that a fit to scores must have.
    """

    def decorate(fit: _Function) -> _Function:
        name = fit.__module__.rpartition(".")[2]
        MEMBERS[name] = Member(way, scores)

        @functools.wraps(fit)
        def checked(logits: Any, labels: Any = None, weights: Any = None, **options: Any) -> Any:
            if isinstance(logits, Scored):
                if not scores:
                    raise TypeError(
                        f"{name}: it needs probabilities, a metrics.Stated; scores are calibrated"
                        f" by {_names(True)}."
                    )
                for key, value in (of_scores or {}).items():
                    if options.setdefault(key, value) != value:
                        raise ValueError(
                            f"{name}: {key}={options[key]!r} needs probabilities; for scores use"
                            f" {key}={value!r}."
                        )
            elif not isinstance(logits, Stated):
                if labels is None:
                    raise TypeError(f"{name}: logits need labels, or give a metrics.Stated.")
                return fit(logits, labels, weights, **options)
            if labels is not None:
                raise TypeError(
                    f"{name}: a {type(logits).__name__} holds its labels: leave out labels."
                )
            return _fit(fit, name, way, logits, weights, options)

        return cast(_Function, checked)

    return decorate


def _fit(
    fit: Callable[..., Any],
    name: str,
    way: _Way,
    answers: Stated | Scored,
    weights: Any,
    options: Mapping[str, Any],
) -> OfEvent:
    parts = [gathered(name, "answers", part) for part in vars(answers).values()]
    column, correct = type(answers)(*parts).columns(name)
    weights = arrays.weights_for(column, gathered(name, "weights", weights))
    values = column[..., 0]
    if values.size == 0:
        raise ValueError(f"{name}: there are no answers.")
    _refuse_one_outcome(name, correct, weights)
    of_score = isinstance(answers, Scored)
    scores = _sorted(values, weights) if of_score and way == "place" else None
    fitted = fit(_input(way, of_score, scores, values), correct, weights, **options)
    before = jnp.full_like(fitted.state.nll_before, jnp.nan)
    if not of_score:
        before = _mean_nll(values, correct, weights).astype(before.dtype)
    fitted = fitted._replace(state=fitted.state._replace(nll_before=before))
    return OfScore(fitted, scores) if of_score else OfProbability(fitted)


def applies(way: _Way) -> Callable[[_Function], _Function]:
    """Decorate a function of parameters and logits, so that it also takes an event.

    With parameters of an event, the values are confidences or scores `[*batch]`, and so are the
    results. A `Stated` or `Scored` gives a `Stated` of calibrated confidences.

    Args:
      way: what the calibrator reads, as in `fits`.
    """

    def decorate(function: _Function) -> _Function:
        name = function.__module__.rpartition(".")[2]

        @functools.wraps(function)
        def checked(params: Any, *args: Any, **options: Any) -> Any:
            if not isinstance(params, OfProbability | OfScore):
                if args and isinstance(args[0], Stated | Scored):
                    raise TypeError(
                        f"{name}: these parameters were fitted to logits; fit a"
                        f" {type(args[0]).__name__} to calibrate answers."
                    )
                return function(params, *args, **options)
            try:
                bound = inspect.signature(function).bind(params, *args, **options)
            except TypeError as error:
                raise TypeError(f"{name}: {error}.") from None
            values = bound.arguments.pop("logits")
            del bound.arguments["params"]
            kind = Scored if isinstance(params, OfScore) else Stated
            if isinstance(values, Stated | Scored):
                if not isinstance(values, kind):
                    raise TypeError(
                        f"{name}: it was fitted to a {kind.__name__}, so it takes no"
                        f" {type(values).__name__}."
                    )
                given = values.score if isinstance(values, Scored) else values.confidence
                result = checked(params, given, **bound.arguments)
                return Stated(result, values.correct) if isinstance(result, jax.Array) else result
            return _apply(function, name, way, params, values, bound.arguments)

        return cast(_Function, checked)

    return decorate


def _apply(
    function: Callable[..., Any],
    name: str,
    way: _Way,
    params: OfEvent,
    values: Any,
    options: Mapping[str, Any],
) -> Any:
    values = jnp.asarray(as_numbers(name, "the confidences", values))
    if isinstance(params, OfScore):
        _refuse_infinite(name, values)
    elif concrete(values):
        Stated(values.reshape(-1), jnp.zeros(values.size)).columns(name)  # refuses 1.5, -1, NaN
    values = at_least_float32(values)

    def answer(values: Array, _: None, params: OfEvent, options: Mapping[str, Any]) -> Any:
        scores = params.scores if isinstance(params, OfScore) else None
        logits = _input(way, isinstance(params, OfScore), scores, values)
        results = function(params.fitted, logits, **options)
        if way == "odds":
            return jnp.exp(results[..., 1])
        return jax.tree.map(lambda leaf: leaf.reshape(values.shape), results)

    return with_auto_axes(answer, values, None, params, options)


def _input(way: _Way, of_score: bool, scores: Vector | None, values: Array) -> Any:
    """Convert confidences or scores to what a calibrator of two classes reads."""
    if way == "place":
        if scores is not None:
            return Column(_places(scores, values)[..., None])
        inside = (values >= 0) & (values <= 1)
        return Column(jnp.where(inside, values, jnp.nan)[..., None])
    if not of_score:
        inside = (values >= 0) & (values <= 1)
        values = jnp.clip(values, LEAST, 1 - LEAST)
        values = jnp.where(inside, jnp.log(values) - jnp.log1p(-values), jnp.nan)
    # Two logits of sum 0 never look like probabilities.
    return jnp.stack([-values / 2, values / 2], axis=-1)


def _sorted(values: Array, weights: Array | None) -> Vector:
    """Sort the scores; where the weight is 0, repeat the highest of the others."""
    values = values.reshape(-1)
    if weights is not None:
        counts = weights.reshape(-1) > 0
        values = jnp.where(counts, values, jnp.max(jnp.where(counts, values, -jnp.inf)))
    return jnp.sort(values)


def _places(scores: Vector, values: Array) -> Array:
    """Compute the place of values among the distinct scores: 0 at the lowest, 1 at the highest."""
    rank = jnp.cumsum(jnp.append(False, scores[1:] > scores[:-1])).astype(scores.dtype)
    places = jnp.interp(values, scores, rank / jnp.maximum(rank[-1], 1))
    return jnp.where(jnp.isfinite(values), places, jnp.nan)


def _mean_nll(confidence: Array, correct: Array, weights: Array | None) -> Scalar:
    losses = -jnp.log(jnp.where(correct == 1, confidence, 1 - confidence))
    total = losses.size if weights is None else jnp.sum(weights)
    return jnp.sum(weigh(losses, weights)) / total


def _refuse_one_outcome(name: str, correct: Array, weights: Array | None) -> None:
    if not concrete(correct, weights):
        return
    counts = np.asarray(correct)[... if weights is None else np.asarray(weights) > 0]
    for outcome, word in ((0, "right"), (1, "wrong")):
        if counts.size and np.all(counts == outcome):
            raise ValueError(
                f"{name}: none of {counts.size} answers is {word}, so there is nothing to fit:"
                " give right and wrong answers."
            )


def _refuse_infinite(name: str, score: Array) -> None:
    if concrete(score):
        odd = ~np.isfinite(np.asarray(score, np.float64))
        if np.any(odd):
            raise ValueError(
                f"{name}: {np.sum(odd)} of {odd.size} scores are NaN or infinite: leave these"
                " answers out, or give them a finite score."
            )


def _names(scores: bool) -> str:
    names = sorted(name for name, member in MEMBERS.items() if member.scores or not scores)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def refuses(fit: _Function) -> _Function:
    """Decorate the `fit` of a calibrator of classes, so that an event raises an error."""
    name = fit.__module__.rpartition(".")[2]

    @functools.wraps(fit)
    def checked(*args: Any, **options: Any) -> Any:
        if args and isinstance(args[0], Stated | Scored):
            kind = type(args[0]).__name__
            raise TypeError(
                f"{name}: it calibrates classes, and a {kind} has none: use"
                f" {_names(isinstance(args[0], Scored))}."
            )
        return fit(*args, **options)

    return cast(_Function, checked)
