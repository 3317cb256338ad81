"""From named columns or arrays to predictions, for every format of file.

Columns of classes are numbered (logit_0, logit_1, ...) or named (logit_cat, logit_dog, or just cat
and dog); the prefix may also be probability_. Labels are numbers, or names of these columns. A
column `logits` or `probabilities` holds all numbers of a row: a list, or a mapping from options,
which may differ from row to row. Answers have columns confidence,correct or score,correct.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.predictions import Predictions, listed, shown

# Names of columns whose cells are texts, even if all of them look like numbers.
TEXTS = ("labels", "correct", "groups", "clusters", "questions", "models", "types", "options")
_ROLES = (*TEXTS, "logits", "probabilities", "confidences", "scores", "class_names", "weights")
# The roles by the own names of columns, in singular or plural.
_OWN_NAMES = {role.removesuffix("s"): role for role in _ROLES} | {role: role for role in _ROLES}
_OWN_NAMES |= dict.fromkeys(("probability", "prob", "probs", "proba"), "probabilities")
# Words of near names, such as question_id, model_name, is_correct and sample_weight, and names
# that are read as a role if no column has its own name.
_NEAR_WORDS = (
    *("", "id", "ids", "key", "name", "names", "no", "nr", "num", "number", "index", "is"),
    *("sample", "true", "text"),
)
_NEAR_NAMES = {"y": "labels", "target": "labels", "qid": "questions", "right": "correct"}
_NEAR_NAMES |= _OWN_NAMES
_SILENT = ("checkpoint", "step")  # arrays of `experiments.evaluate`, which identify the network
_WORDS = dict.fromkeys(("true", "yes", "right", "correct"), 1)
_WORDS |= dict.fromkeys(("false", "no", "wrong", "incorrect"), 0)
_PREFIXED = re.compile(r"(logit|prob(?:a|s|ability)?)(?:_(.*))?", re.IGNORECASE)
# The last two names are index columns of pandas.
_INDEX_NAMES = ("", "id", "index", "unnamed: 0", "__index_level_0__")
# Grades of judges and schools end at 20, and percent rarely do.
_HIGHEST_GRADE = 20
_BESIDE = ("weights", "groups", "clusters", "questions")
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
    """Return the role of a column by its own name or one near to it; "" without one.

    >>> role_of("Labels"), role_of("modelName"), role_of("y_true"), role_of("epoch")
    ('labels', 'models', 'labels', '')
    """
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[\W_]+", separated) if word not in _NEAR_WORDS]
    near = _NEAR_NAMES.get(words[0], "") if len(words) == 1 else ""
    return _OWN_NAMES.get(name.strip().lower(), near)


def _is_own(name: str) -> bool:
    return name.strip().lower() in _OWN_NAMES


def _column_name(role: str) -> str:
    return "probability" if role == "probabilities" else role.removesuffix("s")


class Columns:
    """The columns of a file, their roles, and which of them were used.

    Attributes:
      how: the file, and how it is read.
      names: the names of the columns or arrays.
      roles: the place of the column of each role.
    """

    def __init__(self, names: Sequence[str], get: Callable[[int], Any], how: Request) -> None:
        self.how, self.names, self._get = how, list(names), get
        self.roles: dict[str, int] = {}
        self.used: set[int] = set()
        places: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(role_of(name) or name, []).append(place)
        for role, several in places.items():
            own = [place for place in several if _is_own(names[place])] or several
            if len(own) > 1 and role:
                both = " and ".join(repr(shown(names[place])) for place in own[:2])
                raise Unreadable(
                    f"{how.path}: {both} may both be the {_column_name(role)}: keep one of them."
                )
            if role in _ROLES:
                self.roles[role] = own[0]
        for role, option in (("clusters", how.clusters), ("groups", how.per)):
            if option:
                self._choose(role, option)

    def _choose(self, role: str, option: str) -> None:
        """Take the column that `clusters` or `per` names as the clusters or the groups."""
        lower = [name.strip().lower() for name in self.names]
        place = self.roles.get(role_of(option))
        place = lower.index(option.lower()) if option.lower() in lower else place
        if place is not None:
            if self.roles.get("groups") == place:  # a column has one of both roles
                del self.roles["groups"]
            self.roles[role] = place
        elif option != "options":  # their number is a group that a report makes
            raise Unreadable(f"{self.how.path} has no column or array called {option!r}.")

    def __contains__(self, role: str) -> bool:
        return role in self.roles

    def cells(self, column: str | int) -> np.ndarray:
        """Read a column by its role or place."""
        place = self.roles[column] if isinstance(column, str) else column
        self.used.add(place)
        return np.asarray(self._get(place))

    def texts(self, role: str) -> list[str]:
        """Read a column as texts; an empty list if there is none."""
        return texts(self.cells(role)) if role in self else []

    def ids(self, role: str) -> np.ndarray | None:
        """Read names as objects, because an array of text pads every cell; keep other arrays."""
        if role not in self:
            return None
        cells = self.cells(role)
        return objects(texts(cells)).reshape(cells.shape) if cells.dtype == object else cells

    def is_numeric(self, place: int) -> bool:
        """Check whether the first cell of a column is a number; this does not use the column."""
        first = texts(np.asarray(self._get(place))[:1])
        return bool(first) and not math.isnan(number(first[0]))

    def numbers(self, column: str | int, *, finite: bool = False) -> np.ndarray:
        """Read a column of numbers; of numbers with the sign %, the hundredth part."""
        cells = self.cells(column)
        if cells.dtype.kind not in "OU":
            return np.asarray(cells, np.float64)
        words = texts(cells)
        values = np.array([number(word) for word in words])
        for place in np.flatnonzero(~np.isfinite(values) if finite else np.isnan(values)):
            word, row = words[place], place * len(cells) // len(words) + 1
            if finite or word.lower() != "nan":
                name = self.names[self.roles[column] if isinstance(column, str) else column]
                hint = ": write decimals with a point" if "," in word else ""
                raise Unreadable(
                    f"column {shown(name)} of {self.how.path} must hold {'finite ' * finite}"
                    f"numbers: row {row:,} has '{shown(word)}'{hint}."
                )
        return values.reshape(cells.shape)

    def notes(self) -> tuple[str, ...]:
        """Name the columns with near names, and those that were not used."""
        notes = [
            f"{self.how.path}: read as {_column_name(role)}: {shown(self.names[place])}."
            for role, place in self.roles.items()
            if place in self.used and role_of(name := self.names[place]) == role
            if not _is_own(name)
        ]
        left = [name for place, name in enumerate(self.names) if place not in self.used]
        if left := [name for name in left if name not in _SILENT]:
            notes.append(f"{self.how.path}: columns ignored: {listed(left)}.")
        return tuple(notes)


def texts(cells: np.ndarray) -> list[str]:
    """Return cells as texts, without spaces at the ends; None is empty."""
    return ["" if cell is None else str(cell).strip() for cell in np.ravel(cells).tolist()]


def objects(values: Iterable[Any]) -> np.ndarray:
    """Make an array of any objects."""
    values = list(values)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def number(word: str) -> float:
    """Parse a number, 0.5 or 50%; NaN for anything else, and for 1_0, which Python reads as 10.

    >>> number("0.5"), number("50%"), number("x")
    (0.5, 0.5, nan)
    """
    try:
        value = math.nan if "_" in word else float(word.removesuffix("%"))
    except ValueError:
        return math.nan
    return value / 100 if word.endswith("%") else value


def whole(word: str) -> int | None:
    """Parse a whole number, 3 or 3.0, or true and false as 1 and 0; None for anything else."""
    value = _WORDS.get(word.lower(), number(word))
    return int(value) if float(value).is_integer() else None


def places_of(names: Sequence[str]) -> dict[Any, int]:
    """Return the places of classes or options by their names, in any case, and what words mean."""
    places: dict[Any, int] = {}
    folded = [name.strip().lower() for name in names]
    for keys in (names, folded, map(_WORDS.get, folded)):
        for place, key in enumerate(keys):
            if key not in ("", None):
                places.setdefault(key, place)
    return places


def place_of(label: str, places: Mapping[Any, int], size: int, first_label: int = 0) -> int:
    """Return which of several classes or options a label means, by name or number; -1 if none.

    >>> place_of("Dog", {"cat": 0, "dog": 1}, 2), place_of("1", {}, 2)
    (1, 1)
    >>> place_of("true", places_of(["no", "yes"]), 2)
    1
    """
    word = label.lower()
    for key in (label, word, _WORDS.get(word)):
        if key in places:
            return places[key]
    value = whole(label)
    return value - first_label if value is not None and 0 <= value - first_label < size else -1


def interpreted(names: Sequence[str], get: Callable[[int], Any], how: Request) -> list[Predictions]:
    """Make the predictions of each model from named columns.

    Args:
      names: the names of the columns or arrays.
      get: returns a column or array by its place.
      how: the file, and how it is read.
    """
    columns = Columns(names, get, how)
    prefixed = any("_" in name and _PREFIXED.fullmatch(name) for name in names)
    value = "scores" if "scores" in columns and "confidences" not in columns else "confidences"
    stated = [role for role in (value, "correct") if role in columns]
    stated_alone = stated not in ([], ["scores"]) and "labels" not in columns
    if not prefixed and ("logits" in columns or "probabilities" in columns):
        made = _of_numbers(columns)
    elif not prefixed and (len(stated) == 2 or stated_alone):
        made = _of_answers(columns, value)
    else:
        made = _of_classes(columns, prefixed)
    weights = columns.numbers("weights") if "weights" in columns else None
    beside: dict[str, Any] = {role: columns.ids(role) for role in _BESIDE[1:]}
    made = _checked(made._replace(weights=weights, **beside), how)
    if made.ordinal is not None:
        groups = {how.per or "group": made.groups, "type": columns.ids("types")}
        groups["options"] = np.sum(~np.isnan(made.logits), axis=-1)
        made = made._replace(groups={k: each for k, each in groups.items() if each is not None})
    models = objects(columns.texts("models"))
    made = made._replace(notes=(*columns.notes(), *made.notes))
    parts = [made.rows(models == name)._replace(model=name) for name in dict.fromkeys(models)]
    return [_in_fractions(part, how) for part in parts or [made]]


def _of_answers(columns: Columns, role: str) -> Predictions:
    """Read stated confidences, or scores, and whether the answers are right."""
    _require(columns, role, "correct")
    kind = "score" if role == "scores" else "confidence"
    return Predictions(columns.numbers(role, finite=True), columns.cells("correct"), kind=kind)


def _of_numbers(columns: Columns) -> Predictions:
    """Read a column or array that holds all numbers of a row, or the number of class 1."""
    _require(columns, "labels")
    other = columns.how.probabilities or "logits" not in columns
    role = "probabilities" if other and "probabilities" in columns else "logits"
    kind = "probabilities" if other else "logits"
    cells = columns.cells(role)
    is_one = isinstance(next(cells.flat, 0), str | int | float)
    if "options" in columns or (cells.dtype == object and not is_one):
        return _of_options(columns, cells.tolist(), kind)
    # Probabilities may be whole numbers, such as percent.
    is_read = kind == "probabilities" or cells.dtype == object
    numbers, labels = columns.numbers(role) if is_read else cells, columns.cells("labels")
    names = columns.cells("class_names") if "class_names" in columns else np.array([])
    if names.ndim == 2 and np.all(names == names[0]):
        names = names[0]  # a table repeats the list in every row
    if labels.dtype.kind in "OU" and len({*names.flat}) < names.size:
        path = columns.how.path
        raise Unreadable(f"{path} has labels that are names, and two classes of one name.")
    return Predictions(numbers, labels, class_names=tuple(texts(names)), kind=kind)


def _of_options(columns: Columns, cells: Sequence[Any], kind: str) -> Predictions:
    """Read rows with options of their own: absent options of a row are NaN."""
    how, labels = columns.how, columns.texts("labels")
    named = columns.cells("options").tolist() if "options" in columns else [None] * len(cells)
    rows: list[dict[str, float]] = []
    right: list[int] = []
    for cell, names, label in zip(cells, named, labels, strict=True):
        if isinstance(cell, Mapping):
            present = {str(name): value for name, value in cell.items() if value is not None}
            names, cell = list(present), list(present.values())
        numbers = [number(str(value)) for value in cell] if isinstance(cell, list) else []
        names = list(map(str, range(len(numbers)) if names is None else names))
        rows.append(dict(zip(names, numbers, strict=False)))
        places = {label: names.index(label)} if label in names else places_of(names)
        right.append(place_of(label, places, len(names), how.first_label))
        where = f"row {len(rows):,} of {how.path} has"
        if not 2 <= len(names) == len(rows[-1]) == len(numbers) or any(map(math.isnan, numbers)):
            raise Unreadable(
                f"{where} {kind} '{shown(str(cell))}': give two numbers or more, as a list or as a"
                " mapping from options."
            )
        if right[-1] < 0:
            raise Unreadable(
                f"{where} the label '{shown(label)}', which is none of its options:"
                f" {listed(names, 5)}."
            )
    first, fewest, most = list(rows[0]), min(map(len, rows)), max(map(len, rows))
    if all(row.keys() == rows[0].keys() for row in rows):  # these are classes, in any order
        matrix = np.array([[row[name] for name in first] for row in rows])
        found = [first.index(list(row)[place]) for row, place in zip(rows, right, strict=True)]
        note = f"{how.path}: the classes are {_numbered(first, 0)}."
        counted = np.array(found) + how.first_label
        return Predictions(matrix, counted, class_names=tuple(first), kind=kind, notes=(note,))
    matrix = np.array([[*row.values(), *[np.nan] * (most - len(row))] for row in rows])
    types = [text.lower() for text in columns.texts("types")] or [""] * len(rows)
    note = f"{how.path}: rows of {fewest} to {most} options of their own."
    ordinal = np.isin(types, _ORDINAL)
    return Predictions(matrix, np.array(right), kind=kind, notes=(note,), ordinal=ordinal)


def _of_classes(columns: Columns, prefixed: bool) -> Predictions:
    """Read a column for each class."""
    how = columns.how
    _require(columns, "labels")
    places, names, kind = _class_columns(columns)
    scores = np.stack([columns.numbers(place) for place in places], axis=-1)
    notes = list[str]()
    if names and not prefixed:
        words = columns.texts("labels")
        weights = columns.numbers("weights") if "weights" in columns else np.ones(len(words))
        used = {word for word, weight in zip(words, weights, strict=True) if weight > 0}
        if not used <= {*names} and all(whole(word) is not None for word in used):
            raise _without(columns)
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
    taken = {columns.roles.get(role) for role in ("labels", "models", *_BESIDE)}
    free = [place for place in range(len(names)) if place not in taken]
    of_kind: dict[str, dict[int, str]] = {"logits": {}, "probabilities": {}}
    for place in free:
        if match := _PREFIXED.fullmatch(names[place]):
            # A column without a number is the only column, for class 1.
            called = str(how.first_label + 1) if match[2] is None else match[2]
            of_kind["logits" if match[1].lower() == "logit" else "probabilities"][place] = called
    other = how.probabilities or (of_kind["probabilities"] and not of_kind["logits"])
    kind = "probabilities" if other else "logits"
    free = [place for place in free if names[place].lower() not in _INDEX_NAMES]
    chosen = (
        of_kind[kind]
        or of_kind["logits"]
        or {place: names[place] for place in free if names[place].isdecimal()}
        or {place: names[place] for place in free if columns.is_numeric(place)}
    )
    if not chosen:
        raise _without(columns)
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


def _require(columns: Columns, *roles: str) -> None:
    """Raise an error if there is no column of a role, or if it has no rows."""
    for role in roles:
        if role not in columns:
            raise _without(columns, _column_name(role))
        if not columns.cells(role).size:
            raise Unreadable(f"{columns.how.path} has no examples, only a header.")


def _without(columns: Columns, name: str = "logit_0") -> Unreadable:
    """Make an error that names a missing column, and those of all kinds of files."""
    return Unreadable(
        f"{columns.how.path} has no column {name}; it has {listed(columns.names) or 'none'}.\n"
        "Give columns label, logit_0, logit_1, ... (or probability_0, ...; or label and names of"
        " classes that are labels), or confidence,correct, or score,correct.\nSeparate columns by"
        " commas, tabs or semicolons."
    )


def _checked(made: Predictions, how: Request) -> Predictions:
    """Validate shapes and dtypes; count labels from 0, and move the name of an only column."""
    path, logits = how.path, made.logits
    if logits.dtype.kind != "f" or logits.ndim == 0:
        what = f"{logits.dtype} of shape {logits.shape}"
        raise Unreadable(f"the logits of {path} must be floating point, one row each, got {what}.")
    one_column = logits.ndim == 1 or logits.shape[-1] == 1
    batch = logits.shape if logits.ndim == 1 else logits.shape[:-1]
    for name in ("labels", *_BESIDE):
        column = getattr(made, name)
        if column is not None and column.shape != batch:
            raise Unreadable(
                f"the {name} of {path} must have shape {batch}, one for each example, got"
                f" {column.shape}."
            )
    if made.ordinal is not None:
        return made
    names, num_classes = made.class_names, 2 if one_column else logits.shape[-1]
    if len(names) not in (0, one_column, num_classes):
        raise Unreadable(f"{path} has {len(names)} class names and {num_classes} classes.")
    if len(names) == 1:  # a single column is that of the second class
        made = made._replace(class_names=(), name_of_one=names[0])
        names = ("", *names)
    first = how.first_label if made.of_classes else 0
    return made._replace(labels=_from_zero(made, names, num_classes, first, path))


def _from_zero(
    made: Predictions, names: Sequence[str], num_classes: int, first: int, path: pathlib.Path
) -> np.ndarray:
    """Count labels from 0, numbers or names of classes; labels of weight 0 may be anything."""
    labels = made.labels.reshape(-1)
    present = np.full(labels.size, True) if made.weights is None else made.weights.reshape(-1) > 0
    if labels.dtype.kind not in "biuf":
        places = places_of(names)
        words = [place_of(word, places, num_classes, first) for word in texts(labels)]
        labels = np.array(words) + first
    inside = (labels >= first) & (labels < first + num_classes) & (labels == np.rint(labels))
    for row in np.flatnonzero(present & ~inside)[:1]:
        label = shown(str(made.labels.flat[row])) or "''"
        known = f"the {num_classes} classes {first} to {first + num_classes - 1}"
        known = listed([name for name in names if name]) or known
        hint = "Give ignored examples weight 0."
        if first == 0 and number(label) == num_classes and min(labels[present & inside], default=1):
            hint = f"The labels run from 1 to {num_classes}: give --first_label=1."
        what = "label"
        if not made.of_classes:
            what, known = "correct", "1 or 0, or true or false"
        where = f"{what} {label} of {path} (example {row:,}, counted from 0)"
        raise Unreadable(f"{where} is none of {known}.\n{hint}")
    labels = np.where(inside, labels, first - 1).astype(np.int64) - first
    return labels.reshape(made.labels.shape)


def _in_fractions(made: Predictions, how: Request) -> Predictions:
    """Divide percent by 100, and say so; refuse numbers that may be percent or fractions."""
    if made.kind not in ("confidence", "probabilities"):
        return made
    values = made.logits
    low, high = np.nanmin(values), np.nanmax(values)
    if values.ndim > 1 and values.shape[-1] > 1:
        what = "the rows sum to 100"
        sums = np.nansum(values, axis=-1, dtype=np.float64)
        percent = low >= 0 and np.all(np.abs(sums - 100) <= max(1, values.shape[-1] / 2))
    else:
        what = "the confidences" if made.kind == "confidence" else "the probabilities"
        what += f" of {shown(made.model)}" if made.model else ""
        what += f" go from {low:g} to {high:g}"
        percent = low >= 0 and _HIGHEST_GRADE < high <= 100
        percent = percent and np.mean(values[values != 0] > 1) >= 0.5
        wrong = (values > 0) & (values < 1) if percent else (values < 0) | (values > 1)
        if number := int(np.sum(wrong)):
            where = "between 0 and 1" if percent else "outside [0, 1]"
            raise Unreadable(
                f"{how.path}: {what}, and {number:,} of {values.size:,} are {where}: fractions and"
                " percent may be mixed.\nWrite the sign % behind all percent; for grades or"
                " log-probabilities name the column score and add --calibrate=isotonic"
                " --cross_fit=5."
            )
    if not percent:
        return made
    note = f"{how.path}: {what}: read as percent, divided by 100."
    return made._replace(logits=values / 100, notes=(*made.notes, note))
