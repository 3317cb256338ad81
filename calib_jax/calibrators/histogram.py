r"""Histogram binning: replace a probability by the frequency of the class in its bin.

For each class, the calibrated probability is the frequency of that class among the examples whose
probability falls into the same bin. Two classes have one question, about class 1; with more
classes, the results are divided by their sum. Accuracy can change, because all probabilities of a
bin become equal.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators.parts import contract, one_versus_rest
from calib_jax.calibrators.parts.contract import FitData, State
from calib_jax.calibrators.parts.event import Scored
from calib_jax.core import binning, checks, numerics
from calib_jax.core.types import Array, Number, Vector

FLOOR = 1e-6  # the approximate lower limit of probabilities, which keeps the NLL finite


class HistogramParams(NamedTuple):
    """The edges of the bins (lo, hi] and the frequency in each bin, for every question."""

    edges: Float[Array, "questions bins+1"]
    frequency: Float[Array, "questions bins"]
    state: State


Params = HistogramParams


def fit(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    num_bins: int = 15,
    bins: str | None = None,
) -> Any:
    """Compute the frequency of each class in each bin of its probability.

    An empty bin returns its midpoint, so no probability leaves the bin.

    Args:
      logits: held-out logits or log-probabilities, `[*batch, classes]`,
        a `metrics.Stated` or a `Scored`.
      labels: the true classes; a `Stated` or `Scored` holds its own.
      weights: weight 0 drops an example, weight k counts it k times.
      num_bins: the number of bins per class.
      bins: "width" for equal parts of [0, 1], the default, or "mass" for about equal numbers of
        examples, which a `Scored` always has.
        Bins of equal mass hold whole examples, have edges halfway between two neighbours, and
        keep equal probabilities together.

    References:
      Zadrozny and Elkan 2001, Obtaining calibrated probability estimates from decision trees and
      naive Bayesian classifiers.

    >>> import numpy as np
    >>> p = np.array([0.1, 0.15, 0.9, 0.95])
    >>> logits = np.log(np.stack([1 - p, p], axis=1))
    >>> params = fit(logits, [0, 0, 1, 0], num_bins=2)
    >>> params.frequency
    Array([[0. , 0.5]], dtype=float32)
    >>> np.exp(apply(params, logits[2])).round(3)
    array([0.5, 0.5], dtype=float32)
    """
    checks.num_bins(num_bins)
    checks.one_of("bins", bins or "width", ("width", "mass"))
    examples, marked = contract.given("histogram", logits, labels, weights)
    by_place = isinstance(logits, Scored)
    if by_place and bins == "width":
        raise ValueError("histogram: bins='width' needs probabilities; for scores use bins='mass'.")
    return marked(_fit(examples, num_bins, bins or ("mass" if by_place else "width")))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _fit(examples: FitData, num_bins: int, bins: str) -> Params:
    rows = examples.rows()

    def fit_question(p: Vector, target: Vector, weight: Vector) -> tuple[Array, Array]:
        edges = jnp.asarray(binning.uniform_edges(num_bins), p.dtype)
        if bins == "mass":
            edges = jnp.where(jnp.any(weight > 0), _halfway(p, weight, num_bins), edges)
        index = binning.bin_index(p, edges)
        mass = binning.class_sums(index, weight, num_bins)
        hits = binning.class_sums(index, weight * target, num_bins)
        middle = (edges[:-1] + edges[1:]) / 2
        filled = mass > 0
        return edges, jnp.where(filled, hits / jnp.where(filled, mass, 1), middle)

    return one_versus_rest.fitted(Params, fit_question, answers, rows, FLOOR)


def _halfway(p: Vector, weight: Vector, num_bins: int) -> Float[Array, " edges"]:
    """Compute edges of bins of about equal weight, halfway between neighbours.

    With an edge on an example, rounding would decide which bin holds the example.
    """
    present = weight > 0
    order = numerics.argsort(jnp.where(present, p, jnp.inf))
    values = jnp.where(present, p, jnp.inf)[order]
    edges = binning.equal_mass_bins(values, jnp.zeros_like(p), weight[order], num_bins)[1]
    above = values[jnp.minimum(jnp.searchsorted(values, edges, side="right"), values.shape[0] - 1)]
    inner = jnp.where(jnp.isfinite(above), (edges + above) / 2, edges)[1:-1]
    return jnp.concatenate([jnp.zeros_like(p[:1]), inner, jnp.ones_like(p[:1])])


def apply(params: Any, logits: Any, *, floor: Number = FLOOR) -> Any:
    """Compute the calibrated log-probabilities, bounded below by about log(floor).

    Args:
      params: the parameters that `fit` returned.
      logits: `[*batch, classes]`, or the confidences or scores of an event, `[*batch]`.
      floor: the lower limit of probabilities before they are divided by their sum.
    """
    return one_versus_rest.apply(Params, answers, params, logits, floor)


def answers(params: Params, logits: Float[Array, "rows classes"]) -> Float[Array, "rows questions"]:
    """Gather the frequency for each question, before the floor and the normalisation."""
    index_of = lambda edges, p: binning.bin_index(p, edges)  # noqa: E731
    return one_versus_rest.looked_up(index_of, params.edges, params.frequency, logits)


__all__ = ["FLOOR", "Params", "answers", "apply", "fit"]
