"""The published numbers, from experiments/published/paper-tables.csv."""

import difflib
import functools
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from experiments.papers import claims

SOURCES = {
    "guo": "blog_on_guo2017",
    "mukhoti": "mukhoti2020_focal_calibration",
    "adafocal": "ghosh2022_adafocal_slides",
    "bsce-gra": "lin2025_bsce_gra_notes",
}


class Key(NamedTuple):
    """The place of a published number; `phase` is pre or post temperature scaling, or empty."""

    source: str
    table: str
    dataset: str
    model: str
    method: str
    metric: str
    phase: str


class Number(NamedTuple):
    """A published number, and the temperature printed beside it, if there is one."""

    value: float
    temperature: float | None


COLUMNS = (*Key._fields, *Number._fields)


@functools.cache
def read(path: pathlib.Path = claims.PUBLISHED / "paper-tables.csv") -> Mapping[Key, Number]:
    """Read all published numbers."""
    names = {long: short for short, long in SOURCES.items()}
    numbers = {}
    for line, row in claims.table(path, COLUMNS):
        temperature = row.pop("temperature")
        value = _number(path, line, row.pop("value"))
        row["source"] = names.get(row["source"], row["source"])
        key = Key(**row)
        if key in numbers:
            raise ValueError(f"{path} has two rows {' | '.join(key)}.")
        numbers[key] = Number(value, _number(path, line, temperature) if temperature else None)
    return numbers


def _number(path: pathlib.Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(
            f"line {line} of {path} has {text!r} where a number is expected: correct it."
        ) from error


def table(
    source: str, name: str, phase: str = "", metric: str | None = None
) -> dict[tuple[str, str], dict[str, Number]]:
    """Return the numbers of a table by (data set, network) and method.

    Args:
      source: guo, mukhoti, adafocal or bsce-gra.
      name: the name of the table.
      phase: pre, post or empty.
      metric: the metric of the numbers; may be left out if the table has only one.
    """
    rows: dict[tuple[str, str], dict[str, Number]] = {}
    metrics = set()
    for key, value in read().items():
        if (key.source, key.table, key.phase) == (source, name, phase) and metric in (
            None,
            key.metric,
        ):
            metrics.add(key.metric)
            rows.setdefault((key.dataset, key.model), {})[key.method] = value
    if not rows:
        known = sorted({f"{k.source} {k.table} {k.phase} {k.metric}" for k in read()})
        given = " ".join(part for part in (source, name, phase, metric or "") if part)
        near = difflib.get_close_matches(given, known, n=3, cutoff=0)
        raise LookupError(f"the published tables have no {given}; near are {', '.join(near)}.")
    if len(metrics) > 1:
        raise ValueError(f"table {name} of {source} has {', '.join(sorted(metrics))}: choose one.")
    return rows
