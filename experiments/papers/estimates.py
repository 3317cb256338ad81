"""Predictions of a network, and statistics of them with the influence of every example.

An influence has the mean 0: counting example i once more changes the estimate by influence / rows,
to first order. Differences and averages of estimates have those of their influences.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats


class Estimate(NamedTuple):
    """An estimate and its influences `[rows]`, of mean 0."""

    value: float
    influence: np.ndarray

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, self.influence - other.influence)


class Columns(NamedTuple):
    """Numbers of each example: top probability, whether the prediction is right, NLL, entropy."""

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


def auroc_of_sets(inside: np.ndarray, outside: np.ndarray) -> Estimate:
    """Compute how well scores separate two independent sets; `outside` shall be larger.

    An influence on a set of n of N rows is multiplied by N / n, so that the variance over all rows
    is the sum of the variances over both sets.
    """
    ranks, count = scipy.stats.rankdata(np.concatenate([inside, outside])), len(inside)
    above = 1 - (ranks[:count] - scipy.stats.rankdata(inside)) / len(outside)
    below = (ranks[count:] - scipy.stats.rankdata(outside)) / count
    value, rows = float(np.mean(below)), len(inside) + len(outside)
    return Estimate(value, np.concatenate([rows / len(p) * (p - value) for p in (above, below)]))


def ece(columns: Columns, num_bins: int = 15) -> float:
    """Compute the plug-in ECE, which stands beside tests but is never tested."""
    numbers = np.clip(np.ceil(columns.confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(numbers, columns.confidence - columns.right, num_bins)
    return float(np.sum(np.abs(gaps)) / len(columns.right))
