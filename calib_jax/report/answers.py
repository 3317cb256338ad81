"""The answer of a report: a sentence for each model, and one for each comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from calib_jax.report import calibration, caveats
from calib_jax.report.caveats import least_p
from calib_jax.report.records import GIVEN, Change, Event, Results, Row

# The calibration error of a sentence, and the metric of a comparison: the first that is there.
ERRORS = ("ece", "adaptive_ece", "smooth_ece", "debiased_ece", "ks_error")
RISKS = ("error", "accuracy")
_LETTERS = 30  # of a name in a table


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Shorten long names to their ends if these are unique; JSON and CSV keep full names."""
    ends = {name: name if len(name) <= _LETTERS else f"...{name[3 - _LETTERS :]}" for name in names}
    return ends if len({*ends.values()}) == len(ends) else {name: name for name in ends}


def answers(report: Results) -> list[str]:
    """List a sentence for each model, and one for each comparison with the first model.

    Predictions after a calibrator belong to the sentence of their model.
    """
    calibrated = report.calibrated
    models = [name for name in report.reliability if name not in calibrated]
    after: dict[str, list[str]] = {name: [] for name in models}
    for name, fit in calibrated.items():
        after.setdefault(fit.get("predictions", models[0]), []).append(name)
    called = shortened(models)
    lines = [
        ("" if name == GIVEN else f"{called[name]}: ") + _of_model(report, name, after[name])
        for name in models
    ]
    for name in models[1:]:
        if differences := _differences(report, name):
            lines.append(f"{called[name]} against {called[models[0]]}: {differences}.")
    return lines


def _of_model(report: Results, name: str, calibrated: list[str]) -> str:
    """Compare what a model states with what is right, and name what a calibrator changes."""
    event = report.event
    parts = [] if event is None else [_of_event(report, event, name)]
    top = _of_top_label(report, name)
    parts.append(top if event is None else f"Top label: {top}")
    measured = next((m for m in ERRORS if _row(report, _first_reading(report, m), name)), None)
    parts += [_repair(report, other, measured) for other in calibrated]
    return " ".join(filter(None, parts))


def _first_reading(report: Results, metric: str) -> str:
    """Return the name of a metric as the report reads it first: of the event of two classes."""
    of_event = metric if report.event is None else report.event.of(metric)
    return of_event if any(row.metric == of_event for row in report.rows) else metric


def _of_event(report: Results, event: Event, name: str) -> str:
    """Compare the stated probability of the event with how often it happens."""
    means = _means(event.reliability[name])
    if means is None:
        return ""
    stated, observed = means
    sentence = f"P({event.name}): {_percent(stated)} stated, {_percent(observed)} observed: "
    gap = _row(report, event.of("signed_gap"), name)
    rarer = round(report.settings["examples"] * min(observed, 1 - observed))
    size = f"{_points(abs(stated - observed))} points"
    if gap is None or not _has_interval(gap) or rarer < caveats.ENOUGH_EXAMPLES:
        sentence += f"{size} {'more' if stated > observed else 'less'} stated than observed"
    elif gap.low <= 0 <= gap.high:
        sentence += f"as observed on average (difference {_points(gap.value)} points"
        sentence += f" {_interval(gap)})"
    elif gap.value > 0:
        sentence += f"too high by {size} {_interval(gap)}"
    else:
        sentence += f"too low by {size} {_interval(gap, sign=-1)}"
    return sentence + _error_of(report, name, event.of) + "."


def _error_of(report: Results, name: str, reading: Callable[[str], str] = str) -> str:
    """Append the first calibration error that the report has."""
    for metric in ERRORS:
        if row := _row(report, reading(metric), name):
            error = f"; {report.label(row.metric)} {_points(row.value)} points"
            return error + (f" {_interval(row)}" if _has_interval(row) else "")
    return ""


def _means(bins: Any) -> tuple[float, float] | None:
    """Return the mean confidence and accuracy of a reliability table; None without examples."""
    weight, confidence, accuracy = map(np.asarray, (bins.weight, bins.confidence, bins.accuracy))
    filled = weight > 0
    if not np.any(filled):
        return None
    stated, right = (
        float(np.average(values[filled], weights=weight[filled]))
        for values in (confidence, accuracy)
    )
    return stated, right


def _of_top_label(report: Results, name: str) -> str:
    """Compare the confidence in the predictions with how often they are right."""
    means = _means(report.reliability[name])
    if means is None:
        return "no examples."
    stated, right = means
    sentence = f"{_percent(stated)} stated, {_percent(right)} right: "
    gap = _row(report, "signed_gap", name)
    # Without errors, or without hits, all resamples repeat the accuracy: their narrow interval
    # of the gap is no evidence of a direction.
    rarer = round(report.settings["examples"] * min(right, 1 - right))
    sentence += _verdict(stated - right, gap if rarer >= caveats.ENOUGH_EXAMPLES else None)
    return sentence + _error_of(report, name) + "."


def _verdict(difference: float, gap: Row | None) -> str:
    """Describe the direction in which confidence and accuracy differ, if they do beyond noise."""
    size = f"{_points(abs(difference))} points"
    if gap is None or not _has_interval(gap):
        direction = "more stated than right" if difference > 0 else "less stated than right"
        return f"{size} {direction}"
    if gap.low <= 0 <= gap.high:
        return (
            f"as sure as right on average (difference {_points(gap.value)} points {_interval(gap)})"
        )
    if difference > 0:
        return f"too sure by {_points(difference)} points {_interval(gap)}"
    return f"not sure enough by {_points(-difference)} points {_interval(gap, sign=-1)}"


def _repair(report: Results, calibrated: str, error: str | None) -> str:
    """Name the calibration error after a calibrator."""
    fit = report.calibrators[calibrated]
    what = fit["name"]
    if what == "temperature":
        what += f" {calibration.temperature(fit)}"
    if calibrated in report.unsettled:
        return f"The fit of {what} did not converge."
    now = None if error is None else _row(report, _first_reading(report, error), calibrated)
    if now is None:
        return ""
    return f"With {what}, {report.label(now.metric)} is {_points(now.value)} points."


def _differences(report: Results, name: str) -> str:
    """Name the differences of errors and of calibration from the first model; "" if none."""
    first = next(iter(report.reliability))
    changes = {c.metric: c for c in report.changes if (c.before, c.after) == (first, name)}
    risk = next((changes[metric] for metric in RISKS if metric in changes), None)
    readings = [_first_reading(report, metric) for metric in ERRORS]
    error = next((changes[metric] for metric in readings if metric in changes), None)
    parts = [_difference(report, change) for change in (risk, error) if change is not None]
    if report.event is not None:
        parts.insert(0, _difference_of_event(report, report.event, (first, name), changes))
    return "; ".join(filter(None, parts))


def _difference_of_event(
    report: Results, event: Event, models: tuple[str, str], changes: Mapping[str, Change]
) -> str:
    """Compare the signed gaps of the event: of the second of two models against the first."""
    gaps = [_row(report, event.of("signed_gap"), model) for model in models]
    change = changes.get(event.of("signed_gap"))
    if change is None or None in gaps:
        return ""
    before, after = (gap.value for gap in gaps if gap is not None)
    direction = "high" if after > 0 else "low"
    shown = f"P({event.name}) too {direction} by {_points(abs(after))} points against"
    shown += f" {_points(before if after > 0 else -before)}"
    if change.p_holm is None:
        return shown
    least = least_p(change.metric, report.settings["resamples"])
    p_value = caveats.holm_of(change.p_value, change.p_holm, least)
    unshown = "" if change.p_holm < caveats.STAR else "not shown to differ, "
    return f"{shown} ({unshown}p {p_value})"


def _difference(report: Results, change: Change) -> str:
    size = f"{_points(abs(change.value))} points {'lower' if change.value < 0 else 'higher'}"
    metric = report.label(change.metric)
    if change.p_holm is None and math.isfinite(change.low):
        if change.low <= 0 <= change.high:
            ends = f"[{_points(change.low)}, {_points(change.high)}]"
            return f"{metric} not shown to differ (difference {_points(change.value)} {ends})"
        near, far = sorted((abs(change.low), abs(change.high)))
        return f"{metric} {size} [{_points(near)}, {_points(far)}]"
    if change.p_holm is None:
        return f"{metric} {size}"
    least = least_p(change.metric, report.settings["resamples"])
    p_value = caveats.holm_of(change.p_value, change.p_holm, least)
    shown = size if change.p_holm < caveats.STAR else "not shown to differ"
    return f"{metric} {shown} (p {p_value})"


def _row(report: Results, metric: str, predictions: str) -> Row | None:
    for row in report.rows:
        if (row.metric, row.predictions) == (metric, predictions) and math.isfinite(row.value):
            return row
    return None


def _has_interval(row: Row) -> bool:
    return math.isfinite(row.low) and math.isfinite(row.high)


def _interval(row: Row, sign: int = 1) -> str:
    low, high = sorted((sign * row.low, sign * row.high))
    return f"[{_points(low)}, {_points(high)}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(value: float) -> str:
    """Format a share in percentage points.

    >>> _points(0.0567), _points(0.004), _points(-0.004), _points(0.00001)
    ('5.7', '.4', '-.4', '.0')
    """
    text = f"{100 * value:.1f}"
    text = "0.0" if text == "-0.0" else text
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
