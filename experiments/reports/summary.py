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
    p          the two-sided p-value over the test examples: of the difference for regular metrics;
               for ece and adaptive_ece, which noise raises, of the difference of debiased squared
               errors; none for classwise_ece
    p_holm     p, adjusted for all losses that are compared with the baseline
    p_seeds    the p-value of a paired t-test over the seeds, if there are at least five; for
               regular metrics

as trained, and after one or several temperatures fitted on the validation set: by NLL, by the
papers' grid of temperatures, or by AdaFocal's grid. Differences and p, but not p_seeds, compare the
means of these runs over the test examples: they do not cover the choice of seeds.

A loss whose logits were not kept has values from streamed statistics: means over the seeds without
intervals, without a p-value over the test examples, and without a reliability diagram.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax import calibrators, inference, metrics
from calib_jax.core import texts
from calib_jax.core.texts import without_nan
from calib_jax.report import calibrate, caveats
from calib_jax.report.caveats import NO_INTERVAL, adjusted
from calib_jax.report.chosen_metrics import chosen_metrics
from experiments.reports.label_rows import label_rows
from experiments.reports.seed_intervals import SeedInterval, of_bounds, of_samples
from experiments.reports.streamed_scores import Scores

CELLS = ("error", "nll", "ece", "adaptive_ece", "classwise_ece", "brier")
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

    @property
    def num_examples(self) -> int | None:
        """The number of test examples, if examples have several labels and the logits were kept."""
        return None if self.streamed else label_rows(*self.test).num_examples


@dataclasses.dataclass(frozen=True)
class Cell:
    """One metric of one loss, before or after the temperature.

    If all resamples have the same value, the ends of the interval are NaN and `interval`, its kind,
    is "none". If rows are missing, the ends are NaN and the kind is None, and `difference_low`,
    `difference_high`, `p`, `p_holm` and `difference_interval`, the kind of the difference's
    interval, are None. If no valid interval of the difference exists, both ends of the difference
    are None and `difference_interval` is "none". `unsettled` describes how temperature fits of this
    loss and of the baseline ended that did not converge; there is then no p-value.
    """

    loss: str
    phase: str
    metric: str
    value: float
    sd: float
    n: int
    low: float
    high: float
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    p: float | None
    p_seeds: float | None
    p_holm: float | None = None
    difference_interval: str | None = None
    interval: str | None = None
    unsettled: str = ""

    @property
    def change(self) -> inference.Estimate | None:
        """The difference to the baseline and its interval; None for the baseline."""
        if self.difference is None:
            return None
        low, high = (
            np.nan if end is None else end for end in (self.difference_low, self.difference_high)
        )
        return inference.Estimate(self.difference, low, high)

    @property
    def estimates(self) -> list[tuple[float, float, float]]:
        """The estimates that have an interval."""
        change = self.change
        return [(self.value, self.low, self.high), *([change[:3]] if change else [])]

    @property
    def untested(self) -> bool:
        """Whether the interval of a difference has no valid p-value."""
        return self.p is None and self.difference_interval is not None and not self.unsettled

    @property
    def constant(self) -> bool:
        """Whether there is no interval because all resamples have the same value."""
        return self.interval == NO_INTERVAL

    @property
    def raised(self) -> bool:
        """Whether noise raises the value and the resamples of its interval: without noise bound."""
        biased = metrics.catalogue()[self.metric].biased
        return biased and (self.interval or "").startswith(("percentile", "examples"))

    @property
    def notes(self) -> list[str]:
        """The caveats of the numbers."""
        state = {f"{self.loss} {self.phase}": self.unsettled} if self.unsettled else {}
        return [
            *caveats.unsettled(state),
            *caveats.constant([self.metric] * self.constant),
            *caveats.bootstrapped([self.metric] * self.raised),
            *caveats.no_p([self.metric] * self.untested),
            *caveats.no_interval([(self.metric, self.difference_interval or "")]),
            *texts.reasons(self.estimates),
        ]


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
    """

    cells: list[Cell]
    criteria: dict[str, str]
    temperatures: dict[str, dict[str, list[float]]]
    reliability: dict[str, dict[str, Any]]
    curves: dict[str, dict[str, np.ndarray]]
    epochs: np.ndarray
    baseline: str
    about: dict[str, Any]
    streamed: list[str] = dataclasses.field(default_factory=list)
    unsettled: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)


def summarize(
    runs: Sequence[Run],
    *,
    baseline: str,
    num_bins: int = 15,
    num_resamples: int = 1000,
    criteria: Sequence[str] = (calibrate.EXACT,),
    about: Mapping[str, Any] | None = None,
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
      say: called with a line of text before each step that takes seconds.
    """
    losses = list(dict.fromkeys(run.loss for run in runs))
    chosen = chosen_metrics(CELLS, num_bins)
    streamed = list(dict.fromkeys(run.loss for run in runs if run.streamed))
    by_phase = phases_of(criteria)
    for run in runs:
        if run.streamed:
            name = f"{run.loss} seed {run.seed}"
            run.streamed.check_table(name, list(by_phase.values()), num_bins)
    temperatures: dict[str, dict[str, list[float]]] = {phase: {} for phase in by_phase}
    unsettled: dict[tuple[str, str], str] = {}
    diagrams: dict[str, dict[str, Any]] = {phase: {} for phase in (BEFORE, *by_phase)}
    of_baseline: dict[str, _Phase] = {}
    by_loss: dict[tuple[str, str], list[Cell]] = {}
    draws: dict[str, Any] = {"key": jax.random.key(0), "num_resamples": num_resamples}
    for number, loss in enumerate([baseline, *(other for other in losses if other != baseline)], 1):
        loss_runs = [run for run in runs if run.loss == loss]
        fit = "fitting a temperature and " if by_phase else ""
        work = f"{fit}drawing {num_resamples:,} resamples for each run"
        say(f"{number}/{len(losses)}  {loss}: {'streamed values' if loss in streamed else work}")
        measured = [_measured(run, by_phase) for run in loss_runs]
        for phase in by_phase:
            temperatures[phase][loss] = [run.temperatures[phase] for run in measured]
            unsettled[loss, phase] = calibrate.not_converged(run.states[phase] for run in measured)
        for phase in diagrams:
            of_loss = _phase([run.results[phase] for run in measured], loss_runs, chosen, draws)
            if loss == baseline:
                of_baseline[phase] = of_loss
            elif of_loss.evaluations and of_baseline[phase].evaluations:
                changes = inference.compare_metrics(
                    chosen,
                    of_baseline[phase].evaluations,
                    of_loss.evaluations,
                    level=LEVEL,
                    num_bins=num_bins,
                    **draws,
                )
                of_loss = of_loss._replace(changes=changes)
            by_loss[loss, phase] = [
                _cell(
                    loss, phase, metric, of_loss, None if loss == baseline else of_baseline[phase]
                )
                for metric in chosen.values()
            ]
            if of_loss.evaluations:
                diagrams[phase][loss] = _diagram(of_loss.evaluations, num_bins)
    # The baseline is computed first, and shown at its place.
    cells = [cell for phase in diagrams for loss in losses for cell in by_loss[loss, phase]]
    diagrams, temperatures = (
        {phase: {loss: of[loss] for loss in losses if loss in of} for phase, of in tables.items()}
        for tables in (diagrams, temperatures)
    )
    cells = [_untested(cell, unsettled, baseline) for cell in cells]
    p_holm = adjusted([(cell.phase, cell.metric) for cell in cells], [cell.p for cell in cells])
    cells = [dataclasses.replace(cell, p_holm=p) for cell, p in zip(cells, p_holm, strict=True)]
    rows = {loss: [run.rows for run in runs if run.loss == loss] for loss in losses}
    # Patience may end runs early, so pad all curves to the longest curve.
    longest = max((run.rows for run in runs), key=len)
    epochs = np.array([row["epoch"] for row in longest], float)
    curves = {
        name: {
            loss: np.array([_padded(run, f"validation_{name}", len(epochs)) for run in runs_of])
            for loss, runs_of in rows.items()
        }
        for name in ("error", "nll", "ece")
        if longest and f"validation_{name}" in longest[0]
    }
    return Summary(
        cells,
        by_phase,
        temperatures,
        diagrams,
        curves,
        epochs,
        baseline,
        dict(about or {}) | {"clusters": next(filter(None, (r.num_examples for r in runs)), None)},
        streamed,
        unsettled,
    )


class _Phase(NamedTuple):
    """The results of all runs of a loss before or after a temperature.

    Attributes:
      seeds: the seeds of the runs.
      values: the metrics of every run.
      intervals: the intervals of the means over the runs; empty without evaluations.
      evaluations: the predictions of every run; empty for streamed values.
      changes: the differences to the baseline; empty for the baseline and without evaluations.
    """

    seeds: list[int]
    values: list[dict[str, float]]
    intervals: dict[str, SeedInterval]
    evaluations: list[inference.Evaluation]
    changes: dict[str, inference.MetricDifference]


def _phase(
    results: Sequence[Any],
    runs: Sequence[Run],
    chosen: Mapping[str, metrics.Metric[..., Any]],
    draws: Mapping[str, Any],
) -> _Phase:
    """Compute the metrics of runs from logits, with intervals; streamed values are results."""
    seeds = [run.seed for run in runs]
    if runs[0].streamed:
        return _Phase(seeds, list(results), {}, [], {})
    _, labels, weights, examples = label_rows(*runs[0].test)
    evaluations = [
        inference.Evaluation(logits, labels, weights, clusters=examples) for logits in results
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
    return _Phase(seeds, values, intervals, evaluations, {})


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


def _untested(cell: Cell, unsettled: Mapping[tuple[str, str], str], baseline: str) -> Cell:
    """Remove the p-values of a cell if one of its temperatures did not converge."""
    losses = dict.fromkeys((cell.loss, baseline) if cell.difference is not None else (cell.loss,))
    states = (unsettled.get((loss, cell.phase), "") for loss in losses)
    state = ", ".join(dict.fromkeys(filter(None, states)))
    return dataclasses.replace(cell, p=None, p_seeds=None, unsettled=state) if state else cell


class _Measured(NamedTuple):
    """The logits of a run by phase, or the streamed values, and the fits of the temperatures."""

    results: dict[str, Any]
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
        params = calibrate.fit_of("temperature", criterion)(*run.validation)
        temperatures[phase], states[phase] = float(params.temperature), str(params.state.name)
        logits[phase] = np.asarray(calibrators.temperature.apply(params, before))
    return _Measured(logits, temperatures, states)


def phases_of(criteria: Sequence[str]) -> dict[str, str]:
    """Name the phase after each temperature; raise an error for an unknown criterion.

    >>> phases_of(["nll"]), phases_of(["ece"])
    ({'after temperature': 'nll'}, {'after temperature by ece': 'ece'})
    """
    if not criteria:
        return {}
    calibrate.columns("temperature", criteria)  # validates them
    if list(criteria) == [calibrate.EXACT]:
        return {AFTER: calibrate.EXACT}
    return {f"{AFTER} by {criterion}": criterion for criterion in criteria}


def _padded(rows: list[dict[str, Any]], key: str, length: int) -> list[float]:
    return [row.get(key, float("nan")) for row in rows] + [float("nan")] * (length - len(rows))


def _cell(
    loss: str,
    phase: str,
    metric: metrics.Metric[..., Any],
    of_loss: _Phase,
    of_baseline: _Phase | None,
) -> Cell:
    """Fill a cell of the table; without a baseline it has no difference."""
    name = metric.name
    values = np.array([of_run[name] for of_run in of_loss.values])
    low, high, interval = of_loss.intervals.get(name, (np.nan, np.nan, None))
    difference = p = p_seeds = None
    change = of_loss.changes.get(name)
    if of_baseline is not None:
        baseline_values = np.array([of_run[name] for of_run in of_baseline.values])
        difference = float(change.value if change else values.mean() - baseline_values.mean())
        p = None if change is None or change.p_value is None else float(change.p_value)
        paired = of_loss.seeds == of_baseline.seeds and len(values) >= SEEDS_FOR_A_TEST
        if paired and not metric.biased:
            import scipy.stats  # imported late: it takes half a second, and only this test needs it

            p_seeds = float(scipy.stats.ttest_rel(values, baseline_values).pvalue)
    return Cell(
        loss,
        phase,
        name,
        value=float(values.mean()),
        sd=float(values.std(ddof=1)) if len(values) > 1 else float("nan"),
        n=len(values),
        low=low,
        high=high,
        difference=difference,
        difference_low=change and without_nan(float(change.low)),
        difference_high=change and without_nan(float(change.high)),
        p=p,
        p_seeds=p_seeds,
        difference_interval=change and change.interval,
        interval=interval,
    )
