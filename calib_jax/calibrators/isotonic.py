r"""Isotonic regression: the non-decreasing function with the least squared error.

For each class, pooling adjacent violators solves
$\min_{f \text{ rising}} \sum_n w_n (f(p_n) - [y_n = k])^2$ over the probability of that class.
Two classes have one question, about class 1; with more classes, the results are divided by their
sum.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.parts import contract, one_versus_rest
from calib_jax.calibrators.parts.contract import FitData, State
from calib_jax.core.binning import run_sums
from calib_jax.core.types import Array, Number, Vector

FLOOR = 1e-6  # the approximate lower limit of probabilities, which keeps the NLL finite


class IsotonicParams(NamedTuple):
    """The sorted probabilities of the examples and the values of f there, for every question.

    Examples that are pooled as equal share the lowest of their probabilities.
    """

    knots: Float[Array, "questions knots"]
    values: Float[Array, "questions knots"]
    state: State


Params = IsotonicParams


def fit(logits: Any, labels: Any = None, weights: Any = None) -> Any:
    """Fit the exact isotonic regression of every class.

    f is linear between two examples, and constant below the lowest and above the highest. Examples
    of equal probability are pooled first: a group holds the probabilities less than 1e-6 (in
    float64 1e-15) above the lowest probability of the group. scikit-learn follows the same rules.

    Args:
      logits: held-out logits or log-probabilities, `[*batch, classes]`,
        a `metrics.Stated` or a `Scored`.
      labels: the true classes; a `Stated` or `Scored` holds its own.
      weights: weight 0 drops an example, weight k counts it k times.

    References:
      Zadrozny and Elkan 2002, Transforming classifier scores into accurate multiclass
      probability estimates.

    >>> p = jnp.array([0.1, 0.3, 0.5, 0.7])
    >>> logits = jnp.log(jnp.stack([1 - p, p], axis=1))
    >>> params = fit(logits, jnp.array([0, 1, 0, 1]))
    >>> params.values
    Array([[0. , 0.5, 0.5, 1. ]], dtype=float32)
    >>> jnp.exp(apply(params, jnp.log(jnp.array([0.4, 0.6]))))[1].round(3)
    Array(0.75, dtype=float32)
    """
    examples, marked = contract.given("isotonic", logits, labels, weights)
    return marked(_fit(examples))


@jax.jit
def _fit(examples: FitData) -> Params:
    rows = examples.rows()

    def fit_question(p: Vector, target: Vector, weight: Vector) -> tuple[Array, Array]:
        # Rows of weight 0 sort to the end and repeat the last knot.
        counts = weight > 0
        p = jnp.where(counts, p, jnp.inf)
        if examples.weights is None and p.dtype == jnp.float32:
            p, target = _sorted_pairs(p, target)
            weight = jnp.isfinite(p).astype(p.dtype)
        else:
            p, target, weight = lax.sort((p, target, weight), num_keys=1)
        p = near_ties_merged(p)
        value = pooled(p, target, weight)
        last = jnp.maximum(jnp.sum(counts) - 1, 0)
        present = jnp.isfinite(p)
        knots, value = jnp.where(present, p, p[last]), jnp.where(present, value, value[last])
        # If the question is closed in all rows: f(p) = p.
        straight = jnp.linspace(0, 1, p.shape[0], dtype=p.dtype)
        some = jnp.any(counts)
        return jnp.where(some, knots, straight), jnp.where(some, value, straight)

    return one_versus_rest.fitted(Params, fit_question, answers, rows, FLOOR)


def _sorted_pairs(p: Vector, target: Vector) -> tuple[Vector, Vector]:
    """Sort probabilities and their targets as packed integers.

    The bit patterns of floats in [0, 1] are ordered like the floats and leave one bit free for
    the target. On a CPU this is six times as fast as sorting the two arrays together.
    """
    bits = lax.bitcast_convert_type(p, jnp.uint32)
    code = jnp.sort((bits << 1) | (target > 0).astype(jnp.uint32))
    return lax.bitcast_convert_type(code >> 1, jnp.float32), (code & 1).astype(jnp.float32)


def near_ties_merged(p: Vector) -> Vector:
    """Replace sorted probabilities by the first probability of their group.

    A group ends before the first probability that exceeds the start of the group by the resolution
    or more: 1e-6 in float32, 1e-15 in float64. Each group starts where the previous group ends;
    pointer doubling, over 1, 2, 4, ... groups at once, computes all starts in log n rounds.
    """
    num_rows = p.shape[0]
    resolution = float(jnp.finfo(p.dtype).resolution)
    rounds = num_rows.bit_length()
    index = jnp.arange(num_rows)

    def bisect(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        near, far = bounds
        middle = (near + far) // 2
        # Compare the rounded difference, not p[middle] with a rounded sum.
        beyond = p[middle] - p >= resolution
        return jnp.where(beyond, near, middle), jnp.where(beyond, middle, far)

    def follow(_: Any, marks: tuple[Array, Array]) -> tuple[Array, Array]:
        starts, following = marks
        return starts.at[following].max(starts), following[following]

    _, far = lax.fori_loop(0, rounds, bisect, (index, jnp.full_like(index, num_rows)))
    first = jnp.zeros(num_rows + 1, jnp.int32).at[0].set(1)
    starts, _ = lax.fori_loop(0, rounds, follow, (first, jnp.append(far, num_rows)))
    return p[lax.cummax(jnp.where(starts[:-1] > 0, index, 0))]


class Groups(NamedTuple):
    """Groups of equal probability in ascending order; unused groups come last, with weight 0.

    Attributes:
      lowest: the smallest probability of a group; infinity in unused groups.
      highest: the largest probability of a group; -infinity in unused groups.
      weight: the weight of a group.
      hits: the weight of the examples of target 1 in a group.
    """

    lowest: Vector
    highest: Vector
    weight: Vector
    hits: Vector

    @property
    def used(self) -> Bool[Array, " groups"]:
        """Mark the groups that hold examples."""
        return self.weight > 0

    def repeated(self, part: Vector) -> Vector:
        """Replace the values of unused groups by the value of the last used group."""
        last = jnp.maximum(jnp.sum(self.used) - 1, 0)
        return jnp.where(self.used, part, part[last])


def grouped(p: Vector, target: Vector, weight: Vector) -> Groups:
    """Sort the examples of positive weight and join examples of equal probability.

    A group holds the probabilities less than 1e-6 (in float64 1e-15) above its lowest probability.
    """
    p = jnp.where(weight > 0, p, jnp.inf)
    p, target, weight = lax.sort((p, target, weight), num_keys=1)
    first = near_ties_merged(p)
    index = jnp.cumsum(jnp.append(False, first[1:] > first[:-1]))
    mass, hits = (run_sums(index, part) for part in (weight, weight * target))
    lowest = jnp.full_like(p, jnp.inf).at[index].min(p)
    highest = jnp.full_like(p, -jnp.inf).at[index].max(p)
    return Groups(lowest, highest, mass, hits)


class _Blocks(NamedTuple):
    """Neighbouring rows pooled into blocks, numbered from 0; unused numbers have weight 0."""

    of_row: Integer[Array, " rows"]
    weight: Vector
    total: Vector
    falling: Bool[Array, ""]  # some block's mean is not below the next mean


def pooled(score: Vector, target: Vector, weight: Vector) -> Vector:
    """Fit a rising function to targets sorted by score, by pooling adjacent violators.

    Each round merges every run of blocks whose means do not rise into one block. The order of
    pooling does not change the result. If the scores predict the targets, pooling whole runs
    takes about log n rounds of n operations.
    """
    num_rows = score.shape[0]

    def merged(of_block: Array, blocks: _Blocks) -> _Blocks:
        """Merge blocks with the same new number and check whether the means rise."""
        weight, total = (run_sums(of_block, part) for part in (blocks.weight, blocks.total))
        merged = _Blocks(of_block[blocks.of_row], weight, total, blocks.falling)
        return merged._replace(falling=jnp.any(_violates(merged)))

    def merge(blocks: _Blocks) -> _Blocks:
        new = jnp.concatenate([jnp.ones(1, bool), ~_violates(blocks)])
        return merged(jnp.cumsum(new) - 1, blocks)

    new = jnp.concatenate([jnp.ones(1, bool), score[1:] > score[:-1]])
    rows = _Blocks(jnp.arange(num_rows), weight, weight * target, jnp.array(True))
    blocks = lax.while_loop(lambda b: b.falling, merge, merged(jnp.cumsum(new) - 1, rows))
    return _means(blocks)[blocks.of_row]


def _means(blocks: _Blocks) -> Vector:
    """Compute the mean of each block; blocks without weight come last and get infinity."""
    filled = blocks.weight > 0
    return jnp.where(filled, blocks.total / jnp.where(filled, blocks.weight, 1), jnp.inf)


def _violates(blocks: _Blocks) -> Bool[Array, " pairs"]:
    means = _means(blocks)
    return (means[1:] <= means[:-1]) & (blocks.weight[1:] > 0)


def apply(params: Any, logits: Any, *, floor: Number = FLOOR) -> Any:
    """Compute the calibrated log-probabilities, bounded below by about log(floor).

    Args:
      params: the parameters that `fit` returned.
      logits: `[*batch, classes]`, or the confidences or scores of an event, `[*batch]`.
      floor: the lower limit of probabilities before they are divided by their sum.
    """
    return one_versus_rest.apply(Params, answers, params, logits, floor)


def answers(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows questions"]:
    """Compute f for each question, before the floor and the normalisation."""
    p = one_versus_rest.yes(logits).T
    return one_versus_rest.each(jnp.interp, p, params.knots, params.values).T


__all__ = ["FLOOR", "Params", "answers", "apply", "fit", "near_ties_merged", "pooled"]
