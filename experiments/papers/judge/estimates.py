"""Statistics of one run's predictions, each with the influence of every example on it.

An influence has the mean 0: counting example i once more changes the estimate by influence / rows,
to first order. Differences and averages of estimates have those of their influences.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats

from calib_jax.inference.residuals import Binned

GRID = np.arange(1, 101) / 10  # the papers' temperatures
RESAMPLES, NUM_BINS = 100, 15


class Estimate(NamedTuple):
    """An estimate.

    Attributes:
      value: the estimate.
      influence: `[rows]`, of mean 0.
    """

    value: float
    influence: np.ndarray

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.influence - other.influence)


class Columns(NamedTuple):
    """Numbers of each example that replace the logits where these are not kept.

    Attributes:
      confidence: the top probability.
      right: whether the prediction is right.
      nll: the NLL; None if it is not kept.
      entropy: the entropy; None if it is not kept.
    """

    confidence: np.ndarray
    right: np.ndarray
    nll: Any = None
    entropy: Any = None


class Predictions(NamedTuple):
    """Logits and labels of a data set."""

    logits: np.ndarray
    labels: np.ndarray

    def scaled(self, temperature: float) -> "Predictions":
        """Divide the logits by a temperature."""
        return Predictions(self.logits / np.float32(temperature), self.labels)

    @property
    def log_probabilities(self) -> np.ndarray:
        """The log-probabilities, in float64."""
        return scipy.special.log_softmax(self.logits.astype(np.float64), axis=-1)

    @property
    def right(self) -> np.ndarray:
        """Whether the prediction of each example is right."""
        return np.argmax(self.logits, axis=-1) == self.labels

    @property
    def nll(self) -> np.ndarray:
        """The NLL of every example."""
        return -self.log_probabilities[np.arange(len(self.labels)), self.labels]

    @property
    def confidence(self) -> np.ndarray:
        """The top probability of every example."""
        return np.exp(np.max(self.log_probabilities, axis=-1))

    @property
    def entropy(self) -> np.ndarray:
        """The entropy of every example."""
        logs = self.log_probabilities
        return -np.sum(np.exp(logs) * logs, axis=-1)

    @property
    def columns(self) -> Columns:
        """All columns of the examples."""
        logs = self.log_probabilities  # computed once for all columns
        p, nll = np.exp(logs), -logs[np.arange(len(logs)), self.labels]
        return Columns(p.max(axis=-1), self.right, nll, -np.sum(p * logs, axis=-1))


def temperature_of(validation: Predictions, criterion: str) -> float:
    """Fit a temperature on a validation set, by "nll", or by "ece" on the papers' grid."""
    from calib_jax.report import calibration

    fit = calibration.fit_of("temperature", criterion)
    return float(fit(validation.logits, validation.labels).temperature)


def temperatures_of_resamples(validation: Predictions) -> np.ndarray:
    """Fit the papers' temperature on resamples of the validation set, by the ECE on the grid."""
    count = len(validation.labels)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return GRID[np.argmin(resampled_eces(validation, draws.astype(np.float32)), axis=0)]


def resampled_eces(validation: Predictions, weights: np.ndarray) -> np.ndarray:
    """Compute the plug-in ECE `[temperatures, resamples]` under weights `[resamples, rows]`."""
    count = len(validation.labels)
    right = validation.right
    eces = []
    for temperature in GRID:
        logits = validation.logits.astype(np.float64) / temperature
        confidence = np.exp(logits.max(axis=-1) - scipy.special.logsumexp(logits, axis=-1))
        bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
        gaps = np.zeros((count, NUM_BINS), np.float32)
        gaps[np.arange(count), bins] = confidence - right
        eces.append(np.sum(np.abs(weights @ gaps), axis=1) / count)
    return np.array(eces)


def mean(column: np.ndarray) -> Estimate:
    """Average a column."""
    column = np.asarray(column, np.float64)
    value = float(np.mean(column))
    return Estimate(value, column - value)


def mean_where(column: np.ndarray, chosen: np.ndarray) -> Estimate:
    """Average a column over the chosen examples, such as the wrong ones, whose number is random."""
    share = float(np.mean(chosen))
    if not share:
        raise ValueError("no example is chosen: their mean is not defined.")
    value = float(np.mean(column[chosen]))
    return Estimate(value, np.where(chosen, column - value, 0.0) / share)


def ratio(first: Estimate, second: Estimate) -> Estimate:
    """Divide two estimates."""
    value = first.value / second.value
    return Estimate(value, (first.influence - value * second.influence) / second.value)


def error(predictions: "Predictions | Columns") -> Estimate:
    """Compute the error rate."""
    return mean(~predictions.right)


def nll(predictions: Predictions) -> Estimate:
    """Compute the NLL."""
    return mean(predictions.nll)


def top_k(predictions: Predictions, k: int) -> Estimate:
    """Compute the share of examples whose label is among the k largest logits."""
    of_label = predictions.logits[np.arange(len(predictions.labels)), predictions.labels]
    return mean(np.sum(predictions.logits > of_label[:, None], axis=-1) < k)


def auroc(scores: np.ndarray, other_scores: np.ndarray) -> Estimate:
    """Compute how well a score separates examples from altered copies of the same examples.

    Args:
      scores: `[rows]`, such as entropies.
      other_scores: `[rows]`, of the altered examples, which shall have the larger scores.
    """
    above, below = _placements(scores, other_scores)
    value = float(np.mean(below))
    return Estimate(value, below + above - 2 * value)


def auroc_of_sets(inside: np.ndarray, outside: np.ndarray) -> Estimate:
    """Compute how well scores separate two independent sets; `outside` shall be larger.

    An influence on a set of n of N rows is multiplied by N / n, so that the variance over all rows
    is the sum of the variances over both sets.
    """
    parts = _placements(inside, outside)
    value = float(np.mean(parts[1]))
    rows = len(inside) + len(outside)
    return Estimate(value, np.concatenate([rows / len(p) * (p - value) for p in parts]))


def _placements(scores: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of `others` above each score, and that of `scores` below each other one."""
    ranks, count = scipy.stats.rankdata(np.concatenate([scores, others])), len(scores)
    above = 1 - (ranks[:count] - scipy.stats.rankdata(scores)) / len(others)
    return above, (ranks[count:] - scipy.stats.rankdata(others)) / count


def log_temperature(validation: Predictions) -> Estimate:
    r"""Fit a temperature by NLL, and return its logarithm; the rows are those of validation.

    The influence is $T g_i / \bar h$, where g is the derivative of an example's NLL by 1 / T and h
    the second one, the variance of the logits under the softmax.
    """
    temperature = temperature_of(validation, "nll")
    logits = validation.logits.astype(np.float64)
    probabilities = scipy.special.softmax(logits / temperature, axis=-1)
    center = np.sum(probabilities * logits, axis=-1)
    slope = center - logits[np.arange(len(logits)), validation.labels]
    curvature = np.mean(np.sum(probabilities * np.square(logits - center[:, None]), axis=-1))
    influence = temperature * slope / curvature
    return Estimate(float(np.log(temperature)), influence - np.mean(influence))


def of_images(
    sums: Mapping[str, np.ndarray], statistic: Callable[[Mapping[str, np.ndarray]], float]
) -> Estimate:
    """Compute a statistic of sums over images, with the influence of every image by the jackknife.

    Args:
      sums: arrays `[images, ...]`, by name.
      statistic: a function of the sums of all images, of the same names.
    """
    wide = {name: np.asarray(column, np.float64) for name, column in sums.items()}
    total = {name: column.sum(axis=0) for name, column in wide.items()}
    count = len(next(iter(wide.values())))
    without = np.array(
        [
            statistic({name: total[name] - column[image] for name, column in wide.items()})
            for image in range(count)
        ]
    )
    return Estimate(float(statistic(total)), (count - 1) * (np.mean(without) - without))


def squared_error_of_images(
    weight: np.ndarray, confidence: np.ndarray, hit: np.ndarray
) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, np.ndarray]], float]]:
    """Return sums and statistic for `of_images`: the squared binned error without noise's share.

    The squares of the gaps of single images are subtracted, as pairs of one image say nothing of
    the truth where its pixels depend on each other.

    Args:
      weight, confidence, hit: `[images, bins]`, sums over the pixels of each image.
    """
    gap = np.asarray(confidence, np.float64) - hit
    sums = {"weight": weight, "gap": gap, "square": np.square(gap)}

    def statistic(total: Mapping[str, np.ndarray]) -> float:
        full = total["weight"] > 0
        pairs = np.square(total["gap"]) - total["square"]
        return float(np.sum(pairs[full] / total["weight"][full]) / np.sum(total["weight"]))

    return sums, statistic


def gap(predictions: "Predictions | Columns") -> Estimate:
    """Compute the mean confidence minus the accuracy."""
    return mean(predictions.confidence - predictions.right)


def squared_error(predictions: "Predictions | Columns", num_bins: int = 15) -> Binned:
    """Bin the residuals by confidence, in bins of equal width, closed on the right."""
    numbers = np.ceil(predictions.confidence * num_bins).astype(int) - 1
    return _binned(predictions, np.clip(numbers, 0, num_bins - 1), num_bins)


def adaptive_squared_error(predictions: "Predictions | Columns", num_bins: int = 15) -> Binned:
    """Bin the residuals by confidence, in bins of equal mass; ties stay together."""
    confidence = predictions.confidence
    edges = np.quantile(confidence, np.arange(1, num_bins) / num_bins)
    return _binned(predictions, np.searchsorted(edges, confidence, side="left"), num_bins)


def _binned(predictions: "Predictions | Columns", numbers: np.ndarray, num_bins: int) -> Binned:
    confidence = np.asarray(predictions.confidence, np.float64)
    residual = confidence - predictions.right
    columns = (np.ones_like(residual), residual, np.square(residual), confidence * (1 - confidence))
    size, total, square, spread = (np.bincount(numbers, part, num_bins) for part in columns)
    return Binned(confidence, residual, numbers, size, total, square, spread)


def ece(predictions: "Predictions | Columns") -> float:
    """Compute the plug-in ECE, which is shown beside tests but never tested."""
    bins = squared_error(predictions)
    return float(np.sum(np.abs(bins.total)) / len(bins.residual))
