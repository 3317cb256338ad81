"""The sentences of a report: intervals and p-values, notes against misreading, and its answer."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calib_jax import inference
from calib_jax.core import texts
from calib_jax.report import calibrate as calibration
from calib_jax.report.predictions import listed

if TYPE_CHECKING:
    from calib_jax.report.results import Change, Event, Part, Report, Row

GIVEN, OTHER = "as given", "other"  # the default names of the predictions
SQUARED_ERROR = "squared_calibration_error"  # the metric of the rows with the valid test
NOISE_BOUND, NO_INTERVAL = "noise bound", "none"  # kinds of intervals
STAR = 0.05
ENOUGH_EXAMPLES = 10
_MOST_LISTED = 5
# End the names of metrics of two classes that read the probability of a class as a confidence.
EVENTS = (" (class 0)", " (class 1)")
# Metrics whose value depends on each class's examples.
BY_CLASS = (
    *("auroc", "average_precision", "mean_recall", "mean_precision", "mean_iou"),
    *("per_class_recall", "per_class_precision", "per_class_iou"),
)
# The calibration error of a sentence, and the metric of a comparison: the first that is there.
ERRORS = ("ece", "adaptive_ece", "smooth_ece", "debiased_ece", "ks_error")
RISKS = ("error", "accuracy")
_LETTERS = 30  # of a name in a table

# Sentences about metrics by name, see `note`.
CONSTANT = "No interval of {}: all resamples have the same value, or too few examples or clusters."
BOOTSTRAPPED = "Bootstrap intervals of {}: noise raises the values, so they can exclude the truth."
WITHOUT_INTERVAL = "No interval of the difference of {}: no valid one is known."
WITHOUT_P = "No p-value for {}: noise raises these errors, by more for the less sharp model."
_READINGS = "Two classes have two readings: ({0}) of its probability, (top label) of the larger."
# Other sentences.
_HOLM = "p beside a difference, a class or a group: corrected for their number (Holm)."
_NAN = "nan: the metric has no value on these examples."
_TESTS = "p of squared_calibration_error: inference.compare_calibration; of others: bootstrap."
_FLOOR = (
    "Noise floor: the mean error of a calibrated model with the same confidences; p: of the"
    " hypothesis that the model is calibrated. The interval begins at 0 unless this test rejects."
)


def base_name(metric: str) -> str:
    """Return the name of the metric in the catalogue, for either reading of two classes.

    >>> base_name("ece (class 1)"), base_name("ece")
    ('ece', 'ece')
    """
    return metric.removesuffix(EVENTS[0]).removesuffix(EVENTS[1])


# ------------------------------------------------------------------------------------------------
# Intervals and p-values.


class Shown(NamedTuple):
    """An estimate as a table shows it: the ends are NaN without an interval."""

    value: float
    low: float
    high: float
    interval: str


def shown(value: Any, low: Any, high: Any, kind: str) -> Shown:
    """Return an estimate as floats, and the kind of the interval to show.

    The ends are NaN without an interval, because all resamples have the value of the estimate. A
    noise bound comes from a test, and is kept.

    >>> shown(1.0, 1.0, 1.0, "percentile")[1:], shown(0.5, 0.4, 0.6, "percentile")[1:]
    ((nan, nan, 'none'), (0.4, 0.6, 'percentile'))
    """
    value, low, high = float(value), float(low), float(high)
    slack = 1e-6 * abs(value)  # the rounding of float32
    if not kind.startswith(NOISE_BOUND) and max(abs(low - value), abs(high - value)) <= slack:
        return Shown(value, math.nan, math.nan, NO_INTERVAL)
    return Shown(value, low, high, kind)


def is_alone(estimate: Any) -> bool:
    """Check whether a finite value has no interval."""
    return math.isfinite(estimate.value) and math.isnan(estimate.low) and math.isnan(estimate.high)


def with_interval(estimate: Any, *, sign: str = "") -> str:
    """Format a value and its interval, with a mark if the value lies outside the interval.

    Args:
      estimate: an object with value, low and high; without an interval, both are NaN.
      sign: "+" also writes the sign of positive numbers.
    """
    numbers = estimate.value, estimate.low, estimate.high
    value, low, high = (f"{number:{sign}z.4f}" for number in numbers)
    return value if is_alone(estimate) else f"{value}{texts.mark(*numbers)} [{low}, {high}]"


def adjusted(columns: Iterable[Hashable], p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of each column by `inference.holm`; None stays None and is not counted.

    >>> adjusted(["ece", "nll", "ece", "ece"], [0.01, 0.03, None, 0.04])
    [0.02, 0.03, None, 0.04]
    """
    keys, given = [*columns], np.array(p_values, float)  # of None NaN, which is no test
    p_holm = np.full(len(keys), np.nan)
    for column in dict.fromkeys(keys):
        of_column = [key == column for key in keys]
        p_holm[of_column] = inference.holm(given[of_column])
    return [None if math.isnan(p) else p for p in p_holm.tolist()]


def starred(p_holm: float | None) -> str:
    """Return a star for an adjusted p-value below 5 %."""
    return "*" if p_holm is not None and p_holm < STAR else ""


def p_of(p_value: float) -> str:
    """Format a p-value.

    >>> p_of(0.0342), p_of(1.0), p_of(1e-9)
    ('= .034', '= 1.000', '< .001')
    """
    return "< .001" if p_value < 0.001 else f"= {p_value:.3f}".replace(" 0", " ")


# ------------------------------------------------------------------------------------------------
# Notes.


def note(sentence: str, names: Iterable[str]) -> list[str]:
    """Write the different names into a sentence; return an empty list if there are none."""
    joined = ", ".join(dict.fromkeys(names))
    return [sentence.format(joined)] if joined else []


def unsettled(states: Mapping[str, str]) -> list[str]:
    """Explain why predictions after a fit without an optimum have no p-value, by their names."""
    why = "the fit did not converge or is no optimum ({}): no p-value or star beside its numbers."
    return [f"{name}: {why.format(state)}" for name, state in states.items()]


def star(baseline: str, what: str) -> str:
    """Explain the star of a table of several comparisons with a baseline."""
    return f"* p < .05 against {baseline}, after Holm's correction for all {what} of the column."


def fewer(counts: Mapping[str, int | None], enough: int, then: str) -> list[str]:
    """Warn of sets that are too small, by name; return an empty list if there are none.

    >>> fewer({"all examples": 40, "group a": 12}, 30, "clusters ({}): too few")
    ['Fewer than 30 clusters (group a: 12): too few']
    """
    few = [f"{name}: {n}" for name, n in counts.items() if n is not None and n < enough]
    return note(f"Fewer than {enough} {then}", [listed(few, _MOST_LISTED)] * bool(few))


def warnings(report: Report) -> list[str]:
    """List what is special about these numbers: what was changed, and what does not hold."""
    parts = [*report.classes, *report.groups]
    clusters = {"all examples": report.settings["clusters"]} | {e.part: e.clusters for e in parts}
    changes = [each for each in report.changes if each.interval != NO_INTERVAL]
    alone = [each for each in (*report.rows, *parts) if each.floor is None] + changes
    triples = [(e.value, e.low, e.high) for e in (*report.rows, *parts, *report.changes)]
    return [
        *unsettled(report.unsettled),
        *report.notes,
        *fewer(clusters, 30, "clusters ({}): intervals and p-values are approximate."),
        *texts.reasons(triples),
        *note(CONSTANT, (report.label(e.metric) for e in alone if is_alone(e))),
        *[_NAN] * any(math.isnan(value) for value, _, _ in triples),
    ]


def explanations(report: Report) -> list[str]:
    """List what the numbers of the tables mean."""
    changes, event = report.changes, report.event
    corrected: list[Change | Part] = [*changes, *report.classes, *report.groups]
    tested = any(base_name(change.metric) == SQUARED_ERROR for change in changes)
    settled = [c for c in changes if not {c.before, c.after} & report.unsettled.keys()]
    of_event = any(row.metric != base_name(row.metric) for row in report.rows)
    return [
        *[star(report.name, "comparisons")] * bool(changes),
        *[_HOLM] * any(each.p_holm is not None for each in corrected),
        *[_TESTS] * tested,
        *note(WITHOUT_INTERVAL, (report.label(c.metric) for c in changes if c.interval == "none")),
        *note(WITHOUT_P, (report.label(c.metric) for c in settled if c.p_value is None)),
        *[_FLOOR] * any(row.floor is not None for row in report.rows),
        *note(_READINGS, [event.name] if event and of_event else []),
    ]


# ------------------------------------------------------------------------------------------------
# The answer: a sentence for each model, and one for each comparison.


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Shorten long names in the middle if they stay unique; JSON and CSV keep full names.

    >>> shortened(["temperature of a_model_with_a_long_name"])
    {'temperature of a_model_with_a_long_name': 'temperature of...h_a_long_name'}
    """
    half = (_LETTERS - 3) // 2
    short = {n: n if len(n) <= _LETTERS else f"{n[: half + 1]}...{n[-half:]}" for n in names}
    return short if len({*short.values()}) == len(short) else {name: name for name in short}


def answers(report: Report) -> list[str]:
    """List a sentence for each model, and one for each comparison with the first model.

    Predictions after a calibrator belong to the sentence of their model.
    """
    event, called, (first, *others) = report.event, shortened(report.models), report.models
    lines = []
    for name in report.models:
        parts = [_reading(report, name, each) for each in ([event] if event else []) + [None]]
        parts += [
            _repair(report, column, fit)
            for column, fit in report.calibrated.items()
            if fit.get("predictions", first) == name
        ]
        lines.append(f"{called[name]}: " * (name != GIVEN) + " ".join(filter(None, parts)))
    of_event = [event.of(metric) for metric in ("signed_gap", *ERRORS)] if event else []
    for name in others:
        changes = {c.metric: c for c in report.changes if (c.before, c.after) == (first, name)}
        asked = (of_event[:1], RISKS, [*of_event[1:], *ERRORS])
        found = [[changes[metric] for metric in metrics if metric in changes] for metrics in asked]
        if differences := "; ".join(_difference(report, each[0]) for each in found if each):
            lines.append(f"{called[name]} against {called[first]}: {differences}.")
    return lines


def _reading(report: Report, name: str, event: Event | None) -> str:
    """Describe the direction in which what is stated and what happens differ, beyond noise.

    Args:
      report: the results.
      name: the predictions.
      event: the event whose probability is stated; None for the confidence of the top label.
    """
    start = f"P({event.name}): " if event else "Top label: " if report.event else ""
    happens, over, under = ("observed", "high", "low") if event else ("right", "sure", "unsure")
    bins = (event or report).reliability[name]
    weight = np.asarray(bins.weight, float)
    stated, seen = (
        float(np.nan_to_num(values) @ weight / np.sum(weight))
        for values in (bins.confidence, bins.accuracy)
    )
    gap = _first(report, ["signed_gap"], name, event)
    # Without errors, or without hits, all resamples repeat the accuracy: their narrow interval
    # of the gap is no evidence of a direction.
    rarer = round(report.settings["examples"] * min(seen, 1 - seen))
    verdict = f"difference {_points(stated - seen)} points"
    if gap and math.isfinite(gap.low) and rarer >= ENOUGH_EXAMPLES:
        claims = {2: f"too {over} by", -2: f"too {under},"}  # by both ends of the gap
        claim = claims.get(np.sign(gap.low) + np.sign(gap.high), "not shown to differ,")
        verdict = f"{claim} {_points(gap.value)} points{_interval(gap)}"
    if error := _first(report, ERRORS, name, event):
        verdict += f"; {report.label(error.metric)} {_points(error.value)} points{_interval(error)}"
    return f"{start}{100 * stated:.1f} % stated, {100 * seen:.1f} % {happens}: {verdict}."


def _first(report: Report, metrics: Iterable[str], name: str, event: Event | None) -> Row | None:
    """Return the row of the first metric with a finite value, in a reading."""
    rows = (report.row(event.of(each) if event else each, name) for each in metrics)
    return next((row for row in rows if row and math.isfinite(row.value)), None)


def _repair(report: Report, column: str, fit: Mapping[str, Any]) -> str:
    """Name the calibration error after a calibrator."""
    what = fit["name"]
    if what == "temperature" and "common" not in str(fit["params"]):
        what += f" {calibration.temperature(dict(fit))}"
    if column in report.unsettled:
        return f"The fit of {what} is no optimum ({report.unsettled[column]})."
    row = _first(report, ERRORS, column, report.event)
    return f"With {what}, {report.label(row.metric)} is {_points(row.value)} points." if row else ""


def _difference(report: Report, change: Change) -> str:
    """Describe a difference, and say by its test, or else by its interval, whether it is noise."""
    differs, noise = change.low > 0 or change.high < 0, _interval(change)  # False for NaN
    if change.p_holm is not None:
        differs, noise = bool(starred(change.p_holm)), f" (p {p_of(change.p_holm)})"
    claim = "differs by" if differs else "not shown to differ,"
    return f"{report.label(change.metric)} {claim} {_points(change.value)} points{noise}"


def _interval(estimate: Row | Change) -> str:
    """Format an interval in points after a space; "" without one."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return ""
    return f" [{_points(estimate.low)}, {_points(estimate.high)}]"


def _points(value: float) -> str:
    """Format a share in percentage points.

    >>> _points(0.0567), _points(0.004), _points(-0.004), _points(0.00001)
    ('5.7', '.4', '-.4', '.0')
    """
    return re.sub(r"^(-?)0\.", r"\1.", f"{100 * value:z.1f}")
