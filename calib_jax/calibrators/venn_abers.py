r"""Venn-Abers calibration: an interval for the probability from two isotonic regressions.

A new example joins the fitted examples twice, with the answers 0 and 1. The isotonic regressions of
both sets, evaluated at its score, are $p_0$ and $p_1$: one of them is a valid probability without
any assumption on the model, and $p_1 / (1 - p_0 + p_1)$ is the single probability closest to both
in the log loss.

With two classes the question is whether the class is 1. With more, it is whether the predicted
class is right: the other classes share the remaining probability in their proportions, so the
prediction changes where this confidence falls below another class.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.isotonic import grouped
from calib_jax.calibrators.parts import contract, one_versus_rest
from calib_jax.calibrators.parts.contract import Code, FitData, State
from calib_jax.core import numerics
from calib_jax.core.types import Array, Vector
from calib_jax.core.values import is_stated


class VennAbersParams(NamedTuple):
    """The sorted scores of the examples, and p0 and p1 of a new example with such a score.

    Examples that are pooled as equal share the lowest of their scores.
    """

    knots: Float[Array, " knots"]
    p0: Float[Array, " knots"]
    p1: Float[Array, " knots"]
    num_classes: Integer[Array, ""]
    state: State


Params = VennAbersParams


def fit(logits: Any, labels: Any = None, weights: Any = None) -> Any:
    """Compute p0 and p1 for every score, by the algorithm of Vovk, Petej and Fedorova.

    After sorting, the number of steps is proportional to the number of examples. Scores less
    than 1e-6 (in float64 1e-15) above the lowest of a group are equal, as in `isotonic`.

    Args:
      logits: held-out logits or log-probabilities, `[*batch, classes]`,
        a `metrics.Stated` or a `Scored`.
      labels: the true classes; a `Stated` or `Scored` holds its own.
      weights: weight 0 drops an example, weight k counts it k times; the new example counts once.

    References:
      Vovk and Petej 2014, Venn-Abers predictors; Vovk, Petej and Fedorova 2015, Large-scale
      probabilistic predictors with and without guarantees of validity.

    >>> import numpy as np
    >>> p = np.array([0.1, 0.3, 0.5, 0.7])
    >>> logits = np.log(np.stack([1 - p, p], axis=1))
    >>> params = fit(logits, [0, 1, 0, 1])
    >>> [bound.round(3) for bound in bounds(params, np.log([0.4, 0.6]))]
    [Array(0.333, dtype=float32), Array(1., dtype=float32)]
    >>> np.exp(apply(params, np.log([0.4, 0.6]))).round(3)
    array([0.4, 0.6], dtype=float32)
    """
    examples, marked = contract.given("venn_abers", logits, labels, weights)
    return marked(contract.on_cpu(_fit, examples))


@jax.jit
def _fit(examples: FitData) -> Params:
    rows = examples.rows()
    num_classes = rows.logits.shape[1]
    predicted, score, is_open = _question(rows.logits)
    target = predicted == rows.labels
    weight = jnp.where(is_open, rows.weight, 0)
    counts = weight > 0
    groups = grouped(score, target.astype(score.dtype), weight, alike=examples.weights is None)
    p1 = _with_one_more(groups.weight, groups.hits)
    # Exchanging the answers and reversing the order exchanges p0 and 1 - p1.
    misses = groups.weight - groups.hits
    p0 = 1 - _with_one_more(groups.weight[::-1], misses[::-1])[::-1]
    some = jnp.any(counts)
    params = Params(
        jnp.where(some, groups.repeated(groups.lowest), 1),
        groups.repeated(p0),
        groups.repeated(p1),
        jnp.array(num_classes, jnp.int32),
        contract.PENDING,
    )
    lowest = jnp.min(jnp.where(counts, score, jnp.inf))
    highest = jnp.max(jnp.where(counts, score, -jnp.inf))
    code = jnp.where(some & (lowest == highest), Code.INDISTINCT, Code.CONVERGED)
    return contract.finished(params, code, rows, _apply(params, rows.logits))


def _question(
    logits: Float[Array, "rows classes"],
) -> tuple[Integer[Array, " rows"], Vector, Bool[Array, " rows"]]:
    """Return the class of the question, its probability, and whether it has two answers.

    The class is class 1 of two classes, or else the predicted class. An event has two outcomes.
    """
    is_open = is_stated(logits) | (jnp.sum(logits != -jnp.inf, axis=1) > 1)
    if logits.shape[1] <= 2:
        return jnp.ones(len(logits), jnp.int32), one_versus_rest.yes(logits)[:, 0], is_open
    predicted = jnp.argmax(logits, axis=1).astype(jnp.int32)
    return predicted, jnp.max(jax.nn.softmax(logits), axis=1), is_open


def _with_one_more(weight: Vector, hits: Vector) -> Vector:
    """Compute the isotonic regression at each group after one more hit joined that group.

    Isotonic values are the slopes of the lower convex hull of the points (weight, hits), summed
    over the groups. A hit that joins group i moves all points from i on by (1, 1), or the points
    before i by (-1, -1). The edge of the hull between the two parts has the required slope. From
    group to group one more point moves back, and both ends of the edge only move right.
    """
    # Multiples of one power of two have exact sums: where the weight of a group is lost beside the
    # sum, its hits are lost, too, and no edge is vertical.
    unit = numerics.power_of_two(jnp.sum(weight)) * jnp.finfo(weight.dtype).eps
    x, y = (jnp.append(0, jnp.cumsum(unit * jnp.round(part / unit))) for part in (weight, hits))
    size = len(weight)
    following = _hull_after(x, y)

    def advance(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        i, left, right, slopes = state
        after = following[right]
        run, rise = x[right] - (x[left] - 1), y[right] - (y[left] - 1)
        further_run, further_rise = x[after] - (x[left] - 1), y[after] - (y[left] - 1)
        lower = (right < size) & (further_rise * run <= rise * further_run)
        slopes = slopes.at[i].set(rise / run)
        moved = i + 1
        below = (y[moved] - y[left]) * run <= rise * (x[moved] - x[left])
        takes = ~lower & (below | (right <= moved))
        return (
            jnp.where(lower, i, moved),
            jnp.where(takes, moved, left),
            jnp.where(lower, after, jnp.where(right <= moved, following[moved], right)),
            slopes,
        )

    start = (jnp.array(0), jnp.array(0), jnp.array(1), jnp.zeros_like(weight))
    return lax.while_loop(lambda state: state[0] < size, advance, start)[-1]


def _hull_after(x: Vector, y: Vector) -> Integer[Array, " points"]:
    """Return for each point the next corner of the lower hull of that point and later points."""
    last = len(x) - 1

    def extend(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, corner, following = state
        # Reading before the write would copy the array in every step.
        following = following.at[i].set(corner)
        after = following[corner]
        first = (y[corner] - y[i]) * (x[after] - x[corner])
        second = (y[after] - y[corner]) * (x[corner] - x[i])
        passes = (corner < last) & (first >= second)
        return jnp.where(passes, i, i - 1), jnp.where(passes, after, i), following

    start = (jnp.array(last - 1), jnp.array(last), jnp.full(len(x), last))
    return lax.while_loop(lambda state: state[0] >= 0, extend, start)[-1]


def apply(params: Any, logits: Any) -> Any:
    """Compute the calibrated log-probabilities, or the calibrated confidences of an event."""
    return contract.applied(Params, _apply, params, logits)


def bounds(params: Any, logits: Any) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Compute p0 and p1: for class 1 of two classes, or for the predicted class.

    Args:
      params: the parameters that `fit` returned.
      logits: `[*batch, classes]`, or the confidences or scores of an event, `[*batch]`.
    """
    both = contract.applied(Params, _both, params, logits)
    return both[..., 0], both[..., 1]


@jax.jit
def _both(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows 2"]:
    """Compute the two probabilities p0 and p1 of each row from the fitted steps."""
    _, score, _ = _question(logits)
    resolution = float(jnp.finfo(params.knots.dtype).resolution)
    # The score of a fitted example may differ from its knot by rounding.
    near = jnp.searchsorted(params.knots, score + resolution / 2, side="right") - 1
    knot = params.knots[jnp.maximum(near, 0)]
    above = jnp.where((near >= 0) & (score - knot < resolution), near, near + 1)
    p0 = jnp.where(near < 0, 0, params.p0[jnp.maximum(near, 0)])
    last = len(params.knots) - 1
    p1 = jnp.where(above > last, 1, params.p1[jnp.minimum(above, last)])
    both = jnp.stack([p0, p1], axis=1)
    # Do not use the score here: the maximum drops NaN on some machines.
    invalid = jnp.any(jnp.isnan(logits), axis=1, keepdims=True)
    return jnp.where(invalid | (params.num_classes != logits.shape[1]), jnp.nan, both)


@jax.jit
def _apply(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    p0, p1 = _both(params, logits).T
    odds = jnp.log(p1) - jnp.log1p(-p0)
    if logits.shape[1] <= 2:
        return one_versus_rest.joined(odds[:, None], logits)
    predicted, _, is_open = _question(logits)
    top = numerics.is_true_class(predicted, logits.shape[1])
    others = jax.nn.log_softmax(jnp.where(top, -jnp.inf, logits))
    of_top, of_others = jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds)
    log_p = jnp.where(top, of_top[:, None], others + of_others[:, None])
    certain = jnp.where(jnp.isnan(logits), jnp.nan, jnp.where(top, 0.0, -jnp.inf))
    return jnp.where(is_open[:, None], log_p, certain.astype(log_p.dtype))


__all__ = ["Params", "apply", "bounds", "fit"]
