"""Notes and symbols that prevent misreading of numbers in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

# Bootstrap p-values of differences test a difference of errors that include noise.
_NO_P = (
    "No p-value for {names}: noise alone raises a plug-in calibration error, by an amount that"
    " depends on the model's sharpness, so two perfectly calibrated models can differ."
)
ENOUGH_CLUSTERS = 30
BANDS = "The bands of the reliability diagrams assume independent examples, not clusters."
NOISE_FLOOR = (
    "Noise floor: the mean error of a perfectly calibrated model with the same confidences. The"
    " lower end of the interval is 0 unless the test of calibration (p) rejects."
)
HOLM = (
    "p of a class or group: of the hypothesis that the model is calibrated there, corrected for the"
    " number of classes or groups (Holm)."
)
WORST = (
    "Worst groups: searched for on a random half of the examples, tested on the other half, p"
    " corrected for the number of groups found (Holm)."
)
NAN = "nan: the metric has no value on these examples."


def no_p(names: Iterable[str]) -> list[str]:
    """Explain why these metrics have no p-value; return an empty list if there are none."""
    names = list(dict.fromkeys(names))
    return [_NO_P.format(names=", ".join(names))] if names else []


def few_clusters(counts: Mapping[str, int], most: int = 5) -> list[str]:
    """Warn of sets of examples in too few clusters; return an empty list if there are none.

    >>> few_clusters({"all examples": 40, "group a": 12})
    ['Fewer than 30 clusters (group a: 12): such intervals are often too narrow.']
    """
    few = [f"{name}: {count}" for name, count in counts.items() if count < ENOUGH_CLUSTERS]
    if not few:
        return []
    listed = ", ".join(few[:most]) + f" and {len(few) - most} more" * (len(few) > most)
    return [
        f"Fewer than {ENOUGH_CLUSTERS} clusters ({listed}): such intervals are often too narrow."
    ]


def p_of(p_value: float | None, num_resamples: int) -> str:
    """Format a p-value with "=" or "<="; return an empty string for None.

    The smallest p-value of N resamples is 2 / (N + 1), which is an upper bound and not an estimate.

    >>> p_of(0.0342, 1000), p_of(2 / 1001, 1000), p_of(1.0, 1000), p_of(None, 1000)
    ('= .034', '<= .002', '= 1.000', '')
    """
    if p_value is None:
        return ""
    floor = 2 / (num_resamples + 1)
    if p_value <= floor * (1 + 1e-5):
        return f"<= {_short(math.ceil(1000 * floor) / 1000)}"  # round up to keep a bound
    return f"= {_short(p_value)}"


def _short(p_value: float) -> str:
    return f"{p_value:.3f}".removeprefix("0")
