"""A report as figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from calib_jax import plots
from calib_jax.report.scoring import Report

if TYPE_CHECKING:
    import matplotlib.figure


def pictures(report: Report) -> dict[str, matplotlib.figure.Figure]:
    """Draw reliability diagrams, before and after, and the intervals of all metrics.

    A metric without a finite value is left out, and named below the figure.
    """
    figures = {}
    ece = {
        row.predictions: row.value
        for row in report.rows
        if row.metric == "ece" and math.isfinite(row.value)
    }
    first, *others = report.reliability
    if not others:
        table = report.reliability[first]
        figures["reliability"] = plots.reliability_diagram(table, ece=ece.get(first))
    for other in others:
        # Names of other predictions may be any text, and not those of a file.
        kind = other if other == report.calibrator.get("name") else "other"
        figures[f"reliability_{kind}"] = plots.reliability_before_after(
            report.reliability[first],
            report.reliability[other],
            ece=(ece.get(first), ece.get(other)),
            titles=(_literal(first), _literal(other)),
        )
    by_model, left_out = _drawn(report)
    if by_model:
        note = f"not drawn, since it has no finite value: {', '.join(left_out)}"
        figures["intervals"] = plots.intervals(by_model, note=note if left_out else None)
    return figures


def _drawn(
    report: Report,
) -> tuple[dict[str, dict[str, float | tuple[float, float, float]]], list[str]]:
    """Sort the values that can be drawn by predictions, and list the metrics that cannot."""
    by_model: dict[str, dict[str, float | tuple[float, float, float]]] = {}
    left_out = []
    for row in report.rows:
        if not math.isfinite(row.value):
            left_out.append(f"{row.metric} of {_literal(row.predictions)}")
            continue
        has_ends = math.isfinite(row.low) and math.isfinite(row.high)
        estimate = (row.value, row.low, row.high) if has_ends else row.value
        by_model.setdefault(_literal(row.predictions), {})[row.metric] = estimate
    return by_model, left_out


def _literal(name: str) -> str:
    """Keep dollar signs of a file's name from being read as the start of a formula."""
    return name.replace("$", r"\$")
