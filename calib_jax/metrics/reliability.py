r"""Reliability curves: the numbers per bin of a reliability diagram."""

from __future__ import annotations

import dataclasses
import statistics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.binning import BinSums, class_bin_sums, uniform_edges
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PerClass
from calib_jax.metrics.contract.metric import Labels, Logits, Weights, metric
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.ranked import Ranked
from calib_jax.metrics.contract.terms import STATIC, ratio
from calib_jax.metrics.equal_mass import confidences, equal_mass
from calib_jax.metrics.fixed_bins import bin_sums, confidence_bins


class Reliability(NamedTuple):
    """Edges and contents of each bin; means are NaN in an empty bin.

    Attributes:
      lower: lower edges.
      upper: upper edges.
      weight: total weight of the examples.
      confidence: mean confidence.
      accuracy: share of hits.
      gap: confidence minus accuracy.
      low: lower end of the accuracy's Wilson interval.
      high: upper end of the accuracy's Wilson interval.
    """

    lower: Float[Array, " bins"]
    upper: Float[Array, " bins"]
    weight: Float[Array, "*shape bins"]
    confidence: Float[Array, "*shape bins"]
    accuracy: Float[Array, "*shape bins"]
    gap: Float[Array, "*shape bins"]
    low: Float[Array, "*shape bins"]
    high: Float[Array, "*shape bins"]


def _reliability(sums: Sums, *, level: float = 0.9) -> Reliability:
    bins = bin_sums(sums)
    return _curve(bins, uniform_edges(bins.weight.shape[-1]), level)


@metric(confidence_bins, _reliability)
def reliability(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    level: float = 0.9,
    num_bins: int = 15,
    edges: str = "right",
    excluded_class: int | None = None,
) -> Reliability:
    r"""Compute confidence, accuracy and the accuracy's interval in bins of equal width.

    With $n_b$ the weight of bin b and z the normal quantile of (1 + level) / 2, the accuracy's
    Wilson interval is

    $$\frac{a_b + \frac{z^2}{2 n_b}}{1 + \frac{z^2}{n_b}} \pm \frac{z}{1 + \frac{z^2}{n_b}}
      \sqrt{\frac{a_b (1 - a_b)}{n_b} + \frac{z^2}{4 n_b^2}}$$

    It lies within [0, 1] and has a positive width in bins without errors. Weights are treated
    as counts of independent examples.

    Args:
      level: nominal coverage of the interval, a fraction.
      num_bins: number of bins of equal width.
      edges: "right", "left" or "ceil", see `ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      DeGroot and Fienberg, The comparison and evaluation of forecasters, The Statistician 1983.
      Wilson, Probable inference, the law of succession, and statistical inference, JASA 1927.
    """


def _adaptive_reliability(
    ranked: Ranked, *, num_bins: int = 15, binning: str = "mass", level: float = 0.9
) -> Reliability:
    bins, edges = equal_mass(ranked, num_bins, binning)
    return _curve(bins, edges, level)


@metric(confidences, _adaptive_reliability)
def adaptive_reliability(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    num_bins: int = 15,
    binning: str = "mass",
    level: float = 0.9,
    excluded_class: int | None = None,
) -> Reliability:
    r"""Compute `reliability` in the equal-mass bins of `adaptive_ece`.

    Args:
      num_bins: number of bins; it may exceed the number of examples.
      binning: "mass" or "released", see `adaptive_ece`.
      level: nominal coverage of the interval, a fraction.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _ClassBins:
    """Terms that sum probability and occurrence per class and bin."""

    p: PerClass
    labels: Array
    num_bins: int = dataclasses.field(metadata=STATIC)

    def weigh(self, weights: Array | None) -> Sums:
        return Sums(class_bin_sums(self.p, self.labels, weights, self.num_bins)._asdict())


def _class_bins(predictions: Predictions, *, num_bins: int = 15) -> _ClassBins:
    """Assign every probability to its bin.

    Args:
      predictions: view of the logits and labels.
      num_bins: number of bins of equal width.
    """
    checks.num_bins(num_bins)
    p = jnp.where(predictions.valid[..., None], predictions.p, jnp.nan)
    return _ClassBins(p, predictions.labels, num_bins)


def _classwise_reliability(sums: Sums, *, level: float = 0.9) -> Reliability:
    # Invalid rows fall into no bin, so their NaN must reach every mean.
    zero_or_nan = 0 * jnp.sum(sums["confidence"])
    bins = BinSums(sums["weight"], sums["confidence"] + zero_or_nan, sums["hit"] + zero_or_nan)
    return _curve(bins, uniform_edges(bins.weight.shape[-1]), level)


@metric(_class_bins, _classwise_reliability)
def classwise_reliability(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    level: float = 0.9,
    num_bins: int = 15,
) -> Reliability:
    r"""Compute `reliability` of every class's probability: arrays `[classes, bins]`.

    Every example is in one bin of each class; it is a hit if the class is the true one.

    Args:
      level: nominal coverage of the interval, a fraction.
      num_bins: number of bins of equal width.
    """


def _curve(bins: BinSums, edges: Array | np.ndarray, level: float) -> Reliability:
    checks.level(level)
    n = jnp.asarray(bins.weight)
    edges = jnp.asarray(edges, n.dtype)
    accuracy = ratio(bins.hit, n)
    confidence = ratio(bins.confidence, n)
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    half_width = z * jnp.sqrt(n * accuracy * (1 - accuracy) + z**2 / 4) / (n + z**2)
    center = (n * accuracy + z**2 / 2) / (n + z**2)
    return Reliability(
        lower=edges[:-1],
        upper=edges[1:],
        weight=n,
        confidence=confidence,
        accuracy=accuracy,
        gap=confidence - accuracy,
        low=jnp.maximum(center - half_width, 0),
        high=jnp.minimum(center + half_width, 1),
    )
