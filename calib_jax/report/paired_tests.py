"""The tests behind the p-values of differences, and their correction for several comparisons.

A regular metric, such as the error or a proper score, is tested by the paired bootstrap of its
difference. A plug-in calibration error cannot be: noise raises it, by an amount that depends on the
sharpness of the model. The difference of the debiased squared errors of the same top labels is
tested instead, see `metrics.compare_calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax import metrics
from calib_jax.metrics.compare_calibration import difference_of_errors
from calib_jax.metrics.counted import are_counts, counted_in_clusters
from calib_jax.metrics.residuals import Binned, binned

# These measure the gaps of the top label in bins, as the debiased squared error does.
BY_SQUARED_ERROR = (
    *("ece", "adaptive_ece", "rms_calibration_error"),
    *("debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"),
)
STAR = 0.05


def residuals_of(
    logits: Any, labels: Any, weights: Any = None, clusters: Any = None, *, num_bins: int
) -> Binned | None:
    """Bin the residuals of a set of predictions; None if its weights do not count examples."""
    if not are_counts(weights):
        return None
    data = counted_in_clusters("compare_calibration", logits, labels, weights, clusters)
    return binned(*data, num_bins=num_bins)


def p_of_calibration(
    before: Sequence[Binned | None], after: Sequence[Binned | None]
) -> float | None:
    """Test whether the runs of two models have the same mean debiased squared error.

    Returns:
      The p-value; None if residuals are missing, NaN if no bin has two examples.
    """
    runs_before, runs_after = (
        [bins for bins in side if bins is not None] for side in (before, after)
    )
    if len(runs_before) < len(before) or len(runs_after) < len(after):
        return None
    return difference_of_errors(runs_before, runs_after, level=0.9).p_value


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values by `metrics.holm`; None stays None and is not counted.

    >>> adjusted([0.01, None, 0.04])
    [0.02, None, 0.04]
    """
    given = np.array([np.nan if p is None else p for p in p_values], float)
    corrected = metrics.holm(given).tolist()
    return [None if p is None else q for p, q in zip(p_values, corrected, strict=True)]


def starred(p_holm: float | None) -> str:
    """Return a star for an adjusted p-value below 5 %."""
    return "*" if p_holm is not None and p_holm < STAR else ""


def least_p(metric: str, num_resamples: int) -> float:
    """Return the smallest possible p-value of a metric's difference; 0 for an asymptotic test."""
    return 0.0 if metric in BY_SQUARED_ERROR else 2 / (num_resamples + 1)
