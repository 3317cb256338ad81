"""Pictures of predictions for the pixels of chosen test images."""

import pathlib
from collections.abc import Sequence

import numpy as np

from calib_jax import data, plots
from experiments.evaluation.trained import Trained, predictions
from experiments.reports import pages
from experiments.running import building


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


def draw(
    experiment: building.Experiment, network: Trained, chosen: Sequence[str], batch_size: int
) -> list[pathlib.Path]:
    """Write one PNG for each chosen test image to report/pictures, and return the paths.

    A link in place of the folder is an error, so that no file outside the run is written.
    """
    dataset, rows = experiment.dataset, numbers(chosen, experiment.dataset)
    if not len(rows):
        return []
    predicted = predictions(
        experiment, [network.state], data.subset(dataset.test, rows), batch_size
    )
    folder = network.folder / "report" / "pictures"
    pages.check_no_links(folder.parent)
    folder.mkdir(parents=True, exist_ok=True)
    images, paths = np.asarray(dataset.test[rows].inputs), []
    for place, number in enumerate(rows.tolist()):
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
        path = folder / f"test_{number}.png"
        if path.is_symlink():
            raise FileExistsError(f"{path} is a link: remove it.")
        plots.save(figure, path, dpi=150)
        paths.append(path)
    return paths
