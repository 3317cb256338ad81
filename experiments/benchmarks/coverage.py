"""Measure how often intervals contain the truth and how often tests reject, on simulated data.

    python -m experiments.benchmarks.coverage
    python -m experiments.benchmarks.coverage --sets=100 --examples=200 --only=one_model

A nominal 90 % interval should contain the truth in 90 % of the sets or more, and a test at 5 %
should reject at most 5 % of true hypotheses; the standard error of a share p of n sets is
sqrt(p (1 - p) / n). The models are those of `simulated`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from absl import flags

from calib_jax import inference, metrics
from experiments.benchmarks import timing
from experiments.benchmarks.simulated import (
    clusters_of,
    confident,
    equal_errors,
    one_model,
    sharper,
    truth,
)
from experiments.running import cli

LEVEL, SIZE = 0.9, 0.05
TOP_LABEL = {name: metrics.named(name) for name in ("ece", "adaptive_ece", "mce")}
MEANS = {name: metrics.named(name) for name in ("accuracy", "nll", "brier")}
TESTS = ("cox", "kuiper", "spiegelhalter", "squared_error", "temperature")
DRAWN = ("kuiper", "squared_error")  # tests that simulate their null distribution

Outcomes = dict[str, tuple[float, float, float, float]]  # low, high, p-value, truth
_NAN = math.nan


def _of(result: Any, true: float) -> tuple[float, float, float, float]:
    p_value = getattr(result, "p_value", None)
    return float(result.low), float(result.high), _NAN if p_value is None else float(p_value), true


def _bounds(data: Any, true: Mapping[str, float], options: dict[str, Any], key: Any) -> Outcomes:
    """Compute noise bounds of binned errors, and the interval of the squared error."""
    bounds = inference.noise_bound(TOP_LABEL, *data, key=key, num_resamples=199, **options)
    found = {name: _of(bound, true.get(name, _NAN)) for name, bound in bounds.items()}
    error = inference.debiased_squared_error(*data, **options)
    low, high, *_ = _of(error, 0.0)
    return found | {"squared_error": (low, high, _NAN, true["squared_error"])}


def _one(key: Any, rows: int, classes: int, dependent: bool, temperature: float) -> Outcomes:
    data_key, key = jax.random.split(key)
    logits, labels = data = one_model(data_key, rows, classes, dependent, temperature)
    true = truth(classes, temperature)
    clusters = clusters_of(rows) if dependent else None
    options: dict[str, Any] = {"level": LEVEL, "clusters": clusters}
    found = _bounds(data, true, options, key)
    estimates = inference.estimates(MEANS, *data, key=key, num_resamples=199, **options)
    found |= {name: _of(estimate, true[name]) for name, estimate in estimates.items()}
    for name in TESTS:
        drawn: dict[str, Any] = {"key": key, "num_resamples": 199} if name in DRAWN else {}
        test = inference.calibration_test(name, logits, labels, clusters=clusters, **drawn)
        found[f"test {name}"] = (_NAN, _NAN, float(test.p_value), _NAN)
    return found


def _confident(key: Any, rows: int, classes: int, dependent: bool, gap: float) -> Outcomes:
    data_key, key = jax.random.split(key)
    true = {"ece": gap, "adaptive_ece": gap, "mce": gap, "squared_error": gap**2}
    return _bounds(confident(data_key, rows, classes, gap), true, {"level": LEVEL}, key)


def _two(key: Any, rows: int, classes: int, dependent: bool, draw: Callable[..., Any]) -> Outcomes:
    data_key, key = jax.random.split(key)
    data = draw(data_key, rows, classes, dependent)
    options: dict[str, Any] = {"level": LEVEL, "clusters": clusters_of(rows) if dependent else None}
    ece = inference.compare_ece(*data, key=key, num_resamples=199, **options)
    return {
        "compare_calibration": _of(inference.compare_calibration(*data, **options), 0.0),
        "compare_ece": _of(ece, 0.0),
    }


# By name: the function, its last argument by case, and the cases whose hypothesis is true.
QUESTIONS: dict[str, tuple[Callable[..., Outcomes], dict[str, Any], tuple[str, ...]]] = {
    "one_model": (_one, {f"T = {t:g}": t for t in (1.0, 1.15, 1.5)}, ("T = 1",)),
    "confident": (_confident, {f"gap {g:g}": g for g in (0.0, 0.01, 0.03)}, ("gap 0",)),
    "two_models": (
        _two,
        {"both calibrated, B sharper": sharper, "equal errors": equal_errors},
        ("both calibrated, B sharper", "equal errors"),
    ),
}

flags.declare_key_flag("json")  # defined by `timing`
_SETS = flags.DEFINE_integer("sets", 200, "Simulated data sets of each case.", lower_bound=2)
_EXAMPLES = flags.DEFINE_list("examples", ["200", "1000"], "Examples of a set.")
_CLASSES = flags.DEFINE_list("classes", ["2", "10"], "Classes.")
_ONLY = flags.DEFINE_list("only", list(QUESTIONS), f"Of {', '.join(QUESTIONS)}.")
_CLUSTERS = flags.DEFINE_bool(
    "clusters", False, "Draw clusters of 20 dependent examples; confident has none."
)


def measured(
    question: str, case: str, rows: int, classes: int, sets: int, dependent: bool
) -> list[timing.Row]:
    """Simulate the sets of a case; return a row for each interval and test."""
    function, cases, null = QUESTIONS[question]
    outcomes: dict[str, list[tuple[float, ...]]] = {}
    for number in range(sets):
        key = jax.random.fold_in(jax.random.key(0), number)
        for name, outcome in function(key, rows, classes, dependent, cases[case]).items():
            outcomes.setdefault(name, []).append(outcome)
    result = []
    for name, of_sets in outcomes.items():
        low, high, p_value, true = np.array(of_sets).T
        row: timing.Row = {"of": name, "case": case, "examples": rows, "classes": classes}
        if np.isfinite(true).any() and np.isfinite(low).any():
            slack = 1e-6  # rounding of float32
            row["covers"] = float(np.mean((low <= true + slack) & (true - slack <= high)))
            row["width"] = float(np.mean(high - low))
        if np.isfinite(p_value).any():
            row["size" if case in null else "power"] = float(np.mean(p_value <= SIZE))
        result.append(row | {"sets": sets})
    return result


def main() -> None:
    """Measure the chosen questions."""
    if unknown := set(_ONLY.value) - set(QUESTIONS):
        raise cli.Refused(f"--only has {sorted(unknown)[0]!r}: it is of {', '.join(QUESTIONS)}.")
    for flag, values in (("examples", _EXAMPLES.value), ("classes", _CLASSES.value)):
        for value in values:
            if not value.isdigit() or int(value) < 2:
                raise cli.Refused(f"--{flag} must be whole numbers of at least 2, got {value!r}.")
    rows: list[timing.Row] = []
    for question in _ONLY.value:
        for case in QUESTIONS[question][1]:
            for examples in map(int, _EXAMPLES.value):
                for classes in map(int, _CLASSES.value):
                    size = (examples, classes, _SETS.value, _CLUSTERS.value)
                    rows += measured(question, case, *size)
    timing.report(rows)


if __name__ == "__main__":
    cli.run(main)
