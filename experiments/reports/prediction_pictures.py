"""Pictures of predictions for the pixels of chosen test images."""

import pathlib
from collections.abc import Sequence

import numpy as np

from calib_jax import data, plots, train


def numbers(chosen: Sequence[str], dataset: data.Dataset) -> np.ndarray:
    """Parse the numbers of chosen test images; raise an error if the data set lacks such images."""
    if not chosen:
        return np.zeros(0, int)
    count = len(dataset.test)
    wrong = [word for word in chosen if not word.isdecimal() or int(word) >= count]
    if wrong:
        raise ValueError(f"--pictures needs numbers from 0 to {count - 1}, got {wrong[0]!r}.")
    first = dataset.test[np.zeros(1, int)]
    if np.ndim(first.labels) != 3 or np.shape(first.inputs) != (*np.shape(first.labels), 3):
        raise ValueError(
            f"--pictures needs color images whose pixels have classes, and {dataset.name} has none."
        )
    return np.array([int(word) for word in chosen])


def write(
    dataset: data.Dataset, chosen: np.ndarray, predicted: train.Predicted, folder: pathlib.Path
) -> list[pathlib.Path]:
    """Write one PNG for each chosen image, and return the paths.

    Args:
      dataset: the data set.
      chosen: the numbers of the test images.
      predicted: the logits `[1, images, height, width, classes]` of a network for these images.
      folder: the folder of the pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images = np.asarray(dataset.test[chosen].inputs)
    paths = [folder / f"test_{number}.png" for number in chosen.tolist()]
    for place, (number, path) in enumerate(zip(chosen.tolist(), paths, strict=True)):
        logits = np.asarray(predicted.logits[0][place], np.float64)
        scaled = np.exp(logits - logits.max(axis=-1, keepdims=True))
        figure = plots.segmentation(
            images[place],
            predicted.labels[place],
            logits.argmax(axis=-1),
            1 / scaled.sum(axis=-1),
            weights=None if predicted.weights is None else predicted.weights[place],
            class_names=dataset.class_names,
            title=f"{dataset.name}, test image {number}",
        )
        plots.save(figure, path, dpi=150)
    return paths
