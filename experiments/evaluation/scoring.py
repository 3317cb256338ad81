"""The score reports of one network, also by class frequency, and the predictions that they need.

A config may exclude a class, such as the neutral class of the SST. While a network trains, metrics
set the probability of this class to 0 and do not change the other probabilities, like the code
released with Mukhoti et al. 2020. In a report the other probabilities are divided by their sum,
because the NLL, temperatures and tests need probabilities that sum to 1.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax import metrics, report, train
from calib_jax.report.score import chosen_metrics
from experiments.running import building

Answers = dict[str, train.Predicted]  # the predictions of a network by part of the data
# The smallest ratio of the largest to the smallest class size of a long-tailed data set.
IMBALANCE = 10
COLUMN = "predicted class"


class LabelRows(NamedTuple):
    """Labels of positive weight, and their predictions.

    Attributes:
      logits: `[labels, classes]`.
      labels: `[labels]`.
      weights: `[labels]`, or None.
      examples: `[labels]`, the number of the example of each label, or None if every example has
        one label. Pixels of an image and tokens of a sentence depend on each other, so intervals
        and tests use whole examples as clusters.
    """

    logits: Any
    labels: np.ndarray
    weights: np.ndarray | None
    examples: np.ndarray | None

    @property
    def num_examples(self) -> int | None:
        """The number of examples with a label of positive weight; None if each has one label."""
        return None if self.examples is None else len(np.unique(self.examples))


def label_rows(logits: Any, labels: Any, weights: Any = None) -> LabelRows:
    """Flatten the labels of predictions to rows.

    Predictions with one label per example are returned unchanged. With several labels per example,
    labels of weight 0 are dropped: most tokens can be padding, which would only need memory.

    >>> label_rows(np.zeros((2, 3, 4)), np.ones((2, 3), int), np.eye(2, 3)).examples
    array([0, 1])
    """
    labels = np.asarray(labels)
    if labels.ndim == 1:
        return LabelRows(logits, labels, weights, None)
    kept = np.ones(labels.shape, bool) if weights is None else np.asarray(weights) > 0
    kept_weights = None if weights is None else np.asarray(weights)[kept]
    return LabelRows(np.asarray(logits)[kept], labels[kept], kept_weights, np.nonzero(kept)[0])


def without_excluded(logits: Any, config: Mapping[str, Any] | None) -> Any:
    """Return logits `[*batch, classes]` with -inf for the class that the config excludes.

    >>> without_excluded(np.array([[1.0, 2.0, 3.0]]), {"excluded_class": 1})
    array([[  1., -inf,   3.]])
    """
    number = None if config is None else config.get("excluded_class")
    if number is None:
        return logits
    logits = np.array(logits)
    logits[..., number] = -np.inf
    return logits


def on_excluded(config: Mapping[str, Any], class_names: Sequence[str]) -> list[str]:
    """Describe the exclusion in one sentence; empty if the config excludes no class."""
    number = config.get("excluded_class")
    if number is None:
        return []
    return [
        f"The class {class_names[number]} is excluded: the probabilities of the others are divided"
        " by their sum."
    ]


# ------------------------------------------------------------------------------------------------
# Reports.


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


def reports(
    experiment: building.Experiment,
    answers: Answers,
    others: Sequence[str],
    made: Mapping[str, Any],
    *,
    calibrate: str,
    criteria: Sequence[str],
    num_resamples: int,
    per_class: bool,
) -> Iterator[tuple[str, Any, str]]:
    """Compute the reports of a network; yield a title, the report and its folder.

    Args:
      experiment: the experiment of the network.
      answers: the predictions of the network by part of the data.
      others: the parts that are out of distribution.
      made: the provenance of the predictions, for the settings of the reports.
      calibrate: the calibrator; empty for none.
      criteria: what a temperature minimizes, each as in `report.score`.
      num_resamples: the number of bootstrap resamples.
      per_class: whether to add a table per class.
    """
    calibrated: dict[str, Any] = {"num_resamples": num_resamples}
    if calibrate:
        calibrated["calibrate"] = calibrate
        calibrated["fit_on"] = label_rows(*answers["validation"])[:3]
        calibrated["criterion"] = criteria
    num_bins, class_names = experiment.config.num_bins, experiment.dataset.class_names
    of_weights = [f"Weights: {made['checkpoint']}."] if "checkpoint" in made else []

    def noted(scored: Any, notes: Sequence[str]) -> Any:
        notes, settings = [*notes, *scored.notes], scored.settings | made
        return dataclasses.replace(scored, notes=notes, settings=settings)

    for name, place in (("test", "report"), ("training", "report_training")):
        if name in answers:
            logits, labels, weights, examples = label_rows(*answers[name])
            scored = report.score(
                logits,
                labels,
                weights=weights,
                clusters=examples,
                class_names=class_names,
                num_bins=num_bins,
                per_class=per_class,
                **calibrated,
                **score_options(experiment.dataset.class_counts, logits, num_bins),
            )
            notes = [*of_weights, *on_excluded(experiment.config, class_names)]
            yield f"{name} set", noted(scored, notes), place
    if others:
        inner, *outer = (label_rows(*answers[name]) for name in ("test", *others))
        if all(rows.examples is not None for rows in (inner, *outer)):
            numbers = {name: rows.examples for name, rows in zip(others, outer, strict=True)}
            calibrated["clusters"] = inner.examples, numbers
        if calibrate:
            calibrated["criterion"] = criteria[0]
        inside = inner.logits if inner.weights is None else inner.logits[inner.weights > 0]
        outside = {name: rows.logits for name, rows in zip(others, outer, strict=True)}
        separated = report.out_of_distribution(inside, outside, **calibrated)
        yield "out of distribution", noted(separated, of_weights), "report"
