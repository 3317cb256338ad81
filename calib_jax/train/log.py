"""The log files of a run, derived from the rows that its checkpoints hold.

    config.json                  the config that identifies the run
    metrics.jsonl, metrics.csv   one row per evaluation
    loss_state.jsonl             the table of the objective's state, if it has one
    gradient_norms.jsonl         histograms of last-layer gradient norms (optional)
    environment.jsonl            one row per start of the run: machine, time and versions
    log.txt                      every printed line

A run that resumes writes these files again from its checkpoint, so nothing in them needs repair.
Links are replaced, and never written through. Rows also go to writers:

    train.fit(folder, state, task, plan, writers=[train.tensorboard])
    train.fit(..., writers=[functools.partial(train.wandb, project="digits")])

A custom writer is a function of the folder and the config of a run that returns an object with
`write(step, values)` and `close()`. A run that resumes may write a step twice. Only process 0
writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from calib_jax.core.texts import csv_lines, printable, without_nan
from calib_jax.train.checkpoint import writing

Row: TypeAlias = dict[str, Any]

ROWS = "metrics.jsonl"
TABLE = "metrics.csv"
LOSS_STATE = "loss_state.jsonl"
GRADIENT_NORMS = "gradient_norms.jsonl"
ENVIRONMENT = "environment.jsonl"
SPOKEN = "log.txt"
CONFIG = "config.json"

SHOWN = 3  # metrics per data set in a printed line; the files hold all of them


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new, empty file, which replaces the file when the block ends.

    A link is replaced, and not the file behind it.
    """
    temporary = path.with_name(f".{path.name}.partial")
    with writing(path):
        temporary.unlink(missing_ok=True)
        temporary.touch(exist_ok=False)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def replace(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def append(path: Path, text: str) -> None:
    """Append text to a file that is no link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with writing(path), os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8") as file:
        file.write(text)


def json_lines(rows: Sequence[Row]) -> str:
    """Format rows as JSON lines, with null for NaN and infinities."""
    return "".join(json.dumps(without_nan(row)) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a JSON lines file; skip lines that are no JSON objects with a step."""
    rows: list[Row] = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict) and type(row.get("step")) is int:
                    rows.append(row)
    return rows


class Log:
    """The log files of a run, and its lines and progress bar on the console.

    Args:
      folder: the folder of the run.
      writers: receivers of the rows besides the files.
      prefix: the start of printed lines, such as "seed 3: ".
      quiet: print nothing; log.txt is still written.
      bar_steps: the number of steps of the progress bar, which only a terminal shows; 0 for none.
    """

    def __init__(
        self,
        folder: Path,
        writers: Sequence[Writer] = (),
        *,
        prefix: str = "",
        quiet: bool = False,
        bar_steps: int = 0,
    ) -> None:
        self._folder, self._writers = folder, writers
        self._prefix, self._quiet = prefix, quiet
        self._columns: list[str] = []  # of metrics.csv
        self._bar: Any = None
        if bar_steps and not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=bar_steps, unit="step", dynamic_ncols=True, smoothing=0.1)

    def restore(self, rows: Sequence[Row], tables: Mapping[str, Sequence[Row]]) -> None:
        """Write the files of rows from the rows of a checkpoint; without rows, empty them."""
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        files = {LOSS_STATE: [], GRADIENT_NORMS: [], **tables, ROWS: rows}
        texts = {name: json_lines(of_file) for name, of_file in files.items()}
        texts[TABLE] = csv_lines(map(without_nan, rows), self._columns, header=bool(rows))
        for name, text in texts.items():
            if text or os.path.lexists(self._folder / name):
                replace(self._folder / name, text)

    def describe(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Write config.json, and add a row to environment.jsonl."""
        replace(self._folder / CONFIG, json.dumps(config, indent=1) + "\n")
        path = self._folder / ENVIRONMENT  # rewritten, since its last line may be incomplete
        replace(path, json_lines([*read_rows(path), dict(environment)]))

    def write(self, rows: Sequence[Row], tables: Mapping[str, Sequence[Row]]) -> None:
        """Add the last row of every file, and print a line.

        Args:
          rows: all rows of the run.
          tables: all rows of other files, by file name.
        """
        row = rows[-1]
        if row.keys() <= set(self._columns):
            for name, of_file in {**tables, ROWS: rows}.items():
                if of_file[-1]["step"] == row["step"]:
                    append(self._folder / name, json_lines(of_file[-1:]))
            line = csv_lines([without_nan(row)], self._columns, header=False)
            append(self._folder / TABLE, line)
        else:  # the first row, or metrics were added when the run resumed
            self.restore(rows, tables)
        self.say(line_of(row))
        for writer in self._writers:
            writer.write(row["step"], row)

    def say(self, text: str) -> None:
        """Print a line and flush, and append it to log.txt."""
        self.note(text)
        if self._quiet:
            return
        with writing(Path("standard output")):
            line = printable(self._prefix + text)
            if self._bar is not None:
                self._bar.write(line)
            else:
                print(line, flush=True)

    def note(self, text: str) -> None:
        """Append a line to log.txt without printing it."""
        append(self._folder / SPOKEN, text + "\n")

    def advance(self, step: int, loss: float) -> None:
        """Set the progress bar to the number of steps done."""
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self._bar.update(step - self._bar.n)

    def close(self) -> None:
        """Close the writers and the progress bar, which stays visible."""
        for writer in self._writers:
            writer.close()
        if self._bar is not None:
            self._bar.close()


# ------------------------------------------------------------------------------------------------
# Lines and tables for people.


def line_of(row: Row) -> str:
    """Format a row as one line, with the first few metrics of each data set."""
    parts = [metrics_of(row, prefix) for prefix in ("train_", "validation_", "test_")]
    start = f"epoch {row['epoch']:g}/{row['num_epochs']}  step {row['step']}"
    rate = f"{row['seconds']:.2g} s, {row['examples_per_second']:,.0f} examples/s"
    return " | ".join([start, *filter(None, parts), rate])


def metrics_of(row: Row, prefix: str) -> str:
    """Format the first few metrics of a data set; "" if the row has none of it."""
    metrics = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
    shown = [f"{name} {_short(value)}" for name, value in metrics.items()][:SHOWN]
    return f"{prefix.strip('_')} {'  '.join(shown)}" if shown else ""


def _short(value: float | None) -> str:
    if value is None:
        return "NaN"
    return f"{value:.4f}".removeprefix("0") if abs(value) < 1 else f"{value:.4g}"


def table_text(table: Mapping[str, Any]) -> str:
    """Format a table in columns, such as AdaFocal's bins.

    >>> print(table_text({"gamma": [1.0, -0.25], "examples": [12.0, 7.0]}))
      #    gamma  examples
      0   1.0000        12
      1  -0.2500         7
    """
    columns = {"#": range(max(map(len, table.values()))), **table}
    cells = [[name, *map(_cell, values)] for name, values in columns.items()]
    widths = [max(3, *map(len, cell)) for cell in cells]
    rows = itertools.zip_longest(*cells, fillvalue="")
    return "\n".join(
        "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows
    )


def _cell(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    whole = value == int(value) and (isinstance(value, int) or abs(value) >= 2)
    return f"{value:.0f}" if whole else f"{value:.4f}"


def last_table(folder: Path | str) -> str:
    """Format the newest table of the objective's state in a folder; "" if there is none."""
    rows = read_rows(Path(folder) / LOSS_STATE)
    return table_text({k: v for k, v in rows[-1].items() if k != "step"}) if rows else ""


# ------------------------------------------------------------------------------------------------
# Writers: the rows of evaluations, sent to other programs as they are logged.


@runtime_checkable
class Writer(Protocol):
    """The receiver of the rows of one run."""

    def write(self, step: int, values: Mapping[str, float], /) -> None:
        """Receive the row of an evaluation: numbers by name, such as "validation_nll"."""

    def close(self) -> None:
        """Flush and close; called once, also if the run fails."""


class _Functions(NamedTuple):
    """The functions of a writer."""

    write: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


def _module(writer: str, name: str) -> Any:
    """Import the package of a writer; if there is none, say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"the writer {writer} needs {name}: pip install 'calib_jax[{writer}]'."
        ) from error


MakeWriter: TypeAlias = Callable[[Path, Mapping[str, Any]], Writer]


def tensorboard(folder: Path, config: Mapping[str, Any]) -> Writer:
    """Write TensorBoard events to FOLDER/tensorboard; needs tensorboardX.

    Args:
      folder: the folder of the run.
      config: not used.
    """
    events = _module("tensorboard", "tensorboardX").SummaryWriter(str(folder / "tensorboard"))

    def write(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            events.add_scalar(name, value, step)
        events.flush()

    return _Functions(write, events.close)


def wandb(folder: Path, config: Mapping[str, Any], **options: Any) -> Writer:
    """Send rows to Weights & Biases; needs wandb, and an account or WANDB_MODE=offline.

    The W&B run has the name of the folder. A run that resumes in the same folder continues the same
    W&B run.

    Args:
      folder: the folder of the run.
      config: the config of the run.
      options: further options of `wandb.init`, such as `project`.
    """
    run_id = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    usual = {"id": run_id, "name": folder.name, "dir": str(folder), "resume": "allow"}
    run = _module("wandb", "wandb").init(config=dict(config), **{**usual, **options})
    return _Functions(lambda step, values: run.log(dict(values), step=step), run.finish)


WRITERS: Mapping[str, MakeWriter] = {"tensorboard": tensorboard, "wandb": wandb}
