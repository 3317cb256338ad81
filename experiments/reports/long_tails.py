"""Report accuracy and calibration by class frequency for long-tailed data sets."""

from typing import Any

import numpy as np

from calib_jax import metrics, report
from calib_jax.report.chosen_metrics import chosen_metrics

# The smallest ratio of the largest to the smallest class size of a long-tailed data set.
IMBALANCE = 10
COLUMN = "predicted class"


def shots(class_counts: Any) -> np.ndarray | None:
    """Return the group of each class, "many", "medium" or "few"; None for balanced classes.

    Also None if all classes belong to one group, as the classes of pixels do.

    >>> shots([500, 50, 5])
    array(['many', 'medium', 'few'], dtype='<U6')
    >>> shots([50, 40, 15]) is None
    True
    """
    if class_counts is None or not np.size(class_counts):
        return None
    counts = np.asarray(class_counts)
    groups = metrics.shots_of_classes(counts)
    if counts.max() < IMBALANCE * max(counts.min(), 1) or len(set(groups.tolist())) == 1:
        return None
    return groups


def score_options(class_counts: Any, logits: Any, num_bins: int) -> dict[str, Any]:
    """Return the metrics and groups of `report.score` for long-tailed classes; {} for others.

    The metrics are the metrics of every report, and the mean recall of the many-, medium- and
    few-shot classes. The group of an example is the group of the predicted class, because a group
    chosen by the label is never calibrated.

    Args:
      class_counts: the number of training examples of each class, or None.
      logits: `[*batch, classes]`, the logits of the report.
      num_bins: the number of bins of all metrics that have bins.
    """
    groups = shots(class_counts)
    if groups is None:
        return {}
    by_shot = {
        f"{shot}_shot_accuracy": metrics.shot_accuracy(class_counts, only=shot)
        for shot in ("many", "medium", "few")
        if shot in groups
    }
    return {
        "metrics": chosen_metrics(report.DEFAULT_METRICS, num_bins) | by_shot,
        "groups": {COLUMN: groups[np.argmax(logits, axis=-1).reshape(-1)]},
    }
