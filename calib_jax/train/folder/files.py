"""Files in the folder of a run: atomic writes, and damaged files renamed instead of deleted."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from calib_jax.core.files import reading
from calib_jax.core.files import writing as whole

Row = dict[str, Any]

TRAIN_AGAIN = "experiments.train with the same command mends what a checkpoint holds"


class CannotWrite(OSError):
    """Raised when the folder of a run cannot be written to."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an `OSError` to a `CannotWrite` that names the path and the reason."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise CannotWrite(
            f"{error.filename or path} cannot be written to: {why}; what was saved is whole."
        ) from error


def append(path: Path, text: str) -> None:
    """Append text to a file."""
    with writing(path), path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def replace(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the old one when the block ends."""
    with writing(path), whole.replacing(path) as temporary:
        yield temporary


def set_aside(path: Path) -> str:
    """Rename an unusable file, folder or broken link, and return its new name."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    with writing(path):
        path.rename(aside)
    return aside.name


def content_or_damage(
    path: Path, read: Callable[[Path, str], Any] = reading.content
) -> tuple[Any, str]:
    """Read a file by a function of `reading`.

    Returns:
      The content, or None if the file is missing or damaged; and a phrase that describes the
      damage, or "".
    """
    try:
        return read(path, "a file of a run"), ""
    except FileNotFoundError:
        return None, ""
    except reading.Unreadable as error:
        return None, reading.reason(error.__cause__ or error)


class LoggedRows(NamedTuple):
    """The rows of a file, and a phrase that describes its damage; "" if there is none."""

    rows: list[Row]
    damage: str


def json_rows(path: Path) -> LoggedRows:
    """Read the valid rows of a JSON lines file; a valid row has an integer `step`.

    A last line without a newline was left by a killed process and is not counted as damage.
    """
    content, damage = content_or_damage(path)
    if content is None:
        return LoggedRows([], damage)
    rows, damaged = [], []
    *lines, begun = content.split(b"\n")
    if begun and (begun[:1] != b"{" or b"\0" in begun):  # not a partial write
        lines.append(begun)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append(row)
        else:
            damaged.append(number)
    return LoggedRows(rows, f"{_lines(damaged)} cannot be read" if damaged else "")


def _lines(numbers: list[int]) -> str:
    return f"line {numbers[0]}" if len(numbers) == 1 else f"lines {listed(numbers)}"


def listed(numbers: list[int]) -> str:
    """Format the first eight numbers, and count the rest.

    >>> listed([3, 5]), listed(list(range(20)))
    ('3, 5', '0, 1, 2, 3, 4, 5, 6, 7 and 12 more')
    """
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
