"""The record of a setting: the values of every seed, and replicates that leave out some rows.

All sums are NumPy in float64. Validation rows, test rows and out-of-scope queries are each divided
into `FOLDS` folds. A replicate leaves one fold of the validation rows or of the test rows out, and
averages a metric of the remaining rows over the seeds. The delete-one-fold jackknife of these
replicates estimates the variance that the choice of rows causes. No row is drawn twice, so that the
debiased squared error stays unbiased. The folds are the same for all losses and weight decays, so a
difference of two settings has a replicate for each fold, too.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from calib_jax import inference
from experiments.papers import estimates
from experiments.papers.estimates import Columns, Predictions

FOLDS = 20
_LOG_TEMPERATURES = np.linspace(np.log(1 / 16), np.log(16), 111)  # 5.2 % apart

Values = dict[str, float]
Rows = np.ndarray | slice


def measure(seeds: list[tuple[Predictions, Predictions, Predictions | None]]) -> dict[str, Any]:
    """Measure the predictions of all seeds of a setting.

    Args:
      seeds: for each seed the validation part, the test part and the out-of-scope queries, if any.

    Returns:
      "values", "without_test" and "without_validation": lists by metric, one number for each seed
      or fold.
    """
    by_seed = [_of_seed(*parts) for parts in seeds]
    names = by_seed[0].values
    return {
        "values": {name: [of.values[name] for of in by_seed] for name in names},
        "without_test": _means_by_fold([of.without_test for of in by_seed]),
        "without_validation": _means_by_fold([of.without_validation for of in by_seed]),
    }


def _means_by_fold(by_seed: list[list[Values]]) -> dict[str, list[float]]:
    """Average each metric without each fold over the seeds."""
    return {
        name: [float(np.mean([folds[k][name] for folds in by_seed])) for k in range(FOLDS)]
        for name in by_seed[0][0]
    }


class _Measured(NamedTuple):
    """The values of a seed, and the values without each fold of rows."""

    values: Values
    without_test: list[Values]
    without_validation: list[Values]


def _of_seed(validation: Predictions, test: Predictions, outside: Predictions | None) -> _Measured:
    """Measure one seed on all rows, without each fold of test rows, and of validation rows."""
    curve, curve_of_test = nll_curve(validation), nll_curve(test)
    temperature = best_temperature(curve.mean(axis=0))
    scaled = {"before": _scaled(test, outside, 1.0), "after": _scaled(test, outside, temperature)}

    def values(chosen: Rows = slice(None), outer: Rows = slice(None)) -> Values:
        found = {"error": 1 - float(scaled["before"][0].right[chosen].mean())}
        for when, columns in scaled.items():
            found |= _at(when, *columns, chosen, outer)
        return found | {"refinement": _least(curve_of_test[chosen].mean(axis=0))[1]}

    folds = np.arange(len(test.labels)) % FOLDS
    outer = np.arange(0 if outside is None else len(outside.labels)) % FOLDS
    without_validation = []
    for fold in range(FOLDS):
        other = best_temperature(curve[np.arange(len(curve)) % FOLDS != fold].mean(axis=0))
        after = _at("after", *_scaled(test, outside, other))
        without_validation.append(after | {"temperature": other})
    return _Measured(
        values() | {"temperature": temperature},
        [values(folds != fold, outer != fold) for fold in range(FOLDS)],
        without_validation,
    )


def _scaled(
    test: Predictions, outside: Predictions | None, temperature: float
) -> tuple[Columns, np.ndarray | None]:
    """Return the columns of the test rows and the entropies out of scope at a temperature."""
    entropies = None if outside is None else outside.scaled(temperature).entropy
    return test.scaled(temperature).columns, entropies


def _at(
    when: str,
    columns: Columns,
    entropies: np.ndarray | None,
    chosen: Rows = slice(None),
    outer: Rows = slice(None),
) -> Values:
    """Compute the metrics of some rows at one temperature."""
    rows = Columns(*(column[chosen] for column in columns))
    values = {
        "nll": float(rows.nll.mean()),
        "ece": estimates.ece(rows),
        "ce2": inference.ce2(rows.confidence, rows.right).value,
    }
    if entropies is not None:
        values["auroc"] = estimates.auroc_of_sets(rows.entropy, entropies[outer]).value
    return {f"{name}_{when}": value for name, value in values.items()}


def nll_curve(part: Predictions) -> np.ndarray:
    """Compute the NLL of each row at the temperatures of the grid, `[rows, temperatures]`."""
    shifted = part.logits.astype(np.float64) - part.logits.max(axis=1, keepdims=True)
    true = np.take_along_axis(shifted, part.labels[:, None].astype(int), axis=1)[:, 0]
    columns = []
    for temperature in np.exp(_LOG_TEMPERATURES):
        total = np.exp(shifted / temperature).sum(axis=1)
        columns.append(np.log(total) - true / temperature)
    return np.stack(columns, axis=1)


def best_temperature(curve: np.ndarray) -> float:
    """Return the temperature of the least mean NLL, between 1/16 and 16."""
    return float(np.exp(_least(curve)[0]))


def _least(curve: np.ndarray) -> tuple[float, float]:
    """Return the place and the value of the minimum of a parabola through the lowest points."""
    at = int(np.clip(curve.argmin(), 1, len(curve) - 2))
    low, middle, high = curve[at - 1 : at + 2]
    bend = low - 2 * middle + high
    step = float(np.clip(0.5 * (low - high) / bend, -1, 1)) if bend > 0 else 0.0
    place = _LOG_TEMPERATURES[at] + step * (_LOG_TEMPERATURES[1] - _LOG_TEMPERATURES[0])
    return float(place), float(middle + 0.5 * step * (high - low) + 0.5 * step**2 * bend)


def check(record: Mapping[str, Any], seeds: int) -> None:
    """Raise an error if a record lacks seeds, folds or finite numbers."""
    for kind, count in (("values", seeds), ("without_test", FOLDS), ("without_validation", FOLDS)):
        columns = record.get(kind)
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(f"it has no {kind}")
        for name, numbers in columns.items():
            if len(numbers) != count or not np.isfinite(np.asarray(numbers, float)).all():
                raise ValueError(f"{kind} of {name} are not {count} finite numbers")
