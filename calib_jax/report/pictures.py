"""A report as figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calib_jax import plots
from calib_jax.report.scoring import GIVEN, Report

if TYPE_CHECKING:
    import matplotlib.figure


def pictures(report: Report) -> dict[str, matplotlib.figure.Figure]:
    """Draw reliability diagrams, before and after, and the intervals of all metrics."""
    figures = {}
    ece = {row.predictions: row.value for row in report.rows if row.metric == "ece"}
    others = [name for name in report.reliability if name != GIVEN]
    if not others:
        table = report.reliability[GIVEN]
        figures["reliability"] = plots.reliability_diagram(table, ece=ece.get(GIVEN))
    for other in others:
        figures[f"reliability_{other}"] = plots.reliability_before_after(
            report.reliability[GIVEN],
            report.reliability[other],
            ece=(ece.get(GIVEN), ece.get(other)),
            titles=(GIVEN, other),
        )
    by_model: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in report.rows:
        by_model.setdefault(row.predictions, {})[row.metric] = (row.value, row.low, row.high)
    figures["intervals"] = plots.intervals(by_model)
    return figures
