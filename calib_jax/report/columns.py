"""From named columns to predictions: which column has which role, for every format of file.

Columns of classes are numbered (logit_0, logit_1, ...) or named (logit_cat, logit_dog, or just cat
and dog); the prefix may also be probability_. Labels are numbers, or names of these columns. A
column `logits` or `probabilities` holds all numbers of a row: a list, or a mapping from options,
which may differ from row to row. Answers have columns confidence,correct or score,correct.
"""

from __future__ import annotations

import itertools
import math
import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.predictions import Predictions, listed, shown

_PREFIXED = re.compile(r"(logit|prob(?:a|s|ability)?)(?:_(.*))?", re.IGNORECASE)
# The last two names are index columns of pandas.
_INDEX_NAMES = ("", "id", "index", "unnamed: 0", "__index_level_0__")
_SILENT = ("checkpoint", "step")  # arrays of `experiments.evaluate`, which identify the network
_BESIDE = ("weights", "groups", "clusters", "questions", "models")
_ROLES = (
    *("labels", "logits", "probabilities", "confidences", "correct", "scores", "class_names"),
    *(*_BESIDE, "types", "options"),
)
# Accepted spellings of the columns and arrays of a file of predictions.
_SPELLINGS = {role.removesuffix("s"): role for role in _ROLES if role != "class_names"}
_SPELLINGS |= dict.fromkeys(("probability", "prob", "probs", "proba"), "probabilities")
_SPELLINGS |= {"class_name": "class_names"}
# Words of near names, such as question_id, model_name, is_correct and sample_weight.
_NEAR_WORDS = (
    *("id", "ids", "key", "name", "names", "no", "nr", "num", "number", "index", "is"),
    *("sample", "true", "text"),
)
_NEAR_SPELLINGS = {"y": "labels", "target": "labels", "qid": "questions", "right": "correct"}
_WORDS = dict.fromkeys(("true", "yes", "right", "correct"), 1)
_WORDS |= dict.fromkeys(("false", "no", "wrong", "incorrect"), 0)
# Grades of judges and schools end at 20, and percent rarely do.
_HIGHEST_GRADE = 20
# Types of questions whose options have an order.
_ORDINAL = ("ordinal", "score", "scale", "rating", "likert", "level")


class Request(NamedTuple):
    """A file of predictions, and how it is read.

    Attributes:
      path: the path of the file.
      probabilities: whether to read probabilities if the file contains both them and logits.
      first_label: the label of the first class, usually 0 or 1.
      clusters: the column or array of clusters, if it has another name.
      per: the column or array of groups, if it has another name.
    """

    path: pathlib.Path
    probabilities: bool = False
    first_label: int = 0
    clusters: str | None = None
    per: str | None = None


def role_of(name: str) -> str:
    """Return the role of a column by its own name, in singular or plural, in any case."""
    text = name.strip().lower()
    return _SPELLINGS.get(text, text)


def near_role(name: str) -> str:
    """Return the role that a column has by a name near to its own; "" without one.

    >>> near_role("question_id"), near_role("modelName"), near_role("y_true"), near_role("epoch")
    ('questions', 'models', 'labels', '')
    """
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip())
    words = re.split(r"[\W_]+", separated.lower())
    rest = [word for word in words if word and word not in _NEAR_WORDS]
    if len(rest) != 1 or rest == words:
        return _NEAR_SPELLINGS.get("_".join(words), "")
    role = _NEAR_SPELLINGS.get(rest[0]) or role_of(rest[0])
    return role if role in _ROLES else ""


def _single(role: str) -> str:
    """Return the name of a column with a role."""
    return "probability" if role == "probabilities" else role.removesuffix("s")


class Columns:
    """The columns of a file, their roles, and which of them were used.

    Attributes:
      how: the file, and how it is read.
      names: the names of the columns or arrays.
      roles: the place of the column of each role.
    """

    def __init__(self, names: Sequence[str], get: Callable[[str], Any], how: Request) -> None:
        self.how, self.names, self._get = how, list(names), get
        self.roles = self._find_roles()
        self.used: set[int] = set()
        self.in_percent: np.ndarray = np.zeros(0, bool)

    def _find_roles(self) -> dict[str, int]:
        """Find the column of each role by its own name, or else by a near name."""
        path, names = self.how.path, self.names
        chosen = role_of(self.how.clusters or "clusters")
        if chosen in _ROLES and chosen not in ("clusters", "groups", "questions"):
            raise Unreadable(
                f"the clusters of {path} cannot be its {chosen}: name a column of ids."
            )
        places: dict[str, int] = {}
        for place, name in enumerate(names):
            role = role_of(name)
            if role == chosen and chosen != "questions":
                role = "clusters"
            elif self.how.per and role == role_of(self.how.per) and role != "types":
                role = "groups"
            elif role == "clusters" or role not in _ROLES:  # another column was chosen
                continue
            if role in places:
                both = f"{shown(names[places[role]])!r} and {shown(name)!r}"
                raise Unreadable(f"{path} has {both}, which mean the same: keep one of them.")
            places[role] = place
        taken = {*places.values()}
        for role in _ROLES:
            near = [k for k, name in enumerate(names) if k not in taken and near_role(name) == role]
            if role in places or not near or (role == "clusters" and self.how.clusters):
                continue
            if len(near) > 1:
                both = " and ".join(shown(names[k]) for k in near[:2])
                raise Unreadable(
                    f"{path}: {both} may both be the {_single(role)}: rename one to it."
                )
            places[role] = near[0]
        return places

    def at(self, place: int) -> np.ndarray:
        """Read a column by its place."""
        self.used.add(place)
        return np.asarray(self._get(self.names[place]))

    def __getitem__(self, role: str) -> np.ndarray:
        """Read the column of a role."""
        return self.at(self.roles[role])

    def __contains__(self, role: str) -> bool:
        return role in self.roles

    def numbers(self, role: str | int, *, finite: bool = False) -> np.ndarray:
        """Parse a column of numbers, by its role or place; note which of them have the sign %."""
        place = self.roles[role] if isinstance(role, str) else role
        cells, path, name = self.at(place), self.how.path, shown(self.names[place])
        self.in_percent = np.zeros(cells.shape, bool)
        words: Sequence[Any]
        parsed: Sequence[float | None]
        if cells.dtype.kind in "biuf":
            values = np.array(cells, np.float64).reshape(-1)
            words = parsed = values.tolist()
        elif cells.dtype.kind in "OU":
            words = texts(cells)
            parsed = [_parsed(word) for word in words]
            values = np.array([np.nan if value is None else value for value in parsed])
            ends = [word.endswith("%") for word in words]
            self.in_percent = np.array(ends, bool).reshape(cells.shape)
        else:
            return cells
        wrong = [k for k, v in enumerate(parsed) if v is None or (finite and not math.isfinite(v))]
        if wrong:
            word = shown(str(words[wrong[0]]))
            has_comma = re.fullmatch(r"[-+]?[0-9]*,[0-9]+", word)
            hint = ": write decimals with a point" if has_comma else ""
            raise Unreadable(
                f"column {name} of {path} must hold {'finite ' * finite}numbers: row"
                f" {wrong[0] + 1:,} has '{word}'{hint}."
            )
        return values.reshape(cells.shape)

    def notes(self) -> list[str]:
        """Name the columns with near names, and those that were not used."""
        near = [
            f"{self.how.path}: read as {_single(role)}: {shown(self.names[place])}."
            for role, place in self.roles.items()
            if place in self.used
            and role_of(self.names[place]) != role == near_role(self.names[place])
        ]
        left = [name for k, name in enumerate(self.names) if k not in self.used]
        left = [name for name in left if name not in _SILENT]
        return [*near, *[f"{self.how.path}: columns ignored: {listed(left)}."] * bool(left)]


def interpreted(names: Sequence[str], get: Callable[[str], Any], how: Request) -> list[Predictions]:
    """Make the predictions of each model from named columns.

    Args:
      names: the names of the columns or arrays.
      get: returns a column or array by its name.
      how: the file, and how it is read.
    """
    columns = Columns(names, get, how)
    prefixed = any("_" in name and _PREFIXED.fullmatch(name) for name in columns.names)
    value = next((role for role in ("confidences", "scores") if role in columns), "confidences")
    of_answers = "correct" in columns or (value == "confidences" and value in columns)
    if not prefixed and {"logits", "probabilities"} & {*columns.roles}:
        made = _of_numbers(columns)
    elif (
        not prefixed
        and of_answers
        and ("labels" not in columns or {value, "correct"} <= {*columns.roles})
    ):
        made = _of_answers(columns, value)
    else:
        made = _of_classes(columns, prefixed)
    if how.clusters and "clusters" not in columns and role_of(how.clusters) not in columns:
        raise Unreadable(
            f"{how.path} has no column or array called {how.clusters!r}: see --clusters."
        )
    found: dict[str, Any] = {
        role: ids(columns[role]) for role in ("clusters", "questions") if role in columns
    }
    if "weights" in columns:
        found["weights"] = columns.numbers("weights")
    groups = {"group": ids(columns["groups"])} if "groups" in columns else {}
    if made.ordinal is not None:
        groups |= {"type": ids(columns["types"])} if "types" in columns else {}
        groups["options"] = np.sum(~np.isnan(made.logits), axis=-1)
    several = groups if made.ordinal is not None else groups.get("group")
    models = texts(columns["models"]) if "models" in columns else [""]
    notes = (*columns.notes(), *made.notes)
    made = made._replace(groups=several, notes=notes, **found)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(models):
        rows.setdefault(name, []).append(row)
    if len(rows) == 1:
        return [made._replace(model=next(iter(rows)))]
    return [
        made.rows(np.array(places))._replace(model=name, notes=() if k else notes)
        for k, (name, places) in enumerate(rows.items())
    ]


def _of_answers(columns: Columns, role: str) -> Predictions:
    """Read stated confidences, or scores, and whether the answers are right."""
    path = columns.how.path
    if missing := [each for each in (role, "correct") if each not in columns]:
        what = "1 where the answer is right, else 0"
        what = what if missing == ["correct"] else "or score, if the number is no probability"
        raise Unreadable(
            f"{path} has no column {_single(missing[0])}; it has {listed(columns.names)}.\nAdd"
            f" {_single(missing[0])}: {what}."
        )
    values, correct = columns.numbers(role, finite=True), texts(columns["correct"])
    if len(correct) != len(values) or not correct:
        raise Unreadable(
            f"{path} must have one value of each for every answer: it has {len(values)}"
            f" {_single(role)}, {len(correct)} correct."
        )
    outcomes = [whole(text) for text in correct]
    if wrong := [k for k, outcome in enumerate(outcomes) if outcome not in (0, 1)]:
        raise Unreadable(
            f"column correct of {path} must hold 1 or 0, or true or false: row {wrong[0] + 1:,} has"
            f" '{shown(correct[wrong[0]])}'."
        )
    labels, notes = np.array(outcomes, int), []
    if role == "scores":
        return Predictions(values, labels, kind="score")
    models = np.array(texts(columns["models"])) if "models" in columns else np.full(len(values), "")
    for model in dict.fromkeys(models.tolist()):
        rows = models == model
        what = f"{path}: the confidences" + (f" of {shown(model)}" if model else "")
        values[rows], note = _as_fractions(what, values[rows], columns.in_percent[rows])
        notes += note
    return Predictions(values, labels, kind="confidence", notes=tuple(notes))


def _as_fractions(
    what: str, values: np.ndarray, in_percent: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Divide percent by 100; return the fractions, and a note if they were percent."""
    low, high = f"{values.min():g}", f"{values.max():g}"
    most = np.mean(values[values != 0] > 1) >= 0.5 if np.any(values) else False
    percent = np.all(in_percent) or (values.max() > _HIGHEST_GRADE and most)
    fractions = int(np.sum((values > 0) & (values < 1)))
    if np.any(in_percent) != np.all(in_percent) or (
        percent and fractions and not np.all(in_percent)
    ):
        raise Unreadable(
            f"{what} go from {low} to {high}, and {fractions:,} of {len(values):,} are between 0"
            " and 1: fractions and percent may be mixed.\nWrite the sign % behind all or none."
        )
    if percent and values.min() >= 0 and values.max() <= 100:
        return values / 100, [f"{what} go from {low} to {high}: read as percent, divided by 100."]
    if number := int(np.sum((values < 0) | (values > 1))):
        raise Unreadable(
            f"{what} go from {low} to {high}, and {number:,} of {len(values):,} are outside [0,"
            " 1].\nFor grades or log-probabilities name the column score and add"
            " --calibrate=isotonic --cross_fit=5."
        )
    return values, []


def _of_numbers(columns: Columns) -> Predictions:
    """Read a column or array that holds all numbers of a row, or the number of class 1."""
    how, notes = columns.how, list[str]()
    wanted = "probabilities" if how.probabilities or "logits" not in columns else "logits"
    role = wanted if wanted in columns else "logits"
    cells = columns[role]
    if "labels" not in columns or not len(cells):
        missing = "labels" if "labels" not in columns else "examples"
        raise Unreadable(f"{how.path} has no {missing}; it has {listed(columns.names)}.")
    if cells.dtype == object and not isinstance(cells[0], str | int | float):
        return _of_options(columns, cells, wanted)
    class_names = _class_names(columns) if "class_names" in columns else ()
    if cells.dtype == object or (cells.ndim == 1 and wanted == "probabilities"):
        cells = columns.numbers(role)
        if wanted == "probabilities":
            what = f"{how.path}: the probabilities"
            cells, notes = _as_fractions(what, cells, columns.in_percent)
    elif wanted == "probabilities":
        cells, notes = _rows_as_fractions(how.path, cells)
    labels = _labels(columns, class_names)
    return Predictions(cells, labels, class_names=class_names, kind=wanted, notes=tuple(notes))


def _rows_as_fractions(path: pathlib.Path, rows: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Divide rows that sum to 100 by 100."""
    sums = np.nansum(rows, axis=-1, dtype=np.float64)
    if np.all(np.abs(sums - 100) <= max(1, rows.shape[-1] / 2)) and np.nanmin(rows) >= 0:
        return rows / 100, [f"{path}: the rows sum to 100: read as percent, divided by 100."]
    return rows, []


def _class_names(columns: Columns) -> tuple[str, ...]:
    """Read one name per class; a table repeats the list in every row."""
    array = columns["class_names"]
    if array.ndim == 2 and len(array) and np.all(array == array[0]):
        array = array[0]
    if array.ndim != 1 or array.dtype.kind not in "SU":
        raise Unreadable(f"class_names of {columns.how.path} must be one text for each class.")
    return tuple(array.astype(str).tolist())


def _of_options(columns: Columns, cells: np.ndarray, kind: str) -> Predictions:
    """Read rows with options of their own: absent options of a row are NaN."""
    path, rows, options, places = columns.how.path, [], [], []
    named = columns["options"] if "options" in columns else itertools.repeat(None)
    labels = texts(columns["labels"])
    for number, (cell, names, label) in enumerate(zip(cells, named, labels, strict=False), start=1):
        if isinstance(cell, Mapping):
            kept = {str(name): value for name, value in cell.items() if value is not None}
            names, cell = list(kept), list(kept.values())
        row = list(map(_parsed, map(str, cell))) if isinstance(cell, Sequence) else []
        names = list(map(str, range(len(row)) if names is None else names))
        if len(row) < 2 or None in row or len(names) != len(row):
            raise Unreadable(
                f"row {number:,} of {path} has {kind} '{shown(str(cell))}': give two numbers or"
                " more, as a list or as a mapping from options."
            )
        folded = [name.strip().lower() for name in names]
        number_of = whole(label)
        index = -1 if number_of is None else number_of - columns.how.first_label
        if label in names or label.lower() in folded:
            index = names.index(label) if label in names else folded.index(label.lower())
        elif label.lower() in _WORDS and number_of in map(_WORDS.get, folded):
            index = [*map(_WORDS.get, folded)].index(number_of)  # false is no
        if not 0 <= index < len(names):
            raise Unreadable(
                f"row {number:,} of {path} has the label '{shown(label)}', which is none of its"
                f" options: {listed(names, 5)}."
            )
        rows.append(row)
        options.append(names)
        places.append(index)
    first, most = options[0], max(map(len, rows))
    are_classes = all(len(names) == most and {*names} == {*first} for names in options)
    if are_classes:
        order = [[names.index(name) for name in first] for names in options]
        rows = [[row[k] for k in by] for row, by in zip(rows, order, strict=True)]
        places = [by.index(place) for by, place in zip(order, places, strict=True)]
    matrix = np.array([row + [np.nan] * (most - len(row)) for row in rows])
    matrix, notes = _rows_as_fractions(path, matrix) if kind == "probabilities" else (matrix, [])
    made = Predictions(matrix, np.array(places), kind=kind)
    if are_classes:
        notes.append(f"{path}: the classes are {_numbered(first, 0)}.")
        return made._replace(class_names=tuple(first), notes=tuple(notes))
    types = texts(columns["types"]) if "types" in columns else [""] * len(rows)
    notes.append(f"{path}: rows of {min(map(len, rows))} to {most} options of their own.")
    ordinal = np.isin([text.lower() for text in types], _ORDINAL)
    return made._replace(ordinal=ordinal, notes=tuple(notes))


def _of_classes(columns: Columns, prefixed: bool) -> Predictions:
    """Read a column for each class."""
    how, names, roles = columns.how, columns.names, columns.roles
    if "labels" not in columns:
        raise _no_columns(columns)
    first = [next(iter(texts(columns.at(k)[:1])), None) for k in range(len(names))]
    columns.used.clear()
    if first[roles["labels"]] is None:
        raise Unreadable(f"{how.path} has no examples, only a header.")
    for role in {"models", "questions"} & {*roles}:
        # A class may be called model or question: such a column of numbers is no id.
        exact = role_of(names[roles[role]]) == role
        if exact and not prefixed and _parsed(first[roles[role]] or "") is not None:
            del roles[role]
    taken = {roles[role] for role in ("labels", *_BESIDE) if role in roles}
    chosen, class_names, are_logits = _classes(columns, taken, first)
    scores = np.stack([columns.numbers(place) for place in chosen], axis=-1)
    kind = "probabilities" if how.probabilities or not are_logits else "logits"
    words = texts(columns["labels"])
    weights = columns.numbers("weights") if "weights" in columns else np.ones(len(scores))
    used = {word for word, weight in zip(words, weights, strict=True) if weight > 0}
    notes: list[str] = []
    bare = bool(class_names) and not any(map(_PREFIXED.fullmatch, (names[k] for k in chosen)))
    if bare and not used <= {*class_names} and all(whole(word) is not None for word in used):
        raise _no_columns(columns)
    # Probabilities of all columns that sum to 1 are those of classes, with examples or without.
    whole_rows = kind == "probabilities" and np.all(np.abs(scores.sum(axis=1) - 1) < 0.05)
    if bare and 1 < len(used) < len(class_names) and used <= {*class_names} and not whole_rows:
        kept = [k for k, name in enumerate(class_names) if name in used]
        left = [name for name in class_names if name not in used]
        scores, class_names = scores[:, kept], [class_names[k] for k in kept]
        notes.append(
            f"{how.path}: no label is {listed(left)}: not scored. If all columns of numbers are"
            " classes, put logit_ or probability_ before all of their names."
        )
    labels = _labels(columns, class_names)
    if class_names:
        only = len(class_names) == 1
        what = "the only column is that of the class" if only else "the classes are"
        notes.insert(0, f"{how.path}: {what} {_numbered(class_names, how.first_label + only)}.")
    if kind == "probabilities":
        of_one = scores.shape[1] == 1
        what, none = f"{how.path}: the probabilities", np.zeros(scores.shape, bool)
        scores, more = (
            _as_fractions(what, scores, none) if of_one else _rows_as_fractions(how.path, scores)
        )
        notes += more
    return Predictions(
        scores, labels, class_names=tuple(class_names), kind=kind, notes=tuple(notes)
    )


def _numbered(names: Sequence[str], start: int) -> str:
    return listed([f"{shown(name)} = {k}" for k, name in enumerate(names, start=start)])


def _classes(
    columns: Columns, taken: Collection[int], first: Sequence[str | None]
) -> tuple[list[int], list[str], bool]:
    """Find the columns of the classes by their names.

    Returns:
      their places; their names, none if they are numbered; and whether they are called logits.
    """
    how, names = columns.how, columns.names
    free = [k for k in range(len(names)) if k not in taken]
    by_kind: dict[str, dict[int, str]] = {"logit": {}, "prob": {}}
    for place in free:
        if match := _PREFIXED.fullmatch(names[place]):
            # A column without a number is the only column, for class 1.
            text = str(how.first_label + 1) if match[2] is None else match[2]
            by_kind["logit" if match[1].lower() == "logit" else "prob"][place] = text
    kind = "prob" if by_kind["prob"] and (how.probabilities or not by_kind["logit"]) else "logit"
    chosen = by_kind[kind] or {k: names[k] for k in free if _is_count(names[k])}
    chosen = chosen or {
        k: names[k] for k in free if _is_number(first[k]) and names[k].lower() not in _INDEX_NAMES
    }
    if not chosen:
        raise _no_columns(columns)
    called, numbered = [*chosen.values()], [*filter(_is_count, chosen.values())]
    if len({*called}) < len(called):
        again = next(names[k] for k in chosen if called.count(chosen[k]) > 1)
        raise Unreadable(f"{how.path} has two columns {shown(again)!r}: keep one of them.")
    if not any(map(_is_number, called)):
        return list(chosen), called, kind == "logit"
    order = sorted(chosen, key=lambda place: int(chosen[place])) if called == numbered else []
    start = int(chosen[order[0]]) if order else -1
    in_a_row = [int(chosen[place]) for place in order] == list(range(start, start + len(called)))
    # A single column is that of the second class.
    alone = len(called) == 1 and start == how.first_label + 1 - (start == how.first_label) * (
        kind == "logit"
    )
    if not in_a_row or not (alone or (start in (0, how.first_label) and len(called) > 1)):
        raise Unreadable(
            f"{how.path} has the columns {listed([names[k] for k in chosen], 5)}: number all"
            " classes from 0, or from --first_label, without gaps."
        )
    return order, [], kind == "logit"


def _labels(columns: Columns, class_names: Sequence[str]) -> np.ndarray:
    """Read labels: numbers, or names of classes; labels of weight 0 may be anything."""
    path, first = columns.how.path, columns.how.first_label
    cells = columns["labels"]
    if cells.dtype.kind in "biufc":
        return cells
    words = texts(cells)
    weights = columns.numbers("weights") if "weights" in columns else np.ones(len(words))
    present = weights.reshape(-1) > 0
    start = first + (len(class_names) == 1)  # a single column is that of the second class
    number = {name: k for k, name in enumerate(class_names, start=start)}
    by_name = {word for word, counts in zip(words, present, strict=True) if counts} <= {*number}
    if by_name and len(number) < len(class_names):
        raise Unreadable(f"{path} has labels that are names, and two classes of one name.")
    found = [number.get(word, first - 1 if by_name else whole(word)) for word in words]
    known = f"these are {listed(class_names)}" if class_names else "give numbers or class_names"
    for place, value in enumerate(found):
        if value is None or not -(2**63) <= value < 2**63:
            if present[place]:
                raise Unreadable(
                    f"column label of {path} has '{shown(words[place])}' in row {place + 1:,},"
                    f" which is no class: {known}."
                )
            found[place] = first - 1
    return np.array(found, np.int64).reshape(cells.shape)


def texts(cells: np.ndarray) -> list[str]:
    """Return cells as texts, without spaces at the ends; None is empty."""
    return ["" if cell is None else str(cell).strip() for cell in np.ravel(cells).tolist()]


def ids(cells: np.ndarray) -> np.ndarray:
    """Return names as objects, because an array of text pads every cell; keep other arrays."""
    if cells.dtype != object:
        return cells
    return np.array([*texts(cells), None], object)[:-1].reshape(cells.shape)


def _parsed(word: str) -> float | None:
    try:
        # Python reads 1_0 as 10.
        return None if "_" in word else float(word.removesuffix("%"))
    except ValueError:
        return None


def _is_number(word: str | None) -> bool:
    return word is not None and not word.endswith("%") and _parsed(word) is not None


def whole(word: str) -> int | None:
    """Parse a whole number, 3 or 3.0, or true and false as 1 and 0; None for anything else."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if re.fullmatch(r"[-+]?[0-9]+", word):
        return int(word)
    value = _parsed(word)
    return int(value) if value is not None and value.is_integer() else None


def _is_count(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None


def _no_columns(columns: Columns) -> Unreadable:
    """Make an error that names the missing columns, and how the user can add them."""
    how, names = columns.how, columns.names
    kind = "probability" if how.probabilities else "logit"
    has = f"it has {listed(names) or 'none'}"
    if "labels" not in columns:
        similar = [name for name in names if re.search(r"label|target|truth|^y(_|$)", name.lower())]
        way_out = f"rename {shown(similar[0])} to label" if similar else "add the labels"
        if len(names) == 1 and re.search(r"[\s|:]", names[0]):
            way_out = "separate columns by commas, tabs or semicolons"
        return Unreadable(f"{how.path} has no column label; {has}: {way_out}.")
    return Unreadable(
        f"{how.path} must have columns label, {kind}_0, {kind}_1, ...; {has}."
        "\nColumns may also be named by classes, where labels hold these names."
    )
