r"""Read answers with a number each, of one model or several, from a table or from JSONL.

answers.csv       columns confidence,correct; score,correct; or probability,label for the
                  probability of class 1; and optionally question, model, group, cluster, weight
answers.jsonl     the same keys, one JSON object for each answer
answers.parquet   the same columns
answers.npz       the same arrays
samples_TASK.jsonl    a generating task of lm-evaluation-harness, see `harness_samples.py`
LOG.json, LOG.eval    an evaluation log of Inspect, see `inspect_logs.py`

Confidences in percent are recognised: values of a model that reach above 10, up to 100, or texts
such as "70 %". A note reports them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report.reading import harness_samples, inspect_logs, parquet
from calib_jax.report.reading.prediction_tables import (
    blank,
    counted,
    csv_rows,
    listed,
    near_notes,
    prefixed,
    roles_of,
    shown,
    wrong_length,
)

# Every file is read for answers first, and then for predictions.
_KIND = "a file of predictions or answers"
# The number of an answer, whether it is right, and the kind of the number.
_PAIRS = (
    ("confidences", "correct", "confidence"),
    ("probabilities", "labels", "probability"),
    ("scores", "correct", "score"),
)
_OPTIONAL = ("questions", "models", "groups", "clusters", "weights")
_ROLES = ("confidences", "correct", "probabilities", "labels", "scores", *_OPTIONAL)
_RIGHT = ("true", "yes", "right", "correct", "1")
_WRONG = ("false", "no", "wrong", "incorrect", "0")
# Grades of judges and schools end at 20, and percent rarely do.
_HIGHEST_GRADE = 20

Columns = Mapping[str, Sequence[Any]]


class Answers(NamedTuple):
    """The answers of one model.

    Attributes:
      model: the name of the model; empty if the file has no column `model`.
      kind: "confidence", "probability" (of class 1) or "score".
      values: `[n]`, the confidences, probabilities or scores.
      correct: `[n]`, 1 where the answer is right, or where class 1 is true; else 0.
      questions: `[n]`, or None.
      groups: `[n]`, or None.
      clusters: `[n]`, or None.
      weights: `[n]`, or None.
    """

    model: str
    kind: str
    values: np.ndarray
    correct: np.ndarray
    questions: np.ndarray | None = None
    groups: np.ndarray | None = None
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None

    def rows(self, rows: Any) -> Answers:
        """Select rows by a mask or by indices."""
        arrays = {name: getattr(self, name) for name in self._fields[2:]}
        return self._replace(**{k: v[rows] for k, v in arrays.items() if v is not None})


def read_answers(
    name: str, *, probabilities: bool = False, clusters: str | None = None
) -> tuple[list[Answers], list[str]]:
    r"""Read the answers of each model of a file, and notes on how the file was read.

    Args:
      name: the name of the file.
      probabilities: whether `probability,label` are left to the reader of predictions, which
        takes probabilities of more classes; not in a file with questions or models.
      clusters: the column of clusters, if it has another name.

    Returns:
      no model and no notes if the file holds no answers.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(f"{folder}/a.csv").write_text("confidence,correct\n70,yes\n30,no\n")
    ...     models, notes = read_answers(f"{folder}/a.csv")
    >>> models[0].values, models[0].correct, notes[0][-50:]
    (array([0.7, 0.3]), array([1, 0]), 'go from 30 to 70: read as percent, divided by 100.')
    """
    path = pathlib.Path(name)
    columns, notes = _columns_of(path, clusters)
    if columns is None:
        return [], []
    roles = _roles(path, list(columns), clusters)
    kind = _kind_of(path, list(columns), roles)
    named = roles.keys() & {"questions", "models"}
    if kind is None or (kind == "probability" and probabilities and not named):
        return [], []
    if clusters and _role_of_clusters(clusters) not in roles:
        raise Unreadable(
            f"{path} has no column called {clusters!r}: correct --clusters, or leave it out."
        )
    models, others = _interpreted(path, columns, roles, kind)
    return models, [*notes, *others]


def models_of(
    files: Sequence[str], called: Sequence[str], **options: Any
) -> tuple[list[Answers], list[str]]:
    """Read the models of all files, and notes; no model if no file holds answers.

    Args:
      files: the names of the files.
      called: the name of the model of each file without a column `model`; "" for the default,
        the name of the file if there are several.
      **options: see `read_answers`.
    """
    models: list[Answers] = []
    notes: list[str] = []
    without = []
    for file, chosen in zip(files, called, strict=True):
        of_file, of_reading = read_answers(file, **options)
        if not of_file:
            without.append(file)
        name = chosen or (pathlib.Path(file).stem if len(files) > 1 else "")
        models += [each._replace(model=each.model or name) for each in of_file]
        notes += of_reading
    if models and without:
        raise ValueError(
            f"{without[0]} holds predictions of classes, and other files hold answers.\nScore them"
            " one after the other."
        )
    names = [each.model for each in models]
    if again := [name for k, name in enumerate(names) if name in names[:k]]:
        raise ValueError(
            f"the model {shown(again[0])} is in two files: put its answers into one file, or name"
            " the models apart."
        )
    return models, notes


def _columns_of(path: pathlib.Path, clusters: str | None) -> tuple[Columns | None, Sequence[str]]:
    """Read all columns if their names are those of answers; also return notes."""

    def holds(names: Sequence[str]) -> bool:
        return _kind_of(path, names, _roles(path, names, clusters)) is not None

    ending = path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return _csv(path, holds), ()
    if ending == ".parquet":
        with parquet.opened(path, _KIND) as file:
            return {k: file.values(k) for k in file.names} if holds(file.names) else None, ()
    if ending == ".npz":
        with reading.npz(path, _KIND) as arrays:
            if not holds(arrays.names):
                return None, ()
            used = [arrays.names[k] for k in _roles(path, arrays.names, clusters).values()]
            # Other arrays are not read, and a note lists their names.
            shapes = {k: arrays[k].shape for k in used}
            wide = next((k for k in used if len(shapes[k]) > 1 and shapes[k][-1] > 1), None)
            if wide and roles_of([wide], ["probabilities"], str(path)):
                raise Unreadable(
                    f"{path} has {wide} of shape {shapes[wide]}, probabilities of"
                    f" {shapes[wide][-1]} classes: add --probabilities to score them."
                )
            return {
                k: arrays[k].reshape(-1).tolist() if k in used else [] for k in arrays.names
            }, ()
    if ending == ".jsonl":
        columns, notes = harness_samples.answers(path)
        return columns if columns and holds(list(columns)) else None, notes
    if ending in inspect_logs.ENDINGS:
        return inspect_logs.answers(path)
    return None, ()


def _csv(path: pathlib.Path, holds: Any) -> Columns | None:
    with csv_rows(path, _KIND) as (names, rows):
        if not holds(names):
            return None
        columns: list[list[str]] = [[] for _ in names]
        for row in rows:
            if blank(row):
                continue
            if len(row) != len(names):
                raise wrong_length(path, rows.line_num, row, names)
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
    return dict(zip(names, columns, strict=True))


def _roles(path: pathlib.Path, names: Sequence[str], clusters: str | None) -> dict[str, int]:
    if clusters and _role_of_clusters(clusters) == "questions":
        clusters = None  # several answers to one question are a cluster already
    return roles_of(names, _ROLES, str(path), clusters)


def _role_of_clusters(clusters: str) -> str:
    return "questions" if clusters.strip().lower() in ("question", "questions") else "clusters"


def _kind_of(path: pathlib.Path, names: Sequence[str], roles: Mapping[str, int]) -> str | None:
    """Find what the numbers of answers are; None if the columns are those of classes."""
    lower = [name.strip().lower() for name in names]
    if any(map(prefixed, lower)) or {"logit", "logits", "probabilities"} & {*lower}:
        return None
    for value, outcome, kind in _PAIRS:
        if value in roles and outcome in roles:
            return kind
    if ("confidences" in roles or "correct" in roles) and "labels" not in roles:
        missing = "correct" if "confidences" in roles else "confidence"
        if missing == "correct":
            what = "1 where the answer is right, else 0"
        else:
            what = "or score, if the number of an answer is no probability"
        raise Unreadable(
            f"{path} has no column {missing}; it has {listed(names)}.\nAdd {missing}: {what}."
        )
    return None


def _interpreted(
    path: pathlib.Path, columns: Columns, roles: Mapping[str, int], kind: str
) -> tuple[list[Answers], list[str]]:
    names = list(columns)
    value, outcome = next((pair[0], pair[1]) for pair in _PAIRS if pair[2] == kind)
    used = {role: names[roles[role]] for role in (value, outcome, *_OPTIONAL) if role in roles}
    if not len(columns[used[value]]):
        raise Unreadable(f"{path} has no answers.")
    if len({len(columns[name]) for name in used.values()}) > 1:
        counts = ", ".join(f"{len(columns[name])} {name}" for name in used.values())
        raise Unreadable(f"{path} must have one value of each for every answer: it has {counts}.")
    values, in_percent = _numbers(path, used[value], columns[used[value]])
    correct = _outcomes(path, used[outcome], columns[used[outcome]])
    texts = {
        role: np.array([_text(cell) for cell in columns[used[role]]])
        for role in ("questions", "models", "groups", "clusters")
        if role in used
    }
    weights = None
    if "weights" in used:
        weights, _ = _numbers(path, used["weights"], columns[used["weights"]])
        if not np.all(weights >= 0):
            raise Unreadable(f"the weights of {path} must not be negative, got {weights.min():g}.")
    questions, groups, ids = (texts.get(role) for role in ("questions", "groups", "clusters"))
    everything = Answers("", kind, values, correct, questions, groups, ids, weights)
    by_model = texts.get("models", np.full(len(values), ""))
    notes = near_notes(path, names, {role: roles[role] for role in used})
    ignored = [name for name in names if name not in used.values()]
    if ignored:
        notes.append(f"{path}: columns ignored: {listed([name or 'one' for name in ignored])}.")
    models = []
    for model in dict.fromkeys(by_model.tolist()):
        rows = by_model == model
        answers = everything.rows(rows)._replace(model=model)
        if kind != "score":
            what = {"confidence": "confidences", "probability": "probabilities"}[kind]
            of = f" of {shown(model)}" if model else ""
            values, note = _as_fractions(
                f"{path}: the {what}{of}", answers.values, in_percent[rows]
            )
            answers = answers._replace(values=values)
            notes += [note] if note else []
        models.append(answers)
    return models, notes


def _as_fractions(
    what: str, values: np.ndarray, in_percent: np.ndarray
) -> tuple[np.ndarray, str | None]:
    """Divide percent by 100; return the fractions, and a note if they were percent."""
    low, high = f"{values.min():g}", f"{values.max():g}"
    if np.any(in_percent) and not np.all(in_percent):
        raise Unreadable(f"{what} are mixed: some have the sign %. Write all of them alike.")
    most = np.mean(values[values != 0] > 1) >= 0.5 if np.any(values) else False
    percent = np.all(in_percent) or (values.max() > _HIGHEST_GRADE and most)
    fractions = int(np.sum((values > 0) & (values < 1)))
    if percent and fractions and not np.all(in_percent):
        raise Unreadable(
            f"{what} go from {low} to {high}, and {fractions:,} of {len(values):,} are between 0"
            " and 1: fractions and percent may be mixed.\nGive fractions, or write the sign %"
            " behind every number."
        )
    if percent and values.min() >= 0 and values.max() <= 100:
        return values / 100, f"{what} go from {low} to {high}: read as percent, divided by 100."
    outside = (values < 0) | (values > 1)
    if np.any(outside):
        raise Unreadable(
            f"{what} go from {low} to {high}, and {np.sum(outside):,} of {len(values):,} are"
            " outside [0, 1].\nGive fractions, or percent of 0 to 100. For other scores, such as a"
            " grade or a log-probability, name the column score and add --calibrate=isotonic"
            " --cross_fit=5."
        )
    return values, None


def _numbers(path: pathlib.Path, name: str, cells: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Parse finite numbers; return them, and which of them have the sign %."""
    texts = [_text(cell) for cell in cells]
    empty = [number for number, text in enumerate(texts, start=1) if not text]
    if empty:
        raise Unreadable(
            f"{counted(len(empty), 'answer')} of {path} {'has' if len(empty) == 1 else 'have'} no"
            f" {shown(name)}; the first is answer {empty[0]:,}.\nLeave such answers out, or give"
            " them a value."
        )
    values = []
    for number, text in enumerate(texts, start=1):
        try:
            if "_" in text:  # Python reads 1_0 as 10
                raise ValueError
            value = float(text.removesuffix("%"))
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            raise Unreadable(
                f"column {shown(name)} of {path} must hold finite numbers: answer {number:,} has"
                f" '{shown(text)}'{': write decimals with a point' if ',' in text else ''}."
            )
        values.append(value)
    return np.array(values), np.array([text.endswith("%") for text in texts])


def _outcomes(path: pathlib.Path, name: str, cells: Sequence[Any]) -> np.ndarray:
    """Parse whether answers are right: true or false, 1 or 0, yes or no, right or wrong."""
    outcomes = []
    for number, cell in enumerate(cells, start=1):
        text = _text(cell).lower().removesuffix(".0")
        if text not in _RIGHT and text not in _WRONG:
            raise Unreadable(
                f"column {shown(name)} of {path} must hold 1 or 0, or true or false: answer"
                f" {number:,} has '{shown(_text(cell))}'."
            )
        outcomes.append(int(text in _RIGHT))
    return np.array(outcomes)


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()
