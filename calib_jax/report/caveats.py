"""The answer of a report in sentences, its p-values, and the notes that prevent misreading them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import inference
from calib_jax.core import texts
from calib_jax.report import calibrate as calibration
from calib_jax.report.records import GIVEN, Change, Part, Results, Row, base_name

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
_HOLM = "Holm, and p of a class or group: corrected for their number."
_NAN = "nan: the metric has no value on these examples."
# The calibration error of a sentence, and the metric of a comparison: the first that is there.
ERRORS = ("ece", "adaptive_ece", "smooth_ece", "debiased_ece", "ks_error")
RISKS = ("error", "accuracy")
_LETTERS = 30  # of a name in a table
_BOOTSTRAPPED = (
    "Intervals of {names} are bootstrap intervals: noise raises the value, and resampling raises it"
    " again, so they can exclude the true value."
)
_TESTS = (
    "squared_calibration_error: debiased; interval and p of inference.compare_calibration, the test"
    " of which model is calibrated better. p of other metrics: paired bootstrap."
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


def fewer(counts: Mapping[str, int | None], enough: int, then: str) -> list[str]:
    """Warn of sets that are too small, by name; return an empty list if there are none.

    >>> fewer({"all examples": 40, "group a": 12}, 30, "clusters ({}): too few")
    ['Fewer than 30 clusters (group a: 12): too few']
    """
    few = [f"{name}: {n}" for name, n in counts.items() if n is not None and n < enough]
    more = [f"{len(few) - _MOST_LISTED} more"] * (len(few) > _MOST_LISTED)
    listed = ", ".join([*few[:_MOST_LISTED], *more])
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
    return [
        *unsettled(report.unsettled),
        *report.notes,
        *[few] * (drawn < needed),
        *fewer(clusters, ENOUGH_CLUSTERS, "clusters ({}): such intervals are often too narrow."),
        *texts.reasons(triples),
        *constant(each.metric for each in values if is_alone(each) and each.floor is None),
        *[_NAN] * any(math.isnan(value) for value, _, _ in triples),
    ]


def explanations(report: Results) -> list[str]:
    """List what the numbers of the tables mean."""
    changes, parts = report.changes, [*report.classes, *report.groups]
    corrected = bool(changes) or any(part.p_holm is not None for part in parts)
    tested = any(base_name(change.metric) == SQUARED_ERROR for change in changes)
    untested = [
        report.label(c.metric)
        for c in changes
        if c.p_value is None and not {c.before, c.after} & report.unsettled.keys()
    ]
    of_event = any(row.metric != base_name(row.metric) for row in report.rows)
    return [
        *[star(report.name, "comparisons")] * bool(changes),
        *[_HOLM] * corrected,
        *[_TESTS] * tested,
        *no_interval((change.metric, change.interval) for change in changes),
        *no_p(untested, counted=tested),
        *[_FLOOR] * any(row.floor is not None for row in report.rows),
        *_named(_READINGS, [report.event.name] if report.event and of_event else []),
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
    if gap is None or not math.isfinite(gap.low) or rarer < ENOUGH_EXAMPLES:
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
    unshown = "" if change.p_holm < STAR else "not shown to differ, "
    return f"{line} ({unshown}p {_p(report, change)})"


def _difference(report: Results, change: Change) -> str:
    size = f"{_points(abs(change.value))} points {'lower' if change.value < 0 else 'higher'}"
    metric, near, far = report.label(change.metric), *sorted((abs(change.low), abs(change.high)))
    if change.p_holm is not None:
        shown = size if change.p_holm < STAR else "not shown to differ"
        return f"{metric} {shown} (p {_p(report, change)})"
    if not math.isfinite(change.low):
        return f"{metric} {size}"
    if change.low <= 0 <= change.high:
        return (
            f"{metric} not shown to differ (difference {_points(change.value)}{_interval(change)})"
        )
    return f"{metric} {size} [{_points(near)}, {_points(far)}]"


def _p(report: Results, change: Change) -> str:
    least = least_p(change.metric, report.settings["resamples"])
    return holm_of(change.p_value, change.p_holm, least)


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
