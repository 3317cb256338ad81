"""Data and float64 references for the tests of inference, which share no code with the library."""

import itertools

import numpy as np

# Twelve examples of two models, with bins of width 1/5.
CONFIDENCE = {
    "a": [0.55, 0.62, 0.68, 0.71, 0.77, 0.83, 0.86, 0.90, 0.93, 0.96, 0.97, 0.99],
    "b": [0.52, 0.70, 0.64, 0.75, 0.58, 0.88, 0.91, 0.81, 0.66, 0.95, 0.84, 0.97],
}
HIT = {"a": [1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1], "b": [1, 0, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1]}


def golden(model):
    """Return the logits of a binary model that predicts class 0, and its labels."""
    confidence, hit = np.array(CONFIDENCE[model]), np.array(HIT[model])
    logits = np.log(np.stack([confidence, 1 - confidence], axis=1))
    return logits.astype(np.float32), 1 - hit


def outcomes(confidence):
    """Return all 2^n vectors of hits, and the probability of each if the model is calibrated."""
    hits = np.array(list(itertools.product((0, 1), repeat=len(confidence))))
    return hits, np.prod(np.where(hits == 1, confidence, 1 - np.array(confidence)), axis=1)


def gaps(confidence, hit, num_bins):
    """Return (examples, sum of confidence minus hit) of every filled bin (lo, hi]."""
    residual = np.asarray(confidence) - np.asarray(hit)
    index = np.ceil(np.round(np.asarray(confidence) * num_bins, 6)) - 1
    return [(np.sum(index == b), np.sum(residual[index == b])) for b in np.unique(index)]


def softmax(logits):
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def simulated(random, num_rows, num_classes, sharpness=1.0):
    """Return logits, drawn labels, and the true probabilities; sharpness 1 is calibrated."""
    scale = 1.5 if num_classes == 2 else 2.0
    logits = scale * random.standard_normal((num_rows, num_classes))
    truth = softmax(logits)
    labels = (truth.cumsum(-1) < random.random((num_rows, 1))).sum(-1)
    return (sharpness * logits).astype(np.float32), np.minimum(labels, num_classes - 1), truth
