"""Intervals and p-values as tables show them, and the notes that prevent misreading them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import inference
from calib_jax.report.records import base_name

BY_SQUARED_ERROR = (
    "p of ece, adaptive_ece and other top-label errors in bins: of the difference of debiased"
    " squared errors (inference.compare_calibration), because noise alone raises the errors shown."
    " p of other metrics: paired bootstrap. A score such as nll or brier is no test of calibration."
)
SQUARED_ERROR = "squared_calibration_error"  # the metric of the rows with the valid test
OF_SQUARED_ERROR = (
    "squared_calibration_error: the debiased squared error of the stated probabilities, in bins of"
    " equal width; interval and p of its difference are those of inference.compare_calibration."
    " Noise does not raise it, so it is the test of which model is calibrated better. p of other"
    " metrics: paired bootstrap. A score such as nll or brier is no test of calibration."
)
COUNTS = (
    "p and interval of a difference of calibration errors need weights that count examples: 0, 1,"
    " 2, ..."
)
NOISE_BOUNDS = (
    "Interval of a difference of ece or adaptive_ece: it bounds the noise of both errors"
    " (inference.compare_ece), and is wide. Over several seeds, it is of the mean of these runs."
    " Intervals of other differences: paired bootstrap."
)
_NO_INTERVAL = (
    "No interval of the difference of {names}: none is known that contains the true difference as"
    " often as stated."
)
_BOOTSTRAP = (
    "Intervals of differences of {names} are bootstrap intervals. They include the noise of both"
    " errors, so they can exclude 0 where the models are equally well calibrated."
)
# Bootstrap p-values of differences test a difference of errors that include noise.
_NO_P = (
    "No p-value for {names}: noise alone raises a plug-in calibration error, by an amount that"
    " depends on the model's sharpness, so two perfectly calibrated models can differ, and a"
    " bootstrap interval of the difference can exclude 0."
)
_CONSTANT = (
    "No interval of {names}: all resamples have the same value, so they do not show how uncertain"
    " it is."
)
_BOOTSTRAPPED = (
    "Intervals of {names} are bootstrap intervals: noise raises the value, and resampling raises it"
    " again, so they can exclude the true value, such as the error 0 of a calibrated model."
)
NOISE_BOUND = "noise bound"
NO_INTERVAL = "none"
STAR = 0.05
ENOUGH_CLUSTERS = 30
ENOUGH_EXAMPLES = 10
_MOST_LISTED = 5
# Metrics whose value depends on each class's examples, or on the right and wrong predictions.
BY_CLASS = (
    *("auroc", "average_precision", "mean_recall", "mean_precision", "mean_iou"),
    *("per_class_recall", "per_class_precision", "per_class_iou"),
)
BY_CORRECTNESS = (
    *("accuracy", "error", "top_k", "aurc", "augrc", "excess_aurc", "selective_accuracy"),
    *("risk_at_coverage", "coverage_at_risk", "signed_gap"),
)
BANDS = "The bands of the reliability diagrams assume independent examples, not clusters."
HOLM = (
    "p of a class or group: of the hypothesis that the model is calibrated there, corrected for the"
    " number of classes or groups (Holm)."
)
PAIRS = (
    "p of all pairs of models: on the same questions, after Holm's correction for all pairs of a"
    " metric."
)
NAN = "nan: the metric has no value on these examples."


def shown(value: Any, low: Any, high: Any, kind: str) -> tuple[float, float, float, str]:
    """Return an estimate as floats, and the kind of the interval to show.

    The ends are NaN without an interval, because all resamples have the value of the estimate.

    An accuracy of 1 on 18 examples is 1 in every resample, but this does not make it certain. A
    noise bound comes from a test, and is kept.

    >>> shown(1.0, 1.0, 1.0, "percentile")
    (1.0, nan, nan, 'none')
    >>> shown(0.5, 0.4, 0.6, "percentile")
    (0.5, 0.4, 0.6, 'percentile')
    """
    value, low, high = float(value), float(low), float(high)
    slack = 1e-6 * abs(value)  # the rounding of float32
    if not kind.startswith(NOISE_BOUND) and max(abs(low - value), abs(high - value)) <= slack:
        return value, math.nan, math.nan, NO_INTERVAL
    return value, low, high, kind


def adjusted(columns: Iterable[Hashable], p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of each column by `inference.holm`; None stays None and is not counted.

    Args:
      columns: the column of each p-value.
      p_values: the p-values.

    >>> adjusted(["ece", "nll", "ece", "ece"], [0.01, 0.03, None, 0.04])
    [0.02, 0.03, None, 0.04]
    """
    places: dict[Hashable, list[int]] = {}
    for place, (column, p) in enumerate(zip(columns, p_values, strict=True)):
        if p is not None:
            places.setdefault(column, []).append(place)
    p_holm: list[float | None] = [None] * len(p_values)
    for of_column in places.values():
        given = np.array([p_values[place] for place in of_column], float)
        for place, p in zip(of_column, inference.holm(given).tolist(), strict=True):
            p_holm[place] = p
    return p_holm


def both_readings(event: str) -> str:
    """Explain the two readings of two classes.

    >>> both_readings("fraud")[:68]
    'Two classes have two readings. (fraud): the probability of fraud is '
    """
    return (
        f"Two classes have two readings. ({event}): the probability of {event} is the confidence of"
        f" the event {event}, also below 1/2. (top label): the larger probability is the"
        " confidence, and right means that this class is true. Claims of papers are about the top"
        " label."
    )


def starred(p_holm: float | None) -> str:
    """Return a star for an adjusted p-value below 5 %."""
    return "*" if p_holm is not None and p_holm < STAR else ""


def least_p(metric: str, num_resamples: int) -> float:
    """Return the smallest possible p-value of a metric's difference; 0 for an asymptotic test."""
    asymptotic = (SQUARED_ERROR, *inference.BY_SQUARED_ERROR)
    return 0.0 if base_name(metric) in asymptotic else 2 / (num_resamples + 1)


def least_p_of_bound(num_resamples: int, level: float) -> float:
    """Return the smallest possible p-value of a noise bound, or an upper bound for few resamples.

    >>> least_p_of_bound(num_resamples=199, level=0.9)
    0.005
    """
    return min(1 / (num_resamples + 1), (1 - level) / 2)


def unsettled(states: Mapping[str, str]) -> list[str]:
    """Explain why predictions after a fit that did not converge have no p-value.

    Args:
      states: how the fits ended, by the name of the calibrated predictions.

    >>> unsettled({"temperature": "no_optimum"})[0][:66]
    'temperature: the fit did not converge (no_optimum), and its parame'
    """
    return [
        f"{name}: the fit did not converge ({state}), and its parameters are only the best that"
        " were found. There is no p-value or star beside its numbers."
        for name, state in states.items()
    ]


def noise_floor(level: float) -> str:
    """Explain the noise floor and p of a binned calibration error.

    Args:
      level: nominal coverage of the interval, a fraction.

    >>> noise_floor(0.9)[-67:]
    'The lower end of the interval is 0 unless this test rejects at 5 %.'
    """
    return (
        "Noise floor: the mean error of a perfectly calibrated model with the same confidences. p"
        " beside it: of the hypothesis that the model is calibrated. The lower end of the interval"
        f" is 0 unless this test rejects at {50 * (1 - level):.3g} %."
    )


def constant(names: Iterable[str]) -> list[str]:
    """Explain why these metrics have no interval; return an empty list if there are none.

    >>> constant(["accuracy", "error", "accuracy"])[0][:37]
    'No interval of accuracy, error: all r'
    """
    return _named(_CONSTANT, names)


def _named(template: str, names: Iterable[str]) -> list[str]:
    """Write the different names into a note; return an empty list if there are none."""
    listed = ", ".join(dict.fromkeys(names))
    return [template.format(names=listed)] if listed else []


def no_p(names: Iterable[str], *, counted: bool = False) -> list[str]:
    """Explain why these metrics have no p-value; return an empty list if there are none.

    Args:
      names: the metrics.
      counted: whether the weights count examples, so that a squared error has a p-value.
    """
    names = list(names)
    by_squared = any(base_name(name) in inference.BY_SQUARED_ERROR for name in names)
    counts = [COUNTS] * (by_squared and not counted)
    return _named(_NO_P, names) + counts


def on_intervals(kinds: Iterable[tuple[str, str]]) -> list[str]:
    """Explain the intervals of differences of calibration errors that have a valid test.

    Args:
      kinds: names of metrics, and the kinds of the intervals of their differences.
    """
    tested = [(name, kind) for name, kind in kinds if base_name(name) in inference.BY_SQUARED_ERROR]
    return [
        *[NOISE_BOUNDS] * any(kind == NOISE_BOUND for _, kind in tested),
        *_named(_BOOTSTRAP, (name for name, kind in tested if kind in ("percentile", "basic"))),
        *no_interval(tested),
    ]


def no_interval(kinds: Iterable[tuple[str, str]]) -> list[str]:
    """Name the metrics whose difference has no valid interval; empty if there are none."""
    return _named(_NO_INTERVAL, (name for name, kind in kinds if kind == NO_INTERVAL))


def star(baseline: str, what: str) -> str:
    """Explain the star of a table of several comparisons with a baseline.

    Args:
      baseline: the name of the baseline.
      what: the models that are compared with the baseline, in the plural.
    """
    return (
        f"* p < .05 against {baseline} on the same examples, after Holm's correction for all"
        f" {what} of the column."
    )


def bootstrapped(names: Iterable[str]) -> list[str]:
    """Warn of bootstrap intervals of errors that noise raises; an empty list if there are none.

    >>> bootstrapped(["ece", "mce", "ece"])[0][:50]
    'Intervals of ece, mce are bootstrap intervals: noi'
    """
    return _named(_BOOTSTRAPPED, names)


def few_resamples(num_resamples: int, level: float) -> list[str]:
    """Warn if no resample lies beyond an end of an interval; return an empty list if some do.

    >>> few_resamples(100, 0.999)
    ['100 resamples are too few for 99.9% intervals: draw at least 2,000.']
    """
    needed = math.ceil(round(2 / (1 - level), 6))
    if num_resamples >= needed:
        return []
    return [
        f"{num_resamples:,} resamples are too few for {100 * level:g}% intervals: draw at least"
        f" {needed:,}."
    ]


def few_clusters(counts: Mapping[str, int]) -> list[str]:
    """Warn of sets of examples in too few clusters; return an empty list if there are none.

    >>> few_clusters({"all examples": 40, "group a": 12})
    ['Fewer than 30 clusters (group a: 12): such intervals are often too narrow.']
    """
    listed = _fewer(counts, ENOUGH_CLUSTERS)
    if not listed:
        return []
    return [
        f"Fewer than {ENOUGH_CLUSTERS} clusters ({listed}): such intervals are often too narrow."
    ]


def _fewer(counts: Mapping[str, int], enough: int) -> str:
    """List the first counts that are too small; empty if there are none."""
    few = [f"{name}: {count}" for name, count in counts.items() if count < enough]
    more = len(few) - _MOST_LISTED
    return ", ".join(few[:_MOST_LISTED]) + f" and {more} more" * (more > 0)


def few_examples(counts: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """Warn of metrics that depend on very few examples; return an empty list if there are none.

    Args:
      counts: the number of examples by name: of a class, of right or of wrong predictions.
      names: the metrics that depend on these examples and have a bootstrap interval.

    >>> few_examples({"class 0": 990, "class 1": 4}, ["mean_recall"])[0][:61]
    'Fewer than 10 examples (class 1: 4): the bootstrap intervals '
    """
    listed = _fewer(counts, ENOUGH_EXAMPLES)
    of_these = ", ".join(dict.fromkeys(names))
    if not listed or not of_these:
        return []
    return [
        f"Fewer than {ENOUGH_EXAMPLES} examples ({listed}): the bootstrap intervals of {of_these}"
        " are too narrow: resamples only repeat these few, and the intervals often miss the true"
        " value."
    ]


def p_of(p_value: float | None, least: float = 0.0) -> str:
    """Format a p-value with "=" or "<="; return an empty string for None.

    The least p-value of N resamples, 2 / (N + 1), is an upper bound and not an estimate.

    Args:
      p_value: the p-value.
      least: the smallest p-value that the test can return.

    >>> p_of(0.0342), p_of(2 / 1001, 2 / 1001), p_of(1.0), p_of(1e-9), p_of(None)
    ('= .034', '<= .002', '= 1.000', '<= .001', '')
    """
    if p_value is None:
        return ""
    if p_value <= least * (1 + 1e-5) or p_value < 0.0005:
        bound = math.ceil(1000 * max(p_value, least) * (1 - 1e-5)) / 1000  # rounded up
        return f"<= {_short(max(bound, 0.001))}"
    return f"= {_short(p_value)}"


def holm_of(p_value: float | None, p_holm: float | None, least: float = 0.0) -> str:
    """Format an adjusted p-value, which is a bound if the p-value itself is a bound.

    >>> holm_of(0.002, 0.008, 0.002), holm_of(0.01, 0.04, 0.002), holm_of(None, None)
    ('<= .008', '= .040', '')
    """
    if p_value is None or p_holm is None:
        return ""
    return p_of(p_holm, p_holm if p_value <= least * (1 + 1e-5) else 0.0)


def _short(p_value: float) -> str:
    return f"{p_value:.3f}".removeprefix("0")
