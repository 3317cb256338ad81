"""Data and hand-written NumPy baselines for the benchmarks."""

from typing import NamedTuple

import jax
import numpy as np

BINS = 15


def draw(
    key: jax.Array, rows: int, classes: int, temperature: float = 1.5
) -> tuple[jax.Array, jax.Array]:
    """Draw logits, and labels for which the logits are calibrated at this temperature."""
    noise, coin = jax.random.split(key)
    logits = 2 * jax.random.normal(noise, (rows, classes))
    return logits, jax.random.categorical(coin, logits / temperature)


class Sample(NamedTuple):
    """Logits and labels, for JAX and for NumPy."""

    logits: jax.Array
    labels: jax.Array
    z: np.ndarray
    y: np.ndarray


def drawn(rows: int, classes: int) -> Sample:
    """Draw logits and labels of a shape."""
    logits, labels = draw(jax.random.key(0), rows, classes)
    return Sample(logits, labels, np.asarray(logits), np.asarray(labels).astype(np.int64))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities in the dtype of the logits."""
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return p


def top(p: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence of every prediction, and whether it is correct."""
    predicted = p.argmax(axis=1)
    return p[np.arange(len(p)), predicted], predicted == labels


def bins(values: np.ndarray) -> np.ndarray:
    """Return the bin (low, high] of equal width of each value."""
    return np.clip(np.ceil(values * BINS).astype(np.intp) - 1, 0, BINS - 1)


def gaps(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sum confidence - right in bins of equal width; `right` may be a probability."""
    return np.bincount(bins(confidence), confidence - right, BINS)


def gaps_of_equal_count(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sum confidence - right in bins of equal count, of whole examples."""
    ordered = (confidence - right)[np.argsort(confidence)]
    return np.array([part.sum() for part in np.array_split(ordered, BINS)])


def ece(p: np.ndarray, labels: np.ndarray) -> float:
    """Compute the ECE with one bincount."""
    return float(np.abs(gaps(*top(p, labels))).sum() / len(p))


def adaptive_ece(p: np.ndarray, labels: np.ndarray) -> float:
    """Compute the ECE of bins of equal count."""
    return float(np.abs(gaps_of_equal_count(*top(p, labels))).sum() / len(p))


def classwise_ece(p: np.ndarray, labels: np.ndarray) -> float:
    """Compute the classwise ECE with one bincount over (class, bin)."""
    cells = BINS * p.shape[1]
    cell = BINS * np.arange(p.shape[1]) + bins(p)
    of_label = BINS * labels + bins(p[np.arange(len(p)), labels])
    gap = np.bincount(cell.ravel(), p.ravel(), cells) - np.bincount(of_label, minlength=cells)
    return float(np.abs(gap).sum() / p.size)


def bootstrap(p: np.ndarray, labels: np.ndarray, num_resamples: int) -> np.ndarray:
    """Resample the ECE: bin once, then draw indices and compute one bincount per resample."""
    confidence, hit = top(p, labels)
    index, gap, random = bins(confidence), confidence - hit, np.random.default_rng(0)
    samples = np.empty(num_resamples)
    for i in range(num_resamples):
        drawn = random.integers(0, len(p), len(p))
        samples[i] = np.abs(np.bincount(index[drawn], gap[drawn], BINS)).sum() / len(p)
    return samples
