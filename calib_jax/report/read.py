"""Read files of predictions without executing any of their content.

run.npz                       arrays logits, labels and optionally groups, clusters, weights, ...
logits.npy with labels.npy    both paths are given: LOGITS.npy,LABELS.npy
run.csv, .tsv, .parquet       columns label, logit_0, logit_1, ...; or confidence, correct
run.json, .jsonl              the same, one object for each example; or rows with own options
samples_TASK.jsonl            a task of lm-evaluation-harness, see `logs.py`
LOG.eval, LOG.json            an evaluation log of Inspect, see `logs.py`

`columns.py` says what the columns and arrays mean. Every reader runs under one guard: whatever a
library raises becomes a sentence with the name of the file. pyarrow reads .parquet. An object of
JSON may also be a response of a decision model (POST /v1/systemone: a model and typed answers by
name) with the true answers under `labels`:

    {"id": "t7", "model": "m", "labels": {"urgent": true, "team": "billing"}, "answers": {
     "urgent": {"type": "noul", "noul": 0.9},
     "team": {"type": "choice", "probabilities": {"billing": 0.8, "sales": 0.2}}}}
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable as Unreadable
from calib_jax.report import logs
from calib_jax.report.columns import TEXTS, Request, interpreted, objects, role_of
from calib_jax.report.predictions import Predictions

KIND = "a file of predictions"
_ENDINGS = (".npz", ".csv", ".tsv", ".parquet", ".jsonl", ".eval")
_LONGEST_CELL = 1 << 25
_ROWS = 200  # of a table that are texts in memory at a time
_SEPARATORS = "\t;,"  # in the order of preference


def read_predictions(
    name: str, *, probabilities: bool = False, first_label: int = 0, clusters: str | None = None
) -> Predictions:
    r"""Read a file of one model by its extension; two .npy files are LOGITS.npy,LABELS.npy.

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
    how: Any = {"probabilities": probabilities, "first_label": first_label, "clusters": clusters}
    models = read_models(name, **how)
    if len(models) > 1:
        raise Unreadable(f"{name} holds {len(models)} models: read it by `report.score_files`.")
    return models[0]


def read_models(name: str, **options: Any) -> list[Predictions]:
    """Read the predictions of each model of a file; the options are those of `Request`."""
    paths = [pathlib.Path(part) for part in name.split(",")]
    endings, how = [path.suffix.lower() for path in paths], Request(paths[0], **options)
    with reading.guard(paths[0], KIND, library=True):
        if endings == [".npz"]:
            with reading.npz(paths[0], KIND) as arrays:
                return interpreted(arrays.names, arrays.__getitem__, how)
        if endings == [".npy", ".npy"]:
            names = ["probabilities" if how.probabilities else "logits", "labels"]
            by_name = dict(zip(names, paths, strict=True))
            return interpreted(names, lambda name: reading.npy(by_name[name], KIND), how)
        if endings in ([".csv"], [".tsv"]):
            return _csv(how)
        if endings == [".parquet"]:
            return _parquet(how)
        if endings in ([".json"], [".jsonl"], [".eval"]):
            return _json(how)
    endings = [*_ENDINGS, ".json", "or be LOGITS.npy,LABELS.npy"]
    raise Unreadable(f"{name} must end in {', '.join(endings)}.")


def _csv(how: Request) -> list[Predictions]:
    """Read a table by blocks of rows; columns of no text become numbers if all their cells are."""
    csv.field_size_limit(_LONGEST_CELL)
    with reading.opened(how.path, KIND) as file:
        if how.path.stat().st_size > reading.free_memory():
            raise MemoryError
        lines = io.TextIOWrapper(file, "utf-8-sig", newline="")
        head = next((line for line in lines if line.strip("\t;, \r\n")), "")
        if not head:
            raise ValueError("it is empty")
        lines.seek(0)
        rows = csv.reader(lines, delimiter=separator(head), strict=True, skipinitialspace=True)
        full = _full(rows, how.path)
        names = [name.strip() for name in next(full)]
        chosen = {(option or "").lower() for option in (how.clusters, how.per)}
        is_text = [role_of(name) in TEXTS or name.lower() in chosen for name in names]
        columns = [[np.array([])] for _ in names]
        while block := list(itertools.islice(full, _ROWS)):
            for place, cells in enumerate(zip(*block, strict=True)):
                columns[place].append(objects(cells) if is_text[place] else _numbers(cells))
    arrays = dict(zip(names, map(np.concatenate, columns), strict=True))
    return interpreted(names, arrays.__getitem__, how)


def _full(rows: Any, path: pathlib.Path) -> Iterator[list[str]]:
    """Yield the rows that are not blank; raise an error for a row that is not as long as others."""
    size = 0
    for row in filter(lambda row: any(map(str.strip, row)), rows):
        size = size or len(row)
        if len(row) != size:
            raise Unreadable(f"line {rows.line_num} of {path} has {len(row)} fields, not {size}.")
        yield row


def _numbers(cells: Sequence[str]) -> np.ndarray:
    with contextlib.suppress(ValueError):
        if "_" not in "".join(cells):  # Python reads 1_0 as 10
            return np.fromiter(map(float, cells), float, len(cells))
    return objects(cells)


def separator(head: str) -> str:
    """Find what separates the names in the first line of a table, which can contain other marks.

    >>> separator("label,logit_0"), separator("label;logit_0"), separator("label;tench, fish;dog")
    (',', ';', ';')
    """
    marks = [mark for mark in _SEPARATORS if mark in head] or [","]
    for mark in marks:
        if {"labels", "correct"} & {*map(role_of, next(csv.reader([head], delimiter=mark)))}:
            return mark
    return marks[-1]


def column(values: Sequence[Any]) -> np.ndarray:
    """Make an array of numbers, or of objects, because an array of text pads every cell."""
    kinds = {*map(type, values)}
    equal = len({*map(len, values)}) == 1 if kinds in ({list}, {np.ndarray}) else kinds == {float}
    return np.array(values) if equal else objects(values)


def _parquet(how: Request) -> list[Predictions]:
    """Read the columns of a Parquet file that are needed."""
    try:
        from pyarrow import parquet, types
    except ImportError as error:
        raise ImportError(f"{how.path} needs 'calib_jax[parquet]': pip install it") from error
    with reading.opened(how.path, KIND) as opened:
        file = parquet.ParquetFile(opened, page_checksum_verification=True)
        sizes = [file.metadata.row_group(k).total_byte_size for k in range(file.num_row_groups)]
        if sum(sizes) > reading.free_memory():
            raise MemoryError

        def get(name: str) -> np.ndarray:
            cells = file.read(columns=[name]).column(0)
            # Lists of numbers stay arrays: as Python numbers they take ten times the memory.
            of = getattr(cells.type, "value_type", cells.type)
            is_number = types.is_floating(of) or types.is_integer(cells.type)
            found = cells.to_numpy() if is_number and not cells.null_count else cells.to_pylist()
            return column([*found]) if isinstance(found, list) or found.dtype == object else found

        return interpreted(file.schema_arrow.names, get, how)


def _json(how: Request) -> list[Predictions]:
    """Read rows of JSON, one for each example, or a log."""
    path, rows, notes = how.path, list[Any](), list[str]()
    if path.suffix.lower() == ".eval":
        rows, notes = logs.archived(path)
    else:
        text = reading.text(path, KIND, at_most=reading.free_memory())
        if path.suffix.lower() == ".json":
            rows = json.loads(text)
        else:
            for number, line in enumerate(text.split("\n"), start=1):
                with reading.guard(f"line {number} of {path}", "a JSON object", "mend the line"):
                    rows += [json.loads(line)] if line.strip() else []
    if isinstance(rows, Mapping):
        rows, notes = logs.of_inspect(path, rows)
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise Unreadable(f"{path} has no samples: give one JSON object for each.")
    if "resps" in rows[0] or "filtered_resps" in rows[0]:
        rows, notes = logs.of_harness(how, rows)
    else:
        rows = [inner for number, row in enumerate(rows, 1) for inner in _expanded(row, number)]
    names = dict.fromkeys(name for row in rows for name in row)
    return interpreted(names, lambda name: column([row.get(name) for row in rows]), how, notes)


def _expanded(row: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Yield a row, or a row for each typed answer of a decision model."""
    answers = row.get("answers")
    if not isinstance(answers, Mapping) or {*map(type, answers.values())} != {dict}:
        yield row
        return
    labels, state = row.get("labels") or row.get("label") or {}, row.get("id", number)
    for name, answer in answers.items():
        p = answer.get("probabilities")
        if p is None and "noul" in answer:
            p = {"false": 1 - float(answer["noul"]), "true": float(answer["noul"])}
        label = answer.get("label", labels.get(name))
        ids = {"model": row.get("model", ""), "question": f"{state}/{name}", "cluster": state}
        yield ids | {"type": answer.get("type", ""), "probabilities": p, "label": label}


def costs(name: str | None) -> np.ndarray | None:
    """Read a matrix of costs from a CSV file of numbers; None without a file."""
    if not name:
        return None
    kind, advice = "a matrix of costs", "give a CSV file of numbers, a row per class, and no header"
    lines = reading.text(name, kind, advice).splitlines()  # NumPy would also open addresses
    with reading.guard(name, kind, advice):
        if not any(map(str.strip, lines)):
            raise ValueError("it is empty")
        return np.loadtxt(lines, delimiter=",", ndmin=2)


def models_in(name: str | pathlib.Path) -> dict[str, str]:
    """List the files of predictions in a folder, one for each model, by the name of the model.

    A file RUN.csv, RUN.npz, RUN.parquet or RUN.npy with logits is the model RUN; all .npy files of
    a folder share labels.npy. A file in a folder inside, such as a folder of
    lm-evaluation-harness, is a model with the name of that folder, or FOLDER/RUN if a model has it.

    Returns:
      the argument of `read_predictions` for each model, in alphabetic order; the argument of a
      file that is no folder, without a name.
    """
    folder = pathlib.Path(name)
    if not folder.is_dir():
        return {"": str(name)}
    models: dict[str, str] = {}
    for path in (*sorted(folder.glob("*")), *sorted(folder.glob("*/*"))):
        inner, labels, ending = path.relative_to(folder), path.parent / "labels.npy", path.suffix
        # The table that `Report.save` writes contains no predictions.
        hidden = path.name.startswith(".") or path in (labels, path.parent / "report.csv")
        if path.is_file() and not hidden and ending.lower() in (*_ENDINGS, ".npy"):
            names = (inner.with_suffix("").parts[0], inner.with_suffix("").as_posix())
            model = next((each for each in names if each not in models), inner.as_posix())
            models[model] = f"{path},{labels}" if ending.lower() == ".npy" else str(path)
    if not models:
        raise Unreadable(f"{folder} has no file that ends in {', '.join(_ENDINGS)} or .npy.")
    return models
