r"""Calibration errors without bins, from running sums of confidence and hits."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.types import Scalar, Vector
from calib_jax.metrics.contract.curves import points
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.ranked import Ranked
from calib_jax.metrics.equal_mass import confidences


def _path(ranked: Ranked) -> Vector:
    """Compute the running sums of confidence - hit, from 0 on, divided by the total weight."""
    mass, gap = points(ranked, 1, ranked.score - ranked["hit"], from_top=False)
    return ratio(gap, mass[-1])


@metric(confidences, biased=True)
def ks_error(ranked: Ranked, *, excluded_class: int | None = None) -> Scalar:
    r"""Compute the Kolmogorov-Smirnov calibration error of the top label.

    $$\max_\sigma \frac1n \Bigl| \sum_{i : c_i \le \sigma} (c_i - [\hat y_i = y_i]) \Bigr|$$

    The error needs no bins. If a model is overconfident everywhere, or underconfident everywhere,
    the error is the gap between mean confidence and accuracy. Over- and underconfidence at
    different confidences partly cancel, so the error is at most the ECE with one bin per distinct
    confidence.

    References:
      Gupta et al., Calibration of neural networks using splines, ICLR 2021.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> metrics.ks_error(logits, jnp.array([0, 1, 1]))
    Array(0.1333, dtype=float32)
    """
    return jnp.max(jnp.abs(_path(ranked)))


@metric(confidences, biased=True)
def ecce(ranked: Ranked, *, excluded_class: int | None = None) -> Scalar:
    r"""Compute the range of the cumulative differences of confidences and hits (ECCE-R).

    $$\max_{s < t} \frac1n \Bigl| \sum_{i : s < c_i \le t} (c_i - [\hat y_i = y_i]) \Bigr|$$

    This is the largest error of an interval of confidences, weighted by the share of its examples:
    the cutoff calibration error, so `cutoff_error` is the same metric. It needs no bins, and
    $\mathrm{ks\_error} \le \mathrm{ecce} \le 2 \, \mathrm{ks\_error}$.
    `inference.calibration_test("kuiper", ...)` tests it.

    References:
      Arrieta-Ibarra et al., Metrics of calibration for probabilistic predictions, JMLR 2022.
      Rossellini et al., Can a calibration metric be both testable and actionable?, 2025.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> metrics.ecce(logits, jnp.array([0, 1, 1]))
    Array(0.2667, dtype=float32)
    """
    return jnp.ptp(_path(ranked))


cutoff_error = ecce  # the name in Rossellini et al.
