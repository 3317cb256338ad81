"""From named columns or arrays to predictions, for every format of file.

Columns of classes are numbered (logit_0, logit_1, ...) or named (logit_cat, logit_dog, or just cat
and dog); the prefix may also be probability_. Labels are numbers, or names of these columns. A
column `logits` or `probabilities` holds all numbers of a row: a list, or a mapping from options,
which may differ from row to row. Answers have columns confidence,correct or score,correct.

A column is an array of numbers, or an array of objects: texts, lists and mappings.
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
_NEAR_WORDS = re.compile(r"|ids?|key|names?|no|nr|num|number|index|is|sample|true|text")
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

    >>> role_of("Labels"), role_of("modelName"), role_of("y_true"), role_of("y_prob")
    ('labels', 'models', 'labels', 'probabilities')
    """
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    words = [word for word in re.split(r"[\W_]+", separated) if not _NEAR_WORDS.fullmatch(word)]
    is_near = words[:-1] in ([], ["y"]) and not _PREFIXED.fullmatch(name)  # logit_no is of a class
    near = _NEAR_NAMES.get("".join(words[-1:]), "") if is_near else ""
    return _OWN_NAMES.get(name.strip().lower(), near)


def _is_own(name: str) -> bool:
    return name.strip().lower() in _OWN_NAMES


def _column_name(role: str) -> str:
    return "probability" if role == "probabilities" else role.removesuffix("s")


class Columns:
    """The columns of a file by name, their roles, and which of them were used.

    Attributes:
      how: the file, and how it is read.
      names: the names of the columns or arrays.
      roles: the name of the column of each role.
    """

    def __init__(self, names: Iterable[str], get: Callable[[str], Any], how: Request) -> None:
        self.how, self.names, self._get = how, list(names), get
        self.roles: dict[str, str] = {}
        self._used: set[str] = set()
        of_role: dict[str, list[str]] = {}
        for name in self.names:
            of_role.setdefault(role_of(name) or name, []).append(name)
        for role, several in of_role.items():
            own = [name for name in several if _is_own(name)] or several
            if len(own) > 1 and role:
                both, what = " and ".join(repr(shown(name)) for name in own[:2]), _column_name(role)
                raise Unreadable(f"{how.path}: {both} may both be the {what}: keep one of them.")
            if role in _ROLES:
                self.roles[role] = own[0]
        by_name = {name.strip().lower(): name for name in self.names}
        for role, option in (("clusters", how.clusters), ("groups", how.per)):
            chosen = option and (by_name.get(option.lower()) or self.roles.get(role_of(option)))
            if chosen and self.roles.get("groups") == chosen:  # a column has one of both roles
                del self.roles["groups"]
            if chosen:
                self.roles[role] = chosen
            elif option and option != "options":  # their number is a group that a report makes
                raise Unreadable(f"{how.path} has no column or array called {option!r}.")

    def cells(self, key: str) -> np.ndarray:
        """Read a column by its role or its name."""
        if key in _ROLES and key not in self.roles:
            raise self.without(_column_name(key))
        name = self.roles.get(key, key)
        self._used.add(name)
        cells = np.asarray(self._get(name))
        if key in ("labels", "correct") and not cells.size:
            raise Unreadable(f"{self.how.path} has no examples, only a header.")
        return cells

    def ids(self, role: str) -> np.ndarray | None:
        """Read names as objects, because an array of text pads every cell; keep other arrays."""
        if role not in self.roles:
            return None
        cells = self.cells(role)
        return objects(texts(cells)).reshape(cells.shape) if cells.dtype == object else cells

    def is_numeric(self, name: str) -> bool:
        """Check whether the first cell of a column is a number; this does not use the column."""
        return not all(map(math.isnan, map(number, texts(np.asarray(self._get(name))[:1]))))

    def numbers(self, key: str, *, finite: bool = False) -> np.ndarray:
        """Read a column of numbers; of numbers with the sign %, the hundredth part."""
        cells, name = self.cells(key), self.roles.get(key, key)
        is_text = cells.dtype.kind in "OU"
        words: Any = texts(cells) if is_text else cells.ravel()
        values = np.array([*map(number, words)]) if is_text else np.asarray(words, np.float64)
        for place in np.flatnonzero(~np.isfinite(values) if finite else np.isnan(values) & is_text):
            word, row = str(words[place]), place * len(cells) // len(words) + 1
            if finite or word.lower() != "nan":
                hint = ": write decimals with a point" if "," in word else ""
                raise Unreadable(
                    f"column {shown(name)} of {self.how.path} must hold {'finite ' * finite}"
                    f"numbers: row {row:,} has '{shown(word)}'{hint}."
                )
        return values.reshape(cells.shape)

    def without(self, name: str = "logit_0") -> Unreadable:
        """Make an error that names a missing column, and those of all kinds of files."""
        form = "label,logit_0,logit_1,... or label,cat,dog,... between commas, tabs or semicolons"
        if self.how.path.suffix.lower() not in (".csv", ".tsv", ".parquet"):
            name, form = name.replace("logit_0", "logits"), "labels and logits or probabilities"
        return Unreadable(
            f"{self.how.path} has no {name}; it has {listed(self.names) or 'none'}.\n"
            f"Give {form}; or confidence,correct; or score,correct."
        )

    def notes(self) -> list[str]:
        """Name the columns with near names, and those that were not used."""
        notes = [
            f"{self.how.path}: read as {_column_name(role)}: {shown(name)}."
            for role, name in self.roles.items()
            if name in self._used and role_of(name) == role and not _is_own(name)
        ]
        left = [name for name in self.names if name not in self._used and name not in _SILENT]
        return notes + [f"{self.how.path}: columns ignored: {listed(left)}."] * bool(left)


def texts(cells: np.ndarray) -> list[str]:
    """Return cells as texts, without spaces at the ends; None is empty."""
    return ["" if cell is None else str(cell).strip() for cell in np.ravel(cells).tolist()]


def objects(values: Sequence[Any]) -> np.ndarray:
    """Make an array of any objects."""
    # None at the end, because lists of one length would be rows of an array.
    return np.array([*values, None], object)[:-1]


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


def _keys(name: str) -> tuple[Any, ...]:
    """Return what a name is found by: the name, the name in any case, and what the word means."""
    folded = name.strip().lower()
    return name, folded, _WORDS.get(folded)


def places_of(labels: Iterable[str], names: Iterable[str], size: int, first: int = 0) -> list[int]:
    """Return which class or option each label means, by name or number; -1 if none.

    >>> places_of(["Dog", "1"], ["cat", "dog"], 2), places_of(["1"], [], 2)
    ([1, 1], [1])
    >>> places_of(["true"], ["no", "yes"], 2)
    [1]
    """
    places: dict[Any, int] = {}
    for keys in zip(*map(_keys, names), strict=True):  # exact names come first
        for place, key in enumerate(keys):
            if key not in ("", None):
                places.setdefault(key, place)
    found = []
    for label in labels:
        keys = _keys(label)
        value = float((number(label) if keys[-1] is None else keys[-1]) - first)
        by_number = int(value) if 0 <= value < size and value.is_integer() else -1
        found.append(next((places[key] for key in keys if key in places), by_number))
    return found


def interpreted(
    names: Iterable[str], get: Callable[[str], Any], how: Request, notes: Sequence[str] = ()
) -> list[Predictions]:
    """Make the predictions of each model from named columns.

    Args:
      names: the names of the columns or arrays.
      get: returns a column or array by its name.
      how: the file, and how it is read.
      notes: sentences on how the file became columns.
    """
    columns = Columns(names, get, how)
    roles = columns.roles.keys()
    classes: dict[str, dict[str, str]] = {"logits": {}, "probabilities": {}}
    for name in columns.names:
        if match := _PREFIXED.fullmatch(name):
            kind = "logits" if match[1].lower() == "logit" else "probabilities"
            # A column without a number is the only column, for class 1.
            classes[kind][name] = str(how.first_label + 1) if match[2] is None else match[2]
    held = [kind for kind in classes if classes[kind] or kind in roles]
    kind = "probabilities" if how.probabilities or held == ["probabilities"] else "logits"
    source = kind if kind in held else "logits"
    value = "scores" if "scores" in roles and "confidences" not in roles else "confidences"
    stated = roles & {"confidences", "correct"} and "labels" not in roles
    if source in roles and not any("_" in name for name in classes[source]):
        made = _of_numbers(columns, source, kind)
    elif not held and (stated or roles >= {value, "correct"}):
        correct, numbers = columns.cells("correct"), columns.numbers(value, finite=True)
        made = Predictions(numbers, correct, kind=value.removesuffix("s"))
    else:
        made = _of_classes(columns, classes[source], kind)
    weights = columns.numbers("weights") if "weights" in roles else None
    beside: dict[str, Any] = {role: columns.ids(role) for role in _BESIDE[1:]}
    made = _checked(made._replace(weights=weights, **beside), how)
    if made.ordinal is not None:
        groups = {how.per or "group": made.groups, "type": columns.ids("types")}
        groups["options"] = np.sum(~np.isnan(made.logits), axis=-1)
        made = made._replace(groups={k: each for k, each in groups.items() if each is not None})
    models = columns.ids("models")
    made = made._replace(notes=(*notes, *columns.notes(), *made.notes))
    if models is None:
        return [_in_fractions(made, how)]
    parts = [made.rows(models == name)._replace(model=str(name)) for name in dict.fromkeys(models)]
    return [_in_fractions(part, how) for part in parts]


def _of_numbers(columns: Columns, role: str, kind: str) -> Predictions:
    """Read a column or array that holds all numbers of a row, or the number of class 1."""
    roles, labels, cells = columns.roles, columns.cells("labels"), columns.cells(role)
    is_one = isinstance(next(cells.flat, 0), str | int | float)
    if "options" in roles or (cells.dtype == object and not is_one):
        return _of_options(columns, cells.tolist(), kind)
    # Probabilities may be whole numbers, such as percent.
    is_read = kind == "probabilities" or cells.dtype == object
    numbers = columns.numbers(role) if is_read else cells
    names = columns.cells("class_names") if "class_names" in roles else np.array([])
    if names.ndim == 2 and np.all(names == names[0]):
        names = names[0]  # a table repeats the list in every row
    if labels.dtype.kind in "OU" and len({*names.flat}) < names.size:
        path = columns.how.path
        raise Unreadable(f"{path} has labels that are names, and two classes of one name.")
    return Predictions(numbers, labels, class_names=tuple(texts(names)), kind=kind)


def _of_options(columns: Columns, cells: Sequence[Any], kind: str) -> Predictions:
    """Read rows with options of their own: absent options of a row are NaN."""
    how, words = columns.how, texts(columns.cells("labels"))
    named = columns.cells("options").tolist() if "options" in columns.roles else [None] * len(cells)
    rows, right = list[dict[str, float]](), list[str]()
    for cell, names, label in zip(cells, named, words, strict=True):
        given = cell if isinstance(cell, Mapping) else {}
        if isinstance(cell, list | np.ndarray):
            names = [*map(str, names or range(how.first_label, how.first_label + len(cell)))]
            differ = len({*names}) == len(names) == len(cell)
            given = dict(zip(names, map(str, cell), strict=True)) if differ else {}
        row = {str(k): number(str(each)) for k, each in given.items() if each is not None}
        rows.append(row)
        (place,) = places_of([label], row, len(row), how.first_label)
        if place < 0 or len(row) < 2 or any(map(math.isnan, row.values())):
            raise Unreadable(
                f"row {len(rows):,} of {how.path} has {kind} '{shown(str(cell))}', label"
                f" '{shown(label)}': give two numbers or more, by option or in a list, and a label"
                f" of its options: {listed(list(row), 5) or 'none'}."
            )
        right.append(list(row)[place])
    first, fewest, most = list(_in_order(rows[0], True)), min(map(len, rows)), max(map(len, rows))
    if all(row.keys() == rows[0].keys() for row in rows):  # these are classes, in any order
        matrix = np.array([[row[name] for name in first] for row in rows])
        note = f"{how.path}: the classes are {_numbered(first, 0)}."
        labels = np.array([*map(first.index, right)]) + how.first_label
        return Predictions(matrix, labels, class_names=tuple(first), kind=kind, notes=(note,))
    types = texts(columns.cells("types")) if "types" in columns.roles else [""] * len(rows)
    ordinal = np.isin([text.lower() for text in types], _ORDINAL)
    rows = [*map(_in_order, rows, ordinal.tolist())]
    matrix = np.array([[*row.values(), *[np.nan] * (most - len(row))] for row in rows])
    places = [list(row).index(name) for row, name in zip(rows, right, strict=True)]
    note = f"{how.path}: rows of {fewest} to {most} options of their own."
    return Predictions(matrix, np.array(places), kind=kind, notes=(note,), ordinal=ordinal)


def _in_order(row: dict[str, float], is_kept: bool) -> dict[str, float]:
    """Sort options that are numbers, and names by the alphabet unless their order is kept.

    An object of JSON has no order, and some writers sort options by their probability.
    """
    if not any(math.isnan(number(name)) for name in row):
        return dict(sorted(row.items(), key=lambda option: number(option[0])))
    return row if is_kept else dict(sorted(row.items()))


def _of_classes(columns: Columns, prefixed: Mapping[str, str], kind: str) -> Predictions:
    """Read a column for each class: those with a prefix, or all of numbers.

    Args:
      columns: the columns.
      prefixed: the class of each column with a prefix; none if the names are those of classes.
      kind: "logits" or "probabilities".
    """
    how, labels, notes = columns.how, columns.cells("labels"), list[str]()
    taken = {columns.roles.get(role) for role in ("labels", "models", *_BESIDE)}
    free = [k for k in columns.names if k not in taken and k.lower() not in _INDEX_NAMES]
    chosen = prefixed or {name: name for name in free if name.isdecimal()}
    chosen = chosen or {name: name for name in free if columns.is_numeric(name)}
    if not chosen:
        raise columns.without()
    places = _numbered_places(chosen, how, kind)
    names = [] if places else list(chosen.values())
    scores = np.stack([columns.numbers(name) for name in places or chosen], axis=-1)
    if names and not prefixed:
        weighted = "weights" in columns.roles
        used = {*texts(labels[columns.numbers("weights") > 0] if weighted else labels)}
        named = used <= {*names}
        if not named and min(places_of(used, (), 1 << 62)) >= 0:  # all are numbers
            raise columns.without()
        left = [name for name in names if name not in used]
        # Probabilities of all columns that sum to 1 are those of classes.
        of_all = kind == "probabilities" and np.all(np.abs(scores.sum(axis=1) - 1) < 0.05)
        if named and left and len(used) > 1 and not of_all:
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
    return Predictions(scores, labels, class_names=tuple(names), kind=kind, notes=tuple(notes))


def _numbered_places(chosen: Mapping[str, str], how: Request, kind: str) -> list[str]:
    """Return the columns in the order of their numbers; none if their classes have names."""
    numbers = {name: number(called) for name, called in chosen.items()}
    if all(map(math.isnan, numbers.values())):
        return []
    starts = [0, how.first_label]
    if len(chosen) == 1:  # a single column is that of the second class
        starts = [how.first_label + 1, how.first_label + (kind == "probabilities")]
    if sorted(numbers.values()) not in [[*range(k, k + len(chosen))] for k in starts]:
        known = f"{how.path} has the columns {listed(list(chosen), 5)}"
        raise Unreadable(f"{known}: number all classes from 0, or from --first_label on.")
    return sorted(chosen, key=numbers.__getitem__)


def _numbered(names: Sequence[str], start: int) -> str:
    return listed([f"{shown(name)} = {k}" for k, name in enumerate(names, start=start)])


def _checked(made: Predictions, how: Request) -> Predictions:
    """Validate shapes and dtypes; count labels from 0; name both classes if there is one column."""
    path, logits = how.path, made.logits
    if logits.dtype.kind != "f" or logits.ndim == 0:
        what = f"{logits.dtype} of shape {logits.shape}"
        raise Unreadable(f"the logits of {path} must be floating point, one row each, got {what}.")
    one_column = logits.ndim == 1 or logits.shape[-1] == 1
    batch = logits.shape if logits.ndim == 1 else logits.shape[:-1]
    for name in ("labels", *_BESIDE):
        column = getattr(made, name)
        if column is not None and column.shape != batch:
            raise Unreadable(f"{name} of {path} must have shape {batch}, got {column.shape}.")
    if made.ordinal is not None:
        return made
    names, num_classes = made.class_names, 2 if one_column else logits.shape[-1]
    if len(names) not in (0, one_column, num_classes):
        raise Unreadable(f"{path} has {len(names)} class names and {num_classes} classes.")
    if len(names) == 1:  # a single column is that of the second class
        names = (f"not {names[0]}", *names)
    labels, first = made.labels, how.first_label if made.of_classes else 0
    if labels.dtype.kind in "biuf":
        inside = (labels >= first) & (labels < first + num_classes) & (labels == np.rint(labels))
        found = np.full(labels.shape, -1)
        found[inside] = labels[inside] - first
    else:
        places = places_of(texts(labels), names, num_classes, first)
        found = np.array(places).reshape(labels.shape)
    present = np.full(labels.shape, True) if made.weights is None else made.weights > 0
    for row in np.flatnonzero(present & (found < 0))[:1]:
        label = shown(str(labels.flat[row])) or "''"
        known = listed(names) or f"the {num_classes} classes {first} to {first + num_classes - 1}"
        hint = "Give ignored examples weight 0."
        if first == 0 and number(label) == num_classes and not np.any(found[present] == 0):
            hint = f"The labels run from 1 to {num_classes}: give --first_label=1."
        what, known = ("label", known) if made.of_classes else ("correct", "1 or 0, true or false")
        where = f"{what} {label} of {path} (example {row:,}, counted from 0)"
        raise Unreadable(f"{where} is none of {known}.\n{hint}")
    return made._replace(labels=found, class_names=names)


def _in_fractions(made: Predictions, how: Request) -> Predictions:
    """Divide percent by 100, and say so; refuse numbers that may be percent or fractions."""
    values = made._replace(ordinal=None).present
    if made.kind not in ("confidence", "probabilities") or not values.size:
        return made
    kind = " of ".join(filter(None, (_column_name(made.kind), made.model)))
    low, high = np.nanmin(values), np.nanmax(values)
    if values.ndim > 1 and values.shape[-1] > 1:
        sums = np.nansum(values, axis=-1, dtype=np.float64)
        percent = low >= 0 and np.all(np.abs(sums - 100) <= min(50, max(1, values.shape[-1] / 2)))
    else:
        percent = low >= 0 and _HIGHEST_GRADE < high <= 100
        percent = percent and np.mean(values[values != 0] > 1) >= 0.5
        wrong = (values > 0) & (values < 1) if percent else (values < 0) | (values > 1)
        if np.any(wrong):
            where = "between 0 and 1" if percent else "outside [0, 1]"
            raise Unreadable(
                f"{how.path}: {kind} goes from {low:g} to {high:g}, and {np.sum(wrong):,} of"
                f" {values.size:,} are {where}: fractions and percent may be mixed.\nWrite % behind"
                " all percent; for grades and others name the column score and give --calibrate."
            )
    if not percent:
        return made
    note = f"{how.path}: {kind} from {low:g} to {high:g}: read as percent, divided by 100."
    return made._replace(logits=made.logits / 100, notes=(*made.notes, note))
