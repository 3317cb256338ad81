"""The answer of a report: a sentence for each model, and one for each comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from calib_jax.report import calibrate as calibration
from calib_jax.report import caveats
from calib_jax.report.records import GIVEN, Change, Results, Row

# The calibration error of a sentence, and the metric of a comparison: the first that is there.
ERRORS = ("ece", "adaptive_ece", "smooth_ece", "debiased_ece", "ks_error")
RISKS = ("error", "accuracy")
_LETTERS = 30  # of a name in a table


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Shorten long names in the middle if they stay unique; JSON and CSV keep full names.

    >>> shortened(["temperature of a_model_with_a_long_name"])
    {'temperature of a_model_with_a_long_name': 'temperature of...h_a_long_name'}
    """
    half = (_LETTERS - 3) // 2
    short = {n: n if len(n) <= _LETTERS else f"{n[: half + 1]}...{n[-half:]}" for n in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in short}


def answers(report: Results) -> list[str]:
    """List a sentence for each model, and one for each comparison with the first model.

    Predictions after a calibrator belong to the sentence of their model.
    """
    called, first = shortened(report.models), report.models[0]
    lines = []
    for name in report.models:
        parts = [_reading(report, name, is_event) for is_event in (True, False)[not report.event :]]
        parts += [
            _repair(report, column)
            for column, fit in report.calibrated.items()
            if fit.get("predictions", first) == name
        ]
        start = "" if name == GIVEN else f"{called[name]}: "
        lines.append(start + " ".join(filter(None, parts)))
    for name in report.models[1:]:
        changes = {c.metric: c for c in report.changes if (c.before, c.after) == (first, name)}
        found = [_gaps(report, changes)]
        for metrics in (RISKS, [_first_reading(report, metric) for metric in ERRORS]):
            found += [_difference(report, changes[m]) for m in metrics if m in changes][:1]
        if differences := "; ".join(filter(None, found)):
            lines.append(f"{called[name]} against {called[first]}: {differences}.")
    return lines


def _first_reading(report: Results, metric: str) -> str:
    """Return the name of a metric as the report reads it first: of the event of two classes."""
    of_event = metric if report.event is None else report.event.of(metric)
    return of_event if any(row.metric == of_event for row in report.rows) else metric


def _reading(report: Results, name: str, is_event: bool) -> str:
    """Describe the direction in which what is stated and what happens differ, beyond noise.

    Args:
      report: the results.
      name: the predictions.
      is_event: whether the probability of the event is stated, or the confidence of the top label.
    """
    event, of_metric = report.event, _as_it_is
    bins, start = report.reliability[name], "Top label: " if event else ""
    happens, alike, over, under = ("right", "as sure as right", "too sure", "not sure enough")
    if event and is_event:
        bins, start, of_metric = event.reliability[name], f"P({event.name}): ", event.of
        happens, alike, over, under = ("observed", "as observed", "too high", "too low")
    weight, confidence, accuracy = map(np.asarray, (bins.weight, bins.confidence, bins.accuracy))
    filled = weight > 0
    if not np.any(filled):
        return f"{start}no examples."
    stated, seen = (
        float(np.average(values[filled], weights=weight[filled]))
        for values in (confidence, accuracy)
    )
    gap = _row(report, of_metric("signed_gap"), name)
    size = f"{_points(abs(stated - seen))} points"
    # Without errors, or without hits, all resamples repeat the accuracy: their narrow interval
    # of the gap is no evidence of a direction.
    rarer = round(report.settings["examples"] * min(seen, 1 - seen))
    if gap is None or not math.isfinite(gap.low) or rarer < caveats.ENOUGH_EXAMPLES:
        verdict = f"{size} {'more' if stated > seen else 'less'} stated than {happens}"
    elif gap.low <= 0 <= gap.high:
        verdict = f"{alike} on average (difference {_points(gap.value)} points{_interval(gap)})"
    else:
        sign = 1 if gap.value > 0 else -1
        verdict = f"{over if sign > 0 else under} by {size}{_interval(gap, sign)}"
    rows = [_row(report, of_metric(metric), name) for metric in ERRORS]
    errors = [
        f"; {report.label(row.metric)} {_points(row.value)} points{_interval(row)}"
        for row in filter(None, rows)
    ]
    shares = f"{100 * stated:.1f} % stated, {100 * seen:.1f} % {happens}"
    return f"{start}{shares}: {verdict}{''.join(errors[:1])}."


def _as_it_is(metric: str) -> str:
    return metric


def _repair(report: Results, calibrated: str) -> str:
    """Name the calibration error after a calibrator."""
    fit = report.calibrators[calibrated]
    what = fit["name"]
    if what == "temperature" and "common" not in str(fit["params"]):
        what += f" {calibration.temperature(fit)}"
    if calibrated in report.unsettled:
        return f"The fit of {what} is no optimum ({report.unsettled[calibrated]})."
    rows = (_row(report, _first_reading(report, metric), calibrated) for metric in ERRORS)
    now = next(filter(None, rows), None)
    return f"With {what}, {report.label(now.metric)} is {_points(now.value)} points." if now else ""


def _gaps(report: Results, changes: dict[str, Change]) -> str:
    """Compare the signed gaps of the event: of the second of two models against the first."""
    event = report.event
    change = changes.get(event.of("signed_gap")) if event else None
    if event is None or change is None:
        return ""
    before, after = (report.value(change.metric, of) for of in (change.before, change.after))
    direction, sign = ("high", 1) if after > 0 else ("low", -1)
    line = f"P({event.name}) too {direction} by {_points(sign * after)} points against"
    line += f" {_points(sign * before)}"
    if change.p_holm is None:
        return line
    unshown = "" if change.p_holm < caveats.STAR else "not shown to differ, "
    return f"{line} ({unshown}p {_p(report, change)})"


def _difference(report: Results, change: Change) -> str:
    size = f"{_points(abs(change.value))} points {'lower' if change.value < 0 else 'higher'}"
    metric, near, far = report.label(change.metric), *sorted((abs(change.low), abs(change.high)))
    if change.p_holm is not None:
        shown = size if change.p_holm < caveats.STAR else "not shown to differ"
        return f"{metric} {shown} (p {_p(report, change)})"
    if not math.isfinite(change.low):
        return f"{metric} {size}"
    if change.low <= 0 <= change.high:
        return (
            f"{metric} not shown to differ (difference {_points(change.value)}{_interval(change)})"
        )
    return f"{metric} {size} [{_points(near)}, {_points(far)}]"


def _p(report: Results, change: Change) -> str:
    least = caveats.least_p(change.metric, report.settings["resamples"])
    return caveats.holm_of(change.p_value, change.p_holm, least)


def _row(report: Results, metric: str, predictions: str) -> Row | None:
    row = report.row(metric, predictions)
    return row if row and math.isfinite(row.value) else None


def _interval(estimate: Row | Change, sign: int = 1) -> str:
    """Format an interval in points after a space; "" without one."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return f" [{_points(low)}, {_points(high)}]"


def _points(value: float) -> str:
    """Format a share in percentage points.

    >>> _points(0.0567), _points(0.004), _points(-0.004), _points(0.00001)
    ('5.7', '.4', '-.4', '.0')
    """
    text = f"{100 * value:.1f}"
    text = "0.0" if text == "-0.0" else text
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
