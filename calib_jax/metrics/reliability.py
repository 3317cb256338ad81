r"""Reliability curves: confidence and accuracy per bin, of the prediction or of every class."""

import statistics
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.binning import BinSums, bin_index, uniform_edges
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array
from calib_jax.metrics.bins import adaptive_ece, bin_sums, confidence_bins, equal_mass
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.terms import Columns, Ranked, ratio


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


@adaptive_ece.variant()
def adaptive_reliability(
    ranked: Ranked, *, num_bins: int = 15, binning: str = "mass"
) -> Reliability:
    r"""Compute `reliability` in the equal-mass bins of `adaptive_ece`, with 90 % intervals.

    Args:
      num_bins: number of bins; it may exceed the number of examples.
      binning: "mass" or "released", see `adaptive_ece`.
      excluded_class: a class whose probability is set to 0, so that it is never predicted.
    """
    return _curve(*equal_mass(ranked, num_bins, binning))


def _curve(bins: BinSums, edges: Array | np.ndarray, level: float = 0.9) -> Reliability:
    checks.level(level)
    n = jnp.asarray(bins.weight)
    edges = jnp.asarray(edges, n.dtype)
    accuracy = ratio(bins.hit, n)
    confidence = ratio(bins.confidence, n)
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    half_width = z * jnp.sqrt(n * accuracy * (1 - accuracy) + z**2 / 4) / (n + z**2)
    center = (n * accuracy + z**2 / 2) / (n + z**2)
    low, high = jnp.maximum(center - half_width, 0), jnp.minimum(center + half_width, 1)
    means = confidence, accuracy, confidence - accuracy
    return Reliability(edges[:-1], edges[1:], n, *means, low, high)


# --------------------------------------------------------------------------------------------
# Every class, not only the predicted one.


def _class_bins(predictions: Predictions, *, num_bins: int = 15) -> Columns:
    """Assign every probability to a bin of its class.

    Args:
      predictions: view of the logits and labels.
      num_bins: number of bins of equal width.
    """
    checks.num_bins(num_bins)
    p = jnp.where(predictions.valid[..., None], predictions.p, jnp.nan)
    columns = {"confidence": p, "hit": predictions.is_true.astype(p.dtype)}
    first_bin = num_bins * jnp.arange(predictions.num_classes, dtype=jnp.int32)
    cell = bin_index(p, uniform_edges(num_bins)) + jnp.broadcast_to(first_bin, p.shape)
    return Columns(columns, cell, num_bins * predictions.num_classes)


def _classwise_reliability(sums: Sums, *, num_bins: int = 15) -> Reliability:
    # An invalid row is in one bin of each class; its NaN must reach every mean.
    zero_or_nan = 0 * jnp.sum(sums["confidence"])
    columns = sums["weight"], sums["confidence"] + zero_or_nan, sums["hit"] + zero_or_nan
    bins = BinSums(*(column.reshape(-1, num_bins) for column in columns))
    return _curve(bins, uniform_edges(num_bins))


@metric(_class_bins, _classwise_reliability)
def classwise_reliability(
    logits: Logits, labels: Labels = None, weights: Weights = None, *, num_bins: int = 15
) -> Reliability:
    r"""Compute `reliability` of every class's probability: arrays `[classes, bins]`.

    Every example is in one bin of each class; it is a hit if the class is the true one. The
    intervals have the level 90 %.

    Args:
      num_bins: number of bins of equal width.
    """
