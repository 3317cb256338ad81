"""Save a report as files in a folder."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calib_jax import plots
from calib_jax.core.files import writing
from calib_jax.report import html_page, tables
from calib_jax.report.html_score import score_page
from calib_jax.report.pictures import pictures
from calib_jax.report.records import Results

if TYPE_CHECKING:
    import matplotlib.figure


def save(report: Results, folder: Any) -> list[str]:
    """Save report.json, .csv, .md, .html and the figures; return the file names."""
    figures = pictures(report)
    page = [tables.as_markdown(report), *(f"![{name}]({name}.png)" for name in figures)]
    texts = {
        "report.json": tables.as_json(report),
        "report.csv": tables.as_csv(report),
        "report.md": "\n\n".join(page) + "\n",
        "report.html": html_page.render(score_page(report, figures)),
    }
    return write(folder, texts, figures)


def write(
    folder: Any, texts: Mapping[str, str], figures: Mapping[str, matplotlib.figure.Figure]
) -> list[str]:
    """Write texts by file name and figures by name as PNG, all or none; return the file names.

    The name of a figure may begin with a folder.
    """
    folder = pathlib.Path(folder)
    try:
        with writing.staged(folder) as new:
            for name, text in texts.items():
                (new / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            for name, figure in figures.items():
                (new / name).parent.mkdir(exist_ok=True)
                plots.save(figure, new / f"{name}.png")
    except OSError as error:
        raise ValueError(str(error)) from error
    return [*texts, *(f"{name}.png" for name in figures)]
