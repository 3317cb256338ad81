"""Read files of predictions without executing any of their content: which reader, for which name.

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
from calib_jax.report.columns import interpreted
from calib_jax.report.predictions import Predictions, listed
from calib_jax.report.roles import Request

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
    with reading.guard(paths[0], KIND, library=True):
        if endings == [".npz"]:
            with reading.npz(paths[0], KIND) as arrays:
                return interpreted(arrays.names, lambda place: arrays[arrays.names[place]], how)
        if endings == [".npy", ".npy"]:
            names = ["probabilities" if how.probabilities else "logits", "labels"]
            how = how._replace(clusters=None, per=None)
            return interpreted(names, lambda place: reading.npy(paths[place], KIND), how)
        if len(endings) == 1 and endings[0] in (*_ENDINGS, ".json"):
            from calib_jax.report import tables

            return tables.read(how)
    if endings == [".npy"]:
        raise Unreadable(f"{name} needs its labels: give LOGITS.npy,LABELS.npy.")
    raise Unreadable(
        f"{name} must end in .npz, .csv, .tsv, .parquet or .jsonl, be a log of Inspect that ends in"
        " .eval or .json, or be LOGITS.npy,LABELS.npy."
    )


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
