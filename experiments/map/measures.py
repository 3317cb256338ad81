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

FOLDS = 20
NUM_BINS = 15
_LOG_TEMPERATURES = np.linspace(np.log(1 / 16), np.log(16), 111)  # 5.2 % apart

Values = dict[str, float]


class Part(NamedTuple):
    """Logits `[rows, classes]` and labels `[rows]` of a part; no labels out of scope."""

    logits: np.ndarray
    labels: np.ndarray


def measure(
    seeds: list[tuple[Part, Part, Part | None]],
) -> dict[str, Any]:
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


def _of_seed(validation: Part, test: Part, outside: Part | None) -> _Measured:
    """Measure one seed on all rows, without each fold of test rows, and of validation rows."""
    curve = nll_curve(validation)
    temperature = best_temperature(curve.mean(axis=0))
    rows = _Rows.of(test, outside, curve_of_test=nll_curve(test), temperature=temperature)
    whole = rows.values() | {"temperature": temperature}
    folds = np.arange(len(test.labels)) % FOLDS
    outer = np.arange(0 if outside is None else len(outside.labels)) % FOLDS
    without_test = [rows.values(folds != fold, outer != fold) for fold in range(FOLDS)]
    without_validation = []
    for fold in range(FOLDS):
        other = best_temperature(curve[np.arange(len(curve)) % FOLDS != fold].mean(axis=0))
        scaled = _scaled(test, outside, other)
        without_validation.append(_at("after", scaled) | {"temperature": other})
    return _Measured(whole, without_test, without_validation)


class _Columns(NamedTuple):
    """Values of each row at one temperature."""

    confidence: np.ndarray
    hit: np.ndarray
    nll: np.ndarray
    entropy: np.ndarray
    entropy_outside: np.ndarray

    def of(self, chosen: np.ndarray | slice, outer: np.ndarray | slice) -> "_Columns":
        """Select rows of the test part and rows out of scope."""
        return _Columns(
            self.confidence[chosen],
            self.hit[chosen],
            self.nll[chosen],
            self.entropy[chosen],
            self.entropy_outside[outer],
        )


class _Rows(NamedTuple):
    before: _Columns
    after: _Columns
    curve: np.ndarray

    @classmethod
    def of(
        cls, test: Part, outside: Part | None, *, curve_of_test: np.ndarray, temperature: float
    ) -> "_Rows":
        before, after = (_scaled(test, outside, value) for value in (1.0, temperature))
        return cls(before, after, curve_of_test)

    def values(
        self, chosen: np.ndarray | slice = slice(None), outer: np.ndarray | slice = slice(None)
    ) -> Values:
        """Compute all metrics of some rows."""
        before, after = (columns.of(chosen, outer) for columns in (self.before, self.after))
        start = {"error": 1 - float(before.hit.mean())}
        at_best = _least(self.curve[chosen].mean(axis=0))[1]
        return start | _at("before", before) | _at("after", after) | {"refinement": at_best}


def _scaled(test: Part, outside: Part | None, temperature: float) -> _Columns:
    logs = log_softmax(test.logits / temperature)
    p = np.exp(logs)
    empty = np.empty(0)
    entropy_outside = empty if outside is None else _entropy(outside.logits / temperature)
    hit = (logs.argmax(axis=1) == test.labels).astype(float)
    nll = -np.take_along_axis(logs, test.labels[:, None].astype(int), axis=1)[:, 0]
    return _Columns(p.max(axis=1), hit, nll, -(p * logs).sum(axis=1), entropy_outside)


def _at(when: str, columns: _Columns) -> Values:
    values = {
        "nll": float(columns.nll.mean()),
        "ece": ece(columns.confidence, columns.hit),
        "ce2": squared_error(columns.confidence, columns.hit),
    }
    if columns.entropy_outside.size:
        values["auroc"] = auroc(columns.entropy, columns.entropy_outside)
    return {f"{name}_{when}": value for name, value in values.items()}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Compute log-probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _entropy(logits: np.ndarray) -> np.ndarray:
    logs = log_softmax(logits)
    return -(np.exp(logs) * logs).sum(axis=1)


def nll_curve(part: Part) -> np.ndarray:
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


def _bins(confidence: np.ndarray) -> np.ndarray:
    """Number the bins (lo, hi] of equal width."""
    return np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)


def ece(confidence: np.ndarray, hit: np.ndarray) -> float:
    """Compute the expected calibration error over 15 bins of equal width."""
    gaps = np.bincount(_bins(confidence), weights=confidence - hit, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / len(hit))


def squared_error(confidence: np.ndarray, hit: np.ndarray) -> float:
    """Compute the debiased squared calibration error over 15 bins of equal width."""
    bins, residual = _bins(confidence), confidence - hit
    count, total, square = (
        np.bincount(bins, weights=weights, minlength=NUM_BINS)
        for weights in (np.ones(len(hit)), residual, residual**2)
    )
    used = count >= 2
    terms = (total[used] ** 2 - square[used]) / (count[used] - 1)
    return float(terms.sum() / len(hit))


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Compute the probability that a query out of scope has the higher entropy; ties are half."""
    ordered = np.sort(inside)
    below, through = (np.searchsorted(ordered, outside, side) for side in ("left", "right"))
    return float((below + through).mean() / (2 * len(inside)))


def check(record: Mapping[str, Any], seeds: int) -> None:
    """Raise an error if a record lacks seeds, folds or finite numbers."""
    for kind, count in (("values", seeds), ("without_test", FOLDS), ("without_validation", FOLDS)):
        columns = record.get(kind)
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(f"it has no {kind}")
        for name, numbers in columns.items():
            if len(numbers) != count or not np.isfinite(np.asarray(numbers, float)).all():
                raise ValueError(f"{kind} of {name} are not {count} finite numbers")
