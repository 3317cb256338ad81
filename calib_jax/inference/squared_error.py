r"""How large is the squared calibration error of the top label, without the bias of noise?

The noise of a bin's mean makes the squared gap too large on average. The mean product of two
different examples of the bin, $r_i r_j$ with $r = c - a$, has no such bias: the debiased squared
error

$$\sum_b \frac{n_b}{n} \frac{1}{n_b (n_b - 1)} \sum_{i \ne j \in b} r_i r_j
  = \frac1n \sum_{b : n_b \ge 2} \frac{S_b^2 - Q_b}{n_b - 1}, \quad
  S_b = \sum_{i \in b} r_i, \quad Q_b = \sum_{i \in b} r_i^2$$

is unbiased given the bins, up to bins with one example, which contribute 0. It can be negative.
With clusters, only products of examples of different clusters count.
`debiased_rms_calibration_error` subtracts the variance of the hits alone, as Kumar et al. do; the
two agree if the confidence is constant in every bin.

*Two models.* The plug-in error of a calibrated model depends on its sharpness, so a difference of
plug-in errors is not centered at 0, and no test of the difference keeps its level. The debiased
squared errors are centered. Their difference D is asymptotically normal with the variance $V_1$ of
the linear terms if an error is not 0. If both are 0, it is a degenerate U-statistic with variance
$V_2$, and there $V_1$ is on average $2 V_2$. Hence $\max(V_1 - V_2, V_2)$ is the variance in both
cases; `residuals` has the formulas. In simulations of 1,000 and 10,000 examples the test rejected 1
to 7 % of true hypotheses at 5 %. With fewer than 1,000 examples n, or clusters, both are estimated
badly: of $V_1 - V_2$ only the share n / 1000 of $V_2$ is subtracted, and Student's t of $n / 10 /
(1 - n / 1000)$ degrees of freedom replaces the normal distribution. In 1,000 sets of 100, 200, 300
and 500 examples the test then rejected up to 4.0, 4.8, 5.4 and 5.2 % of true hypotheses in any of
eleven pairs of models, where it had rejected up to 13.3, 10.0, 8.4 and 6.8 %. Where errors are
rare, the variance of the outcomes has a lower bound (`residuals.Moments.scarcity`): in exact
enumerations of a single bin with .3 to 40 expected errors the test rejected at most 5.3 % of true
hypotheses, and 90 % intervals covered 89.9 % or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

from calib_jax.core import checks
from calib_jax.inference.evaluation import Evaluation, evaluated, on_same_examples, runs_of
from calib_jax.inference.normal import normal_test
from calib_jax.inference.residuals import Binned, binned, moments, wilson_reach

# The default number of bins is accepted for any number of examples.
_ALWAYS_ALLOWED = 15


class SquaredError(NamedTuple):
    """The debiased squared calibration error with its interval, and its root, as Python floats.

    Attributes:
      value: the debiased squared error, negative in about half of all calibrated models; NaN if no
        bin has two examples.
      low: lower end, 0 if the test of a squared error of 0 does not reject.
      high: upper end.
      root: the root of `value`, a calibration error; 0 if `value` is negative.
      root_low: the root of `low`.
      root_high: the root of `high`.
    """

    value: float
    low: float
    high: float
    root: float
    root_low: float
    root_high: float


def debiased_squared_error(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    num_bins: int = 15,
    level: float = 0.9,
    clusters: Any = None,
) -> SquaredError:
    r"""Compute the debiased squared calibration error of the top label, with its interval.

    It widens the interval of Sun et al. at both ends. Their upper end is too low where most
    examples lie in one bin and its gap is small, as for accurate networks: there nominal 90 %
    intervals covered 77 %. The squared mean gap of a bin, times the bin's share of the examples,
    contains noise of expectation $\lambda = \sigma_b^2 / n$. The largest $\lambda$ times $1 + z^2$
    is added, so that the upper end is $(|m| + z \sqrt\lambda)^2$ for a single bin of mean gap m.
    Where errors are rare, both of their ends are too close, because an observed variance of 0 is no
    certainty: for 1,000 examples of confidence .99 and accuracy .999 they covered 63 %. So the
    score interval of each bin's accuracy also bounds the gap (`residuals.wilson_reach`).

    In simulations of 200 to 10,000 examples nominal 90 % intervals covered 89 to 100 %, and for
    one confidence, 100 to 3,000 examples and error rates of .0002 to .3, exact enumerations gave
    90 to 100 %. The examples must be independent, or independent between `clusters`, and no
    calibrator may have been fitted on them.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      num_bins: number of bins of equal width.
      level: the nominal coverage of the interval, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. In
        simulations nominal 90 % intervals covered 86 to 98 % with 50 clusters of 20 examples, and
        89 to 99 % with 500; the ends are NaN with fewer than 10.

    References:
      Sun, Chaudhari, Barnett and Dobriban, A confidence interval for the expected calibration
      error, 2024.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.log(jnp.array([[0.9, 0.1]])), (100, 1))
    >>> error = inference.debiased_squared_error(logits, (jnp.arange(100) < 40).astype(int))
    >>> round(error.value, 4), round(error.root_low, 2), round(error.root_high, 2)
    (0.0876, 0.21, 0.38)
    """
    checks.level(level)
    evaluation = evaluated("debiased_squared_error", logits, labels, weights, clusters)
    return interval_of([(1.0, binned(evaluation, num_bins=num_bins))], level)


def interval_of(models: Sequence[tuple[float, Binned]], level: float) -> SquaredError:
    """Compute a weighted mean of errors with the interval of Sun et al., widened at both ends."""
    _, value, linear, degenerate, _, _, largest = moments(models)
    if math.isnan(value + linear):
        positive = max(0.0, value) if value == value else value
        return SquaredError(value, math.nan, math.nan, math.sqrt(positive), math.nan, math.nan)
    null_deviation, step = math.sqrt(degenerate), math.sqrt(linear)
    z_one, z_two = (NormalDist().inv_cdf(at) for at in (level, (1 + level) / 2))
    positive = max(0.0, value)
    if positive < z_one * null_deviation:
        low = 0.0
    elif positive >= 2 * z_two * step:
        low = positive - z_two * step
    elif positive >= 2 * z_one * step:
        low = positive / 2
    else:
        low = max(0.0, positive - z_one * step)
    reach = wilson_reach(models, z_two)
    low = min(low, max(0.0, positive - reach.below))
    # The second term is exact for a single bin, and small beside the first for many.
    high = positive + max(z_two * step + (1 + z_two**2) * largest, reach.above + largest)
    high = min(1.0, high)
    return SquaredError(value, low, high, *map(math.sqrt, (positive, low, high)))


# --------------------------------------------------------------------------------------------
# Two models.


class CalibrationDifference(NamedTuple):
    """The change of the debiased squared calibration error from model a to model b.

    Attributes:
      value: debiased squared error of b minus the error of a; negative if b is better calibrated.
      low: lower end of the interval of the value.
      high: upper end of the interval of the value.
      p_value: two-sided, of the hypothesis that both squared errors are equal; 1 for equal
        predictions. It holds its size from 100 examples on. The value, the ends and the p-value
        are NaN if no bin of a model has two examples; the ends and the p-value are NaN
        with fewer than 10 clusters.
      error_a: the squared error of model a, or the mean error of its runs, with interval and root.
      error_b: the squared error of model b, or the mean error of its runs, with interval and root.
    """

    value: float
    low: float
    high: float
    p_value: float
    error_a: SquaredError
    error_b: SquaredError


def compare_calibration(
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    num_bins: int = 15,
    level: float = 0.9,
    clusters: Any = None,
) -> CalibrationDifference:
    """Compare the calibration of the top labels of two models on the same examples.

    The examples must be independent, or independent between `clusters`. A large p-value does not
    prove equal calibration: read the interval. No calibrator may have
    been fitted on these examples.

    Args:
      logits_a: `[*batch, classes]`, or a list of such arrays: runs whose mean error is compared.
      logits_b: the logits of the other model; the numbers of classes and of runs may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      num_bins: number of bins of equal width, for both models; at most a fifth of the number of
        examples, or 15.
      level: the nominal coverage of the intervals, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. Use a few hundred:
        in simulations the test at 5 % rejected up to 10 % of true hypotheses with 50 clusters of
        20 examples, and up to 6 % with 500.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> logits = jnp.tile(jnp.array([[2.0, 0.0]]), (100, 1))
    >>> labels = (jnp.arange(100) < 40).astype(int)
    >>> change = inference.compare_calibration(3 * logits, logits, labels)
    >>> round(change.value, 3), change.p_value < 0.01
    (-0.079, True)
    """
    checks.level(level)

    runs_a, runs_b = runs_of(logits_a), runs_of(logits_b)
    models = [*runs_a, *runs_b]
    runs = on_same_examples("compare_calibration", models, labels, weights, clusters)
    bins = [binned_for_pairs(run, num_bins) for run in runs]
    return difference_of_errors(bins[: len(runs_a)], bins[len(runs_a) :], level)


def binned_for_pairs(
    evaluation: Evaluation, num_bins: int, excluded_class: int | None = None
) -> Binned:
    """Apply `binned` after `check_bins`."""
    check_bins(num_bins, len(evaluation.copies.row))
    return binned(evaluation, num_bins=num_bins, excluded_class=excluded_class)


def check_bins(num_bins: int, num_rows: int) -> None:
    """Raise an error for so many bins that the test of two squared errors rejects too often.

    >>> check_bins(90, 100)
    Traceback (most recent call last):
    ValueError: compare_calibration: 90 bins for 100 examples: the test rejects too often above one
    bin for 5 examples; give at most 20 bins.
    """
    checks.num_bins(num_bins)
    most = max(_ALWAYS_ALLOWED, num_rows // 5)
    if num_bins > most:
        raise ValueError(
            f"compare_calibration: {num_bins} bins for {num_rows} examples: the test rejects too"
            f" often above one bin for 5 examples; give at most {most} bins."
        )


def difference_of_errors(
    runs_a: list[Binned], runs_b: list[Binned], level: float
) -> CalibrationDifference:
    """Compare the mean debiased squared errors of the runs of two models."""
    a, b = ([(1 / len(runs), bins) for bins in runs] for runs in (runs_a, runs_b))
    difference = moments([*b, *((-share, bins) for share, bins in a)])
    test = normal_test(difference.value, difference.variance, level, difference.degrees)
    errors = (interval_of(models, level) for models in (a, b))
    return CalibrationDifference(*test, *errors)
