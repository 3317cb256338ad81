"""The answer of a report: a sentence for each model, and one for each comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from calib_jax.report import calibration, caveats
from calib_jax.report.caveats import least_p
from calib_jax.report.records import EVENT, GIVEN, Change, Results, Row

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
    bins = report.reliability[name]
    weight, confidence, accuracy = map(np.asarray, (bins.weight, bins.confidence, bins.accuracy))
    filled = weight > 0
    if not np.any(filled):
        return "no examples."
    stated, right = (
        float(np.average(values[filled], weights=weight[filled]))
        for values in (confidence, accuracy)
    )
    sentence = f"{_percent(stated)} stated, {_percent(right)} right: "
    gap = _row(report, "signed_gap", name)
    error = next((row for metric in ERRORS if (row := _row(report, metric, name))), None)
    # Without errors, or without hits, all resamples repeat the accuracy: their narrow interval
    # of the gap is no evidence of a direction.
    rarer = round(report.settings["examples"] * min(right, 1 - right))
    sentence += _verdict(stated - right, gap if rarer >= caveats.ENOUGH_EXAMPLES else None)
    if error is not None:
        # Two classes have two readings, and one alone may reassure.
        for row in (error, _row(report, error.metric + EVENT, name)):
            if row is not None:
                sentence += f"; {report.label(row.metric)} {_points(row.value)} points"
                sentence += f" {_interval(row)}" if _has_interval(row) else ""
    sentence += "."
    for other in calibrated:
        sentence += _repair(report, other, error)
    return sentence


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


def _repair(report: Results, calibrated: str, error: Row | None) -> str:
    fit = report.calibrators[calibrated]
    what = fit["name"]
    if what == "temperature":
        what += f" {calibration.temperature(fit)}"
    if calibrated in report.unsettled:
        return f" The fit of {what} did not converge."
    now = None if error is None else _row(report, error.metric, calibrated)
    if now is None or error is None:
        return ""
    return f" With {what}, {error.metric} is {_points(now.value)} points."


def _differences(report: Results, name: str) -> str:
    """Name the differences of errors and of calibration from the first model; "" if none."""
    first = next(iter(report.reliability))
    changes = {c.metric: c for c in report.changes if (c.before, c.after) == (first, name)}
    risk = next((changes[metric] for metric in RISKS if metric in changes), None)
    error = next((changes[metric] for metric in ERRORS if metric in changes), None)
    return "; ".join(_difference(report, change) for change in (risk, error) if change is not None)


def _difference(report: Results, change: Change) -> str:
    size = f"{_points(abs(change.value))} points {'lower' if change.value < 0 else 'higher'}"
    if change.p_holm is None:
        return f"{change.metric} {size}"
    least = least_p(change.metric, report.settings["resamples"])
    p_value = caveats.holm_of(change.p_value, change.p_holm, least)
    shown = size if change.p_holm < caveats.STAR else "not shown to differ"
    return f"{change.metric} {shown} (p {p_value})"


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
