r"""Is the top label calibrated, whatever the scale of its errors? Adaptive T-Cal.

Few bins average errors that change their sign, and many bins have too few examples each. T-Cal
computes the debiased squared error on $2^b$ bins of equal width for every b up to
$2 \log_2 (n / \sqrt{\log n})$. Each error is divided by its standard deviation for a calibrated
model,

$$\operatorname{var} = \frac{2}{n^2} \sum_{b : n_b \ge 2}
  \frac{(\sum_i s_i)^2 - \sum_i s_i^2}{(n_b - 1)^2}, \quad s_i = c_i (1 - c_i),$$

and the largest quotient is the statistic. Draws of a calibrated model have the same maximum, so
the test is exact, and needs no correction for the number of scales.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core.types import Array
from calib_jax.inference.bounds import null_draws
from calib_jax.inference.evaluation import Evaluation, in_order, independent
from calib_jax.inference.normal import Column
from calib_jax.inference.tests.calibration import CalibrationTest, key_given, register


@register("t_cal")
def t_cal(
    evaluation: Evaluation, *, key: Array | None = None, num_resamples: int = 1000
) -> CalibrationTest:
    """Test by the largest standardized squared error over 2, 4, 8, ... bins.

    It finds errors of any shape, and needs more examples for over- and underconfidence than
    "kuiper" or "temperature". Its time grows with examples times draws times scales. It is NaN if
    no bin has two examples that could be wrong.

    References:
      Lee, Huang, Hassani and Dobriban, T-Cal: an optimal test for the calibration of predictive
      models, JMLR 2023.
    """
    key = key_given("t_cal", key)
    independent("calibration_test('t_cal')", evaluation)
    confidence, hit = evaluation.top_label()
    order = in_order(confidence, hit)
    confidence, hit = confidence[order], hit[order]
    scales = _scales(confidence)
    if not scales:
        return CalibrationTest(math.nan, math.nan)
    value = float(_largest(scales, confidence, hit[None])[0])
    draws = [
        _largest(scales, confidence, hits)
        for hits in null_draws.hits_in_chunks(key, confidence, num_resamples)
    ]
    return CalibrationTest(value, null_draws.p_of_draws(value, np.concatenate(draws)))


class _Scale(NamedTuple):
    """The bins of one width that contain examples.

    Attributes:
      starts: the first bin of the next finer scale in each bin; at the finest scale, the first row.
      factor: 1 / (n_b - 1) over the standard deviation, 0 in bins of one example.
      of_row: the factor of each row's bin.
    """

    starts: Integer[np.ndarray, " bins"]
    factor: Float[np.ndarray, " bins"]
    of_row: Column


def _scales(confidence: Column) -> list[_Scale]:
    """Return the scales from the finest to the coarsest, without scales of equal bins."""
    num_rows = len(confidence)
    if num_rows < 2:
        return []
    most = max(1, math.floor(2 * math.log2(num_rows / math.sqrt(math.log(num_rows)))))
    spread = confidence * (1 - confidence)
    scales: list[_Scale] = []
    finer = np.arange(num_rows)  # the first rows of the bins of the next finer scale
    for exponent in range(most, 0, -1):
        index = np.ceil(confidence * 2.0**exponent)
        first = np.flatnonzero(np.append(True, index[1:] != index[:-1]))
        if scales and len(first) == len(finer):
            continue
        size = np.diff(np.append(first, num_rows))
        products = np.square(np.add.reduceat(spread, first))
        products -= np.add.reduceat(np.square(spread), first)
        share = np.where(size >= 2, 1 / np.maximum(size - 1, 1), 0)
        variance = 2 * float(np.sum(products * np.square(share)))
        if variance <= 1e-12 * float(np.sum(np.square(spread))):
            continue
        factor = share / math.sqrt(variance)
        starts = np.searchsorted(finer, first)
        scales.append(_Scale(starts, factor, np.repeat(factor, size)))
        finer = first
    return scales


def _largest(
    scales: list[_Scale], confidence: Column, hits: Float[np.ndarray, "draws rows"]
) -> Float[np.ndarray, " draws"]:
    """Compute the largest standardized squared error of each draw."""
    sums = confidence - hits
    # The sum of all r^2 is linear in the hits: r^2 = c^2 + (1 - 2 c) a.
    of_rows = np.stack([scale.of_row for scale in scales], axis=1)
    squares = np.square(confidence) @ of_rows
    squares = squares + hits @ ((1 - 2 * confidence)[:, None] * of_rows)
    values = []
    for number, scale in enumerate(scales):
        sums = np.add.reduceat(sums, scale.starts, axis=1)
        values.append(np.square(sums) @ scale.factor - squares[:, number])
    return np.max(values, axis=0)
