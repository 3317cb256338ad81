"""Recall and focal loss on a long tail (Tian et al. 2021)."""

from collections.abc import Callable

import numpy as np

from experiments.papers import estimates, rules
from experiments.papers.comparisons import Runs, difference
from experiments.papers.entry import Entry, Training
from experiments.papers.estimates import Estimate, Predictions
from experiments.papers.values import Value

CONFIG = "cifar10_lt_resnet8"
CLASSES = 3  # the largest and the smallest


def recall_of(first: int) -> Callable[[Predictions], Estimate]:
    """Return the recall of three classes, from this one on; negative numbers count from the end."""

    def average(predictions: Predictions) -> Estimate:
        start = first % predictions.logits.shape[-1]
        chosen = (predictions.labels >= start) & (predictions.labels < start + CLASSES)
        return estimates.mean_where(predictions.right, chosen)

    return average


def confidence_of(first: int) -> Callable[[Predictions], Estimate]:
    """Return the mean probability of the true class of three classes."""

    def average(predictions: Predictions) -> Estimate:
        start = first % predictions.logits.shape[-1]
        chosen = (predictions.labels >= start) & (predictions.labels < start + CLASSES)
        return estimates.mean_where(np.exp(-predictions.nll), chosen)

    return average


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the losses on the largest and on the smallest classes."""
    recall, focal = runs["recall"], runs["focal"]
    return {
        f"{what} of {which} classes: recall - focal": difference(recall, focal, of(first))
        for what, of in (("recall", recall_of), ("p_y", confidence_of))
        for which, first in (("rare", -CLASSES), ("large", 0))
    }


ENTRY = Entry(
    claims={
        "recall-focal-prefers-large-classes": rules.above("recall of rare classes: recall - focal")
    },
    runs={
        "recall": Training("recall", config=CONFIG),
        "focal": Training("focal", config=CONFIG),
    },
    statistic=statistic,
    note="CIFAR-10-LT by a factor of 100.",
)
