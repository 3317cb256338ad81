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
from jax.custom_batching import sequential_vmap
from jaxtyping import Bool, Float, Integer

from calib_jax.calibrators.parts import contract, one_versus_rest
from calib_jax.calibrators.parts.contract import FitData, State
from calib_jax.core.binning import SHORT_SUM
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

    >>> import numpy as np
    >>> p = np.array([0.1, 0.3, 0.5, 0.7])
    >>> logits = np.log(np.stack([1 - p, p], axis=1))
    >>> params = fit(logits, [0, 1, 0, 1])
    >>> params.values
    Array([[0. , 0.5, 0.5, 1. ]], dtype=float32)
    >>> np.exp(apply(params, np.log([0.4, 0.6]))).round(3)
    array([0.25, 0.75], dtype=float32)
    """
    examples, marked = contract.given("isotonic", logits, labels, weights)
    return marked(contract.on_cpu(_fit, examples))


@jax.jit
def _fit(examples: FitData) -> Params:
    rows = examples.rows()

    def fit_question(p: Vector, target: Vector, weight: Vector) -> tuple[Array, Array]:
        # Rows of weight 0 sort to the end and repeat the last knot.
        p, target, weight = _sorted(p, target, weight, alike=examples.weights is None)
        p = near_ties_merged(p)
        value = pooled(p, target, weight)
        counts = weight > 0
        last = jnp.maximum(jnp.sum(counts) - 1, 0)
        # If the question is closed in all rows: f(p) = p.
        straight = jnp.linspace(0, 1, len(p), dtype=p.dtype)
        knots, values = (
            jnp.where(jnp.any(counts), jnp.where(counts, part, part[last]), straight)
            for part in (p, value)
        )
        return knots, values

    return one_versus_rest.fitted(Params, fit_question, answers, rows, FLOOR)


def _sorted(
    p: Vector, target: Vector, weight: Vector, *, alike: bool
) -> tuple[Vector, Vector, Vector]:
    """Sort examples by probability, those of weight 0 last, with infinity.

    If the weights are alike, 0 or 1, probabilities and targets are sorted as packed integers. The
    bit patterns of floats in [0, 1] are ordered like the floats and leave one bit free for the
    target. On a CPU this is six times as fast as sorting the arrays together.
    """
    p = jnp.where(weight > 0, p, jnp.inf)
    if not alike or p.dtype != jnp.float32:
        p, target, weight = lax.sort((p, target, weight), num_keys=1)
        return p, target, weight
    bits = lax.bitcast_convert_type(p, jnp.uint32)
    code = jnp.sort((bits << 1) | (target > 0).astype(jnp.uint32))
    p = lax.bitcast_convert_type(code >> 1, jnp.float32)
    return p, (code & 1).astype(jnp.float32), jnp.isfinite(p).astype(jnp.float32)


def near_ties_merged(p: Vector) -> Vector:
    """Replace sorted probabilities by the first probability of their group.

    A group ends before the first probability that exceeds the start of the group by the resolution
    or more: 1e-6 in float32, 1e-15 in float64. Each group starts where the previous group ends.
    """
    resolution = float(jnp.finfo(p.dtype).resolution)

    def follow(first: Array, one: Array) -> tuple[Array, Array]:
        # Compare the rounded difference, not the number with a rounded sum.
        first = jnp.where(one - first >= resolution, one, first)
        return first, first

    return lax.scan(follow, jnp.full_like(p[0], -jnp.inf), p)[1]


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


def run_sums(run: Integer[Array, " rows"], values: Vector) -> Vector:
    """Sum values over runs of rows, which are numbered 0, 1, ... in ascending order.

    Many rows are summed in parts, as in `binning.cell_sums`: a run ends a part where a block of
    rows ends.

    Returns:
      As many sums as rows; those of unused numbers are 0.
    """
    num_rows = len(values)
    if num_rows <= SHORT_SUM:
        return jax.ops.segment_sum(values, run, num_rows, indices_are_sorted=True)
    block = jnp.arange(num_rows, dtype=run.dtype) // 2 ** (num_rows.bit_length() // 2)
    opens = (run[1:] > run[:-1]) | (block[1:] > block[:-1])
    part = jnp.cumsum(jnp.append(False, opens), dtype=run.dtype)
    of_parts = jax.ops.segment_sum(values, part, num_rows, indices_are_sorted=True)
    run_of_part = jnp.full_like(run, num_rows).at[part].set(run, indices_are_sorted=True)
    return jax.ops.segment_sum(of_parts, run_of_part, num_rows, indices_are_sorted=True)


def grouped(p: Vector, target: Vector, weight: Vector, *, alike: bool) -> Groups:
    """Sort the examples of positive weight and join examples of equal probability.

    A group holds the probabilities less than 1e-6 (in float64 1e-15) above its lowest probability.

    Args:
      p: the probabilities.
      target: 0 or 1.
      weight: the weights.
      alike: whether all weights are 0 or 1.
    """
    p, target, weight = _sorted(p, target, weight, alike=alike)
    first = near_ties_merged(p)
    index = jnp.cumsum(jnp.append(False, first[1:] > first[:-1]))
    mass, hits = (run_sums(index, part) for part in (weight, weight * target))
    lowest = jnp.full_like(p, jnp.inf).at[index].min(p)
    highest = jnp.full_like(p, -jnp.inf).at[index].max(p)
    return Groups(lowest, highest, mass, hits)


@sequential_vmap
def pooled(score: Vector, target: Vector, weight: Vector) -> Vector:
    """Fit a rising function to targets sorted by score, by pooling adjacent violators.

    Blocks of groups of equal score are built from the last group to the first. A group begins a
    block, which takes in the block after it while the mean falls. `vmap` fits one after the other,
    because a loop of several fits would copy the blocks of all of them in every step.
    """
    group = jnp.cumsum(jnp.append(False, score[1:] > score[:-1]))
    weight, total = (run_sums(group, part) for part in (weight, weight * target))
    last = len(weight) - 1

    def extend(state: tuple[Array, ...]) -> tuple[Array, ...]:
        row, end, mass, hits, *blocks = state
        # Reading before the write would copy the arrays in every step.
        blocks = [
            part.at[row].set(one) for part, one in zip(blocks, (end, mass, hits), strict=True)
        ]
        beyond, more, others = (part[jnp.minimum(end, last)] for part in blocks)
        # Products of a mass and hits may overflow. A block without weight has mean 0.
        tiny = jnp.finfo(mass.dtype).tiny
        falls = hits / jnp.maximum(mass, tiny) >= others / jnp.maximum(more, tiny)
        falls &= end <= last
        before = jnp.maximum(row - 1, 0)
        of_row = row - 1, row, weight[before], total[before]
        joined = row, beyond, mass + more, hits + others
        next_ = (jnp.where(falls, one, other) for one, other in zip(joined, of_row, strict=True))
        return *next_, *blocks

    ends = jnp.zeros(len(weight), jnp.int32)
    first_row = jnp.int32(last), jnp.int32(last + 1), weight[last], total[last]
    start: tuple[Any, ...] = (*first_row, ends, weight, total)
    ends = lax.while_loop(lambda state: state[0] >= 0, extend, start)[4]

    def follow(block: Array, row: Array) -> tuple[Array, Array]:
        block = jnp.where(row == ends[block], row, block)
        return block, row == block

    _, opens = lax.scan(follow, jnp.int32(0), jnp.arange(len(weight), dtype=jnp.int32))
    block = jnp.cumsum(opens) - 1
    # The sums of the loop, one row after the other, would carry the rounding of every step.
    mass, hits = (run_sums(block, part) for part in (weight, total))
    return (hits / jnp.where(mass > 0, mass, 1))[block][group]


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
