"""Comparisons of trained networks: differences of statistics, seed by seed, on equal examples."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from calib_jax.inference.residuals import Binned
from experiments.papers.judge import blocks, estimates, paired, pooling, procedure
from experiments.papers.judge.estimates import Columns, Estimate, Predictions
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

FITTED = 0.01  # the largest training error of a network that fits
HALF_A_POINT = 0.005

Seeds = Sequence[Trained]
Runs = Mapping[str, Seeds]
Part = Predictions | Columns
before, after = blocks.before, blocks.after


def difference(
    first: Seeds,
    second: Seeds,
    statistic: Callable[[Any], Estimate],
    part: Callable[[Trained], Any] = before,
) -> Value:
    """Average a statistic of `first` minus that of `second` over seeds."""
    return paired.over_seeds_and_rows(
        [statistic(part(a)) - statistic(part(b)) for a, b in zip(first, second, strict=True)],
        spread=procedure.spread(first, second, statistic, (part, part)),
    )


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Compute Spearman's rank correlation; 0 where a series is constant."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(scipy.stats.spearmanr(first, second).statistic)


def mean(seeds: Seeds, statistic: Callable[[Trained], Estimate]) -> Value:
    """Average a statistic of runs over seeds."""
    return paired.over_seeds_and_rows([statistic(run) for run in seeds])


def change(
    first: Seeds, second: Seeds, statistic: Callable[[Trained], Estimate], note: str = ""
) -> Value:
    """Average a statistic of runs of `first` minus that of `second`, over seeds and rows."""
    pairs = zip(first, second, strict=True)
    return paired.over_seeds_and_rows([statistic(a) - statistic(b) for a, b in pairs], note)


def ce2(
    first: Seeds,
    second: Seeds,
    part: Callable[[Trained], Part] = before,
    other_part: Callable[[Trained], Part] | None = None,
    binned: Callable[[Part], Binned] = estimates.squared_error,
) -> Value:
    """Average the debiased squared calibration errors of `first` minus those of `second`.

    The plug-in ECE of both stands in the note.

    Args:
      first: runs of every seed.
      second: runs of the same seeds.
      part: returns the predictions of a run.
      other_part: the same of `second`; by default `part`.
      binned: puts the residuals into bins.
    """
    both = part, other_part or part
    parts = [[of(run) for run in runs] for of, runs in zip(both, (first, second), strict=True)]
    eces = [np.mean([estimates.ece(predictions) for predictions in seeds]) for seeds in parts]
    bins = [[binned(predictions) for predictions in seeds] for seeds in parts]
    return paired.difference_of_errors(
        bins[0],
        bins[1],
        note=f"ECE {eces[0]:.4f} and {eces[1]:.4f}",
        spread=procedure.spread(first, second, binned, both),
    )


def sum_of_roots(
    both: Iterable[Iterable[Part]], binned: Callable[[Part], Binned] = estimates.squared_error
) -> float:
    """Add the root-CE2 of two trainings.

    Their difference of CE2, divided by this sum, is the difference of the roots.

    Args:
      both: the predictions of all seeds, of each training.
      binned: puts the residuals into bins.
    """
    means = (np.mean([binned(part).value for part in seeds]) for seeds in both)
    return sum(pooling.root(float(mean)) for mean in means)


def ce2_of_images(run: Trained, measure: str, phase: str) -> Estimate:
    """Compute the squared calibration error from a measure's sums over images, or sentences.

    Images are independent of each other, and the pixels of an image are not.
    """
    return estimates.of_images(*estimates.squared_error_of_images(*_sums(run, measure, phase)))


def ece_of_images(run: Trained, measure: str, phase: str) -> float:
    """Compute the plug-in ECE from the same sums."""
    weight, confidence, hit = (sums.sum(axis=0) for sums in _sums(run, measure, phase))
    return float(np.sum(np.abs(confidence - hit)) / np.sum(weight))


def ce2_of_all_images(first: Seeds, second: Seeds, measure: str, phase: str) -> Value:
    """Average `ce2_of_images` of `first` minus that of `second`; the plug-in ECEs are the note."""
    eces = [
        np.mean([ece_of_images(run, measure, phase) for run in runs]) for runs in (first, second)
    ]
    note = f"ECE {eces[0]:.4f} and {eces[1]:.4f}"
    return change(first, second, lambda run: ce2_of_images(run, measure, phase), note)


def _sums(run: Trained, measure: str, phase: str) -> list[np.ndarray]:
    arrays = run.measured[measure]
    return [arrays[f"{phase}_{name}"] for name in ("weight", "confidence", "hit")]


def slope(by_size: Mapping[int, Trained], statistic: Callable[[Any], Estimate]) -> Value:
    """Compute the least-squares slope of a statistic on the logarithm of a network's size."""
    factors = _slope_factors(by_size)
    terms = [statistic(before(run)) for run in by_size.values()]
    value = sum(factor * term.value for factor, term in zip(factors, terms, strict=True))
    influence = sum(factor * term.influence for factor, term in zip(factors, terms, strict=True))
    return paired.over_seeds_and_rows([Estimate(float(value), np.asarray(influence))])


def slope_of_ce2(by_size: Mapping[int, Trained]) -> Value:
    """Compute the slope of the debiased squared calibration error; see `slope`.

    Fewer than two networks, such as those that `fitted` returns, have no slope, and an interval
    without ends.
    """
    if len(by_size) < 2:
        return Value(0.0, math.inf, note="fewer than two networks")
    factors = _slope_factors(by_size)
    models = [estimates.squared_error(before(run)) for run in by_size.values()]
    value = sum(factor * model.value for factor, model in zip(factors, models, strict=True))
    variance = paired.variance_of_errors(models, factors)
    return paired.nested([value], variance, [variance], rows=len(models[0].residual))


def _slope_factors(sizes: Iterable[int]) -> list[float]:
    logs = np.log(np.array(list(sizes), float))
    centered = logs - logs.mean()
    return [float(factor) for factor in centered / np.sum(np.square(centered))]


def training_error(seeds: Seeds) -> Value:
    """Return the largest error of a seed on its training set, in the last epoch."""
    return Value(max(float(run.log[-1]["train_error"]) for run in seeds), seeds=len(seeds))


def fitted(by_size: Mapping[int, Trained]) -> dict[int, Trained]:
    """Return the networks that fit their training set; others calibrate as if stopped early."""
    return {size: run for size, run in by_size.items() if training_error([run]).value <= FITTED}


def beyond(change: Value, others: Seeds, part: Callable[[Trained], Part] = before) -> Value:
    """Subtract from a change of CE2 the change if the root of the others' grew by half a point."""
    errors = [estimates.squared_error(part(run)).value for run in others]
    root = max(0.0, sum(errors) / len(errors)) ** 0.5
    return change._replace(value=change.value - (root + HALF_A_POINT) ** 2 + root**2)


def eces(runs: Runs) -> dict[str, Value]:
    """Compute the plug-in ECE of the first seed of all trainings, with its error."""
    return {
        f"ECE, {name}": Value(
            estimates.ece(before(seeds[0])),
            note=f"error {estimates.error(before(seeds[0])).value:.4f}",
        )
        for name, seeds in runs.items()
    }


def logged(seeds: Seeds, value: Callable[[list[dict[str, Any]]], float]) -> Value:
    """Average a value of the log over seeds."""
    return paired.over_seeds([value(run.log) for run in seeds])


def of_wrong(column: str) -> Callable[[Part], Estimate]:
    """Return the statistic that averages a column over the wrong predictions."""
    return lambda part: estimates.mean_where(getattr(part, column), ~part.right)


def of_right(column: str) -> Callable[[Part], Estimate]:
    """Return the statistic that averages a column over the right predictions."""
    return lambda part: estimates.mean_where(getattr(part, column), part.right)


def share(values: Sequence[bool] | np.ndarray) -> Value:
    """Return the share of true values."""
    return Value(float(np.mean(values)), note=f"as a share of {len(values)}")
