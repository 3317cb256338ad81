"""Read files of predictions without executing any of their content.

run.npz                       arrays logits, labels and optionally groups, clusters, weights and
                              class_names
logits.npy with labels.npy    memory-mapped; both paths are given: LOGITS.npy,LABELS.npy
run.csv                       columns label, logit_0, logit_1, ... and optionally group, cluster,
                              weight; or columns named by classes, and labels with these names
run.parquet                   the columns of a CSV file, or those of an .npz file: a column `logits`
                              of lists; needs pyarrow
samples_TASK.jsonl            the choices of a multiple-choice task of lm-evaluation-harness, see
                              `harness_samples.py`

Singular and plural names are equivalent. Arrays `probabilities` and columns probability_0, ... are
read if the caller asks for probabilities.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable as Unreadable
from calib_jax.report.reading import harness_samples, parquet, prediction_tables
from calib_jax.report.reading.prediction_tables import (
    CLASS_NAMES,
    OPTIONAL,
    Predictions,
    Request,
    counted,
    listed,
    roles_of,
    shown,
)

_KIND = "a file of predictions"
_ENDINGS = (".npz", ".csv", ".tsv", ".parquet", ".jsonl", ".eval")
_OF_WEIGHTS = ("checkpoint", "step")  # identify the weights of a network behind the predictions
# Sums of weights times losses must stay within single precision.
_LARGEST_SUM = 1e30


def read_predictions(
    name: str, *, probabilities: bool = False, first_label: int = 0, clusters: str | None = None
) -> Predictions:
    r"""Read a file by its extension; two .npy files are given as LOGITS.npy,LABELS.npy.

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
    paths = [pathlib.Path(part) for part in name.split(",")]
    endings = [path.suffix.lower() for path in paths]
    request = Request(paths[0], probabilities, first_label, clusters)
    if endings == [".npz"]:
        with reading.npz(paths[0], _KIND) as arrays:
            contents = _from_arrays(request, arrays.names, arrays)
    elif endings == [".npy", ".npy"]:
        logits, labels = (reading.npy(path, _KIND) for path in paths)
        contents = Predictions(logits, labels)
    elif endings in ([".csv"], [".tsv"]):
        contents = prediction_tables.read(request, _KIND)
    elif endings == [".parquet"]:
        contents = _parquet(request)
    elif endings == [".jsonl"]:
        if first_label:
            raise Unreadable(
                f"--first_label={first_label} is for files whose labels count from {first_label},"
                f" and the choices of {name} count from 0: leave it out."
            )
        contents = harness_samples.read(paths[0])
    elif endings == [".npy"]:
        raise Unreadable(f"{name} needs its labels: give LOGITS.npy,LABELS.npy.")
    else:
        raise Unreadable(
            f"{name} must end in .npz, .csv, .tsv, .parquet or .jsonl, be a log of Inspect that"
            " ends in .eval or .json, or be LOGITS.npy,LABELS.npy."
        )
    return _checked(name, contents, first_label)


def _from_arrays(
    request: Request, names: Sequence[str], arrays: reading.Npz | parquet.Columns
) -> Predictions:
    """Choose logits, labels and others among named arrays, and read only these."""
    path, probabilities, first_label, clusters = request
    wanted = ("logits", "probabilities", "labels", *OPTIONAL, CLASS_NAMES)
    roles = roles_of(names, wanted, str(path), clusters)
    are_probabilities = probabilities and ("probabilities" in roles or "logits" not in roles)
    kind = "probabilities" if are_probabilities else "logits"
    if kind not in roles and "probabilities" in roles:
        raise Unreadable(
            f"{path} has no array 'logits' but 'probabilities': add --probabilities to score them."
        )
    for role in (kind, "labels"):
        if role not in roles:
            raise Unreadable(
                f"{path} has no array {role!r}; it has {listed(names) or 'none'}."
                f"{_renaming(path, names, roles, (kind, 'labels'))}"
            )
    used = {role: names[roles[role]] for role in (kind, *wanted[2:]) if role in roles}
    values = {role: arrays[member] for role, member in used.items()}
    ignored = [name for name in names if name not in {*used.values(), *_OF_WEIGHTS}]
    notes = (f"{path}: arrays ignored: {listed(ignored)}.",) if ignored else ()
    others: dict[str, Any] = {role: values.get(role) for role in OPTIONAL}
    names_of_classes = _class_names(path, values.get(CLASS_NAMES))
    labels = _numbered(path, values["labels"], names_of_classes, first_label)
    return Predictions(values[kind], labels, class_names=names_of_classes, notes=notes, **others)


def _class_names(path: pathlib.Path, array: np.ndarray | None) -> tuple[str, ...]:
    """Read one name per class; a table repeats the list in every row."""
    if array is None:
        return ()
    if array.ndim == 2 and len(array) and np.all(array == array[0]):
        array = array[0]
    if array.ndim != 1 or array.dtype.kind not in "SU":
        raise Unreadable(
            f"the class_names of {path} must be one text for each class, got shape {array.shape}"
            f" and dtype {array.dtype}."
        )
    return tuple(array.astype(str).tolist())


def _numbered(
    path: pathlib.Path, labels: np.ndarray, class_names: Sequence[str], first_label: int
) -> np.ndarray:
    """Replace labels that are names of classes by their numbers."""
    if labels.dtype.kind in "SU" and not class_names:
        raise Unreadable(
            f"the labels of {path} are names, such as '{shown(str(labels.flat[0]))}': add an array"
            " class_names with one name for each class, or number the labels."
            if labels.size
            else f"{path} has no labels."
        )
    if labels.dtype.kind not in "SU":
        return labels
    texts = labels.astype(str)
    number = {name: k for k, name in enumerate(class_names, start=first_label)}
    if len(number) < len(class_names):
        raise Unreadable(
            f"{path} has labels that are names, and two classes of one name: number the labels."
        )
    wrong = next((text for text in texts.flat if text not in number), None)
    if wrong is not None:
        raise Unreadable(
            f"the labels of {path} hold '{shown(wrong)}', which is none of its class_names:"
            f" {listed(class_names)}."
        )
    return np.array([number[text] for text in texts.flat]).reshape(labels.shape)


def _renaming(
    path: pathlib.Path, names: Sequence[str], roles: Mapping[str, int], needed: Sequence[str]
) -> str:
    """Suggest the line of Python that renames the arrays of an .npz file."""
    free = [name for place, name in enumerate(names) if place not in roles.values()]
    missing = [role for role in needed if role not in roles]
    if path.suffix.lower() != ".npz" or len(free) < len(missing):
        return ""
    free.sort(key=prediction_tables.looks_like_labels)  # False comes first
    renamed = {role: names[place] for role, place in roles.items()}
    renamed |= {role: free[-1] if role == "labels" else free[0] for role in missing}
    arrays = ", ".join(f"{role}=a[{name!r}]" for role, name in renamed.items())
    return (
        f"\nRename the arrays, for example: a = numpy.load({str(path)!r});"
        f" numpy.savez('new.npz', {arrays})"
    )


def _parquet(request: Request) -> Predictions:
    """Read a Parquet file: a column of lists of logits, or a column for each class."""
    with parquet.opened(request.path, _KIND) as columns:
        if columns.have_lists:
            return _from_arrays(request, columns.names, columns)
        values = {name: columns.cells(name) for name in columns.names}
    return prediction_tables.from_columns(request, values)


def _checked(name: str, contents: Predictions, first_label: int) -> Predictions:
    logits, labels, weights, groups, clusters, class_names, notes, _ = contents
    if logits.dtype.kind != "f":
        raise Unreadable(f"the logits of {name} must be floating point, got {logits.dtype}.")
    if logits.ndim == 0:
        raise Unreadable(f"the logits of {name} are one number; one row an example is wanted.")
    batch = logits.shape if logits.ndim == 1 else logits.shape[:-1]
    others = {"labels": labels, "weights": weights, "groups": groups, "clusters": clusters}
    for key, values in others.items():
        if values is not None and values.shape != batch:
            raise Unreadable(
                f"the {key} of {name} must have shape {batch}, one for each example, got"
                f" {values.shape}."
            )
    if weights is not None:
        weights = _checked_weights(name, weights)
    _check_finite(name, logits, weights)
    num_classes = 2 if logits.ndim == 1 or logits.shape[-1] == 1 else logits.shape[-1]
    labels = _from_zero(name, labels, weights, num_classes, first_label)
    # One column of logits belongs to class 1, and does not name the other class.
    named = class_names if len(class_names) == num_classes else ()
    of_one = class_names[0] if len(class_names) == 1 else ""
    if class_names and not named and not of_one:
        raise Unreadable(
            f"{name} has {counted(len(class_names), 'class name')} and"
            f" {counted(num_classes, 'class')}: give one class_name for each column."
        )
    return Predictions(logits, labels, weights, groups, clusters, named, notes, of_one)


def _checked_weights(name: str, weights: np.ndarray) -> np.ndarray:
    if weights.dtype.kind not in "fiub":
        raise Unreadable(f"the weights of {name} must be numbers, got {weights.dtype}.")
    weights = weights.astype(np.float64)
    wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
    if wrong.size:
        raise Unreadable(
            f"{counted(wrong.size, 'weight')} of {name} {'is' if wrong.size == 1 else 'are'}"
            f" negative, infinite or NaN, such as {wrong[0]:g}: give 0 to examples that do not"
            " count."
        )
    with np.errstate(over="ignore"):
        total = float(np.sum(weights))
    if weights.size and not 0 < total <= _LARGEST_SUM:
        raise Unreadable(
            f"the weights of {name} sum to {total:g}: give numbers of which some are positive, and"
            " none is huge."
        )
    return weights.astype(np.float32)


def _check_finite(name: str, logits: np.ndarray, weights: np.ndarray | None) -> None:
    """Raise an error for NaN, +inf, and rows in which every class is -inf."""
    with np.errstate(over="ignore"):
        logits = np.asarray(logits, np.float32)  # the precision of all computations
    wrong = np.isnan(logits) | (logits == np.inf)
    if logits.ndim > 1:  # one column may be -inf: the probability 0 of class 1
        wrong = wrong.any(axis=-1)
        if logits.shape[-1] > 1:
            wrong |= np.all(logits == -np.inf, axis=-1)
    wrong = np.flatnonzero(wrong if weights is None else wrong & (weights > 0))
    if wrong.size:
        raise Unreadable(
            f"{counted(wrong.size, 'example')} of {name} {'has' if wrong.size == 1 else 'have'}"
            f" NaN or infinite logits; the first is number {wrong[0]:,} (counted from 0).\nGive"
            " them weight 0, or find their cause; -inf beside finite logits is fine."
        )


def _from_zero(
    name: str, labels: np.ndarray, weights: np.ndarray | None, num_classes: int, first_label: int
) -> np.ndarray:
    """Count labels from 0; raise an error for a label out of range, compared in its own dtype."""
    if labels.dtype.kind == "b" and num_classes == 2:
        labels = labels.astype(np.int64) + first_label
    whole = labels.dtype.kind == "f" and np.all(np.isfinite(labels) & (labels == np.rint(labels)))
    if labels.dtype.kind not in "iu" and not whole:
        raise Unreadable(f"the labels of {name} must be integers, got {labels.dtype}.")
    present = np.ones(labels.shape, bool) if weights is None else weights > 0
    inside = (labels >= first_label) & (labels < first_label + num_classes)
    wrong = np.flatnonzero(present & ~inside)
    if wrong.size:
        lowest, highest = int(labels[present].min()), int(labels[present].max())
        if first_label == 0 and lowest >= 1 and highest == num_classes:
            raise Unreadable(
                f"the labels of {name} run from {lowest} to {highest}: give --first_label=1.\nThe"
                f" {num_classes} classes count from 0 without it."
            )
        raise Unreadable(
            f"label {int(labels.flat[wrong[0]])} of {name} (example {wrong[0]:,}, counted from 0)"
            f" is not among the {num_classes} classes {first_label} to"
            f" {first_label + num_classes - 1}.\nGive ignored examples weight 0."
        )
    safe = np.where(inside, labels, first_label).astype(np.int64) - first_label
    return np.where(inside, safe, -1)


def models_in(folder: pathlib.Path) -> dict[str, str]:
    """List the files of predictions in a folder, one for each model, by the name of the model.

    A file RUN.csv, RUN.npz, RUN.parquet or RUN.npy with logits is the model RUN; all .npy files
    share labels.npy. A folder inside, such as a folder of lm-evaluation-harness, is a model with
    the name of the folder if it holds one file, or FOLDER/RUN if a file has the name of the folder.

    Returns:
      the argument of `read_predictions` for each model, in alphabetic order.
    """
    if (folder / "environment.jsonl").is_file():
        raise Unreadable(
            f"{folder} is the folder of a training: give its predictions_test.npz, which"
            " experiments.evaluate writes."
        )
    if (folder / "sweep.csv").is_file():
        raise Unreadable(
            f"{folder} is the folder of a sweep: its report.md has the scores of all losses."
        )
    models = _files_in(folder)
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = _files_in(inner)
        if len(files) > 1:
            raise Unreadable(
                f"{inner} has {len(files)} files of predictions: {listed(list(files))}.\nGive the"
                " files that form one table."
            )
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
