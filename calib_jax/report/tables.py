"""Read tables: .csv and .tsv by pandas, .parquet by pyarrow, .json and .jsonl line by line.

A line of JSON is an example, a sample of lm-evaluation-harness, or a response of a decision model
(POST /v1/systemone: a model and typed answers by name) with the true answers under `labels`:

    {"id": "t7", "model": "m", "labels": {"urgent": true, "team": "billing"}, "answers": {
     "urgent": {"type": "noul", "noul": 0.9},
     "team": {"type": "choice", "probabilities": {"billing": 0.8, "sales": 0.2}}}}
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable
from calib_jax.report import harness, inspect_logs
from calib_jax.report.columns import Request, interpreted, near_role, role_of
from calib_jax.report.predictions import Predictions

KIND = "a file of predictions"
_LINE_BYTES = 1 << 25
_ROWS_AT_ONCE = 10_000
_TEXTS = ("labels", "correct", "groups", "clusters", "questions", "models", "types", "options")
_SEPARATORS = ("\t", ";", ",")  # in the order of preference


def read(how: Request) -> list[Predictions]:
    """Read a table by the ending of its name."""
    ending = how.path.suffix.lower()
    if ending in (".csv", ".tsv"):
        names, columns = _csv(how)
        return interpreted(names, dict(zip(names, columns, strict=False)).__getitem__, how)
    if ending == ".parquet":
        return _parquet(how)
    rows: list[Any]
    notes: list[str] = []
    if ending == ".eval":
        rows, notes = inspect_logs.archived(how.path)
    elif ending == ".jsonl":
        rows = list(_lines(how))
    else:
        value = json.loads(reading.text(how.path, KIND, at_most=1 << 28))
        of_inspect = isinstance(value, Mapping)
        rows, notes = inspect_logs.answers(how.path, value) if of_inspect else (value, [])
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise Unreadable(f"{how.path} has no samples: give one JSON object for each.")
    if harness.is_logged(rows[0]):
        made, rows, notes = harness.read(how, rows)
        if made is not None:
            return [made]
    rows = [inner for number, row in enumerate(rows, 1) for inner in _expanded(row, number)]
    names = list(dict.fromkeys(str(name) for row in rows for name in row))
    models = interpreted(names, lambda name: _column([row.get(name) for row in rows]), how)
    return [models[0]._replace(notes=(*notes, *models[0].notes)), *models[1:]]


def _column(values: list[Any]) -> np.ndarray:
    """Make an array of numbers, or of objects, because an array of text pads every cell."""
    if all(type(value) is float for value in values):
        return np.array(values, np.float64)
    if values and all(isinstance(v, list) and len(v) == len(values[0]) for v in values):
        return np.array(values)
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _expanded(row: Mapping[str, Any], number: int) -> Iterator[Mapping[str, Any]]:
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


def _lines(how: Request) -> Iterator[Any]:
    """Parse the lines of a file of JSON objects."""
    with reading.opened(how.path, KIND) as file:
        number = 0
        while line := file.readline(_LINE_BYTES):
            number += 1
            if len(line) == _LINE_BYTES:
                raise ValueError(f"line {number} has more than {_LINE_BYTES:,} bytes")
            try:
                value = json.loads(line) if line.strip() else None
            except json.JSONDecodeError as error:
                why = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
                raise Unreadable(f"line {number} of {how.path} is no JSON object: {why}.") from None
            if value is not None:
                yield value


def _csv(how: Request) -> tuple[list[str], list[np.ndarray]]:
    """Read a table in parts, columns without a role of texts as numbers if they are numbers."""
    import pandas

    chosen = {role_of(how.clusters or "clusters"), *_TEXTS}
    csv.field_size_limit(_LINE_BYTES)
    with reading.opened(how.path, KIND) as file:
        if os.fstat(file.fileno()).st_size > reading.free_memory():
            raise MemoryError
        text = io.TextIOWrapper(file, newline="", encoding="utf-8-sig")
        head = next((line for line in text if line.strip()), "")
        mark = separator(head)
        _check_rows(text, how, mark)
        options: dict[str, Any] = {"sep": mark, "header": None, "dtype": str, "index_col": False}
        options |= {"keep_default_na": False, "chunksize": _ROWS_AT_ONCE}
        names: list[str] = []
        parts: list[list[np.ndarray]] = []
        for chunk in pandas.read_csv(text, **options) if head else ():
            chunk = chunk.apply(lambda column: column.str.strip())
            chunk = chunk[~(chunk.isna() | (chunk == "")).all(axis=1)]
            if not names and len(chunk):
                names, chunk = chunk.iloc[0].fillna("").tolist(), chunk.iloc[1:]
            columns = zip(names, chunk.to_numpy(object).T, strict=True)
            parts.append([_numbers(c) if not _is_text(n, chosen) else c for n, c in columns])
    return names, [np.concatenate(part) for part in zip(*parts, strict=True)]


def _check_rows(text: io.TextIOWrapper, how: Request, mark: str) -> None:
    """Raise an error for rows of other lengths, which pandas fills up, and for an open quote."""
    text.seek(0)
    rows, width = csv.reader(text, delimiter=mark, strict=True), 0
    try:
        for row in rows:
            width = width or len(row)
            if len(row) != width and any(map(str.strip, row)):
                raise Unreadable(
                    f"line {rows.line_num} of {how.path} has {len(row)} fields, not {width}."
                )
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num}: {error}") from error
    text.seek(0)


def _is_text(name: str, roles: Collection[str]) -> bool:
    return role_of(name) in roles or near_role(name) in roles


def _numbers(cells: np.ndarray) -> np.ndarray:
    """Convert texts to numbers if all of them are; Python reads 1_0 as 10."""
    try:
        return cells if any("_" in cell for cell in cells) else cells.astype(np.float64)
    except ValueError:
        return cells


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
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{how.path} needs pyarrow: python -m pip install 'calib_jax[parquet]'"
        ) from error
    with reading.opened(how.path, KIND) as opened:
        file = parquet.ParquetFile(opened, page_checksum_verification=True)
        rows = file.metadata.num_rows
        sizes = (file.metadata.row_group(k).total_byte_size for k in range(file.num_row_groups))
        if math.fsum(sizes) > reading.free_memory():
            raise MemoryError

        def get(name: str) -> np.ndarray:
            column = file.read(columns=[name]).column(0)
            if len(column) != rows:  # in a damaged file
                raise ValueError(f"{name} has {len(column):,} of {rows:,} values")
            plain = column.type.to_pandas_dtype() not in (np.object_, np.bool_)
            return (
                column.to_numpy()
                if plain and not column.null_count
                else _column(column.to_pylist())
            )

        return interpreted(file.schema_arrow.names, get, how)
