r"""ENIR: an average over the path of near-isotonic regressions, weighted by the BIC.

Over examples sorted by probability, the near-isotonic regression minimises
$\tfrac12 \sum_n w_n (\beta_n - y_n)^2 + \lambda \sum_n (\beta_n - \beta_{n+1})_+$. It is the data
at $\lambda = 0$ and isotonic regression at large $\lambda$. In between neighbours join at certain
$\lambda$, and each such value gives a model. Each class is calibrated against the rest, and the K
probabilities are divided by their sum; two classes have one question, about class 1.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import xlog1py, xlogy
from jaxtyping import Bool, Float

from calib_jax.calibrators import isotonic
from calib_jax.calibrators.parts import contract, event, one_versus_rest
from calib_jax.calibrators.parts.contract import FitData, State
from calib_jax.calibrators.parts.groups import Groups, grouped
from calib_jax.core.types import Array, Logits, Number, Scalar, Vector

FLOOR = isotonic.FLOOR


class EnirParams(NamedTuple):
    """The sorted probabilities of the examples and the averages there, for every question.

    Examples that are pooled as equal share the lowest of their probabilities.
    """

    knots: Float[Array, "questions knots"]
    values: Float[Array, "questions knots"]
    state: State


Params = EnirParams


@event.fits("place")
def fit(logits: Any, labels: Any = None, weights: Any = None) -> Params:
    """Average the near-isotonic regressions at all values of lambda where neighbours join.

    A model with d different values and log-likelihood L has the weight exp(L - d log(n) / 2). The
    data themselves, at lambda 0, are not a model. Between two examples the average is linear. Equal
    probabilities are pooled first, as in `isotonic`.

    The time is about n per value of lambda, and there may be n values.

    Args:
      logits: held-out logits or log-probabilities, `[*batch, classes]`,
        a `metrics.Stated` or a `Scored`.
      labels: the true classes; a `Stated` or `Scored` holds its own.
      weights: weight 0 drops an example, weight k counts it k times.

    References:
      Naeini and Cooper 2016, Binary classifier calibration using an ensemble of near isotonic
      regression models; Tibshirani, Hoefling and Tibshirani 2011, Nearly-isotonic regression.
    """
    return _fit(contract.examples("enir", logits, labels, weights))


@jax.jit
def _fit(examples: FitData) -> Params:
    rows = examples.rows()

    def fit_question(p: Vector, target: Vector, weight: Vector) -> tuple[Array, Array]:
        groups = grouped(p, target, weight)
        values = groups.repeated(_average(groups))
        # If the question is closed in all rows: f(p) = p.
        straight = jnp.linspace(0, 1, len(p), dtype=p.dtype)
        some = jnp.any(weight > 0)
        knots = groups.repeated(groups.lowest)
        return jnp.where(some, knots, straight), jnp.where(some, values, straight)

    return one_versus_rest.fitted(Params, fit_question, answers, rows, FLOOR)


class _Path(NamedTuple):
    """The state on the path, and the average of the models so far.

    Attributes:
      starts: which groups start a block of equal values.
      falling: at the start of a block, whether the block before it has a larger value.
      penalty: lambda.
      log_score: the largest log score of a model.
      total: the sum of scores, relative to the largest score.
      values: the sum of scores times values.
    """

    starts: Bool[Array, " groups"]
    falling: Bool[Array, " groups"]
    penalty: Scalar
    log_score: Scalar
    total: Scalar
    values: Vector


class _Blocks(NamedTuple):
    """Neighbouring groups with one value, which changes linearly with lambda."""

    of_group: Array
    mean: Vector
    slope: Vector
    num_blocks: Array


def _average(groups: Groups) -> Vector:
    """Follow the path and average its models, for every group."""
    size = len(groups.weight)
    eps = float(jnp.finfo(groups.weight.dtype).eps)
    mean = groups.hits / jnp.where(groups.used, groups.weight, 1)
    log_total = jnp.log(jnp.sum(groups.weight))

    def blocks_of(path: _Path) -> _Blocks:
        index = jnp.cumsum(path.starts) - 1
        summed = functools.partial(
            jax.ops.segment_sum, segment_ids=index, num_segments=size, indices_are_sorted=True
        )
        weight, hits = summed(groups.weight), summed(groups.hits)
        filled = weight > 0
        weight = jnp.where(filled, weight, 1)
        # Only the first group of a block is marked.
        left = summed((path.falling & path.starts).astype(weight.dtype))
        right = jnp.append(left[1:], 0)
        return _Blocks(index, hits / weight, (left - right) / weight, jnp.sum(filled))

    def model(path: _Path) -> tuple[Scalar, Vector]:
        """Compute the log score and the values at lambda."""
        blocks = blocks_of(path)
        values = jnp.clip(blocks.mean + path.penalty * blocks.slope, 0, 1)[blocks.of_group]
        misses = groups.weight - groups.hits
        likelihood = jnp.sum(xlogy(groups.hits, values) + xlog1py(misses, -values))
        return likelihood - blocks.num_blocks.astype(log_total.dtype) * log_total / 2, values

    def advance(path: _Path) -> _Path:
        blocks = blocks_of(path)
        closing = blocks.slope[:-1] - blocks.slope[1:]
        meeting = (blocks.mean[1:] - blocks.mean[:-1]) / jnp.where(closing == 0, 1, closing)
        exists = jnp.arange(size - 1) < blocks.num_blocks - 1
        ahead = exists & (closing != 0) & (meeting > path.penalty)
        meeting = jnp.where(ahead, meeting, jnp.inf)
        penalty = jnp.min(meeting, initial=jnp.inf)  # one example has no pairs
        # Pairs that meet at one lambda join in one model, even if rounding separates them.
        joined = jnp.append(False, meeting <= penalty * (1 + 64 * eps))
        starts = path.starts & ~joined[blocks.of_group]
        path = path._replace(starts=starts, falling=path.falling & starts, penalty=penalty)
        log_score, values = model(path)
        largest = jnp.maximum(log_score, path.log_score)
        known = largest > -jnp.inf
        old = jnp.where(known, jnp.exp(path.log_score - largest), 0)
        new = jnp.where(known, jnp.exp(log_score - largest), 0)
        return path._replace(
            log_score=largest, total=old * path.total + new, values=old * path.values + new * values
        )

    # Neighbours that are equal at the start stay together.
    differs = groups.used[1:] & (mean[1:] != mean[:-1])
    falling = groups.used[1:] & (mean[1:] < mean[:-1])
    nothing = jnp.zeros((), mean.dtype)
    path = _Path(
        jnp.append(True, differs),
        jnp.append(False, falling),
        nothing,
        nothing - jnp.inf,
        nothing,
        jnp.zeros_like(mean),
    )
    end = lax.while_loop(lambda path: jnp.any(path.falling), advance, path)
    return jnp.where(end.total > 0, end.values / jnp.where(end.total > 0, end.total, 1), mean)


@event.applies("place")
@contract.takes(Params)
def apply(params: Params, logits: Any, *, floor: Number = FLOOR) -> Logits:
    """Compute the calibrated log-probabilities, bounded below by about log(floor).

    Args:
      params: the parameters that `fit` returned.
      logits: `[*batch, classes]`, or the confidences or scores of an event, `[*batch]`.
      floor: the lower limit of probabilities before they are divided by their sum.
    """
    return one_versus_rest.apply("enir", answers, params, logits, floor)


def answers(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows questions"]:
    """Compute the average for each question, before the floor and the normalisation."""
    return isotonic.answers(isotonic.Params(*params), logits)


__all__ = ["FLOOR", "Params", "answers", "apply", "fit"]
