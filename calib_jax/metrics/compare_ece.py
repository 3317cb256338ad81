r"""How much do the ECEs of two models differ? An interval that covers, at the cost of its width.

No bootstrap interval of the difference of two plug-in errors covers it: noise raises both, by
amounts that depend on the sharpness of each. For one model with the gaps $m = d + e$ of noise e,

$$\sum_b \operatorname{sign}(d_b) e_b \le \sum_b |m_b| - \sum_b |d_b|
  \le \sum_{b\ \text{certain}} \operatorname{sign}(m_b) e_b + \sum_{b\ \text{uncertain}} |e_b|,$$

where a bin is certain if its gap is far from 0. Both bounds are resampled, with the same examples
for both models, and their quantiles give the interval. It is honest and wide: `compare_calibration`
is the test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.types import Array
from calib_jax.metrics import resampling
from calib_jax.metrics.bin_gaps import with_variance
from calib_jax.metrics.counted import counted_in_clusters
from calib_jax.metrics.residuals import Binned, binned

__all__ = ["EceDifference", "compare_ece"]

_ENTRIES = 2**22  # multiplicities drawn at a time
Draws = Float[np.ndarray, "draws bins"]
BothDraws = Float[np.ndarray, "draws both_bins"]
Sums = Float[np.ndarray, "units bins"]


class EceDifference(NamedTuple):
    """The change of the ECE from model a to model b; it has no p-value.

    Attributes:
      value: ECE of b minus that of a.
      low: lower end of its interval.
      high: upper end of its interval.
      ece_a: of model a.
      ece_b: of model b.
    """

    value: float
    low: float
    high: float
    ece_a: float
    ece_b: float


def compare_ece(
    logits_a: Any,
    logits_b: Any,
    labels: Any,
    weights: Any = None,
    *,
    key: Array,
    num_bins: int = 15,
    level: float = 0.9,
    num_draws: int = 1000,
    clusters: Any = None,
) -> EceDifference:
    """Compute an interval of the difference of two models' ECEs on the same examples.

    In simulations nominal 90 % intervals covered 94 to 100 %, and were 1.2 to 3 times as wide as
    percentile intervals, which do not cover. Use `compare_calibration` to test for a difference.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the resamples.
      num_bins: number of bins of equal width, for both models.
      level: the nominal coverage of the interval, a fraction.
      num_draws: number of resamples.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. Use some 30 or
        more; the ends are -1 and 1 with one cluster.

    >>> from calib_jax import metrics
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0]]), (400, 1))
    >>> labels = (jnp.arange(400) < 160).astype(int)
    >>> change = metrics.compare_ece(3 * logits, logits, labels, key=jax.random.key(0))
    >>> round(change.value, 3), change.high < 0
    (-0.117, True)
    """
    checks.level(level)
    checks.at_least("num_draws", num_draws, 1)
    a, b = (
        binned(
            *counted_in_clusters("compare_ece", logits, labels, weights, clusters),
            num_bins=num_bins,
        )
        for logits in (logits_a, logits_b)
    )
    errors = [float(np.sum(np.abs(bins.total))) / len(bins.residual) for bins in (a, b)]
    value = errors[1] - errors[0]
    if a.in_clusters is not None and len(a.in_clusters[0]) < 2:
        return EceDifference(value, -1.0, 1.0, *errors)
    key_of_units, *keys = jax.random.split(key, 3)
    noise = np.split(_noise(key_of_units, _units(a), _units(b), num_draws), 2, axis=1)
    (low_a, high_a), (low_b, high_b) = (
        _excess(bins, draws, each) for bins, draws, each in zip((a, b), noise, keys, strict=True)
    )
    tail = (1 - level) / 2
    low = value - float(np.quantile(high_b - low_a, 1 - tail))
    high = value - float(np.quantile(low_b - high_a, tail))
    return EceDifference(value, max(-1.0, low), min(1.0, high), *errors)


def _units(bins: Binned) -> tuple[Sums, Float[np.ndarray, " units"]]:
    """Return the sums of residuals in each bin, and the number of examples, of what is drawn."""
    if bins.in_clusters is None:
        members = bins.bin[:, None] == np.arange(len(bins.size))
        return members * bins.residual[:, None], np.ones(len(members))
    sums, counts = bins.in_clusters
    return sums, np.sum(counts, axis=1)


def _noise(
    key: Array,
    a: tuple[Sums, Float[np.ndarray, " units"]],
    b: tuple[Sums, Float[np.ndarray, " units"]],
    num_draws: int,
) -> BothDraws:
    """Draw resampled gaps minus the gaps, side by side for both models."""
    sums, size = np.concatenate([a[0], b[0]], axis=1), a[1]
    gaps = np.sum(sums, axis=0) / np.sum(size)
    pairs = max(1, min(-(-num_draws // 2), _ENTRIES // (2 * len(size))))
    drawn: list[BothDraws] = []
    for number in range(-(-num_draws // (2 * pairs))):
        keys = jax.random.split(jax.random.fold_in(key, number), pairs)
        counts = np.asarray(
            resampling.multiplicities(keys, len(size), "multinomial", None), np.float64
        )
        drawn.append((counts @ sums) / (counts @ size)[:, None] - gaps)
    return np.concatenate(drawn)[:num_draws]


def _excess(
    bins: Binned, noise: Draws, key: Array
) -> tuple[Float[np.ndarray, " draws"], Float[np.ndarray, " draws"]]:
    """Bound how much noise increases the ECE, from below and from above, in every draw."""
    num_rows = len(bins.residual)
    sums, size = _units(bins)
    gap = bins.total / num_rows
    drawn = np.sum(np.square(sums - size[:, None] * gap), axis=0)
    if bins.in_clusters is None:
        within = bins.square - bins.total * bins.mean
    else:
        within = np.sum(np.square(sums - bins.in_clusters[1] * bins.mean), axis=0)
    variance = np.maximum(bins.spread, within) / num_rows**2
    noise = with_variance(noise, drawn / num_rows**2, variance, key)
    signed = np.sign(gap) * noise
    certain = np.abs(gap) > np.sqrt(np.log(num_rows) * variance)
    return np.sum(signed, axis=1), np.sum(np.where(certain, signed, np.abs(noise)), axis=1)
