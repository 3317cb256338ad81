"""The columns of a file of predictions: their roles by their names, and their cells as numbers."""

from __future__ import annotations

import collections
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files.reading import Unreadable
from calib_jax.report.predictions import listed, shown

# Names of columns whose cells are texts, even if all of them look like numbers.
TEXTS = ("labels", "correct", "groups", "clusters", "questions", "models", "types", "options")
_ROLES = (*TEXTS, "logits", "probabilities", "confidences", "scores", "class_names", "weights")
# Accepted names, in singular; plural names are the roles themselves.
_NAMES = {role.removesuffix("s"): role for role in _ROLES}
_NAMES |= dict.fromkeys(("probability", "prob", "probs", "proba"), "probabilities")
# Words of near names, such as question_id, model_name, is_correct and sample_weight, and names
# that are read as a role if no column has its own name.
_NEAR_WORDS = (
    *("id", "ids", "key", "name", "names", "no", "nr", "num", "number", "index", "is"),
    *("sample", "true", "text"),
)
_NEAR_NAMES = {"y": "labels", "target": "labels", "qid": "questions", "right": "correct"}
_SILENT = ("checkpoint", "step")  # arrays of `experiments.evaluate`, which identify the network
_WORDS = dict.fromkeys(("true", "yes", "right", "correct"), 1)
_WORDS |= dict.fromkeys(("false", "no", "wrong", "incorrect"), 0)


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
    return _NAMES.get(text, text if text in _ROLES else "")


def near_role(name: str) -> str:
    """Return the role that a column has by a name near to its own; "" without one.

    >>> near_role("question_id"), near_role("modelName"), near_role("y_true"), near_role("epoch")
    ('questions', 'models', 'labels', '')
    """
    separated = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[\W_]+", separated.lower()) if word]
    words = [word for word in words if word not in _NEAR_WORDS]
    return (_NEAR_NAMES.get(words[0]) or role_of(words[0])) if len(words) == 1 else ""


def column_name(role: str) -> str:
    """Return the name of a column with a role."""
    return "probability" if role == "probabilities" else role.removesuffix("s")


def find_roles(names: Sequence[str], how: Request) -> dict[str, int]:
    """Find the place of the column of each role, by its own name or else by a near one."""
    roles: dict[str, int] = {}
    for by in (role_of, near_role):
        found: dict[str, int] = {}
        for place, name in enumerate(names):
            role = by(name)
            if not role or role in roles or place in roles.values():
                continue
            if role in found:
                both = f"{shown(names[found[role]])!r} and {shown(name)!r}"
                raise Unreadable(
                    f"{how.path}: {both} may both be the {column_name(role)}: keep one of them."
                )
            found[role] = place
        roles |= found
    lower = [name.strip().lower() for name in names]
    for role, option in (("clusters", how.clusters), ("groups", how.per)):
        if not option or (option == "options" and option not in lower):
            continue  # the number of options is a group that a report makes
        same = (
            lower.index(option.lower()) if option.lower() in lower else roles.get(role_of(option))
        )
        if same is None:
            raise Unreadable(f"{how.path} has no column or array called {option!r}.")
        if roles.get("groups") == same:  # a column has one of both roles
            del roles["groups"]
        roles[role] = same
    if roles.get("clusters", -1) == roles.get("questions"):
        del roles["clusters"]  # the rows of a question are a cluster anyway
    return roles


class Columns:
    """The columns of a file, their roles, and which of them were used.

    Attributes:
      how: the file, and how it is read.
      names: the names of the columns or arrays.
      roles: the place of the column of each role.
    """

    def __init__(self, names: Sequence[str], get: Callable[[int], Any], how: Request) -> None:
        self.how, self.names, self._get = how, list(names), get
        counts = collections.Counter(filter(None, names))
        if again := [name for name, number in counts.items() if number > 1]:
            raise Unreadable(f"{how.path} has two columns {shown(again[0])!r}: keep one of them.")
        self.roles = find_roles(self.names, how)
        self.used: set[int] = set()

    def __contains__(self, role: str) -> bool:
        return role in self.roles

    def cells(self, column: str | int) -> np.ndarray:
        """Read a column by its role or place."""
        place = self.roles[column] if isinstance(column, str) else column
        self.used.add(place)
        return np.asarray(self._get(place))

    def texts(self, role: str) -> list[str]:
        """Read a column as texts; a list of "" if there is none."""
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
        for row, (word, value) in enumerate(zip(words, values.tolist(), strict=True), start=1):
            if (finite and not math.isfinite(value)) or (value != value and word.lower() != "nan"):
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
            f"{self.how.path}: read as {column_name(role)}: {shown(self.names[place])}."
            for role, place in self.roles.items()
            if place in self.used and not role_of(self.names[place])
            if near_role(self.names[place]) == role
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
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if re.fullmatch(r"[-+]?[0-9]+", word):
        return int(word)
    return int(number(word)) if number(word).is_integer() else None
