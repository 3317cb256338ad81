"""Tian et al. 2021: recall loss beside other losses, on pixels and on a long tail."""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.papers.entries import compared
from experiments.papers.entry import Training
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs, Seeds, before, difference
from experiments.papers.judge.estimates import Estimate, Predictions
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

MEASURE = "segments"
SCENES, TAIL = "camvid_deeplab_small", "cifar10_lt_resnet8"
RAREST = 3
OWN_T = ", each at its own T"
SGD = {
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 0.05,
    "optimizer.weight_decay": 5e-4,
    "schedule.name": "poly",
    "batch_size": 16,
}
Sums = Mapping[str, np.ndarray]
Of = Callable[[Predictions], Estimate]


def _recalls(sums: Sums) -> np.ndarray:
    counts = sums["confusion"]
    return np.diagonal(counts) / np.maximum(counts.sum(axis=1), 1)


def mean_recall(sums: Sums) -> float:
    """Average the recall over the classes that occur."""
    return float(np.mean(_recalls(sums)[sums["confusion"].sum(axis=1) > 0]))


def mean_precision(sums: Sums) -> float:
    """Average the precision over the classes that are predicted."""
    counts = sums["confusion"]
    predicted = counts.sum(axis=0)
    return float(np.mean((np.diagonal(counts) / np.maximum(predicted, 1))[predicted > 0]))


def mean_iou(sums: Sums) -> float:
    """Average intersection over union over the classes that occur or are predicted."""
    counts = sums["confusion"]
    union = counts.sum(axis=0) + counts.sum(axis=1) - np.diagonal(counts)
    return float(np.mean((np.diagonal(counts) / np.maximum(union, 1))[union > 0]))


def rare_recall(class_counts: np.ndarray) -> Callable[[Sums], float]:
    """Return the mean recall of the classes with the fewest training labels."""
    rarest = np.argsort(class_counts, kind="stable")[:RAREST]
    return lambda sums: float(np.mean(_recalls(sums)[rarest]))


def _of_scenes(first: Seeds, second: Seeds, statistic: Callable[[Sums], float]) -> Value:
    """Subtract a statistic of the confusion of all test images, over seeds and images."""

    def of_run(run: Trained) -> Estimate:
        return estimates.of_images({"confusion": run.measured[MEASURE]["confusion"]}, statistic)

    return comparisons.change(first, second, of_run)


def scene_changes(first: Seeds, second: Seeds) -> dict[str, Value]:
    """Compare two losses on pixels: `first` minus `second`."""
    scenes = {
        "recall of rare classes": rare_recall(second[0].measured[MEASURE]["class_counts"]),
        "mean recall": mean_recall,
        "mean precision": mean_precision,
        "mIoU": mean_iou,
    }
    values = {name: _of_scenes(first, second, of) for name, of in scenes.items()}
    return values | {
        f"CE2 of pixels {phase} T": comparisons.ce2_of_all_images(first, second, MEASURE, phase)
        for phase in ("before", "after")
    }


def _of_classes(first: int, column: Callable[[Predictions], np.ndarray]) -> Of:
    """Average a column over three classes, from `first` on; negative numbers count from the end."""

    def average(predictions: Predictions) -> Estimate:
        start = first % predictions.logits.shape[-1]
        chosen = (predictions.labels >= start) & (predictions.labels < start + RAREST)
        return estimates.mean_where(column(predictions), chosen)

    return average


def recall_of(first: int) -> Of:
    """Return the recall of three classes, from this one on."""
    return _of_classes(first, lambda predictions: predictions.right)


def confidence_of(first: int) -> Of:
    """Return the mean probability of the true class of three classes."""
    return _of_classes(first, lambda predictions: np.exp(-predictions.nll))


def _rare_classes(runs: Runs) -> dict[str, Value]:
    changes = scene_changes(runs["recall"], runs["ce"])
    both = runs["recall_tail"], runs["ce_tail"]
    return {
        **{f"{name}, CamVid: recall - CE": value for name, value in changes.items()},
        "recall of rare classes, CIFAR-10-LT: recall - CE": difference(*both, recall_of(-RAREST)),
        "error, CIFAR-10-LT: recall - CE": difference(*both, estimates.error),
    }


def _long_tail(runs: Runs) -> dict[str, Value]:
    """Compare the losses on the largest and on the smallest classes."""
    values = {
        f"{what} of {which} classes: recall - focal": difference(
            runs["recall"], runs["focal"], of(first)
        )
        for what, of in (("recall", recall_of), ("p_y", confidence_of))
        for which, first in (("rare", -RAREST), ("large", 0))
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
    return confidence_of(0)(predictions) - confidence_of(-RAREST)(predictions)


def _more_for_large(loss: str) -> str:
    return f"p_y of large classes - p_y of rare classes: {loss} - CE"


ENTRIES = {
    "long_tail": compared.entry(
        {"recall-focal-prefers-large-classes": rules.above(_more_for_large("focal") + OWN_T)},
        {
            "ce": Training("cross_entropy", config=TAIL),
            "recall": Training("recall", config=TAIL),
            "focal": Training("focal", config=TAIL),
        },
        others=_long_tail,
        originals={
            "recall-focal-prefers-large-classes": rules.above(
                "recall of rare classes: recall - focal"
            )
        },
    ),
    "optimizer": compared.entry(
        {"recall-better-with-sgd-large-batch": rules.above("mIoU: SGD - Adam")},
        {
            "adam": Training("cross_entropy", config=SCENES, keep="none"),
            "sgd": Training("cross_entropy", config=SCENES, changes=SGD, alias="sgd", keep="none"),
        },
        others=lambda runs: {
            f"{name}: SGD - Adam": _of_scenes(runs["sgd"], runs["adam"], of)
            for name, of in (("mIoU", mean_iou), ("mean recall", mean_recall))
        },
        measures=(MEASURE,),
    ),
    "rare_classes": compared.entry(
        {
            "recall-improves-rare-class-recall": rules.above(
                "recall of rare classes, CamVid: recall - CE",
                "recall of rare classes, CIFAR-10-LT: recall - CE",
            )
        },
        {
            "ce": Training("cross_entropy", config=SCENES, keep="none", seeds=6),
            "recall": Training("recall", config=SCENES, keep="none", seeds=6),
            "ce_tail": Training("cross_entropy", config=TAIL),
            "recall_tail": Training("recall", config=TAIL),
        },
        others=_rare_classes,
        measures=(MEASURE,),
    ),
}
