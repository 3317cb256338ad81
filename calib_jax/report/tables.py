"""Read tables: .csv and .tsv by pandas, .parquet by pyarrow, .json and .jsonl line by line.

A line of JSON is an example, a sample of lm-evaluation-harness, or a response of a decision model
(POST /v1/systemone: a model and typed answers by name) with the true answers under `labels`:

    {"id": "t7", "model": "m", "labels": {"urgent": true, "team": "billing"}, "answers": {
     "urgent": {"type": "noul", "noul": 0.9},
     "team": {"type": "choice", "probabilities": {"billing": 0.8, "sales": 0.2}}}}
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report import harness, inspect_logs
from calib_jax.report.columns import interpreted
from calib_jax.report.predictions import Predictions
from calib_jax.report.roles import TEXTS, Request, find_roles, near_role, objects, role_of

KIND = "a file of predictions"
_LONGEST_CELL = 1 << 25
_SEPARATORS = ("\t", ";", ",")  # in the order of preference


def read(how: Request) -> list[Predictions]:
    """Read a table by the ending of its name."""
    ending = how.path.suffix.lower()
    if ending in (".csv", ".tsv"):
        return _csv(how)
    if ending == ".parquet":
        return _parquet(how)
    notes: list[str] = []
    if ending == ".eval":
        rows, notes = inspect_logs.archived(how.path)
    elif ending == ".jsonl":
        rows = list(_lines(how))
    else:
        rows = json.loads(reading.text(how.path, KIND, at_most=1 << 28))
        if isinstance(rows, Mapping):
            rows, notes = inspect_logs.answers(how.path, rows)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise Unreadable(f"{how.path} has no samples: give one JSON object for each.")
    if harness.is_logged(rows[0]):
        rows, notes = harness.examples(how, rows)
    else:
        rows = [inner for number, row in enumerate(rows, 1) for inner in _expanded(row, number)]
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    models = interpreted(names, lambda k: column([row.get(names[k]) for row in rows]), how)
    return [models[0]._replace(notes=(*notes, *models[0].notes)), *models[1:]]


def column(values: list[Any]) -> np.ndarray:
    """Make an array of numbers, or of objects, because an array of text pads every cell."""
    if all(type(value) is float for value in values):
        return np.array(values, np.float64)
    if values and all(isinstance(v, list) and len(v) == len(values[0]) for v in values):
        return np.array(values)
    return objects(values)


def _expanded(row: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield a row, or a row for each typed answer of a decision model."""
    answers = row.get("answers")
    if not isinstance(answers, Mapping) or not all(
        isinstance(answer, Mapping) for answer in answers.values()
    ):
        yield row
        return
    labels = row.get("labels") or row.get("label") or {}
    state = row.get("id", number)
    for name, answer in answers.items():
        p = answer.get("probabilities")
        if p is None and "noul" in answer:
            p = {"false": 1 - float(answer["noul"]), "true": float(answer["noul"])}
        yield {
            **{"model": row.get("model", ""), "question": f"{state}/{name}", "cluster": state},
            **{"type": answer.get("type", ""), "probabilities": p},
            "label": answer.get("label", labels.get(name)),
        }


@contextlib.contextmanager
def _opened(how: Request) -> Iterator[BinaryIO]:
    """Open a text of which every byte becomes memory."""
    with reading.opened(how.path, KIND) as file:
        if os.fstat(file.fileno()).st_size > reading.free_memory():
            raise MemoryError
        yield file


def _lines(how: Request) -> Iterator[Any]:
    """Parse the lines of a file of JSON objects."""
    with _opened(how) as file:
        for number, line in enumerate(file, start=1):
            with reading.guard(f"line {number} of {how.path}", "a JSON object", "mend the line"):
                value = json.loads(line) if line.strip() else None
            if value is not None:
                yield value


def _csv(how: Request) -> list[Predictions]:
    """Read a table; columns of no text are numbers if all of their cells are."""
    import pandas

    csv.field_size_limit(_LONGEST_CELL)
    with _opened(how) as file:
        text = io.TextIOWrapper(file, newline="", encoding="utf-8-sig")
        mark = separator(next((line for line in text if line.strip()), ""))
        text.seek(0)
        names = _header(text, how, mark)
        roles = find_roles(names, how)
        kinds = dict.fromkeys((roles[role] for role in TEXTS if role in roles), str)
        options: dict[str, Any] = {"dtype": kinds, "keep_default_na": False, "low_memory": False}
        text.seek(0)
        table = pandas.read_csv(
            text, sep=mark, header=0, names=range(len(names)), index_col=False, **options
        )
    table = table[(table != "").any(axis=1)]

    def get(place: int) -> np.ndarray:
        cells = table[place].to_numpy()
        # A column of True and False stays one of words, and is no column of a class.
        return cells if cells.dtype.kind in "Ob" else cells.astype(np.float64)

    return interpreted(names, get, how)


def _header(text: io.TextIOWrapper, how: Request, mark: str) -> list[str]:
    """Return the names; raise an error for rows of other lengths, which pandas would fill up."""
    names: list[str] = []
    rows = csv.reader(text, delimiter=mark, strict=True)
    for row in rows:
        names = names or [name.strip() for name in row]
        if len(row) != len(names) and any(map(str.strip, row)):
            raise Unreadable(
                f"line {rows.line_num} of {how.path} has {len(row)} fields, not {len(names)}."
            )
    return names


def separator(head: str) -> str:
    """Find what separates the names in the first line of a table, which can contain other marks.

    >>> separator("label,logit_0"), separator("label;logit_0"), separator("label;tench, fish;dog")
    (',', ';', ';')
    """
    used = [mark for mark in _SEPARATORS if mark in head]
    for mark in used:
        names = next(csv.reader([head], delimiter=mark), [])
        if {"labels", "correct"} & {*map(role_of, names), *map(near_role, names)}:
            return mark
    return "," if "," in used else next(iter(used), ",")


def _parquet(how: Request) -> list[Predictions]:
    """Read the columns of a Parquet file that are needed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{how.path} needs pyarrow: python -m pip install 'calib_jax[parquet]'"
        ) from error
    with reading.opened(how.path, KIND) as opened:
        file = parquet.ParquetFile(opened, page_checksum_verification=True)
        sizes = (file.metadata.row_group(k).total_byte_size for k in range(file.num_row_groups))
        if math.fsum(sizes) > reading.free_memory():
            raise MemoryError

        def get(place: int) -> np.ndarray:
            cells = file.read(columns=[file.schema_arrow.names[place]]).column(0)
            is_plain = pyarrow.types.is_floating(cells.type) or pyarrow.types.is_integer(cells.type)
            plain = is_plain and not cells.null_count
            return cells.to_numpy() if plain else column(cells.to_pylist())

        return interpreted(file.schema_arrow.names, get, how)
