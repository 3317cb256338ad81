"""What a run writes down: a line for people, and rows for programs.

    config.json                  what identifies the run
    metrics.jsonl, metrics.csv   one row an evaluation
    loss_state.jsonl             what the objective learned, where it shows a table
    gradient_norms.jsonl         histograms of last-layer gradient norms, by option
    environment.jsonl            where, when and with what the run was started, each time
    log.txt                      every line that was said
    tensorboard/                 by option

Rows are complete lines, written at once. When a run goes on from a checkpoint, rows that came
after it are taken away, since they will come again.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from calib_jax.core.types import PyTree

ROWS = "metrics.jsonl"
TABLE = "metrics.csv"
LOSS_STATE = "loss_state.jsonl"
GRADIENT_NORMS = "gradient_norms.jsonl"
ENVIRONMENT = "environment.jsonl"
SPOKEN = "log.txt"
CONFIG = "config.json"

Row = dict[str, Any]

SAID = 3  # metrics of each data set in the line for people; the files have all


class CannotWrite(OSError):
    """The folder of a run cannot be written to."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in a sentence what cannot be written, and why."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise CannotWrite(
            f"{error.filename or path} cannot be written to: {why}; what was saved is whole."
        ) from error


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
        _append(self._folder / SPOKEN, text + "\n")

    def describe(self, config: Mapping[str, Any]) -> None:
        """Write the config down for people; the checkpoints have it too."""
        _replace(self._folder / CONFIG, json.dumps(config, indent=1) + "\n")

    def begin(self, step: int, environment: Mapping[str, Any]) -> None:
        """Note that the run starts, or goes on, here."""
        path = self._folder / ENVIRONMENT  # written anew, since its last line may be cut off
        _replace(path, _json_lines([*read_rows(path), {"step": step, **environment}]))

    def rewind(
        self, step: int, row: Row | None = None, tables: Mapping[str, Row] | None = None
    ) -> None:
        """Forget rows after a step; the last ones before it are added, should they be missing."""
        rows = _until(step, self._folder / ROWS, row)
        _replace(self._folder / ROWS, _json_lines(rows))
        _replace(self._folder / TABLE, _csv_lines(rows, head=True))
        for name in (LOSS_STATE, GRADIENT_NORMS):
            path = self._folder / name
            kept = _until(step, path, (tables or {}).get(name))
            if kept or path.exists():
                _replace(path, _json_lines(kept))

    def write(self, row: Row, tables: Mapping[str, Row] | None = None) -> None:
        """Add the row of an evaluation; `tables` are rows of other files, by name."""
        path = self._folder / TABLE
        head = not path.exists() or path.stat().st_size == 0
        for name, table in (tables or {}).items():
            _append(self._folder / name, _json_lines([table]))
        _append(self._folder / ROWS, _json_lines([row]))
        _append(path, _csv_lines([row], head=head))
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
    """Read a file of JSON lines; a last line that was cut off is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            rows.append(json.loads(line))
    return rows


def _strict(value: Any) -> Any:
    """Make numbers JSON: NaN and infinities are null."""
    if isinstance(value, Mapping):
        return {name: _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _append(path: Path, text: str) -> None:
    with writing(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def _until(step: int, path: Path, last: Row | None) -> list[Row]:
    rows = [row for row in read_rows(path) if row["step"] <= step]
    missing = last and last["step"] <= step and (not rows or rows[-1]["step"] < last["step"])
    return [*rows, last] if last and missing else rows


def _json_lines(rows: list[Row]) -> str:
    return "".join(json.dumps(_strict(row)) + "\n" for row in rows)


def _replace(path: Path, text: str) -> None:
    """Write a file anew, at once or not at all."""
    temporary = path.with_name(path.name + ".new")
    with writing(path):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def _csv_lines(rows: list[Row], *, head: bool) -> str:
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    if head:
        writer.writeheader()
    writer.writerows(_strict(rows))
    return text.getvalue()


def _events(folder: Path) -> PyTree:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ModuleNotFoundError(
            "tensorboard=True needs tensorboardX: pip install 'calib_jax[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder / "tensorboard"))
