"""The predictions that a finished run keeps in files."""

import pathlib

import numpy as np

from calib_jax import report
from experiments.papers.judge.estimates import Predictions
from experiments.reports import evaluation_record


def rows(folder: pathlib.Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read logits `[rows, ..., classes]`, labels `[rows, ...]` and weights of their shape."""
    path = folder / evaluation_record.file_of(part)
    values = report.read_predictions(str(path))
    logits, labels = np.asarray(values.logits, np.float32), np.asarray(values.labels)
    weights = np.ones(labels.shape) if values.weights is None else np.asarray(values.weights)
    if not np.all((weights == 0) | (weights == 1)):
        raise ValueError(
            f"{path} has labels of other weights than 0 and 1, which the"
            " statistics of verdicts do not know."
        )
    return logits, labels, weights


def labelled(folder: pathlib.Path, part: str) -> Predictions:
    """Read the predictions of a part for all labels that have weight, such as roots of trees."""
    logits, labels, weights = rows(folder, part)
    return Predictions(logits[weights > 0], labels[weights > 0])
