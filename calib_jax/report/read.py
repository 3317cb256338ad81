"""Read files of predictions without executing any of their content: which reader, and the checks.

run.npz                       arrays logits, labels and optionally groups, clusters, weights, ...
logits.npy with labels.npy    both paths are given: LOGITS.npy,LABELS.npy
run.csv, .tsv, .parquet       columns label, logit_0, logit_1, ...; or confidence, correct
run.json, .jsonl              the same, one object for each example; or rows with own options
samples_TASK.jsonl            a task of lm-evaluation-harness, see `harness.py`
LOG.eval, LOG.json            an evaluation log of Inspect, see `inspect_logs.py`

`columns.py` says what the columns and arrays mean. Every reader runs under one guard: whatever a
library raises becomes a sentence with the name of the file.
"""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable as Unreadable
from calib_jax.report.columns import Request, interpreted
from calib_jax.report.predictions import Predictions, listed

KIND = "a file of predictions"
_ENDINGS = (".npz", ".csv", ".tsv", ".parquet", ".jsonl", ".eval")


def read_predictions(
    name: str, *, probabilities: bool = False, first_label: int = 0, clusters: str | None = None
) -> Predictions:
    r"""Read a file of one model by its extension; two .npy files are LOGITS.npy,LABELS.npy.

    Args:
      name: the name of the file.
      probabilities: whether to read probabilities if the file contains both them and logits.
      first_label: the label of the first class, usually 0 or 1.
      clusters: the column or array of clusters, if it has another name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(f"{folder}/run.csv").write_text("label,cat,dog\ndog,0.5,2\n")
    ...     contents = read_predictions(f"{folder}/run.csv")
    >>> contents.logits, contents.labels
    (array([[0.5, 2. ]]), array([1]))
    """
    models = read_models(
        name, probabilities=probabilities, first_label=first_label, clusters=clusters
    )
    if len(models) > 1:
        raise Unreadable(
            f"{name} holds {len(models)} models, {listed([each.model for each in models], 5)}: read"
            " them by calib-score or `report.score_files`."
        )
    return models[0]


def read_models(name: str, **options: Any) -> list[Predictions]:
    """Read the predictions of each model of a file; the options are those of `Request`."""
    paths = [pathlib.Path(part) for part in name.split(",")]
    endings = [path.suffix.lower() for path in paths]
    how = Request(paths[0], **options)
    if endings == [".npy"]:
        raise Unreadable(f"{name} needs its labels: give LOGITS.npy,LABELS.npy.")
    if endings != [".npy", ".npy"] and endings not in ([each] for each in (*_ENDINGS, ".json")):
        raise Unreadable(
            f"{name} must end in .npz, .csv, .tsv, .parquet or .jsonl, be a log of Inspect that"
            " ends in .eval or .json, or be LOGITS.npy,LABELS.npy."
        )
    with reading.guard(paths[0], KIND, library=True):
        if endings[0] == ".npz":
            with reading.npz(paths[0], KIND) as arrays:
                models = interpreted(arrays.names, arrays.__getitem__, how)
        elif endings[0] == ".npy":
            logits, labels = (reading.npy(path, KIND) for path in paths)
            kind = "probabilities" if how.probabilities else "logits"
            models = [Predictions(logits, labels, kind=kind)]
        else:
            from calib_jax.report import tables

            models = tables.read(how)
        return [checked(name, each, how.first_label) for each in models]


def checked(name: str, contents: Predictions, first_label: int) -> Predictions:
    """Validate shapes, dtypes and values; count labels from 0."""
    logits, labels, weights = contents[:3]
    if logits.dtype.kind != "f" or logits.ndim == 0:
        what = f"{logits.dtype} of shape {logits.shape}"
        raise Unreadable(f"the logits of {name} must be floating point, one row each, got {what}.")
    batch = logits.shape if logits.ndim == 1 else logits.shape[:-1]
    groups = contents.groups if isinstance(contents.groups, dict) else {"groups": contents.groups}
    others = {"labels": labels, "weights": weights, "clusters": contents.clusters, **groups}
    for key, values in (others | {"questions": contents.questions}).items():
        if values is not None and values.shape != batch:
            raise Unreadable(
                f"the {key} of {name} must have shape {batch}, one for each example, got"
                f" {values.shape}."
            )
    if not contents.of_classes or contents.ordinal is not None:
        return contents
    num_classes = 2 if logits.ndim == 1 or logits.shape[-1] == 1 else logits.shape[-1]
    present = np.ones(batch, bool) if weights is None else weights > 0
    # One column of logits belongs to class 1, and does not name the other class.
    names = contents.class_names
    if len(names) not in (0, 1, num_classes):
        raise Unreadable(f"{name} has {len(names)} class names and {num_classes} classes.")
    named = names if len(names) == num_classes else ()
    of_one = names[0] if len(names) == 1 else ""
    labels = _from_zero(name, labels, present, num_classes, first_label)
    return contents._replace(labels=labels, class_names=named, name_of_one=of_one)


def _from_zero(
    name: str, labels: np.ndarray, present: np.ndarray, num_classes: int, first: int
) -> np.ndarray:
    """Count labels from 0; raise an error for a label out of range, compared in its own dtype."""
    if labels.dtype.kind == "b" and num_classes == 2:
        labels = labels.astype(np.int64) + first
    is_whole = labels.dtype.kind == "f" and np.all(
        np.isfinite(labels) & (labels == np.rint(labels))
    )
    if labels.dtype.kind not in "iu" and not is_whole:
        raise Unreadable(f"the labels of {name} must be integers, got {labels.dtype}.")
    inside = (labels >= first) & (labels < first + num_classes)
    wrong = np.flatnonzero(present & ~inside)
    if wrong.size:
        used, hint = labels[present], "Give ignored examples weight 0."
        if first == 0 and used.min() >= 1 and used.max() == num_classes:
            hint = f"The labels run from {int(used.min())} to {num_classes}: give --first_label=1."
        raise Unreadable(
            f"label {int(labels.flat[wrong[0]])} of {name} (example {wrong[0]:,}, counted from 0)"
            f" is not among the {num_classes} classes {first} to {first + num_classes - 1}.\n{hint}"
        )
    safe = np.where(inside, labels, first).astype(np.int64) - first
    return np.where(inside, safe, -1)


def costs(name: str | None) -> np.ndarray | None:
    """Read a matrix of costs from a CSV file of numbers; None without a file."""
    if not name:
        return None
    kind, advice = "a matrix of costs", "give a CSV file of numbers, a row per class, and no header"
    lines = reading.text(name, kind, advice).splitlines()  # NumPy would also open addresses
    with reading.guard(name, kind, advice), warnings.catch_warnings(action="ignore"):
        matrix = np.loadtxt(lines, delimiter=",", ndmin=2)
        if not matrix.size:
            raise ValueError("it is empty")
        return matrix


def models_of(given: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Replace folders by the files in them; return the name of the model of each of these, too."""
    files: list[str] = []
    names: dict[str, str] = {}
    for name in given:
        models = models_in(pathlib.Path(name)) if pathlib.Path(name).is_dir() else {"": name}
        files += models.values()
        names |= {file: model for model, file in models.items()}
    return files, names


def models_in(folder: pathlib.Path) -> dict[str, str]:
    """List the files of predictions in a folder, one for each model, by the name of the model.

    A file RUN.csv, RUN.npz, RUN.parquet or RUN.npy with logits is the model RUN; all .npy files
    share labels.npy. A folder inside, such as a folder of lm-evaluation-harness, is a model with
    the name of the folder if it holds one file, or FOLDER/RUN if a file has the name of the folder.

    Returns:
      the argument of `read_predictions` for each model, in alphabetic order.
    """
    of_runs = {"environment.jsonl": "training: give its predictions_test.npz"}
    of_runs["sweep.csv"] = "sweep: its report.md has the scores of all losses"
    for file, what in of_runs.items():
        if (folder / file).is_file():
            raise Unreadable(f"{folder} is the folder of a {what}.")
    models = _files_in(folder)
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = _files_in(inner)
        if len(files) > 1:
            names = listed(list(files))
            raise Unreadable(f"{inner} has {len(files)} files of predictions: {names}. Give one.")
        for name, file in files.items():
            models[f"{inner.name}/{name}" if inner.name in models else inner.name] = file
    if not models:
        raise Unreadable(f"{folder} has no file that ends in {', '.join(_ENDINGS)} or .npy.")
    return models


def _files_in(folder: pathlib.Path) -> dict[str, str]:
    labels = folder / "labels.npy"
    models: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        kind = path.suffix.lower()
        # The table that `Report.save` writes contains no predictions.
        if path.name in (labels.name, "report.csv") or path.name.startswith("."):
            continue
        if path.is_file() and (kind in _ENDINGS or kind == ".npy"):
            name = path.stem if path.stem not in models else path.name
            models[name] = f"{path},{labels}" if kind == ".npy" else str(path)
    return models
