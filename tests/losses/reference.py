"""Probabilities in float64 NumPy, shared by the references of every loss.

No formula of a loss lives here: each test file writes its own, so that a mistake in one of them
cannot hide in another.
"""

from typing import NamedTuple

import numpy as np


class Probabilities(NamedTuple):
    """Terms of the formulas of the losses, for logits [N, K] and labels [N]."""

    log: np.ndarray  # [N, K] log p_k
    all: np.ndarray  # [N, K] p_k
    top: np.ndarray  # [N] largest p_k
    predicted: np.ndarray  # [N] the class of the largest logit, the first one at ties
    log_true: np.ndarray  # [N] log p_y
    true: np.ndarray  # [N] p_y
    rest: np.ndarray  # [N] 1 - p_y
    cross_entropy: np.ndarray  # [N] -log p_y
    hot: np.ndarray  # [N, K] one-hot labels
    distance: np.ndarray  # [N, K] |one-hot - p|


def logsumexp(values):
    """Return the log of the sum of exponentials over the last axis."""
    largest = np.max(values, axis=-1)
    return largest + np.log(np.sum(np.exp(values - largest[..., None]), axis=-1))


def probabilities(logits, labels):
    """Return the softmax of the logits, seen from the labels.

    1 - p_y and the cross-entropy come from the log-odds of y against the OTHER classes: from p_y
    they would have no digits left where it is close to 1.
    """
    logits = np.asarray(logits, np.float64)
    labels = np.asarray(labels)
    rows, num_classes = np.arange(len(labels)), logits.shape[-1]
    log = logits - logsumexp(logits)[:, None]
    others = np.arange(num_classes) != labels[:, None]
    other_logits = logits[others].reshape(len(labels), num_classes - 1)
    others_minus_true = logsumexp(other_logits) - logits[rows, labels]
    # 1 - p_y = 1 / (1 + exp(-d)), -log p_y = log(1 + exp(d)), d = the others against the true
    rest = np.exp(-np.logaddexp(0.0, -others_minus_true))
    cross_entropy = np.logaddexp(0.0, others_minus_true)
    hot = np.eye(num_classes)[labels]
    # equal logits must give equal probabilities, so p_y in here is computed like any other p_k
    everything = np.exp(log)
    return Probabilities(
        log=log,
        all=everything,
        top=everything.max(axis=-1),
        predicted=np.argmax(logits, axis=-1),
        log_true=-cross_entropy,
        true=everything[rows, labels],
        rest=rest,
        cross_entropy=cross_entropy,
        hot=hot,
        distance=np.where(hot == 1, rest[:, None], everything),
    )


def seen_by_weight(logits, labels, weighting, constants_at):
    """Return the probabilities of which a loss' weight is a function.

    With weighting "gradient" they are constants, taken at `constants_at` where that is given.
    """
    detached = weighting == "gradient" and constants_at is not None
    return probabilities(constants_at if detached else logits, labels)
