"""Estimate the comparisons of a row with their noise over seeds and rows, and judge them.

- CE2 is the debiased squared calibration error of the top label (`inference.ce2`); a plug-in ECE
  has no valid test. Points of root-CE2 are the difference divided by the sum of both roots.
- Seeds, test examples and, after the papers' temperature, validation examples are random. The
  validation examples are resampled, the temperature is fitted again, in the same way for all runs.
- The claim holds if all 90 % intervals lie above 0, and does not hold if one lies below 0.
- p is two-sided. Fewer than three seeds are no evidence about trainings: the state is their number.
- Networks with an error of 90 % or more are dead, and in no comparison.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from calib_jax import inference
from experiments.papers import estimates, records
from experiments.papers.records import Trained
from experiments.papers.rows import Comparison
from experiments.papers.trainings import TRAININGS, Training

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
SEEDS = 3
DEAD = 0.9
ADAPTIVE = {"ce2": False, "adaptive_ce2": True}


class Judged(NamedTuple):
    """A row with its state.

    Attributes:
      state: holds, does not hold or undecided; "one seed" or "2 seeds".
      p: two-sided, of the hypothesis that the state rejects, before Holm's method.
      values: each comparison, as positive if the claim is right.
      points: the difference of root-CE2 in points, of comparisons of calibration errors.
      dropped: comparisons with a dead network.
    """

    state: str
    p: float
    values: dict[Comparison, inference.Value]
    points: dict[Comparison, tuple[float, float, float]]
    dropped: list[Comparison]


def judge(comparisons: Sequence[Comparison], trained: Mapping[str, Sequence[Trained]]) -> Judged:
    """Judge the comparisons of a row.

    Args:
      comparisons: of the row.
      trained: the seeds of every training.
    """
    dead = {
        name
        for name, seeds in trained.items()
        if np.mean([np.mean(~run.test.right) for run in seeds]) >= DEAD
    }
    values, points, dropped = {}, {}, []
    for comparison in comparisons:
        if dead & {comparison.first, comparison.second}:
            dropped.append(comparison)
            continue
        values[comparison] = value_of(comparison, trained)
        if comparison.statistic in ADAPTIVE:
            points[comparison] = _points(comparison, values[comparison], trained)
    return Judged(*_state(list(values.values())), values, points, dropped)


def _state(values: Sequence[inference.Value]) -> tuple[str, float]:
    if not values:
        return UNDECIDED, 1.0
    p = [value.p_value() for value in values]
    failed = [p for p, value in zip(p, values, strict=True) if value.high < 0]
    if all(value.low > 0 for value in values):
        state, of_row = HOLDS, max(p)
    elif failed:
        state, of_row = FAILS, min(1.0, len(p) * min(failed))
    else:
        state, of_row = UNDECIDED, max(p)
    seeds = min(value.seeds for value in values)
    if seeds < SEEDS:
        state = "one seed" if seeds == 1 else f"{seeds} seeds"
    return state, of_row


def value_of(comparison: Comparison, trained: Mapping[str, Sequence[Trained]]) -> inference.Value:
    """Compute a comparison, with its margin."""
    sides = [trained[name] for name in (comparison.first, comparison.second) if name]
    if comparison.statistic in ADAPTIVE:
        adaptive = ADAPTIVE[comparison.statistic]
        parts = [_columns(runs, scaled) for runs, scaled in _sides(comparison, trained)]
        value = inference.ce2_difference(parts[0], parts[1], adaptive=adaptive)
        margin = _squared_margin(comparison, trained)
    else:
        statistic = estimates.STATISTICS[comparison.statistic]
        of_seeds = [
            [statistic(_part(run, scaled)) for run in runs]
            for runs, scaled in _sides(comparison, trained)
        ]
        differences = of_seeds[0]
        if len(sides) == 2:
            differences = [a - b for a, b in zip(*of_seeds, strict=True)]
        value = inference.mean_over_seeds(np.array([e.value + e.influence for e in differences]))
        margin = comparison.margin
    noise = _of_validation(comparison, trained)
    return value._replace(
        value=value.value + margin,
        deviation=(value.deviation**2 + noise) ** 0.5,
        row_variance=value.row_variance + noise,
    )


def _sides(
    comparison: Comparison, trained: Mapping[str, Sequence[Trained]]
) -> list[tuple[Sequence[Trained], bool]]:
    names = [name for name in (comparison.first, comparison.second) if name]
    seeds = min(len(trained[name]) for name in names)
    return [
        (trained[name][:seeds], scaled)
        for name, scaled in zip(names, comparison.after, strict=False)
    ]


def _part(run: Trained, scaled: bool) -> estimates.Part:
    if not scaled:
        return run.test
    assert isinstance(run.test, estimates.Predictions)
    return run.test.scaled(run.temperatures[0])


def _columns(runs: Sequence[Trained], scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    parts = [_part(run, scaled) for run in runs]
    return np.array([part.confidence for part in parts]), np.array([part.right for part in parts])


def _errors(comparison: Comparison, trained: Mapping[str, Sequence[Trained]]) -> list[float]:
    """Return the roots of CE2 of both sides."""
    return [
        max(
            0.0,
            inference.ce2(*_columns(runs, scaled), adaptive=ADAPTIVE[comparison.statistic]).value,
        )
        ** 0.5
        for runs, scaled in _sides(comparison, trained)
    ]


def _squared_margin(comparison: Comparison, trained: Mapping[str, Sequence[Trained]]) -> float:
    """Return how much CE2 of the first side grows if its root grows by the margin."""
    if not comparison.margin:
        return 0.0
    root = _errors(comparison, trained)[0]
    return (root + comparison.margin) ** 2 - root**2


def _points(
    comparison: Comparison, value: inference.Value, trained: Mapping[str, Sequence[Trained]]
) -> tuple[float, float, float]:
    scale = 100 / max(sum(_errors(comparison, trained)), 1e-12)
    return scale * value.value, scale * value.low, scale * value.high


def _of_validation(comparison: Comparison, trained: Mapping[str, Sequence[Trained]]) -> float:
    """Return the variance that the fit of the temperature on validation examples adds."""
    total = np.zeros(records.RESAMPLES)
    for (runs, scaled), sign in zip(_sides(comparison, trained), (1.0, -1.0), strict=False):
        if scaled:
            total += sign * np.mean([_resampled(run, comparison.statistic) for run in runs], axis=0)
    return float(np.var(total, ddof=1))


def _resampled(run: Trained, statistic: str) -> np.ndarray:
    """Compute a statistic at the temperatures of all resamples, each distinct one once."""
    distinct, places = np.unique(run.temperatures[1:], return_inverse=True)
    values = []
    for temperature in distinct:
        part = run.after(float(temperature))
        if statistic in ADAPTIVE:
            adaptive = ADAPTIVE[statistic]
            values.append(inference.ce2(part.confidence, part.right, adaptive=adaptive).value)
        else:
            values.append(estimates.STATISTICS[statistic](part).value)
    return np.array(values)[places]


def read(
    results: pathlib.Path, trainings: Mapping[str, Training], known: frozenset[str]
) -> dict[str, list[Trained]]:
    """Read the records of a row; refuse records of another row, seed or commit by name.

    Args:
      results: the folder of the records.
      trainings: of the row.
      known: the commits of the row's verdict.
    """
    trained: dict[str, list[Trained]] = {}
    by_path = {}
    for name, training in trainings.items():
        trained[name] = []
        for seed in range(1, training.seeds + 1):
            run = records.read(results, training, seed)
            trained[name].append(run)
            by_path[records.path_of(results, training, seed)] = run
    records.check_commits(by_path, known)
    return trained


def trainings_of(comparisons: Sequence[Comparison], seeds: int = 0) -> dict[str, Training]:
    """Return the trainings of a row by name, with another number of seeds if one is given."""
    names = [name for c in comparisons for name in (c.first, c.second) if name]
    found = {name: TRAININGS[name] for name in dict.fromkeys(names)}
    return {name: t._replace(seeds=seeds) if seeds else t for name, t in found.items()}
