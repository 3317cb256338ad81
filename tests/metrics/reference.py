"""Predictions in float64 NumPy, shared by the references of the metrics; no metric lives here."""

import numpy as np


def softmax(logits):
    """Return the probabilities [N, K]."""
    z = np.asarray(logits, np.float64)
    spread = np.exp(z - z.max(axis=1, keepdims=True))
    return spread / spread.sum(axis=1, keepdims=True)


def top_label(logits, labels):
    """Return the confidence and whether the prediction, the first of equals, is right."""
    p = softmax(logits)
    return p.max(axis=1), (p.argmax(axis=1) == labels).astype(np.float64)


def logits_of(confidence, num_classes=2):
    """Return logits [N, K] whose prediction is class 0 with the given confidence."""
    confidence = np.asarray(confidence, np.float64)
    rest = np.repeat(((1 - confidence) / (num_classes - 1))[:, None], num_classes - 1, axis=1)
    with np.errstate(divide="ignore"):
        logits = np.log(np.concatenate([confidence[:, None], rest], axis=1))
    return np.maximum(logits, -200).astype(np.float32)  # a confidence of 1 needs a finite logit


def sample(seed=0, rows=40, num_classes=3, levels=8):
    """Draw logits of few different confidences, and labels that are often the prediction."""
    rng = np.random.default_rng(seed)
    level = np.linspace(0.4, 0.97, levels)[rng.integers(0, levels, rows)]
    labels = np.where(rng.random(rows) < level - 0.1, 0, rng.integers(1, num_classes, rows))
    return logits_of(level, num_classes), labels
