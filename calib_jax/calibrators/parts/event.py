"""Events: a pair (confidence, correct) or (score, correct) in place of logits and labels.

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
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core.arrays import as_floats
from calib_jax.core.checks import concrete
from calib_jax.core.numerics import weigh
from calib_jax.core.types import Array, ArrayLike, Scalar, Vector
from calib_jax.core.values import Stated

# The inputs of the calibrators of an event, and the names of those that need probabilities.
WAYS = {
    **dict.fromkeys(("platt", "beta"), "odds"),
    **dict.fromkeys(("bbq", "histogram", "isotonic", "venn_abers"), "place"),
}
OF_PROBABILITIES = ("bbq", "beta")
# The log-odds of 0 and 1 are infinite: "odds" reads them as 1e-6 and 1 - 1e-6.
LEAST = 1e-6


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
        score = as_floats(name, "score", self.score)
        if concrete(score) and not np.all(np.isfinite(np.asarray(score, np.float64))):
            raise ValueError(f"{name}: scores must be finite: leave out answers without a score.")
        return Stated(score, self.correct).columns(name)


jax.tree_util.register_dataclass(Scored)


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


def values_of(name: str, params: OfEvent, values: Any) -> Array:
    """Convert the confidences or scores to which parameters are applied."""
    kind = Scored if isinstance(params, OfScore) else Stated
    if isinstance(values, Stated | Scored):
        if not isinstance(values, kind):
            raise TypeError(f"{name}: fitted to a {kind.__name__}, not a {type(values).__name__}.")
        values = values.score if isinstance(values, Scored) else values.confidence
    return as_floats(name, "the confidences", values)


def logits_of(name: str, values: Array, scores: Vector | None, *, of_score: bool) -> Array:
    """Convert confidences or scores to what the calibrator reads: one column, or two logits."""
    inside = jnp.isfinite(values) if of_score else (values >= 0) & (values <= 1)
    if WAYS[name] == "place":
        places = values if scores is None else _places(scores, values)
        return jnp.where(inside, places, jnp.nan)[..., None]
    if not of_score:
        values = jnp.clip(values, LEAST, 1 - LEAST)
        values = jnp.log(values) - jnp.log1p(-values)
    values = jnp.where(inside, values, jnp.nan)
    # Two logits of sum 0 never look like probabilities.
    return jnp.stack([-values / 2, values / 2], axis=-1)


def sorted_scores(values: Array, weights: Array | None) -> Vector:
    """Sort the scores; where the weight is 0, repeat the highest of the others."""
    values = values.reshape(-1)
    if weights is not None:
        counts = weights.reshape(-1) > 0
        values = jnp.where(counts, values, jnp.max(jnp.where(counts, values, -jnp.inf)))
    return jnp.sort(values)


def _places(scores: Vector, values: Array) -> Array:
    """Compute the place of values among the distinct scores: 0 at the lowest, 1 at the highest.

    A score beyond all others has the place -1 or 2: Venn-Abers has no step there.
    """
    rank = jnp.cumsum(jnp.append(False, scores[1:] > scores[:-1])).astype(scores.dtype)
    places = jnp.interp(values, scores, rank / jnp.maximum(rank[-1], 1), left=-1, right=2)
    return jnp.where(jnp.isfinite(values), places, jnp.nan)


def mean_nll(confidence: Array, correct: Array, weights: Array | None) -> Scalar:
    """Compute the mean NLL of stated confidences."""
    losses = -jnp.log(jnp.where(correct == 1, confidence, 1 - confidence))
    total = losses.size if weights is None else jnp.sum(weights)
    return jnp.sum(weigh(losses, weights)) / total


def refuse_kind(name: str, answers: Any) -> None:
    """Raise an error for answers that a calibrator does not take."""
    no_scores = OF_PROBABILITIES if isinstance(answers, Scored) else ()
    names = [other for other in sorted(WAYS) if other not in no_scores]
    if name not in names:
        raise TypeError(
            f"{name}: it does not calibrate a {type(answers).__name__}: use {', '.join(names)}."
        )
