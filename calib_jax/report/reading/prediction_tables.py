"""Read predictions from a table, one example per line: a CSV file, or columns in memory.

Columns of classes are numbered (logit_0, logit_1, ...) or named (logit_cat, logit_dog, or just cat
and dog); the prefix may also be probability_. Labels are numbers, or names of these columns.
"""

import array
import contextlib
import csv
import io
import itertools
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.core.texts import one_line

LINE_CHARACTERS = 1 << 25  # enough for a million columns
_LINES_AT_ONCE = 1000
_BOOLEANS = ("false", "true")  # labels 0 and 1

_PREFIXED = re.compile(r"(logit|prob(?:a|s|ability)?)(?:_(.*))?", re.IGNORECASE)
_SEPARATORS = ("\t", ";", ",")  # in the order of preference
_OUTCOMES = {"labels", "correct"}  # roles of which every table has one
# The last two names are index columns of pandas.
_INDEX_NAMES = ("", "id", "index", "unnamed: 0", "__index_level_0__")


# Columns and arrays that a file may have beside logits and labels, one entry for each example.
OPTIONAL = ("weights", "groups", "clusters")
CLASS_NAMES = "class_names"  # an array with one entry for each class
# Accepted spellings of the columns and arrays of a file of predictions.
_SPELLINGS = {
    "label": "labels",
    "weight": "weights",
    "group": "groups",
    "cluster": "clusters",
    "logit": "logits",
    "probability": "probabilities",
    "prob": "probabilities",
    "probs": "probabilities",
    "proba": "probabilities",
    "class_name": "class_names",
    "confidence": "confidences",
    "score": "scores",
    "question": "questions",
    "model": "models",
}
# Words of near names, such as question_id, model_name, is_correct and sample_weight.
_NEAR_WORDS = (
    *("id", "ids", "key", "name", "names", "no", "nr", "num", "number", "index", "is"),
    *("sample", "true", "text"),
)
_NEAR_SPELLINGS = {"y": "labels", "target": "labels", "qid": "questions", "right": "correct"}


def roles_of(
    names: Sequence[str], wanted: Collection[str], where: str, clusters: str | None = None
) -> dict[str, int]:
    """Find the wanted columns or arrays, in singular or plural, in upper or lower case.

    Args:
      names: the columns or arrays of a file.
      wanted: the roles that the caller reads.
      where: name of the file, for messages.
      clusters: the column or array with the role `clusters`; by default the column of that name.
    """
    cluster_role = _role_of("clusters" if clusters is None else clusters)
    if cluster_role in wanted and cluster_role not in ("clusters", "groups"):
        raise Unreadable(
            f"the clusters of {where} cannot be its {cluster_role}: name a column of ids."
        )
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        role = _role_of(name)
        if role == cluster_role:
            role = "clusters"
        elif role == "clusters":  # another column was chosen
            continue
        if role not in wanted:
            continue
        if role in places:
            both = f"{names[places[role]]!r} and {name!r}"
            raise Unreadable(f"{where} has {both}, which mean the same: keep one of them.")
        places[role] = place
    taken = {*places.values()}
    for role in wanted:
        near = [k for k, name in enumerate(names) if k not in taken and near_role(name) == role]
        if role in places or not near or (role == "clusters" and clusters is not None):
            continue
        if len(near) > 1:
            both = " and ".join(shown(names[k]) for k in near[:2])
            single = role.removesuffix("s") if role != "probabilities" else "probability"
            raise Unreadable(
                f"{where}: {both} may both be the {single}: rename the right one to {single}."
            )
        places[role] = near[0]
    return places


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
    role = _NEAR_SPELLINGS.get(rest[0]) or _role_of(rest[0])
    return role if role in {*_SPELLINGS.values(), "correct"} else ""


def near_notes(path: pathlib.Path, names: Sequence[str], roles: Mapping[str, int]) -> list[str]:
    """Name the columns that have a role by a near name."""
    taken = {role: names[place] for role, place in roles.items() if near_role(names[place]) == role}
    singular = {"probabilities": "probability", "correct": "correct"}
    return [
        f"{path}: read as {singular.get(role, role.removesuffix('s'))}: {shown(name)}."
        for role, name in taken.items()
        if _role_of(name) != role
    ]


def prefixed(name: str) -> bool:
    """Check whether a column is that of a class, such as logit_0 or probability_cat."""
    return "_" in name and _PREFIXED.fullmatch(name) is not None


def _role_of(name: str) -> str:
    text = name.strip().lower()
    return _SPELLINGS.get(text, text)


def looks_like_labels(name: str) -> bool:
    """Check whether a name is a common name for labels.

    >>> looks_like_labels("targets"), looks_like_labels("y_true"), looks_like_labels("preds")
    (True, True, False)
    """
    return re.search(r"label|target|truth|^y(_true|_test)?$", name.lower()) is not None


def listed(names: Sequence[str], most: int = 20) -> str:
    """List names from a file, up to a maximum number."""
    more = [f"... ({len(names):,} in all)"] if len(names) > most else []
    return ", ".join([*map(shown, names[:most]), *more])


def shown(text: str, most: int = 40) -> str:
    r"""Quote a text from a file, without control characters and shortened if it is long.

    >>> shown("cat\x1b[2J", most=9), shown("\0" * 40, most=8)
    ('cat\\x1b[2...', '\\x00\\x00...')
    """
    text = one_line(text)  # first: it makes texts longer
    return text if len(text) <= most else f"{text[:most]}..."


def counted(number: int, noun: str) -> str:
    """Write a number with a noun in singular or plural.

    >>> counted(1, "example"), counted(2, "class")
    ('1 example', '2 classes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending * (number != 1)}"


class Request(NamedTuple):
    """A file of predictions, and how it is read.

    Attributes:
      path: the path of the file.
      probabilities: whether to read probabilities if the file contains both them and logits.
      first_label: the label of the first class, usually 0 or 1.
      clusters: the column or array of clusters, if it has another name.
    """

    path: pathlib.Path
    probabilities: bool = False
    first_label: int = 0
    clusters: str | None = None


class Predictions(NamedTuple):
    """The contents of a file.

    Attributes:
      logits: `[*batch, classes]`, or `[n]` for a binary model; probabilities if these were read.
      labels: `[*batch]`, counted from 0; labels of weight 0 that are out of range are -1.
      weights: `[*batch]`, or None.
      groups: `[*batch]`, or None.
      clusters: `[*batch]`, or None.
      class_names: one name per class; empty if the file has none.
      notes: sentences on how the file was interpreted, and what was not read.
      name_of_one: the name of class 1, if the file has a single column with a name.
    """

    logits: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    clusters: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    name_of_one: str = ""

    @property
    def weighted(self) -> tuple[np.ndarray, ...]:
        """The logits, the labels and, if there are any, their weights."""
        both = (self.logits, self.labels)
        return both if self.weights is None else (*both, self.weights)


class _Classes(NamedTuple):
    """The columns that hold one number for each class.

    Attributes:
      places: positions in a line, in the order of the classes.
      names: the names of the classes; empty if they are numbered.
      bare: whether the names have no prefix, so that another column could also be a class.
    """

    places: list[int]
    names: list[str]
    bare: bool = False


def read(request: Request, kind: str) -> Predictions:
    """Read a CSV file of this kind in one pass."""
    path = request.path
    with csv_rows(path, kind) as (names, rows):
        first = next((row for row in rows if not blank(row)), None)
        if first is not None and len(first) != len(names):
            raise wrong_length(path, rows.line_num, first, names)
        roles = _roles(request, names, first or names)
        if first is None:
            raise Unreadable(f"{path} has no examples, only a header.")
        classes = _classes(request, names, roles.values(), first)
        scores, texts = _columns(path, names, rows, first, classes.places, roles)
    return _table(request, names, roles, classes, scores, texts)


@contextlib.contextmanager
def csv_rows(path: pathlib.Path, kind: str) -> Iterator[tuple[list[str], Any]]:
    """Open a CSV file under the guard; yield the names of its columns, and the other rows."""
    with (
        reading.opened(path, kind) as file,
        io.TextIOWrapper(file, newline="", encoding="utf-8-sig") as text,
    ):
        head = next((line for line in _lines_of(text, path) if line.strip()), "")
        text.seek(0)
        # Strict, since a quote that is never closed would swallow the lines after it.
        rows = csv.reader(_lines_of(text, path), delimiter=separator(head), strict=True)
        try:
            yield [name.strip() for name in next((r for r in rows if not blank(r)), [])], rows
        except csv.Error as error:
            raise ValueError(f"line {rows.line_num}: {error}") from error


def separator(head: str) -> str:
    """Find what separates the names in the first line of a table, which can contain other marks.

    >>> separator("label,logit_0"), separator("label;logit_0"), separator("label")
    (',', ';', ',')
    >>> separator("label;tench, fish;dog")
    ';'
    """
    used = [mark for mark in _SEPARATORS if mark in head]
    by_roles = (
        mark
        for mark in used
        for names in [_split(head, mark)]
        if _OUTCOMES & {*map(_role_of, names), *map(near_role, names)}
    )
    return next(by_roles, "," if "," in used else next(iter(used), ","))


def _split(head: str, mark: str) -> list[str]:
    """Split the first line of a table; empty if a name is longer than the parser allows."""
    try:
        return next(csv.reader([head], delimiter=mark), [])
    except csv.Error:
        return []


def from_columns(
    request: Request, columns: Mapping[str, Sequence[Any] | np.ndarray]
) -> Predictions:
    """Interpret named columns of equal lengths, of any type, as the columns of a CSV file."""
    path, names, values = request.path, list(columns), list(columns.values())
    first = [str(column[0]) if len(column) else "" for column in values]
    roles = _roles(request, names, first)
    if not len(values[0]):
        raise Unreadable(f"{path} has no examples.")
    classes = _classes(request, names, roles.values(), first)
    scores = np.stack([_numbers(path, names[k], values[k]) for k in classes.places], axis=-1)
    texts = {role: [str(value).strip() for value in values[k]] for role, k in roles.items()}
    return _table(request, names, roles, classes, scores, texts)


def _roles(request: Request, names: Sequence[str], first: Sequence[str]) -> dict[str, int]:
    """Find the columns beside the classes; raise an error if there are no labels.

    A class may be called model or question: such a column of numbers is no id.
    """
    wanted = ("labels", *OPTIONAL, "models", "questions")
    roles = roles_of(names, wanted, str(request.path), request.clusters)
    if "labels" not in roles:
        raise _no_columns(request, names)
    numbered = any(map(prefixed, names))
    return {
        role: place
        for role, place in roles.items()
        if role not in ("models", "questions")
        or numbered
        or _role_of(names[place]) != role
        or not _is_number(first[place])
    }


def _table(
    request: Request,
    names: list[str],
    roles: Mapping[str, int],
    classes: _Classes,
    scores: np.ndarray,
    texts: Mapping[str, list[str]],
) -> Predictions:
    """Convert the columns that were read: labels to numbers, and notes on what was not read."""
    path, first_label = request.path, request.first_label
    weights = None
    if "weights" in roles:
        weights = _numbers(path, names[roles["weights"]], texts["weights"])
    present = np.ones(len(scores), bool) if weights is None else weights > 0
    label_name, label_texts = names[roles["labels"]], texts["labels"]
    used = {text for text, counts in zip(label_texts, present, strict=True) if counts}
    unnamed: list[str] = []
    others: set[int] = set()
    if not classes.names:
        labels = _whole_numbers(path, label_name, label_texts, present)
    elif used <= set(classes.names):
        if classes.bare:
            all_names, all_places = classes.names, classes.places
            classes, scores = _without_others(classes, scores, used, request.probabilities)
            unnamed = [name for name in all_names if name not in classes.names]
            others = {*all_places} - {*classes.places}
        number = _numbers_of(classes.names, first_label)
        labels = np.array([number.get(text, first_label - 1) for text in label_texts])
    elif classes.bare and all(_whole(text) is not None for text in used):
        raise _no_columns(request, names)
    else:
        strange = {text for text in used.difference(classes.names) if _whole(text) is None}
        if strange:
            wrong = next(text for text in label_texts if text in strange)
            raise Unreadable(
                f"column {shown(label_name)} of {path} has '{shown(wrong)}', which is no column of"
                f" a class: these are {listed(classes.names)}."
            )
        labels = _whole_numbers(path, label_name, label_texts, present)
    notes = near_notes(path, names, roles) + _notes_on(path, classes, used, first_label)
    if len(models := set(texts.get("models", ()))) > 1:
        raise Unreadable(
            f"{path} holds {len(models)} models, {listed(sorted(models), 5)}, and a table of"
            " classes is one model: write a file for each."
        )
    questions = texts.get("questions", [])
    if "clusters" not in roles and len(set(questions)) < len(questions):
        texts = {**texts, "clusters": questions}
        notes.append(f"{path}: several rows of one question are a cluster.")
    ignored = set(range(len(names))) - {*classes.places, *roles.values(), *others}
    if ignored:
        left = [names[k] or "one without a name" for k in sorted(ignored)]
        notes.append(f"{path}: columns ignored: {listed(left)}.")
    if unnamed:
        notes.append(
            f"{path}: no label is {listed(unnamed)}: not scored. If all columns of numbers are"
            " classes, put logit_ or probability_ before all of their names."
        )
    groups, ids = (np.array(texts[k]) if k in texts else None for k in ("groups", "clusters"))
    return Predictions(scores, labels, weights, groups, ids, tuple(classes.names), tuple(notes))


def _notes_on(path: pathlib.Path, classes: _Classes, used: set[str], first_label: int) -> list[str]:
    """Describe which column is which class, if the columns have names."""
    if not classes.names:
        return []
    numbered = [
        f"{shown(k)} = {number}" for k, number in _numbers_of(classes.names, first_label).items()
    ]
    if len(numbered) == 1:
        return [f"{path}: the only column is that of the class {numbered[0]}."]
    notes = [f"{path}: the classes are {listed(numbered)}."]
    return notes


def _numbers_of(class_names: Sequence[str], first_label: int) -> dict[str, int]:
    """Number the classes by their names; a single column belongs to the second class."""
    start = first_label + 1 if len(class_names) == 1 else first_label
    return {name: number for number, name in enumerate(class_names, start=start)}


def _lines_of(file: io.TextIOWrapper, path: pathlib.Path) -> Iterator[str]:
    """Yield lines of bounded length."""
    while line := file.readline(LINE_CHARACTERS):
        if len(line) == LINE_CHARACTERS and not line.endswith(("\n", "\r")):
            raise Unreadable(
                f"{path} has a line of more than {LINE_CHARACTERS:,} characters: save logits of so"
                " many classes as .npz."
            )
        yield line


def _classes(
    request: Request, names: list[str], taken: Iterable[int], first: list[str]
) -> _Classes:
    """Find the columns of the classes by their names; `first` is the first line of values."""
    path, probabilities, first_label, _ = request
    free = sorted(set(range(len(names))) - set(taken))
    by_kind: dict[str, dict[int, str]] = {"logit": {}, "probability": {}}
    for place in free:
        if match := _PREFIXED.fullmatch(names[place]):
            # A column without a number is the only column, for class 1.
            text = match[2]
            of_kind = "logit" if match[1].lower() == "logit" else "probability"
            by_kind[of_kind][place] = str(first_label + 1) if text is None else text
    kind = "probability" if probabilities and by_kind["probability"] else "logit"
    if by_kind["probability"] and not by_kind[kind]:
        raise Unreadable(
            f"{path} has columns {listed([names[k] for k in by_kind['probability']])}: add"
            " --probabilities to score them."
        )
    chosen = by_kind[kind] or {k: names[k] for k in free if _is_count(names[k])}
    if not chosen:
        places = [k for k in free if _is_number(first[k]) and names[k].lower() not in _INDEX_NAMES]
        if not places:
            raise _no_columns(request, names)
        chosen = {k: names[k] for k in places}
    by_text = {text: place for place, text in chosen.items()}
    if len(by_text) < len(chosen):
        again = next(names[k] for k, text in chosen.items() if by_text[text] != k)
        raise Unreadable(f"{path} has two columns {again!r}: keep one of them.")
    if not any(_is_number(text) for text in by_text):
        bare = not by_kind[kind]
        return _Classes(list(chosen), list(by_text), bare)
    wrong = next((names[k] for k, text in chosen.items() if not _is_count(text)), None)
    if wrong is not None:
        raise Unreadable(
            f"{path} has a column {shown(wrong)} beside numbered ones.\nNumber all classes 0, 1, 2,"
            " ..., or name them all."
        )
    return _Classes(_in_order(request, names, chosen), [])


def _in_order(request: Request, names: list[str], chosen: dict[int, str]) -> list[int]:
    """Order numbered columns; raise an error for a repeated or missing number."""
    path, first_label = request.path, request.first_label
    by_number: dict[int, int] = {}
    for place, text in chosen.items():
        if int(text) in by_number:
            both = f"{names[by_number[int(text)]]} and {names[place]}"
            raise Unreadable(f"{path} has columns {both}, the same class: keep one of them.")
        by_number[int(text)] = place
    start = min(by_number)
    only = names[by_number[start]]
    one_column = len(by_number) == 1 and start <= first_label + 1  # a binary model, of class 1
    if one_column and start == first_label and only.lower().startswith("prob"):
        second = f"{only.removesuffix(str(start))}{start + 1}"
        raise Unreadable(
            f"{path} has only {only}, and a single column is that of the second class.\nRename it"
            f" to {second} if it is, or give both columns."
        )
    if start not in (0, first_label) and not one_column:
        raise Unreadable(
            f"{path} numbers its classes from {start}, {names[by_number[start]]}.\nNumber them from"
            f" 0, or give --first_label={start} if labels do the same."
        )
    missing = next((k for k in itertools.count(start) if k not in by_number), start)
    if missing < start + len(by_number):
        prefix = names[by_number[start]].removesuffix(chosen[by_number[start]])
        raise Unreadable(
            f"{path} has {len(by_number)} columns of classes up to {max(by_number)}, but no"
            f" {prefix}{missing}: number them without gaps."
        )
    return [by_number[k] for k in sorted(by_number)]


def _columns(
    path: pathlib.Path,
    names: list[str],
    rows: Any,
    first: list[str],
    places: list[int],
    roles: dict[str, int],
) -> tuple[np.ndarray, dict[str, list[str]]]:
    """Read all lines: the numbers of the classes, and the other columns as text."""
    numbers = array.array("d")
    texts: dict[str, list[str]] = {role: [] for role in roles}
    line = rows.line_num  # the line of `first`, which is already read
    following = itertools.chain([first], rows)
    while several := list(itertools.islice(following, _LINES_AT_ONCE)):
        try:
            numbers.extend(_floats(several, places, len(names)))
        except ValueError:
            several = _whole_lines(path, names, several, places, line)
            numbers.extend(_floats(several, places, len(names)))
        for role, place in roles.items():
            texts[role].extend(row[place].strip() for row in several)
        line = rows.line_num + 1
    return np.array(numbers).reshape(-1, len(places)), texts


def _floats(rows: list[list[str]], places: list[int], num_fields: int) -> array.array:
    """Parse the fields at some positions of lines; the ValueError for bad fields has no message."""
    if any(len(row) != num_fields for row in rows):
        raise ValueError
    pick = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
    picked = list(itertools.chain.from_iterable(map(pick, rows)))
    if "_" in "".join(picked):  # Python reads 1_0 as 10
        raise ValueError
    return array.array("d", map(float, picked))


def _whole_lines(
    path: pathlib.Path, names: list[str], rows: list[list[str]], places: list[int], line: int
) -> list[list[str]]:
    """Drop blank lines and raise an error for the first bad line; `line` numbers `rows[0]`."""
    for number, row in enumerate(rows, start=line):
        if blank(row):
            continue
        if len(row) != len(names):
            raise wrong_length(path, number, row, names)
        wrong = next((k for k in places if not _is_number(row[k])), None)
        if wrong is not None:
            has_comma = re.fullmatch(r"\s*[-+]?[0-9]*,[0-9]+\s*", row[wrong])
            raise Unreadable(
                f"column {shown(names[wrong])} of {path} must hold numbers: line {number} has"
                f" '{shown(row[wrong])}'{': write decimals with a point' if has_comma else ''}."
            )
    return [row for row in rows if not blank(row)]


def _whole_numbers(
    path: pathlib.Path, name: str, texts: Sequence[str], present: np.ndarray
) -> np.ndarray:
    """Parse labels; 3 and 3.0 are whole numbers, and labels of weight 0 may be anything."""
    numbers = []
    for text, counts in zip(texts, present, strict=True):
        number = _whole(text)
        if not counts and (number is None or not _in_64_bits(number)):
            number = -1
        if number is None:
            raise Unreadable(
                f"column {shown(name)} of {path} must hold numbers, got '{shown(text)}'.\nNames of"
                " classes need columns of these names."
            )
        if not _in_64_bits(number):
            raise Unreadable(
                f"column {shown(name)} of {path} has the label {shown(text)}, beyond 64 bits."
            )
        numbers.append(number)
    return np.array(numbers, np.int64)


def _whole(text: str) -> int | None:
    """Parse a whole number, or true and false as 1 and 0; return None for anything else."""
    if "_" in text:
        return None
    if text.lower() in _BOOLEANS:
        return _BOOLEANS.index(text.lower())
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def _without_others(
    classes: _Classes, scores: np.ndarray, used: set[str], probabilities: bool
) -> tuple[_Classes, np.ndarray]:
    """Drop columns of numbers that no label names, such as epoch, loss or prediction.

    Probabilities of all columns that sum to 1 are those of classes, with examples or without.
    """
    several = len(used) > 1 and len(used) < len(classes.names)
    sums = scores.sum(axis=1)
    if not several or (probabilities and np.all(np.abs(sums - 1) < 0.05)):
        return classes, scores
    kept = [k for k, name in enumerate(classes.names) if name in used]
    names = [classes.names[k] for k in kept]
    return _Classes([classes.places[k] for k in kept], names, True), scores[:, kept]


def _numbers(path: pathlib.Path, name: str, values: Sequence[Any] | np.ndarray) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    wrong = next((value for value in values if not _is_number(value)), None)
    if wrong is not None or None in values:
        raise Unreadable(
            f"column {shown(name)} of {path} must hold numbers, got '{shown(str(wrong))}'."
        )
    return np.array([float(value) for value in values])


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return "_" not in str(value)


def _in_64_bits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def _is_count(text: str) -> bool:
    return re.fullmatch("[0-9]{1,9}", text) is not None


def blank(row: Sequence[str]) -> bool:
    """Check whether all cells of a line are empty."""
    return not any(cell.strip() for cell in row)


def wrong_length(
    path: pathlib.Path, line: int, row: Sequence[str], names: Sequence[str]
) -> Unreadable:
    """Make an error for a line with too few or too many fields."""
    return Unreadable(f"line {line} of {path} has {len(row)} fields, not {len(names)}.")


def _no_columns(request: Request, names: Sequence[str]) -> Unreadable:
    """Make an error that names the missing columns, and how the user can add them."""
    path, kind = request.path, "probability" if request.probabilities else "logit"
    has = f"it has {listed(names) or 'none'}"
    if not any("labels" in (_role_of(name), near_role(name)) for name in names):
        similar = next((name for name in names if looks_like_labels(name)), None)
        if len(names) == 1 and re.search(r"[\s|:]", names[0]):
            way_out = "separate columns by commas, tabs or semicolons"
        elif any(_is_number(name) and not _is_count(name) for name in names):
            way_out = f"write names into the first line, such as label,{kind}_0,{kind}_1"
        else:
            way_out = f"rename {shown(similar)} to label" if similar else "add the labels"
        return Unreadable(f"{path} has no column label; {has}: {way_out}.")
    others = [name for name in names if _role_of(name) not in {"labels", *OPTIONAL}]
    others = [name for name in others if name.lower() not in _INDEX_NAMES]
    rename = ""
    if 1 <= len(others) <= 20:
        numbers = [f"{kind}_{k}" for k in (range(len(others)) if len(others) > 1 else [1])]
        rename = f" Rename {listed(others)} to {', '.join(numbers)}"
        rename += (
            "."
            if request.probabilities
            else ", or to probability_0, ... if they are probabilities."
        )
    return Unreadable(
        f"{path} must have columns label, {kind}_0, {kind}_1, ...; {has}.\nColumns may also be"
        f" named by classes, where labels hold these names.{rename}"
    )
