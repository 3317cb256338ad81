r"""Do two models need different temperatures?

The temperature T minimises the NLL of logits z / T: at $\beta = 1 / T$ the mean of $g_i =
\mathrm{E}_{p_i} z - z_{i y}$ is 0. With $h_i = \operatorname{Var}_{p_i} z$, an example changes
$\beta$ by $\psi_i = -g_i / \sum_j h_j$ to first order. So $\beta_a - \theta \beta_b$ of two models
on the same examples is asymptotically normal for every $\theta$, with the variance of the sum of
$\psi^a_i - \theta \psi^b_i$. The p-value tests $\theta = 1$, and the interval of $T_b / T_a$
contains every $\theta$ that is not rejected (Fieller). Log T itself is far from normal for a model
whose logits are nearly constant: a test on that scale rejected 13 % of true hypotheses at 5 %.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.stated import two_classes
from calib_jax.core.temperature import fit_nll
from calib_jax.core.types import Labels, Logits
from calib_jax.inference.clusters import Clusters, sums_of
from calib_jax.inference.evaluation import on_same_examples
from calib_jax.inference.normal import LEAST_UNITS, Column, clipped, p_of_z
from calib_jax.inference.tests.calibration import temperature_terms


class TemperatureDifference(NamedTuple):
    """The change of log T from model a to model b, T being the temperature of least NLL.

    Attributes:
      value: log T of model b minus log T of model a.
      low: the lower end of the interval of the value.
      high: the upper end of the interval of the value.
      p_value: two-sided, of equal temperatures; asymptotic. The p-value and the ends are NaN with
        fewer than 10 examples or clusters. The ends are infinite where the data do not bound them.
      temperature_a: the temperature of model a; above 1 if a is overconfident as a whole.
      temperature_b: the temperature of model b; above 1 if b is overconfident as a whole.
    """

    value: float
    low: float
    high: float
    p_value: float
    temperature_a: float
    temperature_b: float


def compare_temperature(
    logits_a: Any,
    logits_b: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    level: float = 0.9,
    clusters: Any = None,
) -> TemperatureDifference:
    """Compare the temperatures that two models need on the same examples.

    It is the strongest comparison of over- and underconfidence, and does not detect errors that no
    temperature changes. A model that needs T = 1.3 and one that needs T = 1 / 1.3 differ here,
    although their calibration errors may be equal. No calibrator may have been fitted on these
    examples.

    Args:
      logits_a: `[*batch, classes]`.
      logits_b: `[*batch, classes]`; the number of classes may differ.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      level: the nominal coverage of the interval, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings. In
        simulations the test at 5 % rejected up to 8 % of true hypotheses with 50 and with 500
        clusters of 20 examples.

    Returns:
      All numbers are NaN if a model has no temperature of least NLL: if it is always right, worse
      than guessing, or has equal logits for all classes.

    >>> import jax
    >>> from calib_jax import inference
    >>> logits = jax.random.normal(jax.random.key(0), (500, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits)
    >>> change = inference.compare_temperature(logits, 2 * logits, labels)
    >>> round(change.value, 3)  # log 2
    0.693
    """
    checks.level(level)
    pair = (logits_a, logits_b)
    models = on_same_examples("compare_temperature", pair, labels, weights, clusters)
    cluster = models[0].cluster
    (log_a, influence_a), (log_b, influence_b) = (
        _fit(two_classes(model.copies.logits), model.copies.labels) for model in models
    )
    if math.isnan(log_a + log_b):
        return TemperatureDifference(*4 * (math.nan,), math.exp(log_a), math.exp(log_b))
    value = log_b - log_a
    low, high, p_value = _ratio_test(
        math.exp(-log_a), math.exp(-log_b), influence_a, influence_b, cluster, level
    )
    # The interval of a model and its own scaled logits is as short as rounding errors.
    low, high = np.minimum(low, value).item(), np.maximum(high, value).item()
    return TemperatureDifference(value, low, high, p_value, math.exp(log_a), math.exp(log_b))


def _ratio_test(
    beta_a: float,
    beta_b: float,
    influence_a: Column,
    influence_b: Column,
    cluster: Clusters | None,
    level: float,
) -> tuple[float, float, float]:
    """Compute the interval of log (beta_a / beta_b) and the p-value of equal betas."""
    joint = np.stack([influence_a, influence_b], axis=1)
    joint = joint - np.mean(joint, axis=0)
    sums = joint if cluster is None else sums_of(cluster, joint)
    if len(sums) < LEAST_UNITS:
        return math.nan, math.nan, math.nan
    covariance = sums.T @ sums * len(sums) / (len(sums) - 1)
    (v_a, v_ab), (_, v_b) = covariance.tolist()
    p_value = p_of_z(beta_a - beta_b, math.sqrt(clipped(v_a - 2 * v_ab + v_b)))
    # The roots of (beta_a - theta beta_b)^2 = z^2 var(theta), a parabola in theta.
    square = NormalDist().inv_cdf((1 + level) / 2) ** 2
    first, middle, last = (
        beta_b**2 - square * v_b,
        beta_a * beta_b - square * v_ab,
        beta_a**2 - square * v_a,
    )
    root = math.sqrt(clipped(middle**2 - first * last))
    if first > 0:
        low, high = (middle - root) / first, (middle + root) / first
        return _log(low), _log(high), p_value
    # Beta_b may be 0: no upper end, and a lower end only if beta_a is not 0.
    return _log((middle - root) / first) if last > 0 > first else -math.inf, math.inf, p_value


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _fit(logits: Logits, labels: Labels) -> tuple[float, Column]:
    """Fit log T, NaN without an optimum; also return each example's influence on 1/T."""
    fit = _fit_nll(logits, labels)
    if not bool(fit.has_optimum):
        return math.nan, np.zeros(len(labels))
    score, variance, _ = temperature_terms(logits / fit.temperature, labels)
    # The NLL of a row whose true class has probability 0 is infinite at every temperature: the fit
    # ignores the row, so it has no influence.
    counted = np.isfinite(np.asarray(score))
    slope, spread = (
        np.where(counted, np.asarray(part, np.float64), 0) for part in (score, variance)
    )
    beta = 1 / float(fit.temperature)
    return -math.log(beta), -beta * slope / float(np.sum(spread))


_fit_nll = jax.jit(fit_nll)
