r"""How many predictions can be answered so that the error rate of future ones is guaranteed?

`coverage_at_risk` chooses a threshold on the examples on which it measures the errors, so the
error rate of other examples is higher than the risk about half of the time. Here the threshold
$\theta$ is chosen so that, with a probability of at least `level` over the examples,

$$P(\hat y \ne y \mid c > \theta) \le r .$$

The candidates are a grid of thresholds that does not depend on the examples. Given the number m of
examples above a fixed threshold, their errors are Binomial(m, R), so R > r is rejected at the error
$\alpha$ if $P(\mathrm{Bin}(m, r) \le \text{errors}) \le \alpha$, the test of Clopper and Pearson.
The thresholds are tested in a fixed order, from the highest down. Above the highest ones are too
few examples to reject anything, so the order begins at the thresholds above which an eighth, a
quarter, a half and all of the examples lie, with the shares .2, .2, .5 and .1 of 1 - level. A
rejection passes its share on to the next threshold, and a threshold that is not rejected loses it
(Wiens and Dmitrienko). The starts depend on the confidences alone. In 400 simulated sets of eight
kinds at most 5 % of the thresholds broke the guarantee of 90 %.

In clusters, let $e_g$ of the $m_g$ answered examples of cluster g be wrong, and let M be the size
of the largest cluster. Then $L_g = (e_g + r (M - m_g)) / M$ lies in [0, 1] and has a mean above r
exactly if R > r, so the p-value is the bound of Hoeffding and Bentkus for the mean of the clusters
with an answer.

Geifman and El-Yaniv search the threshold by bisection at $(1 - \text{level}) / \lceil \log_2 n
\rceil$. Which thresholds a bisection visits depends on the errors, which their union bound does not
cover; a fixed order needs no such bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.inference.evaluation import evaluated

# Thresholds in log-odds. Float32 rounds a confidence with log-odds above 16.6 to 1.
_HIGHEST, _STEPS_PER_UNIT = 16, 64
_STARTS = {1 / 8: 0.2, 1 / 4: 0.2, 1 / 2: 0.5, 1.0: 0.1}  # share of the examples -> of 1 - level


class GuaranteedCoverage(NamedTuple):
    """A threshold of the confidence with a guaranteed error rate, as Python floats.

    Attributes:
      threshold: answer the predictions whose confidence is strictly greater (>); 0 answers all, and
        NaN, which no confidence exceeds, none.
      coverage: the share of these examples strictly above the threshold; 0 for none.
      risk: the error rate of the examples above the threshold; NaN if there are none.
    """

    threshold: float
    coverage: float
    risk: float


def guaranteed_coverage(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    risk: float = 0.05,
    level: float = 0.9,
    clusters: Any = None,
) -> GuaranteedCoverage:
    """Choose the lowest threshold so that predictions with `confidence > threshold` err rarely.

    The examples, or the clusters, must be independent, from the distribution of the predictions to
    be answered, and no training or calibrator may have used them. If no threshold can be guaranteed
    the threshold is NaN.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      risk: the largest allowed error rate, from 0 to 1.
      level: the probability of the guarantee, a fraction.
      clusters: `[*batch]`, the cluster of each example, as integers or strings, such as the
        question of several samples. Some hundred are needed before anything can be guaranteed.

    References:
      Geifman and El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017.
      Angelopoulos et al., Learn then test: calibrating predictive algorithms to achieve risk
      control, 2021.
      Wiens and Dmitrienko, The fallback procedure for evaluating a single family of hypotheses,
      2005.
      Bates et al., Distribution-free, risk-controlling prediction sets, JACM 2021.

    >>> from calib_jax import inference
    >>> import jax.numpy as jnp
    >>> sure, unsure = jnp.array([4.0, 0.0]), jnp.array([0.5, 0.0])
    >>> logits = jnp.concatenate([jnp.tile(sure, (300, 1)), jnp.tile(unsure, (100, 1))])
    >>> labels = (jnp.arange(400) >= 350).astype(int)  # half of the unsure ones are wrong
    >>> answered = inference.guaranteed_coverage(logits, labels, risk=0.05)
    >>> round(answered.threshold, 2), answered.coverage, answered.risk
    (0.62, 0.75, 0.0)
    """
    checks.level(level)
    checks.between("risk", risk, 0, 1)
    evaluation = evaluated("guaranteed_coverage", logits, labels, weights, clusters)
    confidence, hit = evaluation.top_label()
    order = np.argsort(-confidence, kind="stable")
    errors = np.append(0, np.cumsum(1 - hit[order])).astype(int)
    thresholds = _grid(evaluation.logits.shape[-1])
    answered = _above(confidence, thresholds)
    if evaluation.cluster is None:
        p_values = _tails(errors[answered], answered, risk)
    else:
        largest = np.full(np.max(evaluation.cluster) + 1, -np.inf)
        np.maximum.at(largest, evaluation.cluster, confidence)
        size = int(np.max(np.bincount(evaluation.cluster)))
        clusters_answered = _above(largest, thresholds)
        p_values = _bounds(errors[answered], answered, clusters_answered, size, risk)
    chosen = _last_rejected(answered / len(hit), p_values, 1 - level)
    if chosen is None:
        return GuaranteedCoverage(math.nan, 0.0, math.nan)
    num = int(answered[chosen])
    return GuaranteedCoverage(float(thresholds[chosen]), num / len(hit), int(errors[num]) / num)


def _grid(num_classes: int) -> np.ndarray:
    """Return thresholds in descending order, 0 last."""
    # No confidence is smaller than 1 / K, but a stated one.
    lowest = -math.log(num_classes - 1) if num_classes > 1 else -_HIGHEST
    number = math.ceil((_HIGHEST - lowest) * _STEPS_PER_UNIT)
    log_odds = _HIGHEST - np.arange(number) / _STEPS_PER_UNIT
    thresholds = np.append(1 / (1 + np.exp(-log_odds)), 0.0)
    # Rounded like confidences, so that a comparison in float32 selects the same examples.
    return thresholds.astype(np.float32).astype(np.float64)


def _above(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Count the values that are strictly greater than each threshold."""
    return np.searchsorted(np.sort(-values), -thresholds, side="left")


def _tails(errors: np.ndarray, answered: np.ndarray, risk: float) -> np.ndarray:
    """Compute the probability of at most so many errors, a tail of the binomial distribution."""
    from scipy.special import betaincc

    right = answered - errors
    return np.where(right > 0, betaincc(errors + 1, np.maximum(right, 1), risk), 1.0)


def _bounds(
    errors: np.ndarray, answered: np.ndarray, clusters: np.ndarray, size: int, risk: float
) -> np.ndarray:
    """Compute the p-values of clusters by the bound of Hoeffding and Bentkus."""
    total = (errors + risk * (size * clusters - answered)) / size
    mean = np.minimum(total / np.maximum(clusters, 1), risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = _relative(mean, risk) + _relative(1 - mean, 1 - risk)
    bentkus = math.e * _tails(np.ceil(total - 1e-9).astype(int), clusters, risk)
    p_values = np.minimum(1, np.minimum(np.exp(-clusters * gain), bentkus))
    return np.where(clusters > 0, p_values, 1.0)


def _relative(share: np.ndarray, other: float) -> np.ndarray:
    """Compute share log (share / other), a part of a relative entropy; 0 for a share of 0."""
    return np.where(share > 0, share * np.log(np.where(share > 0, share, 1) / other), 0.0)


def _last_rejected(share: np.ndarray, p_values: np.ndarray, error: float) -> int | None:
    """Test in order with the errors of the starts; return the index of the last rejection.

    Args:
      share: the share of the examples above each threshold.
      p_values: the p-value of each threshold.
      error: the probability of a wrong rejection.
    """
    given = np.zeros(len(share))
    for start, part in _STARTS.items():
        given[np.argmax(share >= start) if start < 1 else -1] += part * error
    available, chosen = 0.0, None
    for place, (part, p_value) in enumerate(zip(given, p_values, strict=True)):
        available += part
        if available > 0 and p_value <= available:
            chosen = place
        else:
            available = 0.0
    return chosen
