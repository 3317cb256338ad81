"""The labels of predictions in rows, with the example of each label if examples have several."""

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
