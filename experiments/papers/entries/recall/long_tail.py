"""Recall and focal loss on a long tail (Tian et al. 2021)."""

from collections.abc import Callable

import numpy as np

from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates, rules
from experiments.papers.judge.comparisons import Runs, before, difference
from experiments.papers.judge.estimates import Estimate, Predictions
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

CONFIG = "cifar10_lt_resnet8"
OWN_T = ", each at its own T"
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
    values = {
        f"{what} of {which} classes: recall - focal": difference(recall, focal, of(first))
        for what, of in (("recall", recall_of), ("p_y", confidence_of))
        for which, first in (("rare", -CLASSES), ("large", 0))
    }
    for name in ("focal", "recall"):
        for part, at in ((before, ""), (_at_own_temperature, OWN_T)):
            values[_more_for_large(name) + at] = difference(
                runs[name], runs["ce"], _large_minus_rare, part
            )
    return values


def _at_own_temperature(run: Trained) -> Predictions:
    """Divide the logits by the temperature of the least validation NLL of this run."""
    return run.logits.scaled(run.temperature_by_nll)


def _large_minus_rare(predictions: Predictions) -> Estimate:
    return confidence_of(0)(predictions) - confidence_of(-CLASSES)(predictions)


def _more_for_large(loss: str) -> str:
    return f"p_y of large classes - p_y of rare classes: {loss} - CE"


ENTRY = Entry(
    claims={"recall-focal-prefers-large-classes": rules.above(_more_for_large("focal") + OWN_T)},
    originals={
        "recall-focal-prefers-large-classes": rules.above("recall of rare classes: recall - focal")
    },
    runs={
        "ce": Training("cross_entropy", config=CONFIG),
        "recall": Training("recall", config=CONFIG),
        "focal": Training("focal", config=CONFIG),
    },
    statistic=statistic,
)
