"""Intervals and p-values as tables show them, and the notes that prevent misreading them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import inference
from calib_jax.core import texts
from calib_jax.report.records import Change, Part, Results, Row, base_name

SQUARED_ERROR = "squared_calibration_error"  # the metric of the rows with the valid test
NOISE_BOUND, NO_INTERVAL = "noise bound", "none"
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
_NO_P = "No p-value for {names}: noise raises these errors, by more for the less sharp model."
_COUNTS = "p and interval of a difference of calibration errors need weights that count: 0, 1, 2."
_NO_INTERVAL = "No interval of the difference of {names}: no valid one is known."
_NAN = "nan: the metric has no value on these examples."
_BANDS = "The bands of the reliability diagrams assume independent examples, not clusters."
_HOLM = "p of a class or group: that it is calibrated, corrected for their number (Holm)."
_PAIRS = "p of all pairs of models: after Holm's correction for all pairs of a metric."
_BOOTSTRAPPED = (
    "Intervals of {names} are bootstrap intervals: noise raises the value, and resampling raises it"
    " again, so they can exclude the true value."
)
_TESTS = (
    "squared_calibration_error: debiased, in bins of equal width; interval and p of"
    " inference.compare_calibration: the test of which model is calibrated better. p of other"
    " metrics: paired bootstrap. A score such as nll or brier is no test of calibration."
)
_BOUNDS = "Interval of a difference of {names}: bounds the noise of both errors, wide."
_BOOTSTRAP = (
    "Intervals of differences of {names} are bootstrap intervals, which can exclude 0 where the"
    " models are equally well calibrated."
)
_FLOOR = (
    "Noise floor: the mean error of a perfectly calibrated model with the same confidences; p: of"
    " the hypothesis that the model is calibrated. The lower end of the interval is 0 unless this"
    " test rejects."
)
_READINGS = (
    "Two classes have two readings. ({names}): the probability of {names} is the confidence of the"
    " event, also below 1/2. (top label): the larger probability is the confidence, as in papers."
)


def shown(value: Any, low: Any, high: Any, kind: str) -> tuple[float, float, float, str]:
    """Return an estimate as floats, and the kind of the interval to show.

    The ends are NaN without an interval, because all resamples have the value of the estimate. A
    noise bound comes from a test, and is kept.

    >>> shown(1.0, 1.0, 1.0, "percentile"), shown(0.5, 0.4, 0.6, "percentile")
    ((1.0, nan, nan, 'none'), (0.5, 0.4, 0.6, 'percentile'))
    """
    value, low, high = float(value), float(low), float(high)
    slack = 1e-6 * abs(value)  # the rounding of float32
    if not kind.startswith(NOISE_BOUND) and max(abs(low - value), abs(high - value)) <= slack:
        return value, math.nan, math.nan, NO_INTERVAL
    return value, low, high, kind


def adjusted(columns: Iterable[Hashable], p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of each column by `inference.holm`; None stays None and is not counted.

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


def starred(p_holm: float | None) -> str:
    """Return a star for an adjusted p-value below 5 %."""
    return "*" if p_holm is not None and p_holm < STAR else ""


def least_p(metric: str, num_resamples: int) -> float:
    """Return the smallest possible p-value of a metric's difference; 0 for an asymptotic test."""
    asymptotic = (SQUARED_ERROR, *inference.BY_SQUARED_ERROR)
    return 0.0 if base_name(metric) in asymptotic else 2 / (num_resamples + 1)


def least_p_of_bound(report: Results) -> float:
    """Return the smallest possible p-value of a noise bound, or an upper bound for few draws."""
    return min(1 / (report.settings["resamples"] + 1), (1 - report.settings["level"]) / 2)


def is_alone(estimate: Any) -> bool:
    """Check whether a finite value has no interval."""
    return math.isfinite(estimate.value) and math.isnan(estimate.low) and math.isnan(estimate.high)


def unsettled(states: Mapping[str, str]) -> list[str]:
    """Explain why predictions after a fit without an optimum have no p-value, by their names."""
    return [
        f"{name}: the fit did not converge or is no optimum ({state}). There is no p-value or star"
        " beside its numbers."
        for name, state in states.items()
    ]


def _named(template: str, names: Iterable[str]) -> list[str]:
    """Write the different names into a note; return an empty list if there are none."""
    listed = ", ".join(dict.fromkeys(names))
    return [template.format(names=listed)] if listed else []


def constant(names: Iterable[str]) -> list[str]:
    """Explain why these metrics have no interval; return an empty list if there are none."""
    return _named("No interval of {names}: all resamples have the same value.", names)


def bootstrapped(names: Iterable[str]) -> list[str]:
    """Warn of bootstrap intervals of errors that noise raises; an empty list if there are none."""
    return _named(_BOOTSTRAPPED, names)


def no_p(names: Iterable[str], *, counted: bool = False) -> list[str]:
    """Explain why these metrics have no p-value; return an empty list if there are none.

    Args:
      names: the metrics.
      counted: whether the weights count examples, so that a squared error has a p-value.
    """
    names = list(names)
    return _named(_NO_P, names) + [_COUNTS] * (any(map(_is_binned, names)) and not counted)


def no_interval(kinds: Iterable[tuple[str, str]]) -> list[str]:
    """Name the metrics whose difference has no valid interval; empty if there are none."""
    return _named(_NO_INTERVAL, (name for name, kind in kinds if kind == NO_INTERVAL))


def _is_binned(metric: str) -> bool:
    return base_name(metric) in inference.BY_SQUARED_ERROR


def star(baseline: str, what: str) -> str:
    """Explain the star of a table of several comparisons with a baseline."""
    return (
        f"* p < .05 against {baseline} on the same examples, after Holm's correction for all"
        f" {what} of the column."
    )


def fewer(counts: Mapping[str, int], enough: int, then: str) -> list[str]:
    """Warn of sets that are too small, by name; return an empty list if there are none.

    >>> fewer({"all examples": 40, "group a": 12}, 30, "clusters ({}): too few")
    ['Fewer than 30 clusters (group a: 12): too few']
    """
    few = [f"{name}: {count}" for name, count in counts.items() if count < enough]
    more = len(few) - _MOST_LISTED
    listed = ", ".join(few[:_MOST_LISTED]) + f" and {more} more" * (more > 0)
    return [f"Fewer than {enough} {then.format(listed)}"] if few else []


def few_examples(counts: Mapping[str, int], names: Iterable[str]) -> list[str]:
    """Warn of metrics with a bootstrap interval that depend on very few examples, by name."""
    of = ", ".join(dict.fromkeys(names))
    then = f"examples ({{}}): the bootstrap intervals of {of} are too narrow."
    return fewer(counts, ENOUGH_EXAMPLES, then) if of else []


def p_of(p_value: float | None, least: float = 0.0) -> str:
    """Format a p-value with "=" or "<="; return an empty string for None.

    The least p-value of N resamples, 2 / (N + 1), is an upper bound and not an estimate.

    >>> p_of(0.0342), p_of(2 / 1001, 2 / 1001), p_of(1.0), p_of(1e-9), p_of(None)
    ('= .034', '<= .002', '= 1.000', '<= .001', '')
    """
    if p_value is None:
        return ""
    if p_value <= least * (1 + 1e-5) or p_value < 0.0005:
        bound = math.ceil(1000 * max(p_value, least) * (1 - 1e-5)) / 1000  # rounded up
        return f"<= {max(bound, 0.001):.3f}".replace(" 0", " ")
    return f"= {p_value:.3f}".replace(" 0", " ")


def holm_of(p_value: float | None, p_holm: float | None, least: float = 0.0) -> str:
    """Format an adjusted p-value, which is a bound if the p-value itself is a bound.

    >>> holm_of(0.002, 0.008, 0.002), holm_of(0.01, 0.04, 0.002), holm_of(None, None)
    ('<= .008', '= .040', '')
    """
    if p_value is None or p_holm is None:
        return ""
    return p_of(p_holm, p_holm if p_value <= least * (1 + 1e-5) else 0.0)


def warnings(report: Results) -> list[str]:
    """List what is special about these numbers: what was changed, and what does not hold."""
    parts, level = [*report.classes, *report.groups], report.settings["level"]
    values: list[Row | Part] = [*report.rows, *parts]
    triples = [(e.value, e.low, e.high) for e in (*values, *report.changes, *report.pairs)]
    drawn, needed = report.settings["resamples"], math.ceil(round(2 / (1 - level), 6))
    few = f"{drawn:,} resamples are too few for {100 * level:g}% intervals: draw {needed:,}."
    clusters = {"all examples": report.settings["clusters"]}
    clusters |= {part.part: part.clusters for part in parts}
    counts = {name: number for name, number in clusters.items() if number is not None}
    return [
        *unsettled(report.unsettled),
        *report.notes,
        *[few] * (drawn < needed),
        *fewer(counts, ENOUGH_CLUSTERS, "clusters ({}): such intervals are often too narrow."),
        *[_BANDS] * bool(counts),
        *texts.reasons(triples),
        *constant(each.metric for each in values if _is_constant(each)),
        *[_NAN] * any(math.isnan(value) for value, _, _ in triples),
    ]


def explanations(report: Results) -> list[str]:
    """List what the numbers of the tables mean."""
    changes, binned = report.changes, [c for c in report.changes if _is_binned(c.metric)]
    tested = any(base_name(change.metric) == SQUARED_ERROR for change in changes)
    untested = [report.label(c.metric) for c in changes if _is_untested(report, c)]
    corrected = any(part.p_holm is not None for part in [*report.classes, *report.groups])
    of_event = any(row.metric != base_name(row.metric) for row in report.rows)
    return [
        *[star(report.name, "comparisons")] * bool(changes),
        *[_TESTS] * tested,
        *_named(_BOUNDS, (c.metric for c in binned if c.interval == NOISE_BOUND)),
        *_named(_BOOTSTRAP, (c.metric for c in binned if c.interval in ("percentile", "basic"))),
        *no_interval((change.metric, change.interval) for change in changes),
        *no_p(untested, counted=tested),
        *[_FLOOR] * any(row.floor is not None for row in report.rows),
        *[_HOLM] * corrected,
        *[_PAIRS] * bool(report.pairs),
        *_named(_READINGS, [report.event.name] if report.event and of_event else []),
    ]


def on_record(report: Results, each: Row | Change | Part) -> list[str]:
    """List what a reader of a single number has to know."""
    names = {each.before, each.after} if isinstance(each, Change) else {each.predictions}
    states = {name: of for name, of in report.unsettled.items() if name in names}
    notes = [*texts.reasons([(each.value, each.low, each.high)]), *unsettled(states)]
    if isinstance(each, Change):
        untested = [each.metric] * _is_untested(report, each)
        return notes + no_p(untested, counted=True) + no_interval([(each.metric, each.interval)])
    return notes + constant([each.metric] * _is_constant(each))


def _is_constant(each: Row | Part) -> bool:
    """Check whether all resamples of a value are equal to it."""
    return is_alone(each) and each.floor is None


def _is_untested(report: Results, change: Change) -> bool:
    """Check whether a difference has no p-value for another reason than the state of a fit."""
    return change.p_value is None and not {change.before, change.after} & report.unsettled.keys()
