"""Further measurements of finished runs, which need the network and the data again.

A measure is a function of a run's folder and of the folder of the data sets. It returns columns of
the test set, or small arrays, by name: they are written once, beside the record of the run
(`records.py`).
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import calibrators, data, inference, metrics, train
from calib_jax.train.folder import files
from experiments.papers.judge.estimates import Columns, Predictions, temperature_of
from experiments.papers.store import kept
from experiments.reports import evaluation_record, excluded
from experiments.running import building, initial
from experiments.running.trained import predictions

Measured = dict[str, Columns | np.ndarray]
Measure = Callable[[pathlib.Path, str | None], Measured]
Row = Mapping[str, Any]


def turning_points(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Predict at the epochs of the least test NLL: of all, and after the first drop; and at it."""
    run = _Run(folder, data_dir)
    drop = first_drop(run.rows)
    later = [row for row in run.rows if row["epoch"] >= drop["epoch"]]
    return run.at(
        {
            "least": least(run.rows, "test_nll"),
            "least_later": least(later, "test_nll"),
            "drop": drop,
        }
    )


def early_stops(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Predict at the epochs of the least validation NLL, ECE and error."""
    run = _Run(folder, data_dir)
    return run.at({name: least(run.rows, f"validation_{name}") for name in ("nll", "ece", "error")})


def _white(run: "_Run") -> float:
    """Return the stored value of a white pixel."""
    if run.dataset.brightest is None:
        raise ValueError(f"noise needs images, and {run.dataset.name} has none.")
    return run.dataset.brightest


def noise(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Predict the test images with Gaussian noise of standard deviation .1, as they are."""
    run = _Run(folder, data_dir)
    source = data.gaussian_noise(run.dataset.test, severity=5, brightest=_white(run))
    return _before_and_after(run, source)


def svhn(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Predict the test images of SVHN, normalised as the run's own data set is."""
    run = _Run(folder, data_dir)
    return _before_and_after(run, building.data_set("svhn", {}, data_dir).test)


def _before_and_after(run: "_Run", source: Any) -> Measured:
    before = run.predicted([run.rows[-1]["step"]], source)[0]
    return {"before": before.columns, "after": before.scaled(run.temperature).columns}


def shift(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Predict the test images with noise of severity 1 to 5, after the temperature."""
    run = _Run(folder, data_dir)
    temperature = run.temperature
    columns: Measured = {}
    for severity in range(1, 6):
        source = data.gaussian_noise(run.dataset.test, severity=severity, brightest=_white(run))
        predicted = run.predicted([run.rows[-1]["step"]], source)[0].scaled(temperature)
        columns[f"severity_{severity}"] = Columns(predicted.confidence, predicted.right)
    return columns


def mass_bins(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Average the confidence in bins 0, 7 and 14 of 15 of equal mass, at every epoch.

    The confidence of a training example is the probability of its class, that of a validation
    example the top one; both sets have bins of their own.
    """
    run = _Run(folder, data_dir)
    steps = [row["step"] for row in run.rows]
    parts = {"training": run.dataset.train, "validation": run.dataset.validation}
    return {
        name: np.array(
            [
                _bin_means(np.exp(-part.nll) if name == "training" else part.confidence)
                for part in run.predicted(steps, source)
            ],
            np.float32,
        )
        for name, source in parts.items()
    }


def top_bin(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Compute the share of training examples in the top of 25 bins, and the error, by epoch."""
    run = _Run(folder, data_dir)
    parts = run.predicted([row["step"] for row in run.rows], run.dataset.train)
    return {
        "share": np.array([np.mean(part.confidence > 24 / 25) for part in parts]),
        "error": np.array([np.mean(~part.right) for part in parts]),
    }


def segments(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Sum the confusion and the calibration of every test image, as trained and after T by NLL.

    The confusion is `[images, classes, classes]`, by label and prediction; the columns of the bins
    are `[images, 15]`. An example with one label is an image of one pixel; trees are images, too.
    """
    run = _Run(folder, data_dir)
    logits, labels, weights = run.answers("validation")
    temperature = calibrators.temperature.fit(logits, labels, weights).temperature
    logits, labels, weights = run.answers("test")
    before = inference.ImageStream({"confusion": metrics.confusion_counts, "ece": metrics.ece})
    after = inference.ImageStream({"ece": metrics.ece})
    for start in range(0, len(labels), _IMAGES_AT_A_TIME):
        rows = slice(start, start + _IMAGES_AT_A_TIME)
        before.update(logits[rows], labels[rows], weights[rows])
        after.update(logits[rows] / np.float32(temperature), labels[rows], weights[rows])
    num_classes = run.dataset.num_classes
    cells = before.stats["confusion"]["weight"][:, :-1]
    arrays: Measured = {
        "confusion": cells.reshape(-1, num_classes, num_classes).astype(np.float32),
        "temperature": np.asarray(temperature),
        "class_counts": np.asarray(run.dataset.class_counts),
    }
    for name, stream in (("before", before), ("after", after)):
        for column, sums in stream.stats["ece"].values.items():
            arrays[f"{name}_{column}"] = sums.astype(np.float32)
    return arrays


def class_weights(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Average 1 - p_y and the misses over every class of the validation set, at every kept epoch.

    Both are `[epochs, classes]`: the weights of the focal loss with gamma 1 and of the recall loss.
    """
    run = _Run(folder, data_dir)
    rows = [row for row in run.rows if row["step"] in run.kept_steps]
    steps = [row["step"] for row in rows]
    all_logits, labels, weights = run.images(steps, run.dataset.validation)
    present = weights > 0
    counts = np.maximum(np.bincount(labels[present], minlength=run.dataset.num_classes), 1)
    focal_weights: list[np.ndarray] = []
    recall_weights: list[np.ndarray] = []
    for logits in all_logits:
        kept = Predictions(logits[present], labels[present])
        weights_by_table = ((focal_weights, -np.expm1(-kept.nll)), (recall_weights, ~kept.right))
        for table, values in weights_by_table:
            table.append(np.bincount(kept.labels, values, len(counts)) / counts)
    return {
        "epoch": np.array([row["epoch"] for row in rows]),
        "focal_weights": np.array(focal_weights, np.float32),
        "recall_weights": np.array(recall_weights, np.float32),
        "class_counts": np.asarray(run.dataset.class_counts),
    }


def translation(folder: pathlib.Path, data_dir: str | None) -> Measured:
    """Translate the test part at several temperatures, and sum its tokens by sentence."""
    from experiments.papers.store import translations

    return {**translations.measured(folder, data_dir)}


_IMAGES_AT_A_TIME = 16


def _bin_means(confidence: np.ndarray) -> list[float]:
    groups = np.array_split(np.sort(confidence), 15)
    return [float(np.mean(groups[number])) for number in (0, 7, 14)]


def first_drop(rows: Sequence[Row]) -> Row:
    """Return the last row before the learning rate falls for the first time; else a middle one."""
    return rows[[*drops(rows), (len(rows) - 1) // 2][0]]


def drops(rows: Sequence[Row]) -> list[int]:
    """Return the positions of the last rows before the learning rate falls by half or more."""
    rates = [row["learning_rate"] for row in rows]
    return [place for place in range(len(rows) - 1) if rates[place + 1] < 0.5 * rates[place]]


def least(rows: Sequence[Row], key: str) -> Row:
    """Return the first row with the least value."""
    return min(rows, key=lambda row: row[key])


def _as_images(
    logits: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make an image of one pixel of an example with one label."""
    if labels.ndim > 1:
        return logits, labels, weights
    return logits[:, None], labels[:, None], weights[:, None]


class _Run:
    """A finished run with its network, data set and checkpoints."""

    def __init__(self, folder: pathlib.Path, data_dir: str | None) -> None:
        self._folder = folder
        self.rows = files.json_rows(folder / "metrics.jsonl").rows
        self._checkpoints = initial.opened(str(folder))
        self._config = initial.config_of(self._checkpoints)
        self._experiment = building.build(self._config, data_dir=data_dir)
        self.dataset = self._experiment.dataset

    @property
    def temperature(self) -> float:
        """The papers' temperature, from the validation set."""
        return temperature_of(kept.labelled(self._folder, "validation"), "ece")

    def at(self, rows: Mapping[str, Row]) -> Measured:
        """Predict the test set with the weights of some epochs."""
        parts = self.predicted([row["step"] for row in rows.values()], self.dataset.test)
        return {name: part.columns for name, part in zip(rows, parts, strict=True)}

    def answers(self, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return logits, labels and weights of a part as `images`, without an excluded class.

        They are those that the sweep kept; if it kept none, the last weights predict them.
        """
        if (self._folder / evaluation_record.file_of(part)).is_file():
            logits, labels, weights = _as_images(*kept.rows(self._folder, part))
        else:
            source = {"validation": self.dataset.validation, "test": self.dataset.test}[part]
            (logits,), labels, weights = self.images([self.rows[-1]["step"]], source)
        return excluded.without(logits, self._config), labels, weights

    @property
    def kept_steps(self) -> set[int]:
        """The steps whose checkpoints are kept."""
        return set(self._checkpoints.steps)

    def images(
        self, steps: Sequence[int], source: Any
    ) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """Predict images with the weights of some steps, in one program.

        Returns:
          The logits `[images, ..., classes]` of every step, and labels and weights of the pixels.
        """
        several, labels, weights = self._predicted(steps, source)
        weights = np.ones(labels.shape) if weights is None else weights
        images = [_as_images(logits, labels, weights) for logits in several]
        return [logits for logits, _, _ in images], *images[0][1:]

    def predicted(self, steps: Sequence[int], source: Any) -> list[Predictions]:
        """Predict a source with the weights of some steps, in one program."""
        predicted = self._predicted(steps, source)
        return [Predictions(logits, predicted.labels) for logits in predicted.logits]

    def _predicted(self, steps: Sequence[int], source: Any) -> train.Predicted:
        template = self._experiment.template()
        kept = self._checkpoints.steps
        missing = sorted(set(steps) - set(kept))
        if missing:
            raise ValueError(
                f"{self._folder} has no checkpoint of step {', '.join(map(str, missing))}: train it"
                " with --config.run.keep_every_epochs=1."
            )
        states = [self._checkpoints.restore(template, step).state for step in steps]
        return predictions(self._experiment, states, source, batch_size=1024)


MEASURES: dict[str, Measure] = {
    measure.__name__: measure
    for measure in (
        *(turning_points, early_stops, noise, svhn, shift, mass_bins, top_bin, segments),
        *(class_weights, translation),
    )
}


def named(name: str) -> Measure:
    """Return the measure of this name."""
    if name not in MEASURES:
        raise LookupError(f"there is no measure {name!r}; there are {', '.join(MEASURES)}.")
    return MEASURES[name]
