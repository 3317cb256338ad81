"""Summarise many runs: means over seeds with intervals, tests against a baseline.

For every metric of a loss the table contains

    value      the mean over the seeds, and the standard deviation of the seeds
    low, high  the interval of the mean, over seeds and test examples (`seed_intervals.py`); with
               one seed, over the test examples: noise bounds of calibration errors, else
               percentiles; none if all resamples have the same value
    interval   the kind of this interval
    difference the difference to the baseline, with an interval from the same resamples, so that
               examples that are hard for both cancel; for ece and adaptive_ece the interval of
               `inference.compare_ece`
    p          the two-sided p-value of this difference over the test examples; none for plug-in
               calibration errors, which noise raises
    p_holm     p, adjusted for all losses that are compared with the baseline
    p_seeds    the p-value of a paired t-test over the seeds, if there are at least five; for
               regular metrics

as trained, and after one or several temperatures fitted on the validation set. The debiased
squared error of the top label, `SQUARED`, has the valid interval and test of a difference in
calibration. Differences and p, but not p_seeds, compare the means of these runs over the test
examples: they do not cover the choice of seeds.

A loss whose logits were not kept has values from streamed statistics: means over the seeds without
intervals, without a p-value over the test examples, and without a reliability diagram.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax import calibrators, inference, metrics
from calib_jax.report import calibrate, caveats
from calib_jax.report.score import chosen_metrics
from experiments.evaluation.scoring import label_rows
from experiments.evaluation.streamed_scores import Scores
from experiments.reports.seed_intervals import SeedInterval, of_bounds, of_samples
from experiments.running import cli

CELLS = ("error", "nll", "ece", "adaptive_ece", "classwise_ece", "brier")
SQUARED = "squared_calibration_error"
SHOWN = ("error", "nll", "ece", "adaptive_ece")
MOST = {"error": 1.0, "brier": 2.0}  # the largest possible values
BEFORE, AFTER = "as trained", "after temperature"
SEEDS_FOR_A_TEST = 5
LEVEL = 0.9


class TestSize(NamedTuple):
    """The number of labels of positive weight in a test set, and the number of classes."""

    num_labels: int
    num_classes: int

    def __str__(self) -> str:
        return f"{self.num_labels:,} test labels in {self.num_classes} classes"


@dataclasses.dataclass(frozen=True)
class Run:
    """The results of one training: the predictions for both sets, and the log.

    Predictions are logits, labels and, where labels have weights, weights. Predictions are empty if
    the logits were not kept; then `streamed` holds the values.
    """

    loss: str
    seed: int
    validation: tuple[Any, ...]
    test: tuple[Any, ...]
    rows: list[dict[str, Any]]
    streamed: Scores | None = None

    @property
    def size(self) -> TestSize:
        """The size of the test set."""
        if self.streamed:
            return TestSize(self.streamed.num_examples, self.streamed.num_classes)
        logits, labels, *weights = self.test
        num_labels = int(np.sum(weights[0] > 0)) if weights else labels.size
        return TestSize(num_labels, logits.shape[-1])


@dataclasses.dataclass(frozen=True)
class Cell:
    """One metric of one loss, before or after the temperature.

    If all resamples have the same value, the ends of the interval are NaN and `interval`, its kind,
    is "none"; without rows the kind is None. The difference and its ends are None for the baseline,
    and the ends are None without a valid interval. `unsettled` describes how temperature fits of
    this loss and of the baseline ended that did not converge; there is then no p-value.
    """

    loss: str
    phase: str
    metric: str
    value: float
    sd: float
    n: int
    low: float = math.nan
    high: float = math.nan
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = None
    p_seeds: float | None = None
    p_holm: float | None = None
    difference_interval: str | None = None
    interval: str | None = None
    unsettled: str = ""

    @property
    def change(self) -> inference.Estimate | None:
        """The difference to the baseline and its interval; None for the baseline."""
        if self.difference is None:
            return None
        ends = (self.difference_low, self.difference_high)
        low, high = (math.nan if end is None else end for end in ends)
        return inference.Estimate(self.difference, low, high)


@dataclasses.dataclass(frozen=True)
class Summary:
    """The table, and the data of the figures.

    Attributes:
      cells: all numbers.
      criteria: the criteria of the temperatures, by phase.
      temperatures: the temperatures of every run, by phase and loss.
      reliability: tables by phase and loss.
      curves: values over the epochs, by metric and loss.
      epochs: the epochs of the curves.
      baseline: the loss against which the other losses are tested.
      about: a description of the runs.
      streamed: the losses whose logits were not kept.
      unsettled: how temperature fits that did not converge ended, by loss and phase.
      kind: what is compared: "loss", or "folder" in place of it.
    """

    cells: list[Cell]
    criteria: dict[str, str]
    temperatures: dict[str, dict[str, list[float]]]
    reliability: dict[str, dict[str, Any]]
    curves: dict[str, dict[str, np.ndarray]]
    epochs: np.ndarray
    baseline: str
    about: dict[str, Any]
    streamed: list[str]
    unsettled: dict[tuple[str, str], str]
    kind: str


def summarize(
    runs: Sequence[Run],
    *,
    baseline: str,
    num_bins: int = 15,
    num_resamples: int = 1000,
    criteria: Sequence[str] = (calibrate.EXACT,),
    about: Mapping[str, Any] | None = None,
    kind: str = "loss",
    epochs: Sequence[float] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Summarise runs in one table.

    Args:
      runs: the runs of every loss, all on the same test examples.
      baseline: the loss against which the other losses are tested.
      num_bins: the number of bins of every metric that has bins.
      num_resamples: the number of resamples of the bootstrap.
      criteria: the criteria of the temperatures, each as in `report.score`.
      about: a description of the runs, for the files.
      kind: what is compared: "loss", or "folder" in place of it.
      epochs: the epochs of the curves; None uses those of all runs.
      say: called with a line of text before each step that takes seconds.
    """
    losses = list(dict.fromkeys(run.loss for run in runs))
    streamed = list(dict.fromkeys(run.loss for run in runs if run.streamed))
    by_phase = phases_of(criteria)
    for run in runs:
        if run.streamed:
            name = f"{run.loss} seed {run.seed}"
            cli.refusing(run.streamed.check_table, name, list(by_phase.values()), num_bins)
    temperatures: dict[str, dict[str, list[float]]] = {phase: {} for phase in by_phase}
    unsettled: dict[tuple[str, str], str] = {}
    diagrams: dict[str, dict[str, Any]] = {phase: {} for phase in (BEFORE, *by_phase)}
    of_baseline: dict[str, _Results] = {}
    rows: dict[tuple[str, str], list[Cell]] = {}
    draws: dict[str, Any] = {"key": jax.random.key(0), "num_resamples": num_resamples}
    # The baseline comes first; of the other losses one at a time is in memory.
    for number, loss in enumerate(sorted(losses, key=lambda name: name != baseline), 1):
        fit = "fitting a temperature and " if by_phase else ""
        work = f"{fit}drawing {num_resamples:,} resamples for each run"
        say(f"{number}/{len(losses)}  {loss}: {'streamed values' if loss in streamed else work}")
        of_loss = [run for run in runs if run.loss == loss]
        measured = [_measured(run, by_phase) for run in of_loss]
        for phase in diagrams:
            if phase in by_phase:
                temperatures[phase][loss] = [run.temperatures[phase] for run in measured]
                states = [run.states[phase] for run in measured]
                unsettled[loss, phase] = calibrate.not_converged(states)
            own = _results([run.outputs[phase] for run in measured], of_loss, num_bins, draws)
            if own.evaluations:
                diagrams[phase][loss] = _diagram(own.evaluations, num_bins)
            other = of_baseline.get(phase)
            of_baseline.setdefault(phase, own)
            ends = [unsettled.get((name, phase), "") for name in dict.fromkeys((loss, baseline))]
            state = ", ".join(dict.fromkeys(filter(None, ends)))
            untested = {"p": None, "p_seeds": None, "unsettled": state} if state else {}
            rows[loss, phase] = [
                Cell(loss, phase, n=len(own.seeds), **(cell | untested))
                for cell in _cells(own, other, num_bins, draws)
            ]
    cells = [cell for phase in diagrams for loss in losses for cell in rows[loss, phase]]
    p_holm = caveats.adjusted([(c.phase, c.metric) for c in cells], [cell.p for cell in cells])
    cells = [dataclasses.replace(cell, p_holm=p) for cell, p in zip(cells, p_holm, strict=True)]
    diagrams, temperatures = (  # in the order of the losses
        {phase: {loss: of[loss] for loss in losses if loss in of} for phase, of in tables.items()}
        for tables in (diagrams, temperatures)
    )
    clusters = [label_rows(*run.test).num_examples for run in runs if not run.streamed]
    about = {**(about or {}), "clusters": next(filter(None, clusters), None)}
    tables = (cells, by_phase, temperatures, diagrams, *_curves(runs, epochs))
    return Summary(*tables, baseline, about, streamed, unsettled, kind)


def phases_of(criteria: Sequence[str]) -> dict[str, str]:
    """Name the phase after each temperature; raise an error for an unknown criterion.

    >>> phases_of(["nll"]), phases_of(["ece"])
    ({'after temperature': 'nll'}, {'after temperature by ece': 'ece'})
    """
    if not criteria:
        return {}
    calibrate.requested("temperature", criteria)  # validates them
    if list(criteria) == [calibrate.EXACT]:
        return {AFTER: calibrate.EXACT}
    return {f"{AFTER} by {criterion}": criterion for criterion in criteria}


class _Measured(NamedTuple):
    """The logits of a run by phase, or the streamed values, and the fits of the temperatures."""

    outputs: dict[str, Any]
    temperatures: dict[str, float]
    states: dict[str, str]


def _measured(run: Run, criteria: Mapping[str, str]) -> _Measured:
    """Apply each temperature to the logits of a run, or use streamed values."""
    if run.streamed:
        values = {BEFORE: run.streamed.before} | dict.fromkeys(criteria, run.streamed.after)
        temperatures = {phase: float(run.streamed.calibrator["temperature"]) for phase in criteria}
        states = dict.fromkeys(criteria, run.streamed.calibrator.get("state", calibrate.SETTLED))
        return _Measured(values, temperatures, states)
    before = label_rows(*run.test).logits
    logits, temperatures, states = {BEFORE: np.asarray(before)}, {}, {}
    for phase, criterion in criteria.items():
        params = calibrate.functions("temperature", criterion)[0](*run.validation)
        temperatures[phase], states[phase] = float(params.temperature), str(params.state.name)
        logits[phase] = np.asarray(calibrators.temperature.apply(params, before))
    return _Measured(logits, temperatures, states)


class _Results(NamedTuple):
    """The results of all runs of a loss before or after a temperature.

    Attributes:
      seeds: the seeds of the runs.
      values: the metrics of every run.
      intervals: the intervals of the means over the runs; empty without evaluations.
      evaluations: the predictions of every run; empty for streamed values.
    """

    seeds: list[int]
    values: list[dict[str, float]]
    intervals: dict[str, SeedInterval]
    evaluations: list[inference.Evaluation]


def _results(
    outputs: Sequence[Any], runs: Sequence[Run], num_bins: int, draws: Mapping[str, Any]
) -> _Results:
    """Compute the metrics of runs from logits, with intervals; streamed values are results."""
    seeds = [run.seed for run in runs]
    if runs[0].streamed:
        return _Results(seeds, list(outputs), {}, [])
    chosen = chosen_metrics(CELLS, num_bins)
    _, labels, weights, examples = label_rows(*runs[0].test)
    evaluations = [
        inference.Evaluation(logits, labels, weights, clusters=examples) for logits in outputs
    ]
    bounded = {name: metric for name, metric in chosen.items() if inference.has_noise_bound(metric)}
    bounded = bounded if evaluations[0].counts else {}
    others = {name: metric for name, metric in chosen.items() if name not in bounded}
    # Twice the mean of the p-values of the seeds is compared with (1 - LEVEL) / 2.
    least = math.ceil(round(4 / (1 - LEVEL), 6))
    of_bound = {**draws, "level": LEVEL, "num_resamples": max(draws["num_resamples"], least)}
    bounds = [
        inference.noise_bound(bounded, each, **of_bound) if bounded else {} for each in evaluations
    ]
    # One program also resamples the metrics whose differences have bootstrap intervals.
    resampled = {
        name: metric
        for name, metric in chosen.items()
        if name in others or metric.name not in inference.BY_SQUARED_ERROR
    }
    samples = [inference.bootstrap(resampled, each, **draws) for each in evaluations]
    values = [
        {name: float(value) for name, value in each.values(others).items()}
        | {name: bound.value for name, bound in of_run.items()}
        for each, of_run in zip(evaluations, bounds, strict=True)
    ]
    intervals = {
        name: of_bounds([of_run[name] for of_run in bounds])
        if name in bounded
        else of_samples(
            [of_run[name] for of_run in values],
            np.array([of_run[name] for of_run in samples]),
            most=MOST.get(name, np.inf),
        )
        for name in chosen
    }
    return _Results(seeds, values, intervals, evaluations)


def _cells(
    own: _Results, other: _Results | None, num_bins: int, draws: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Fill the cells of a loss; without a baseline they have no differences."""
    chosen = chosen_metrics(CELLS, num_bins)
    paired = bool(other and other.evaluations and own.evaluations)
    changes: dict[str, inference.MetricDifference] = {}
    if other and paired:
        changes = inference.compare_metrics(
            chosen, other.evaluations, own.evaluations, level=LEVEL, num_bins=num_bins, **draws
        )
    cells = []
    for name, metric in chosen.items():
        values = [of_run[name] for of_run in own.values]
        low, high, interval = own.intervals.get(name, (math.nan, math.nan, None))
        cell = {**_mean(name, values), "low": low, "high": high, "interval": interval}
        if other:
            of_baseline = [of_run[name] for of_run in other.values]
            cell["difference"] = float(np.mean(values) - np.mean(of_baseline))
            if own.seeds == other.seeds and not metric.biased:
                cell["p_seeds"] = _over_seeds(values, of_baseline)
        if change := changes.get(name):
            tests = metric.name not in inference.BY_SQUARED_ERROR
            cell |= _change(change, change.p_value if tests else None, change.interval)
        cells.append(cell)
    if own.evaluations and own.evaluations[0].counts:
        errors = [
            inference.debiased_squared_error(each, num_bins=num_bins, level=LEVEL)
            for each in own.evaluations
        ]
        cell = _mean(SQUARED, [error.value for error in errors])
        if len(errors) == 1:
            cell |= {"low": errors[0].low, "high": errors[0].high, "interval": "normal"}
        if other and paired:
            squared = inference.compare_calibration(
                other.evaluations, own.evaluations, num_bins=num_bins, level=LEVEL
            )
            cell |= _change(squared, squared.p_value, "normal")
        cells.append(cell)
    return cells


def _mean(name: str, values: Sequence[float]) -> dict[str, Any]:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return {"metric": name, "value": float(np.mean(values)), "sd": sd}


def _change(change: Any, p: float | None, interval: str) -> dict[str, Any]:
    low, high, p = (
        None if number is None or math.isnan(number) else float(number)
        for number in (change.low, change.high, p)
    )
    ends = {"difference_low": low, "difference_high": high, "difference_interval": interval}
    return {"difference": float(change.value), "p": p, **ends}


def _over_seeds(values: Sequence[float], of_baseline: Sequence[float]) -> float | None:
    """Compute the p-value of a paired t-test over five seeds or more; None for equal values."""
    if len(values) < SEEDS_FOR_A_TEST or np.array_equal(values, of_baseline):
        return None
    import scipy.stats  # imported late: it takes half a second, and only this test needs it

    return float(scipy.stats.ttest_rel(values, of_baseline).pvalue)


def _diagram(evaluations: Sequence[inference.Evaluation], num_bins: int) -> metrics.Reliability:
    """Pool all seeds; the weights scale the bands to the size of one test set."""
    count = len(evaluations)
    labels, given = evaluations[0].labels, evaluations[0].weights
    weights = np.ones(labels.shape, np.float32) if given is None else np.asarray(given)
    return metrics.reliability(
        np.concatenate([each.logits for each in evaluations]),
        np.concatenate([labels] * count),
        np.concatenate([weights * np.float32(1 / count)] * count),
        num_bins=num_bins,
    )


def _curves(
    runs: Sequence[Run], epochs: Sequence[float] | None
) -> tuple[dict[str, dict[str, np.ndarray]], np.ndarray]:
    """Return validation metrics by loss, and the epochs; by default those of all runs.

    Between the evaluations of a run, values are interpolated linearly, as drawn; before its first
    and after its last evaluation they are NaN.
    """
    if epochs is None:
        epochs = epochs_of(runs)
    curves: dict[str, dict[str, Any]] = {}
    for name in ("error", "nll", "ece"):
        key = f"validation_{name}"
        if any(key in row for run in runs for row in run.rows):
            of_metric = curves.setdefault(name, {})
            for run in runs:
                known = [(row["epoch"], row[key]) for row in run.rows if key in row]
                where, values = np.array(known or [(math.nan, math.nan)], float).T
                values = np.interp(epochs, where, values, left=math.nan, right=math.nan)
                of_metric.setdefault(run.loss, []).append(values)
    stacked = {
        name: {loss: np.array(of) for loss, of in each.items()} for name, each in curves.items()
    }
    return stacked, np.array(epochs, float)


def epochs_of(runs: Iterable[Run]) -> list[float]:
    """Return the epochs at which any of the runs was evaluated."""
    return sorted({row["epoch"] for run in runs for row in run.rows})
