"""Predictions of a network, and statistics of them with the influence of every example.

An influence has the mean 0: counting example i once more changes the estimate by influence / rows,
to first order. Differences and averages of estimates have those of their influences.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats

GRID = np.arange(1, 101) / 10  # the papers' temperatures
NUM_BINS = 15
RARE = 3  # the number of classes of a long tail that count as rare


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


Part = Predictions | Columns


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


def top_k(part: Predictions, k: int) -> Estimate:
    """Compute the share of examples whose label is among the k largest logits."""
    of_label = part.logits[np.arange(len(part.labels)), part.labels]
    return mean(np.sum(part.logits > of_label[:, None], axis=-1) < k)


def rare_recall(part: Predictions) -> Estimate:
    """Average the recall of the last classes, which are the rarest of a long tail."""
    num_classes = part.logits.shape[-1]
    recalls = [
        mean_where(part.right, part.labels == label)
        for label in range(num_classes - RARE, num_classes)
    ]
    value = float(np.mean([recall.value for recall in recalls]))
    return Estimate(value, np.mean([recall.influence for recall in recalls], axis=0))


STATISTICS: dict[str, Callable[[Any], Estimate]] = {
    "error": lambda part: mean(~part.right),
    "confidence": lambda part: mean(part.confidence),
    "confidence - accuracy": lambda part: mean(part.confidence - part.right),
    "confidence of wrong": lambda part: mean_where(part.confidence, ~part.right),
    "above .99": lambda part: mean(part.confidence >= 0.99),
    "top-3 accuracy": lambda part: top_k(part, 3),
    "p_y of wrong": lambda part: mean_where(np.exp(-part.nll), ~part.right),
    "recall of rare classes": rare_recall,
}


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


def ece(part: Part) -> float:
    """Compute the plug-in ECE, which stands beside tests but is never tested."""
    gaps = np.bincount(_bins(part.confidence), part.confidence - part.right, NUM_BINS)
    return float(np.sum(np.abs(gaps)) / len(part.right))


def temperatures(validation: Predictions, weights: np.ndarray) -> np.ndarray:
    """Fit the papers' temperature, by the least ECE on the grid, under weights `[draws, rows]`."""
    count, right = len(validation.labels), validation.right
    logits = validation.logits.astype(np.float64)
    eces = []
    for temperature in GRID:
        scaled = logits / temperature
        confidence = np.exp(scaled.max(axis=-1) - scipy.special.logsumexp(scaled, axis=-1))
        gaps = np.zeros((count, NUM_BINS), np.float32)
        gaps[np.arange(count), _bins(confidence)] = confidence - right
        eces.append(np.sum(np.abs(weights @ gaps), axis=1) / count)
    return GRID[np.argmin(eces, axis=0)]


def _bins(confidence: np.ndarray) -> np.ndarray:
    return np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
