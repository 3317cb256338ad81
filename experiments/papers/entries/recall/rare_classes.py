"""Recall of rare classes with cross-entropy and recall loss (Tian et al. 2021), and its price."""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates, rules
from experiments.papers.judge.comparisons import Runs, Seeds, difference
from experiments.papers.judge.estimates import Estimate, Predictions
from experiments.papers.judge.paired import over_seeds_and_rows
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

MEASURE = "segments"
RAREST = 3
Sums = Mapping[str, np.ndarray]


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


def of_run(run: Trained, statistic: Callable[[Sums], float]) -> Estimate:
    """Compute a statistic of the confusion of all test images."""
    return estimates.of_images({"confusion": run.measured[MEASURE]["confusion"]}, statistic)


def calibration(run: Trained, phase: str) -> Estimate:
    """Compute the squared calibration error of the pixels, "before" or "after" the temperature."""
    arrays = run.measured[MEASURE]
    columns = (arrays[f"{phase}_{name}"] for name in ("weight", "confidence", "hit"))
    return estimates.of_images(*estimates.squared_error_of_images(*columns))


def plug_in_ece(run: Trained, phase: str) -> float:
    """Compute the ECE of the pixels, which stands beside the tests."""
    arrays = run.measured[MEASURE]
    weight, confidence, hit = (
        arrays[f"{phase}_{name}"].sum(axis=0) for name in ("weight", "confidence", "hit")
    )
    return float(np.sum(np.abs(confidence - hit)) / np.sum(weight))


def of_tail(predictions: Predictions) -> Estimate:
    """Compute the recall of the last classes, which are the rarest of CIFAR-10-LT."""
    last = predictions.logits.shape[-1] - RAREST
    return estimates.mean_where(predictions.right, predictions.labels >= last)


def scene_changes(first: Seeds, second: Seeds) -> dict[str, Value]:
    """Compare two losses on pixels, seed by seed, over seeds and images: `first` minus `second`."""
    pairs = list(zip(first, second, strict=True))
    scenes = {
        "recall of rare classes": rare_recall(second[0].measured[MEASURE]["class_counts"]),
        "mean recall": mean_recall,
        "mean precision": mean_precision,
        "mIoU": mean_iou,
    }
    values = {
        name: over_seeds_and_rows([of_run(a, of) - of_run(b, of) for a, b in pairs])
        for name, of in scenes.items()
    }
    for phase in ("before", "after"):
        eces = [np.mean([plug_in_ece(pair[side], phase) for pair in pairs]) for side in (0, 1)]
        values[f"CE2 of pixels {phase} T"] = over_seeds_and_rows(
            [calibration(a, phase) - calibration(b, phase) for a, b in pairs],
            note=f"ECE {eces[0]:.4f} and {eces[1]:.4f}",
        )
    return values


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare recall loss with cross-entropy on pixels and on a long tail, seed by seed."""
    changes = scene_changes(runs["recall"], runs["ce"])
    values = {f"{name}, CamVid: recall - CE": value for name, value in changes.items()}
    values["recall of rare classes, CIFAR-10-LT: recall - CE"] = difference(
        runs["recall_tail"], runs["ce_tail"], of_tail
    )
    values["error, CIFAR-10-LT: recall - CE"] = difference(
        runs["recall_tail"], runs["ce_tail"], estimates.error
    )
    return values


SCENES, TAIL = "camvid_deeplab_small", "cifar10_lt_resnet8"
ENTRY = Entry(
    claims={
        "recall-improves-rare-class-recall": rules.above(
            "recall of rare classes, CamVid: recall - CE",
            "recall of rare classes, CIFAR-10-LT: recall - CE",
        )
    },
    runs={
        "ce": Training("cross_entropy", config=SCENES, keep="none"),
        "recall": Training("recall", config=SCENES, keep="none"),
        "ce_tail": Training("cross_entropy", config=TAIL),
        "recall_tail": Training("recall", config=TAIL),
    },
    measures=(MEASURE,),
    statistic=statistic,
)
