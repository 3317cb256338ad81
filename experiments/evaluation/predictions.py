"""The predictions of a run in the form that reports need: rows of labels, without excluded classes.

A config may exclude a class, such as the neutral class of the SST. While a network trains, metrics
set the probability of this class to 0 and do not change the other probabilities, like the code
released with Mukhoti et al. 2020. In a report the other probabilities are divided by their sum,
because the NLL, temperatures and tests need probabilities that sum to 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


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
