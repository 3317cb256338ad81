r"""How many predictions can be answered so that the error rate of future ones is guaranteed?

`coverage_at_risk` chooses a threshold on the examples on which it measures the errors, so the
error rate of other examples is higher than the risk about half of the time. Here the threshold
$\theta$ is chosen so that, with a probability of at least `level` over the examples,

$$P(\hat y \ne y \mid c > \theta) \le r .$$

The candidates are a grid of thresholds that does not depend on the examples. Given the number m of
examples above a fixed threshold, their errors are Binomial(m, R), so R > r is rejected at the error
$\alpha$ if $P(\mathrm{Bin}(m, r) \le \text{errors}) \le \alpha$, the test of Clopper and Pearson.
The thresholds are tested in a fixed order, from the highest down, until one is not rejected: the
first true hypothesis in this order is rejected with a probability of at most $\alpha$, for any
number of thresholds. Because too few examples lie above the highest thresholds, J chains start at J
thresholds, each at $\alpha = (1 - \text{level}) / J$.

Geifman and El-Yaniv search the threshold by bisection at $(1 - \text{level}) / \lceil \log_2 n
\rceil$. Which thresholds a bisection visits depends on the errors, which their union bound does not
cover; a fixed order needs no such bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.inference.evaluation import evaluated, independent

# Thresholds in log-odds. Float32 rounds a confidence with log-odds above 16.6 to 1.
_HIGHEST, _STEPS_PER_UNIT = 16, 64


class GuaranteedCoverage(NamedTuple):
    """A threshold of the confidence with a guaranteed error rate, as Python floats.

    Attributes:
      threshold: answer the predictions whose confidence is greater; 0 answers all, 1 none.
      coverage: the share of these examples above the threshold.
      risk: the error rate of the examples above the threshold; NaN if there are none.
    """

    threshold: float
    coverage: float
    risk: float


def guaranteed_coverage(
    logits: Any, labels: Any = None, weights: Any = None, *, risk: float = 0.05, level: float = 0.9
) -> GuaranteedCoverage:
    """Choose the lowest confidence threshold above which the error rate is at most a risk.

    The examples must be independent, from the distribution of the predictions to be answered, and
    no training or calibrator may have used them.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      risk: the largest allowed error rate, from 0 to 1.
      level: the probability of the guarantee, a fraction.

    References:
      Geifman and El-Yaniv, Selective classification for deep neural networks, NeurIPS 2017.
      Angelopoulos et al., Learn then test: calibrating predictive algorithms to achieve risk
      control, 2021.

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
    evaluation = evaluated("guaranteed_coverage", logits, labels, weights)
    independent("guaranteed_coverage", evaluation)
    confidence, hit = evaluation.top_label()
    order = np.argsort(-confidence, kind="stable")
    errors = np.append(0, np.cumsum(1 - hit[order])).astype(int)
    thresholds, starts = _grid(evaluation.logits.shape[-1])
    answered = np.searchsorted(-confidence[order], -thresholds, side="left")
    error = (1 - level) / len(starts)
    accepted = [_last_accepted(answered[at:], errors, risk, error) + at for at in starts]
    chosen = max(
        (at for at, start in zip(accepted, starts, strict=True) if at >= start), default=-1
    )
    if chosen < 0:
        return GuaranteedCoverage(1.0, 0.0, math.nan)
    num = int(answered[chosen])
    return GuaranteedCoverage(float(thresholds[chosen]), num / len(hit), int(errors[num]) / num)


def _grid(num_classes: int) -> tuple[np.ndarray, list[int]]:
    """Return thresholds in descending order, 0 last, and the indices at which chains start."""
    # No confidence is smaller than 1 / K, but a stated one.
    lowest = -math.log(num_classes - 1) if num_classes > 1 else -_HIGHEST
    number = math.ceil((_HIGHEST - lowest) * _STEPS_PER_UNIT)
    log_odds = _HIGHEST - np.arange(number) / _STEPS_PER_UNIT
    starts = [*range(0, number, _STEPS_PER_UNIT), number]  # the last one answers all or none
    thresholds = np.append(1 / (1 + np.exp(-log_odds)), 0.0)
    # Rounded like confidences, so that a comparison in float32 selects the same examples.
    return thresholds.astype(np.float32).astype(np.float64), starts


def _last_accepted(answered: np.ndarray, errors: np.ndarray, risk: float, error: float) -> int:
    """Return the index of the last threshold before the first that is not rejected; -1 if none."""
    from scipy.special import betaincc

    right = answered - errors[answered]
    # The probability of at most that many errors among the answers: a tail of the binomial law.
    tails = np.where(right > 0, betaincc(errors[answered] + 1, right, risk), 1.0)
    (refused,) = np.nonzero(tails > error)
    return int(refused[0]) - 1 if len(refused) else len(answered) - 1
