"""What a run writes down: a line for people, and rows for programs.

    config.json                  what identifies the run
    metrics.jsonl, metrics.csv   one row an evaluation
    loss_state.jsonl             what the objective learned, where it shows a table
    gradient_norms.jsonl         histograms of last-layer gradient norms, by option
    environment.jsonl            where, when and with what the run was started, each time
    log.txt                      every line that was said
    tensorboard/                 by option

Rows are complete lines, written at once. When a run goes on from a checkpoint, rows that came
after it are taken away, since they will come again; what is missing or damaged is restored from
the checkpoint and from metrics.csv, and a damaged file is kept as NAME.damaged.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calib_jax.core import reading
from calib_jax.core.types import PyTree
from calib_jax.train import files
from calib_jax.train.files import Row

ROWS = "metrics.jsonl"
TABLE = "metrics.csv"
LOSS_STATE = "loss_state.jsonl"
GRADIENT_NORMS = "gradient_norms.jsonl"
ENVIRONMENT = "environment.jsonl"
SPOKEN = "log.txt"
CONFIG = "config.json"

SAID = 3  # metrics of each data set in the line for people; the files have all


class Console:
    """What people see while they wait: lines, and a progress bar on a terminal.

    Args:
      total_steps: of all runs.
      progress: a bar on a terminal; without it, or elsewhere, plain lines.
      quiet: say nothing.
    """

    def __init__(self, total_steps: int, *, progress: bool = True, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Any = None
        if progress and not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total_steps, unit="step", dynamic_ncols=True, smoothing=0.1)

    def say(self, text: str) -> None:
        """Print a line, at once."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(text, flush=True)

    def advance(self, step: int, loss: float | None = None) -> None:
        """Move the progress bar to the number of steps done."""
        if self._bar is not None:
            if loss is not None:
                self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self._bar.update(step - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


class Journal:
    """The files of a run.

    Args:
      folder: where.
      tensorboard: also write events, which needs tensorboardX.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        self._folder = folder
        self._events = _events(folder) if tensorboard else None

    def note(self, text: str) -> None:
        """Keep a line that was said."""
        files.append(self._folder / SPOKEN, text + "\n")

    def begin(self, step: int, environment: Mapping[str, Any]) -> None:
        """Note that the run starts, or goes on, here."""
        path = self._folder / ENVIRONMENT  # written anew, since its last line may be cut off
        files.replace(
            path, _json_lines([*files.json_rows(path).rows, {"step": step, **environment}])
        )

    def rewind(
        self,
        step: int,
        row: Row | None = None,
        tables: Mapping[str, Row] | None = None,
        logged: Mapping[str, Sequence[int]] | None = None,
    ) -> list[str]:
        """Forget rows after a step, and restore what is missing or damaged before it.

        Args:
          step: of the checkpoint that the run goes on from; 0 without one.
          row, tables: the last rows, as the checkpoint has them.
          logged: the steps of all rows, by the name of their file, as the checkpoint has them.

        Returns:
          What was damaged or is lost, file by file; nothing after a process was merely killed.
        """
        spare, table_damage = files.csv_rows(self._folder / TABLE)
        starts, starts_damage = files.json_rows(self._folder / ENVIRONMENT)
        spoken_damage = files.no_file(self._folder / SPOKEN)
        remarks = [
            self._set_aside(SPOKEN, spoken_damage),
            self._set_aside(ENVIRONMENT, starts_damage),
            self._set_aside(TABLE, table_damage),
        ]
        if starts_damage:
            files.replace(self._folder / ENVIRONMENT, _json_lines(starts))
        logged, last = logged or {}, {ROWS: row, **(tables or {})}
        for name in (ROWS, LOSS_STATE, GRADIENT_NORMS):
            path = self._folder / name
            found, damage = files.json_rows(path)
            rows = {one["step"]: one for one in found if one["step"] <= step}
            recovered = False
            if newest := last.get(name):
                rows.setdefault(newest["step"], newest)
            if name == ROWS:
                more = {one["step"]: one for one in spare if one["step"] <= step}
                recovered = not more.keys() <= rows.keys()
                rows = {**more, **rows}
            lost = sorted(set(logged.get(name, ())) - set(rows))
            kept = [rows[one] for one in sorted(rows)]
            aside = f"kept as {files.set_aside(path)}" if damage else ""
            if kept or damage or path.exists():
                files.replace(path, _json_lines(kept))
            if name == ROWS:
                files.replace(self._folder / TABLE, _csv_lines(kept))
            said = [damage, aside, f"rows were restored from {TABLE}" if recovered else ""]
            said.append(f"the rows of the steps {files.listed(lost)} are lost" if lost else "")
            remarks.append(_remark(name, said))
        return [remark for remark in remarks if remark]

    def describe(self, config: Mapping[str, Any]) -> None:
        """Write the config down for people; the checkpoints have it too."""
        path = self._folder / CONFIG
        self._set_aside(CONFIG, files.no_file(path))
        files.replace(path, json.dumps(config, indent=1) + "\n")

    def redescribe(
        self, config: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]
    ) -> list[str]:
        """Restore the config of the checkpoint, unless one that fits it is there; say so."""
        path, damage = self._folder / CONFIG, "it is not that of the checkpoint"
        aside = ""
        try:
            if fits(reading.json_mapping(path, "a config")):
                return []
        except FileNotFoundError:
            damage = "it was missing"
        except reading.Unreadable as error:
            damage = reading.reason(error.__cause__ or error)
        if os.path.lexists(path):
            aside = f"kept as {files.set_aside(path)}"
        self.describe(config)
        return [_remark(CONFIG, [damage, aside, "restored from the checkpoint"])]

    def _set_aside(self, name: str, damage: str) -> str:
        """Rename a file that is damaged, and say so."""
        if not damage:
            return ""
        return _remark(name, [damage, f"kept as {files.set_aside(self._folder / name)}"])

    def write(self, row: Row, tables: Mapping[str, Row] | None = None) -> None:
        """Add the row of an evaluation; `tables` are rows of other files, by name."""
        path = self._folder / TABLE
        columns = files.columns(path)
        for name, table in (tables or {}).items():
            files.append(self._folder / name, _json_lines([table]))
        files.append(self._folder / ROWS, _json_lines([row]))
        files.append(path, _csv_lines([row], columns))
        if self._events is not None:
            for name, value in row.items():
                self._events.add_scalar(name, value, row["step"])
            self._events.flush()
        self.note(line_of(row))

    def close(self) -> None:
        """Close what is open."""
        if self._events is not None:
            self._events.close()


def line_of(row: Row) -> str:
    """Put a row into one line that people can read: of each data set the first few metrics."""

    def part(prefix: str) -> str:
        found = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
        said = [f"{name} {_short(value)}" for name, value in found.items()][:SAID]
        return f" | {prefix.strip('_')} {'  '.join(said)}" if said else ""

    start = f"epoch {row['epoch']:g}/{row['num_epochs']}  step {row['step']}"
    rate = f" | {row['seconds']:.2g} s, {row['examples_per_second']:,.0f} examples/s"
    return start + part("train_") + part("validation_") + part("test_") + rate


def mean_line(rows: Sequence[Row], num_runs: int) -> str:
    """Put the rows of some of the runs after as many steps into one line: their means."""
    if num_runs == 1:
        return line_of(rows[0])
    floats = [key for key, value in rows[0].items() if isinstance(value, float)]
    means = {key: statistics.fmean(row[key] for row in rows) for key in floats}
    return f"{line_of(rows[0] | means)} | means of {len(rows)} of {num_runs} runs"


def _short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0") if abs(value) < 1 else f"{value:.4g}"


def table_text(table: Mapping[str, Any]) -> str:
    """Set a table in columns: what AdaFocal's bins look like.

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
    """Read a file of JSON lines; lines that cannot be read are left out, with a warning."""
    rows, damage = files.json_rows(path)
    if damage:
        warnings.warn(f"{path}: {damage}; {files.TRAIN_AGAIN}.", stacklevel=2)
    return rows


def _remark(name: str, said: Sequence[str]) -> str:
    """Join what there is to say of a file; nothing if there is nothing."""
    parts = [part for part in said if part]
    return f"{name}: {', '.join(parts)}" if parts else ""


def _strict(value: Any) -> Any:
    """Make numbers JSON: NaN and infinities are null."""
    if isinstance(value, Mapping):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _json_lines(rows: list[Row]) -> str:
    return "".join(json.dumps(_strict(row)) + "\n" for row in rows)


def _csv_lines(rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """Set rows as lines of a table, under the columns it has; without any, with a head of ours."""
    if not rows:
        return ""
    text = io.StringIO()
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
    if not columns:
        writer.writeheader()
    writer.writerows(_strict(row) for row in rows)
    return text.getvalue()


def _events(folder: Path) -> PyTree:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ModuleNotFoundError(
            "tensorboard=True needs tensorboardX: pip install 'calib_jax[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder / "tensorboard"))
