"""Tails of the binomial distribution in float64."""

from __future__ import annotations

import math

import numpy as np


def lower_tail(successes: int, trials: int, probability: float) -> float:
    """Compute the probability of at most this many successes."""
    if successes >= trials or probability <= 0:
        return 1.0
    if successes < 0 or probability >= 1:
        return 0.0
    if successes > trials * probability:  # sum the smaller tail
        return 1 - lower_tail(trials - successes - 1, trials, 1 - probability)
    log_term = (
        math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    )
    log_term += successes * math.log(probability) + (trials - successes) * math.log1p(-probability)
    # Ratios of a term to the next larger one; 60 standard deviations contain every digit.
    number = min(successes, 200 + 60 * math.isqrt(trials))
    fewer = successes - np.arange(number, dtype=np.float64)
    ratios = fewer * (1 - probability) / ((trials - fewer + 1) * probability)
    return min(1.0, math.exp(log_term) * (1 + float(np.sum(np.cumprod(ratios)))))
