"""Notes and symbols that prevent misreading of numbers in a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from calib_jax import inference
from calib_jax.report import intervals
from calib_jax.report.records import base_name

BY_SQUARED_ERROR = (
    "p of ece, adaptive_ece and other top-label errors in bins: of the difference of debiased"
    " squared errors (inference.compare_calibration), because noise alone raises the errors shown."
    " p of other metrics: paired bootstrap. A score such as nll or brier is no test of calibration."
)
COUNTS = (
    "p and interval of a difference of calibration errors need weights that count examples: 0, 1,"
    " 2, ..."
)
NOISE_BOUNDS = (
    "Interval of a difference of ece or adaptive_ece: it bounds the noise of both errors"
    " (inference.compare_ece). It contains the true difference at least as often as stated, also"
    " between calibrated models, and it is wide: the test (p) is the more sensitive one. Over"
    " several seeds, both are of the mean of these runs. Intervals of other differences: paired"
    " bootstrap."
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
ENOUGH_CLUSTERS = 30
ENOUGH_EXAMPLES = 10
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
WORST = (
    "Worst groups: searched for on a random half of the examples, tested on the other half, p"
    " corrected for the number of groups found (Holm)."
)
PAIRS = (
    "p of all pairs of models: on the same questions, after Holm's correction for all pairs of a"
    " metric."
)
BOTH_READINGS = (
    "Two classes have two readings. (top label): the larger probability is the confidence, and"
    " right means that this class is true. (class 1): the probability of class 1 is the confidence"
    ' of the event "class 1", also below 1/2. Claims of papers are about the top label.'
)
NAN = "nan: the metric has no value on these examples."


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
    listed = ", ".join(dict.fromkeys(names))
    if not listed:
        return []
    return [
        f"No interval of {listed}: all resamples have the same value, so they do not show how"
        " uncertain it is."
    ]


def no_p(names: Iterable[str]) -> list[str]:
    """Explain why these metrics have no p-value; return an empty list if there are none."""
    names = list(dict.fromkeys(names))
    if not names:
        return []
    counts = [COUNTS] * any(base_name(name) in inference.BY_SQUARED_ERROR for name in names)
    return [_NO_P.format(names=", ".join(names)), *counts]


def on_intervals(kinds: Iterable[tuple[str, str]]) -> list[str]:
    """Explain the intervals of differences of calibration errors that have a valid test.

    Args:
      kinds: names of metrics, and the kinds of the intervals of their differences.
    """
    tested = [(name, kind) for name, kind in kinds if base_name(name) in inference.BY_SQUARED_ERROR]
    notes = [NOISE_BOUNDS] * any(kind == intervals.NOISE_BOUND for _, kind in tested)
    names = [name for name, kind in tested if kind in ("percentile", "basic")]
    if names:
        notes.append(_BOOTSTRAP.format(names=", ".join(dict.fromkeys(names))))
    return notes + no_interval(tested)


def no_interval(kinds: Iterable[tuple[str, str]]) -> list[str]:
    """Name the metrics whose difference has no valid interval; empty if there are none."""
    names = [name for name, kind in kinds if kind == intervals.NO_INTERVAL]
    return [_NO_INTERVAL.format(names=", ".join(dict.fromkeys(names)))] if names else []


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
    listed = ", ".join(dict.fromkeys(names))
    if not listed:
        return []
    return [
        f"Intervals of {listed} are bootstrap intervals: noise raises the value, and resampling"
        " raises it again, so they can exclude the true value, such as the error 0 of a calibrated"
        " model."
    ]


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


def few_examples(counts: Mapping[str, int], names: Iterable[str], most: int = 5) -> list[str]:
    """Warn of metrics that depend on very few examples; return an empty list if there are none.

    Args:
      counts: the number of examples by name: of a class, of right or of wrong predictions.
      names: the metrics that depend on these examples and have a bootstrap interval.
      most: the number of counts to list.

    >>> few_examples({"class 0": 990, "class 1": 4}, ["mean_recall"])[0][:61]
    'Fewer than 10 examples (class 1: 4): the bootstrap intervals '
    """
    few = [f"{name}: {n:,}" for name, n in counts.items() if n < ENOUGH_EXAMPLES]
    names = list(dict.fromkeys(names))
    if not few or not names:
        return []
    listed = ", ".join(few[:most]) + f" and {len(few) - most} more" * (len(few) > most)
    return [
        f"Fewer than {ENOUGH_EXAMPLES} examples ({listed}): the bootstrap intervals of"
        f" {', '.join(names)} are too narrow: resamples only repeat these few, and the intervals"
        " often miss the true value."
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
