"""The HTML page of a score report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from calib_jax.report import tables
from calib_jax.report.answers import answers
from calib_jax.report.html_page import Page
from calib_jax.report.records import Results, base_name

if TYPE_CHECKING:
    import matplotlib.figure

_FACTS = {
    "predictions": "predictions",
    "examples": "examples (n)",
    "clusters": "clusters",
    "classes": "classes",
    "bins": "bins",
    "resamples": "resamples",
    "seed": "seed",
    "command": "command",
    "versions": "versions",
}


def score_page(report: Results, figures: Mapping[str, matplotlib.figure.Figure]) -> Page:
    """Collect the contents of the page: the tables and notes of report.md, and the figures."""
    settings = report.settings
    facts = {name: settings[key] for key, name in _FACTS.items() if settings.get(key) is not None}
    return Page(
        title="Calibration report",
        answers=answers(report),
        head=tables.headline(report),
        facts={"level of the intervals": f"{100 * settings['level']:g}%", **facts},
        sections=tables.titled(report),
        notes=tables.warnings(report),
        folded=tables.explanations(report),
        figures=figures,
        metrics=[
            *(base_name(row.metric) for row in report.rows),
            *(part.metric for part in report.classes),
        ],
    )
