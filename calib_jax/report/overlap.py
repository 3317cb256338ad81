"""Check whether two sets of predictions hold the same examples."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_examples(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    """Check whether two sets hold the same rows of positive weight, in any order.

    Args:
      one: logits or probabilities, labels, and weights or None, of the first set.
      other: logits or probabilities, labels, and weights or None, of the second set.
    """
    rows, labels = _present_rows(*one)
    others, other_labels = _present_rows(*other)
    if rows.shape != others.shape:
        return False
    if np.array_equal(labels, other_labels) and np.allclose(rows, others, 1e-4, 1e-5, True):
        return True
    digests = _digests(rows, labels)
    return np.array_equal(np.sort(digests), np.sort(_digests(others, other_labels)))


def _present_rows(logits: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """Select the rows of positive weight, in single precision."""
    labels = np.asarray(labels).reshape(-1)
    rows = np.asarray(logits).reshape(len(labels), -1).astype(np.float32)
    if weights is None:
        return rows, labels
    counts = np.asarray(weights).reshape(-1) > 0
    return rows[counts], labels[counts]


def _digests(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Hash each row with its label to 64 bits, by random multiples of the bits."""
    multiples = np.random.default_rng(0).integers(2**64, size=rows.shape[1] + 1, dtype=np.uint64)
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint32)  # + 0.0 turns -0.0 into 0.0
    digests = labels.astype(np.uint64) * multiples[-1]
    for column, multiple in zip(bits.T, multiples, strict=False):
        digests += column.astype(np.uint64) * multiple
    return digests
