r"""Bayesian binning into quantiles (BBQ): an average over histograms of equal mass.

A model is a histogram with B bins of equal mass, for every B from about $n^{1/3} / 10$ to
$10\, n^{1/3}$. Its weight is its marginal likelihood under Beta priors, and its prediction is the
posterior mean of the frequency in a bin. Each class is calibrated against the rest, and the K
probabilities are divided by their sum; two classes have one question, about class 1.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln
from jaxtyping import Float

from calib_jax.calibrators.isotonic import Groups, grouped
from calib_jax.calibrators.parts import contract, one_versus_rest
from calib_jax.calibrators.parts.contract import FitData, State
from calib_jax.core import binning, checks
from calib_jax.core.types import Array, Number, Vector

_RANGE = 10.0  # the numbers of bins lie within this factor of the cube root of n
_MOST = 10_000  # bins, those of 10^9 examples: weights may sum to any number
_FLOOR = 0.0  # a posterior mean is never 0 or 1, nor may rounding make it 1
_CERTAIN = 5e-3  # prior means keep this distance from 0 and 1


class BbqParams(NamedTuple):
    """A step function for every question: edges between examples, and values between edges.

    Edges after the last example repeat 1.
    """

    edges: Float[Array, "questions steps+1"]
    values: Float[Array, "questions steps"]
    state: State


Params = BbqParams


def fit(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    prior_strength: Number = 2.0,
    prior_per_bin: bool = False,
) -> Any:
    r"""Average histograms of equal mass by their marginal likelihood.

    The prior of a bin's frequency is $\mathrm{Beta}(s m, s (1 - m))$ with the midpoint m of the
    bin, kept .005 from 0 and 1, and $s = N' / B$. A bin with $n_b$ examples and $k_b$ hits predicts
    $(k_b + s m) / (n_b + s)$. Equal probabilities (within 1e-6, in float64 1e-15) share a bin; B
    counts the bins with examples, whose edges lie halfway between two examples. About
    $10\, n^{1/3}$ models of n examples are averaged for every class, so this takes longer than the
    other calibrators of one class: 50,000 examples of two classes take about a second on a laptop.

    Args:
      logits: held-out logits or log-probabilities, `[*batch, classes]`, or a `metrics.Stated`.
      labels: the true classes; a `Stated` holds its own.
      weights: weight 0 drops an example, weight k counts it k times.
      prior_strength: $N'$, the number of examples that all priors of a model together count as.
      prior_per_bin: whether N' is the strength of each bin, as in the authors' code.

    References:
      Naeini, Cooper and Hauskrecht 2015, Obtaining well calibrated probabilities using Bayesian
      binning; Guo et al. 2017, section 4.1 (more than two classes).
    """
    checks.above("prior_strength", prior_strength, 0)
    examples, marked = contract.given("bbq", logits, labels, weights)
    return marked(_fit(examples, prior_strength, jnp.asarray(prior_per_bin)))


@jax.jit
def _fit(examples: FitData, prior_strength: Number, prior_per_bin: Array) -> Params:
    rows = examples.rows()
    # Weighted rows are copies, so there may be models of more bins than rows.
    size, limit = len(rows.labels), _MOST
    if examples.weights is None:
        size = limit = min(size, math.ceil(_RANGE * size ** (1 / 3)))

    def fit_question(p: Vector, target: Vector, weight: Vector) -> tuple[Array, Array]:
        groups = grouped(p, target, weight, alike=examples.weights is None)
        edges = _edges(groups)
        total = jnp.sum(weight)
        number = jnp.round(total, 3)  # in another order the sum of 20 rows may be 19.999998
        root = jnp.cbrt(number)
        most = jnp.clip(jnp.ceil(_RANGE * root), 1, jnp.clip(number, 1, limit))
        fewest = jnp.clip(jnp.floor(root / _RANGE), 1, most)

        def join(num_bins: Array, average: tuple[Array, ...]) -> tuple[Array, ...]:
            """Add to the weighted sum of predictions, relative to the largest log score so far."""
            log_score, values = _model(groups, edges, num_bins, size, prior_strength, prior_per_bin)
            largest = jnp.maximum(log_score, average[0])
            old, new = jnp.exp(average[0] - largest), jnp.exp(log_score - largest)
            return largest, old * average[1] + new, old * average[2] + new * values

        nothing = jnp.zeros_like(total)
        first = nothing - jnp.inf, nothing, jnp.zeros_like(p)
        fewest, most = (number.astype(jnp.int32) for number in (fewest, most))
        _, weights, sums = lax.fori_loop(fewest, most + 1, join, first)
        values = jnp.minimum(sums / weights, 1 - jnp.finfo(p.dtype).epsneg)
        # If the question is closed in all rows: the midpoints of equal steps.
        some = total > 0
        even = jnp.linspace(0, 1, len(p) + 1, dtype=p.dtype)
        return jnp.where(some, edges, even), jnp.where(some, values, (even[1:] + even[:-1]) / 2)

    return one_versus_rest.fitted(Params, fit_question, answers, rows, _FLOOR)


def _edges(groups: Groups) -> Float[Array, " edges"]:
    """Compute the edges halfway between neighbouring groups; edges after the last group are 1."""
    between = (groups.highest[:-1] + groups.lowest[1:]) / 2
    between = jnp.where(groups.used[1:], between, 1)
    # One example has no neighbours.
    ends = jnp.arange(2, dtype=between.dtype)
    return jnp.concatenate([ends[:1], between, ends[1:]])


def _model(
    groups: Groups, edges: Array, num_bins: Array, size: int, strength: Number, per_bin: Array
) -> tuple[Array, Vector]:
    """Compute the log marginal likelihood of one histogram, and its prediction for each group.

    Args:
      groups: the groups of examples.
      edges: the edges between groups.
      num_bins: the number of bins.
      size: a static number that `num_bins` does not exceed.
      strength: the strength of the prior.
      per_bin: whether `strength` holds for every bin.
    """
    # Number the bins that have examples; a group belongs to the bin in which it begins.
    after = jnp.cumsum(groups.weight)
    bins = jnp.asarray(num_bins, after.dtype)
    place = jnp.floor((after - groups.weight) * bins / jnp.where(after[-1] > 0, after[-1], 1))
    used = groups.used
    opens = used & jnp.append(True, place[1:] > place[:-1])
    index = jnp.maximum(jnp.cumsum(opens) - 1, 0)
    count = jnp.sum(opens)
    # Unused groups belong to the last bin, with weight 0.
    mass, hits = (binning.class_sums(index, part, size) for part in (groups.weight, groups.hits))
    low = jnp.ones_like(mass).at[index].min(edges[:-1])
    high = jnp.zeros_like(mass).at[index].max(edges[1:])
    mean = jnp.clip((low + high) / 2, _CERTAIN, 1 - _CERTAIN)
    s = jnp.where(per_bin, strength, strength / count.astype(mass.dtype)).astype(mass.dtype)
    alpha, beta = s * mean, s * (1 - mean)
    score = gammaln(s) - gammaln(mass + s) + gammaln(hits + alpha) - gammaln(alpha)
    score += gammaln(mass - hits + beta) - gammaln(beta)
    filled = jnp.arange(size) < count
    return jnp.sum(jnp.where(filled, score, 0)), ((hits + alpha) / (mass + s))[index]


def apply(params: Any, logits: Any) -> Any:
    """Compute the calibrated log-probabilities, or the calibrated confidences of an event."""
    return one_versus_rest.apply(Params, answers, params, logits, _FLOOR)


def answers(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows questions"]:
    """Compute the average prediction for each question, before the normalisation."""
    index_of = lambda edges, p: jnp.searchsorted(edges[1:-1], p, side="right")  # noqa: E731
    return one_versus_rest.looked_up(index_of, params.edges, params.values, logits)


__all__ = ["Params", "answers", "apply", "fit"]
