"""From named columns to predictions, for every format of file.

Columns of classes are numbered (logit_0, logit_1, ...) or named (logit_cat, logit_dog, or just cat
and dog); the prefix may also be probability_. Labels are numbers, or names of these columns. A
column `logits` or `probabilities` holds all numbers of a row: a list, or a mapping from options,
which may differ from row to row. Answers have columns confidence,correct or score,correct.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.predictions import Predictions, listed, shown
from calib_jax.report.roles import Columns, Request, column_name, number, texts, whole

_PREFIXED = re.compile(r"(logit|prob(?:a|s|ability)?)(?:_(.*))?", re.IGNORECASE)
# The last two names are index columns of pandas.
_INDEX_NAMES = ("", "id", "index", "unnamed: 0", "__index_level_0__")
# Grades of judges and schools end at 20, and percent rarely do.
_HIGHEST_GRADE = 20
_BESIDE = ("labels", "weights", "groups", "clusters", "questions", "models")
# Types of questions whose options have an order.
_ORDINAL = ("ordinal", "score", "scale", "rating", "likert", "level")


def interpreted(names: Sequence[str], get: Callable[[int], Any], how: Request) -> list[Predictions]:
    """Make the predictions of each model from named columns.

    Args:
      names: the names of the columns or arrays.
      get: returns a column or array by its place.
      how: the file, and how it is read.
    """
    columns = Columns(names, get, how)
    prefixed = any("_" in name and _PREFIXED.fullmatch(name) for name in columns.names)
    value = "scores" if "scores" in columns and "confidences" not in columns else "confidences"
    stated = [role for role in (value, "correct") if role in columns]
    if not prefixed and ("logits" in columns or "probabilities" in columns):
        made = _of_numbers(columns)
    elif not prefixed and (
        len(stated) == 2 or (stated not in ([], ["scores"]) and "labels" not in columns)
    ):
        made = _of_answers(columns, value)
    else:
        made = _of_classes(columns, prefixed)
    made = made._replace(
        weights=columns.numbers("weights") if "weights" in columns else None,
        groups=columns.ids("groups"),
        clusters=columns.ids("clusters"),
        questions=columns.ids("questions"),
    )
    if made.ordinal is not None:
        groups = {how.per or "group": made.groups, "type": columns.ids("types")}
        groups["options"] = np.sum(~np.isnan(made.logits), axis=-1)
        made = made._replace(groups={k: each for k, each in groups.items() if each is not None})
    made = _checked(made, how)
    models: dict[str, list[int]] = {}
    names_of_rows = columns.texts("models") or [""] * len(made.labels)
    for row, (model, _) in enumerate(zip(names_of_rows, made.labels, strict=True)):
        models.setdefault(model, []).append(row)
    made = made._replace(notes=(*columns.notes(), *made.notes))
    if len(models) == 1:
        return [_in_fractions(made._replace(model=names_of_rows[0]), how)]
    parts = [made.rows(np.array(rows))._replace(model=model) for model, rows in models.items()]
    return [
        _in_fractions(each._replace(notes=() if k else made.notes), how)
        for k, each in enumerate(parts)
    ]


def _of_answers(columns: Columns, role: str) -> Predictions:
    """Read stated confidences, or scores, and whether the answers are right."""
    _require(columns, role, "or score, if the number is no probability")
    _require(columns, "correct", "1 where the answer is right, else 0")
    words = columns.texts("correct")
    outcomes = [whole(word) for word in words]
    if wrong := [row for row, outcome in enumerate(outcomes) if outcome not in (0, 1)]:
        raise Unreadable(
            f"column correct of {columns.how.path} must hold 1 or 0, or true or false: row"
            f" {wrong[0] + 1:,} has '{shown(words[wrong[0]])}'."
        )
    kind = "score" if role == "scores" else "confidence"
    return Predictions(columns.numbers(role, finite=True), np.array(outcomes, int), kind=kind)


def _of_numbers(columns: Columns) -> Predictions:
    """Read a column or array that holds all numbers of a row, or the number of class 1."""
    _require(columns, "labels", "the number or name of the right class")
    other = columns.how.probabilities or "logits" not in columns
    role = "probabilities" if other and "probabilities" in columns else "logits"
    kind = "probabilities" if other else "logits"
    cells = columns.cells(role)
    if cells.dtype == object and not isinstance(cells[0], str | int | float):
        return _of_options(columns, cells, kind)
    # Probabilities may be whole numbers, such as percent.
    is_read = kind == "probabilities" or cells.dtype == object
    numbers = columns.numbers(role) if is_read else cells
    names = _class_names(columns) if "class_names" in columns else ()
    return Predictions(numbers, columns.cells("labels"), class_names=names, kind=kind)


def _class_names(columns: Columns) -> tuple[str, ...]:
    """Read one name per class; a table repeats the list in every row."""
    names = columns.cells("class_names")
    if names.ndim == 2 and np.all(names == names[0]):
        names = names[0]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise Unreadable(f"class_names of {columns.how.path} must be one text for each class.")
    return tuple(map(str, names))


def _of_options(columns: Columns, cells: np.ndarray, kind: str) -> Predictions:
    """Read rows with options of their own: absent options of a row are NaN."""
    path, rows, options, places = columns.how.path, [], [], []
    labels = columns.texts("labels")
    named = columns.cells("options") if "options" in columns else [None] * len(cells)
    for row, (cell, names, label) in enumerate(zip(cells, named, labels, strict=True), start=1):
        if isinstance(cell, Mapping):
            present = {str(name): value for name, value in cell.items() if value is not None}
            names, cell = list(present), list(present.values())
        numbers = [number(str(value)) for value in cell] if isinstance(cell, list) else []
        names = list(map(str, range(len(numbers)) if names is None else names))
        if len(numbers) < 2 or any(map(math.isnan, numbers)) or len(names) != len(numbers):
            raise Unreadable(
                f"row {row:,} of {path} has {kind} '{shown(str(cell))}': give two numbers or more,"
                " as a list or as a mapping from options."
            )
        place = _option(label, names, columns.how.first_label)
        if not 0 <= place < len(names):
            raise Unreadable(
                f"row {row:,} of {path} has the label '{shown(label)}', which is none of its"
                f" options: {listed(names, 5)}."
            )
        rows.append(numbers)
        options.append(names)
        places.append(place)
    first, fewest, most = options[0], min(map(len, rows)), max(map(len, rows))
    if all({*names} == {*first} for names in options):  # these are classes, in any order
        order = [[names.index(name) for name in first] for names in options]
        matrix = np.take_along_axis(np.array(rows), np.array(order), axis=1)
        found = [by.index(place) for by, place in zip(order, places, strict=True)]
        note = f"{path}: the classes are {_numbered(first, 0)}."
        right = np.array(found) + columns.how.first_label
        return Predictions(matrix, right, class_names=tuple(first), kind=kind, notes=(note,))
    matrix = np.array([numbers + [np.nan] * (most - len(numbers)) for numbers in rows])
    types = [text.lower() for text in columns.texts("types")] or [""] * len(rows)
    note = f"{path}: rows of {fewest} to {most} options of their own."
    ordinal = np.isin(types, _ORDINAL)
    return Predictions(matrix, np.array(places), kind=kind, notes=(note,), ordinal=ordinal)


def _option(label: str, names: Sequence[str], first_label: int) -> int:
    """Return the place of the option that a label means, by its name or number; -1 if none."""
    if label in names:
        return names.index(label)
    folded = [name.strip().lower() for name in names]
    if label.lower() in folded:
        return folded.index(label.lower())
    value = whole(label)
    if value is None:
        return -1
    meant = [whole(name) if not name.isdecimal() else None for name in folded]
    is_word = number(label) != value  # false is no
    return meant.index(value) if is_word and value in meant else value - first_label


def _of_classes(columns: Columns, prefixed: bool) -> Predictions:
    """Read a column for each class."""
    how = columns.how
    _require(columns, "labels", "the number or name of the right class")
    places, names, kind = _class_columns(columns)
    scores = np.stack([columns.numbers(place) for place in places], axis=-1)
    words, notes = columns.texts("labels"), list[str]()
    if names and not prefixed:
        weights = columns.numbers("weights") if "weights" in columns else np.ones(len(words))
        used = {word for word, weight in zip(words, weights, strict=True) if weight > 0}
        if not used <= {*names} and all(whole(word) is not None for word in used):
            raise _no_classes(columns)
        left = [name for name in names if name not in used]
        # Probabilities of all columns that sum to 1 are those of classes.
        of_all = kind == "probabilities" and np.all(np.abs(scores.sum(axis=1) - 1) < 0.05)
        if left and len(used) > 1 and used <= {*names} and not of_all:
            scores = scores[:, [name in used for name in names]]
            names = [name for name in names if name in used]
            notes.append(
                f"{how.path}: no label is {listed(left)}: not scored. If all columns of numbers are"
                " classes, put logit_ or probability_ before all of their names."
            )
    if names:
        only = len(names) == 1
        what = "the only column is that of the class" if only else "the classes are"
        notes.insert(0, f"{how.path}: {what} {_numbered(names, how.first_label + only)}.")
    labels = columns.cells("labels")
    return Predictions(scores, labels, class_names=tuple(names), kind=kind, notes=tuple(notes))


def _class_columns(columns: Columns) -> tuple[list[int], list[str], str]:
    """Find the columns of the classes by their names.

    Returns:
      their places; their names, none if they are numbered; and the kind of their numbers.
    """
    how, names = columns.how, columns.names
    taken = {columns.roles[role] for role in _BESIDE if role in columns}
    free = [place for place in range(len(names)) if place not in taken]
    by_kind: dict[str, dict[int, str]] = {"logits": {}, "probabilities": {}}
    for place in free:
        if match := _PREFIXED.fullmatch(names[place]):
            # A column without a number is the only column, for class 1.
            called = str(how.first_label + 1) if match[2] is None else match[2]
            by_kind["logits" if match[1].lower() == "logit" else "probabilities"][place] = called
    other = by_kind["probabilities"] and (how.probabilities or not by_kind["logits"])
    chosen = by_kind["probabilities" if other else "logits"]
    kind = "probabilities" if other or how.probabilities else "logits"
    if not chosen:
        chosen = {place: names[place] for place in free if names[place].isdecimal()}
    if not chosen:
        free = [place for place in free if names[place].lower() not in _INDEX_NAMES]
        chosen = {place: names[place] for place in free if columns.is_numeric(place)}
    if not chosen:
        raise _no_classes(columns)
    if all(math.isnan(number(called)) for called in chosen.values()):
        return list(chosen), list(chosen.values()), kind
    first, order = how.first_label, sorted(chosen, key=lambda place: number(chosen[place]))
    found = [number(chosen[place]) for place in order]
    starts = (0, first) if len(found) > 1 else (first + 1, first + (kind == "probabilities"))
    if found not in [list(range(start, start + len(found))) for start in starts]:
        raise Unreadable(
            f"{how.path} has the columns {listed([names[place] for place in chosen], 5)}: number"
            " all classes from 0, or from --first_label, without gaps."
        )
    return order, [], kind


def _numbered(names: Sequence[str], start: int) -> str:
    return listed([f"{shown(name)} = {k}" for k, name in enumerate(names, start=start)])


def _require(columns: Columns, role: str, what: str) -> None:
    """Raise an error if there is no column of a role, or if it has no rows."""
    path, names, name = columns.how.path, columns.names, column_name(role)
    if role in columns and columns.cells(role).size:
        return
    if role in columns:
        raise Unreadable(f"{path} has no examples, only a header.")
    similar = [each for each in names if re.search(r"label|target|truth|^y(_|$)", each.lower())]
    way_out = f"add {name}, {what}"
    if len(names) == 1 and re.search(r"[\s|:]", names[0]):
        way_out = "separate columns by commas, tabs or semicolons"
    elif role == "labels" and similar:
        way_out = f"rename {shown(similar[0])} to label"
    has = listed(names) or "none"
    raise Unreadable(f"{path} has no column {name}; it has {has}: {way_out}.")


def _no_classes(columns: Columns) -> Unreadable:
    """Make an error that names the missing columns of classes."""
    kind = "probability" if columns.how.probabilities else "logit"
    return Unreadable(
        f"{columns.how.path} must have columns label, {kind}_0, {kind}_1, ...; it has"
        f" {listed(columns.names)}.\nColumns may also be named by classes, where labels hold these"
        " names."
    )


def _checked(made: Predictions, how: Request) -> Predictions:
    """Validate shapes and dtypes; count labels from 0, and move the name of an only column."""
    path, logits = how.path, made.logits
    if logits.dtype.kind != "f" or logits.ndim == 0:
        what = f"{logits.dtype} of shape {logits.shape}"
        raise Unreadable(f"the logits of {path} must be floating point, one row each, got {what}.")
    one_column = logits.ndim == 1 or logits.shape[-1] == 1
    batch = logits.shape if logits.ndim == 1 else logits.shape[:-1]
    groups = made.groups if isinstance(made.groups, dict) else {"groups": made.groups}
    beside = {"labels": made.labels, "weights": made.weights, "clusters": made.clusters}
    for name, column in (beside | groups | {"questions": made.questions}).items():
        if column is not None and column.shape != batch:
            raise Unreadable(
                f"the {name} of {path} must have shape {batch}, one for each example, got"
                f" {column.shape}."
            )
    if not made.of_classes or made.ordinal is not None:
        return made
    names, num_classes = made.class_names, 2 if one_column else logits.shape[-1]
    if len(names) not in (0, one_column, num_classes):
        raise Unreadable(f"{path} has {len(names)} class names and {num_classes} classes.")
    made = made._replace(labels=_from_zero(made, num_classes, how))
    return made._replace(class_names=(), name_of_one=names[0]) if len(names) == 1 else made


def _from_zero(made: Predictions, num_classes: int, how: Request) -> np.ndarray:
    """Count labels from 0, numbers or names of classes; labels of weight 0 may be anything."""
    cells, names, first = made.labels, made.class_names, how.first_label
    present = np.full(cells.size, True) if made.weights is None else made.weights.reshape(-1) > 0
    labels = cells.reshape(-1)
    if labels.dtype.kind == "b":
        labels = labels.astype(np.int64) + first
    elif labels.dtype.kind not in "iuf":
        # A single column is that of the second class.
        start = first + (len(names) == 1)
        number = {name: place for place, name in enumerate(names, start=start)}
        words = texts(labels)
        by_name = {word for word, counts in zip(words, present, strict=True) if counts} <= {*number}
        if by_name and len(number) < len(names):
            raise Unreadable(f"{how.path} has labels that are names, and two classes of one name.")
        found = [number[word] if word in number else whole(word) for word in words]
        # Numbers beyond 64 bits are no labels either.
        found = [first - 1 if n is None or abs(n) >= 2**63 else n for n in found]
        labels = np.array(found, np.int64)
    inside = (labels >= first) & (labels < first + num_classes)
    if labels.dtype.kind == "f":
        inside &= labels == np.rint(labels)
    wrong = np.flatnonzero(present & ~inside)
    if wrong.size:
        used, last = labels[present], first + num_classes - 1
        known = listed(names) if names else f"the {num_classes} classes {first} to {last}"
        hint = "Give ignored examples weight 0."
        if first == 0 and used.min() >= 1 and used.max() == num_classes:
            hint = f"The labels run from {int(used.min())} to {num_classes}: give --first_label=1."
        raise Unreadable(
            f"label {shown(str(cells.flat[wrong[0]]))} of {how.path} (example {wrong[0]:,}, counted"
            f" from 0) is none of {known}.\n{hint}"
        )
    labels = np.where(inside, labels, first - 1).astype(np.int64) - first
    return labels.reshape(cells.shape)


def _in_fractions(made: Predictions, how: Request) -> Predictions:
    """Divide percent by 100, and say so; refuse numbers that may be percent or fractions."""
    values = made.logits
    if made.kind not in ("confidence", "probabilities"):
        return made
    if values.ndim > 1 and values.shape[-1] > 1:
        what = "the rows sum to 100"
        sums = np.nansum(values, axis=-1, dtype=np.float64)
        near = np.abs(sums - 100) <= max(1, values.shape[-1] / 2)
        percent = np.all(near) and np.nanmin(values) >= 0
    else:
        what = "the confidences" if made.kind == "confidence" else "the probabilities"
        what += f" of {shown(made.model)}" if made.model else ""
        what += f" go from {values.min():g} to {values.max():g}"
        percent = values.min() >= 0 and _HIGHEST_GRADE < values.max() <= 100
        percent = percent and np.mean(values[values != 0] > 1) >= 0.5
        wrong = (values > 0) & (values < 1) if percent else (values < 0) | (values > 1)
        if number := int(np.sum(wrong)):
            way_out = (
                "between 0 and 1: fractions and percent may be mixed.\nWrite the sign % behind all"
                " percent."
                if percent
                else "outside [0, 1].\nFor grades or log-probabilities name the column score and"
                " add --calibrate=isotonic --cross_fit=5."
            )
            raise Unreadable(f"{how.path}: {what}, and {number:,} of {values.size:,} are {way_out}")
    if not percent:
        return made
    note = f"{how.path}: {what}: read as percent, divided by 100."
    return made._replace(logits=values / 100, notes=(*made.notes, note))
