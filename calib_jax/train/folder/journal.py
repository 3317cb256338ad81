"""The log files of a run: lines for people, and rows for programs.

    config.json                  the config that identifies the run
    format.json                  the format number of the folder
    metrics.jsonl, metrics.csv   one row per evaluation
    loss_state.jsonl             the table of the objective's state, if it has one
    gradient_norms.jsonl         histograms of last-layer gradient norms (optional)
    environment.jsonl            one row per start of the run: machine, time and versions
    log.txt                      every printed line

Each row is appended as a complete line. The checkpoints hold the lines of all rows, so a run that
resumes restores the row files to the rows of its checkpoint; later rows will be logged again.
A damaged file is kept as NAME.damaged.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calib_jax.core.files import reading
from calib_jax.core.files.escaping import csv_lines, without_nan
from calib_jax.train.folder import files
from calib_jax.train.folder.files import Row
from calib_jax.train.folder.writers import Writer

ROWS = "metrics.jsonl"
TABLE = "metrics.csv"
LOSS_STATE = "loss_state.jsonl"
GRADIENT_NORMS = "gradient_norms.jsonl"
ENVIRONMENT = "environment.jsonl"
SPOKEN = "log.txt"
CONFIG = "config.json"
FORMAT_FILE = "format.json"

# The format number of a run folder. Increase it by one when older versions cannot resume the new
# format.
FORMAT = 2

SHOWN = 3  # metrics per data set in a printed line; the files hold all of them


class Journal:
    """The log files of a run.

    Args:
      folder: the folder of the run.
      writers: receivers of the rows besides the files.
    """

    def __init__(self, folder: Path, writers: Sequence[Writer] = ()) -> None:
        self._folder = folder
        self._writers = writers
        self._columns: list[str] = []  # the columns of metrics.csv, once it has rows

    def note(self, text: str) -> None:
        """Append a line to log.txt."""
        files.append(self._folder / SPOKEN, text + "\n")

    def begin(self, step: int, environment: Mapping[str, Any]) -> None:
        """Log the environment at the start or resumption of the run."""
        path = self._folder / ENVIRONMENT  # rewritten, since its last line may be incomplete
        files.replace(
            path, json_lines([*files.json_rows(path).rows, {"step": step, **environment}])
        )

    def rewind(self, log: Mapping[str, str] | None = None) -> list[str]:
        """Restore the row files to the rows of a checkpoint.

        Args:
          log: the lines of all rows by file name, from the checkpoint; None without a checkpoint.

        Returns:
          One remark per damaged file; empty if a process was only killed.
        """
        log = log or {}
        remarks = self._mend(SPOKEN, files.content_or_damage(self._folder / SPOKEN)[1])
        starts, damage = files.json_rows(self._folder / ENVIRONMENT)
        remarks += self._mend(ENVIRONMENT, damage, json_lines(starts) if damage else None)
        for name in (ROWS, LOSS_STATE, GRADIENT_NORMS):
            lines = log.get(name, "").splitlines(keepends=True)
            remarks += self._restore(name, "".join(lines), "".join(lines[:-1]))
        rows = [json.loads(line) for line in log.get(ROWS, "").splitlines()]
        self._columns = _columns_of(rows)
        return remarks + self._restore(TABLE, _csv_lines(rows), _csv_lines(rows[:-1]))

    def _restore(self, name: str, text: str, without_last: str) -> list[str]:
        """Restore a file to the text of a checkpoint, and return a remark if the file is damaged.

        After a kill the last row may be missing or incomplete, or the file may hold later rows.
        """
        path = self._folder / name
        read, damage = files.content_or_damage(path)
        content, whole, most = read or b"", text.encode(), without_last.encode()
        last_row_is_cut = content.startswith(most) and whole.startswith(content)
        if not (damage or content.startswith(whole) or content == most or last_row_is_cut):
            damage = "its rows differ from the rows of the checkpoint"
        if content and not text and b"step" not in content.partition(b"\n")[0]:
            damage = "it has no rows of a run"
        needed = text if text or os.path.lexists(path) else None
        return self._mend(name, damage, needed, restored=bool(text))

    def _mend(
        self, name: str, damage: str, text: str | None = None, *, restored: bool = False
    ) -> list[str]:
        """Rename a damaged file, and return a remark for the log; empty without damage.

        Args:
          name: the file name.
          damage: a phrase that describes the damage.
          text: the text to write in place of the file; None writes nothing.
          restored: whether the text is from the checkpoint.
        """
        path, phrases = self._folder / name, [damage]
        if damage and os.path.lexists(path):
            phrases.append(f"kept as {files.set_aside(path)}")
        if text is not None:
            files.replace(path, text)
        if restored:
            phrases.append("restored from the checkpoint")
        return [f"{name}: {', '.join(phrases)}"] if damage else []

    def write_format(self) -> list[str]:
        """Write format.json unless it exists; return remarks for the log."""
        number, damage = format_of(self._folder)
        text = None if number == FORMAT else json.dumps({"format": FORMAT}, indent=1) + "\n"
        return self._mend(FORMAT_FILE, damage, text)

    def describe(self, config: Mapping[str, Any]) -> list[str]:
        """Write config.json, and return remarks for the log; the checkpoints hold the config too.

        In a folder without a format number, a config.json with other text is from another program.
        """
        text = json.dumps(config, indent=1) + "\n"
        content, damage = files.content_or_damage(self._folder / CONFIG)
        # If the text is equal, this run was killed before it wrote format.json.
        if content not in (None, text.encode()) and not format_of(self._folder)[0]:
            damage = "it is not the config of a run"
        return self._mend(CONFIG, damage, text)

    def redescribe(
        self, config: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]
    ) -> list[str]:
        """Restore config.json from the checkpoint unless it matches; return remarks for the log."""
        there, damage = files.content_or_damage(self._folder / CONFIG, reading.json_mapping)
        if there is not None and fits(there):
            return []
        if not damage:
            damage = "it was missing" if there is None else "it is not the config of the checkpoint"
        text = json.dumps(config, indent=1) + "\n"
        return self._mend(CONFIG, damage, text, restored=True)

    def write(self, row: Row, tables: Mapping[str, Row] | None = None) -> None:
        """Append the row of an evaluation; `tables` holds rows for other files, by file name."""
        for name, table in (tables or {}).items():
            files.append(self._folder / name, json_lines([table]))
        files.append(self._folder / ROWS, json_lines([row]))
        path, columns = self._folder / TABLE, self._columns
        if columns and row.keys() <= set(columns):
            files.append(path, _csv_lines([row], columns))
        else:  # the first row, or metrics were added when the run resumed
            rows = files.json_rows(self._folder / ROWS).rows
            self._columns = _columns_of(rows)
            files.replace(path, _csv_lines(rows))
        self.note(line_of(row))
        for writer in self._writers:
            writer.write(row["step"], row)

    def close(self) -> None:
        """Close the writers."""
        for writer in self._writers:
            writer.close()


def format_of(folder: Path) -> tuple[int, str]:
    """Return the format number of a folder, 0 if it has none, and the damage of its file."""
    content, damage = files.content_or_damage(folder / FORMAT_FILE, reading.json_mapping)
    if content is None:
        return 0, damage
    number = content.get("format")
    return (number, "") if type(number) is int else (0, "it has no format number")


def newer_format(folder: Path) -> str:
    """Return an error message if a newer version of calib_jax wrote a folder, else ""."""
    number, _ = format_of(folder)
    if number <= FORMAT:
        return ""
    return (
        f"{folder} has the format {number}, and this version of calib_jax reads formats up to"
        f" {FORMAT}: update calib_jax, or choose another folder."
    )


def line_of(row: Row) -> str:
    """Format a row as one line, with the first few metrics of each data set."""

    def part(prefix: str) -> str:
        metrics = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
        shown = [f"{name} {_short(value)}" for name, value in metrics.items()][:SHOWN]
        return f" | {prefix.strip('_')} {'  '.join(shown)}" if shown else ""

    start = f"epoch {row['epoch']:g}/{row['num_epochs']}  step {row['step']}"
    rate = f" | {row['seconds']:.2g} s, {row['examples_per_second']:,.0f} examples/s"
    return start + part("train_") + part("validation_") + part("test_") + rate


def mean_line(rows: Sequence[Row], num_runs: int) -> str:
    """Format the means of rows of several runs at the same step as one line."""
    if num_runs == 1:
        return line_of(rows[0])
    floats = [key for key, value in rows[0].items() if isinstance(value, float)]
    means = {key: statistics.fmean(row[key] for row in rows) for key in floats}
    return f"{line_of(rows[0] | means)} | means of {len(rows)} of {num_runs} runs"


def _short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0") if abs(value) < 1 else f"{value:.4g}"


def table_text(table: Mapping[str, Any]) -> str:
    """Format a table in columns, such as AdaFocal's bins.

    >>> print(table_text({"gamma": [1.0, -0.25], "examples": [12.0, 7.0]}))
      #   gamma  examples
      0  1.0000        12
      1  -.2500         7
    """
    columns = {name: list(values) for name, values in table.items()}
    longest = max(map(len, columns.values()))
    cells = [["#", *map(str, range(longest))]]
    for name, values in columns.items():
        cells.append([name, *("" if math.isnan(v) else _cell(v) for v in values)])
    widths = [max(3 if name == 0 else 0, *map(len, cell)) for name, cell in enumerate(cells)]
    rows = zip(*cells, strict=True)
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )


def _cell(value: float) -> str:
    if value == int(value) and abs(value) >= 2:
        return f"{value:.0f}"
    return f"{value:.4f}" if abs(value) >= 1 or value == 0 else f"{value:.4f}".replace("0.", ".", 1)


def read_rows(path: Path) -> list[Row]:
    """Read a JSON lines file; skip unreadable lines and warn about them."""
    rows, damage = files.json_rows(path)
    if damage:
        warnings.warn(f"{path}: {damage}; {files.TRAIN_AGAIN}.", stacklevel=2)
    return rows


def last_table(folder: Path | str) -> str:
    """Format the newest table of the objective's state in a folder; "" if there is none."""
    rows = read_rows(Path(folder) / LOSS_STATE)
    return table_text({k: v for k, v in rows[-1].items() if k != "step"}) if rows else ""


def json_lines(rows: Sequence[Row]) -> str:
    """Format rows as JSON lines, with null for NaN and infinities."""
    return "".join(json.dumps(without_nan(row)) + "\n" for row in rows)


def _columns_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv_lines(rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """Format rows as CSV lines under the given columns; without columns, write a header too."""
    if not rows:
        return ""
    names = columns or _columns_of(rows)
    return csv_lines(map(without_nan, rows), names, header=not columns)
