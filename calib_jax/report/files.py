"""Save a report as files in a folder."""

from __future__ import annotations

import pathlib
from typing import Any

from calib_jax import plots
from calib_jax.report import tables
from calib_jax.report.pictures import pictures
from calib_jax.report.records import Results


def save(report: Results, folder: Any) -> list[str]:
    """Save report.json, report.csv, report.md and the figures; return the file names."""
    folder = pathlib.Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = {
            "report.json": tables.as_json(report),
            "report.csv": tables.as_csv(report),
            "report.md": tables.as_markdown(report) + "\n",
        }
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
        names = list(written)
        for name, figure in pictures(report).items():
            plots.save(figure, folder / f"{name}.png")
            names.append(f"{name}.png")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(f"the report cannot be written to {folder}: {reason}.") from error
    return names
