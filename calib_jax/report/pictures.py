"""Draw the figures of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from calib_jax import plots
from calib_jax.core.files.escaping import one_line
from calib_jax.report.records import Results

if TYPE_CHECKING:
    import matplotlib.figure


def pictures(report: Results) -> dict[str, matplotlib.figure.Figure]:
    """Draw reliability diagrams, before and after calibration, and the intervals of all metrics.

    A metric without a finite value is omitted and named below the figure.
    """
    figures = {}
    level, n = report.settings["level"], report.settings["examples"]
    ece = {
        row.predictions: row.value
        for row in report.rows
        if row.metric == "ece" and math.isfinite(row.value)
    }
    first, *others = report.reliability
    if not others:
        table = report.reliability[first]
        figures["reliability"] = plots.reliability_diagram(table, ece=ece.get(first), level=level)
    compared = [other for other in others if other not in report.calibrated]
    for other in others:
        # Names of other predictions may be any text, so they are not used as file names.
        if other in report.calibrated:
            kind = file_name(other)
        else:
            kind = f"other_{compared.index(other) + 1}" if len(compared) > 1 else "other"
        figures[f"reliability_{kind}"] = plots.reliability_before_after(
            report.reliability[first],
            report.reliability[other],
            ece=(ece.get(first), ece.get(other)),
            titles=(literal(first), literal(other)),
            level=level,
        )
    estimates = [
        (literal(row.predictions), report.label(row.metric), (row.value, row.low, row.high))
        for row in report.rows
    ]
    by_model, note = drawable(estimates)
    if by_model:
        figures["intervals"] = plots.intervals(by_model, note=note, level=level, n=n)
    return figures


Triple = tuple[float, float, float]


def drawable(
    estimates: Iterable[tuple[str, str, Triple]],
) -> tuple[dict[str, dict[str, float | Triple]], str | None]:
    """Group (method, metric, (value, low, high)) for `plots.intervals`.

    Returns:
      The finite estimates by method and metric (only the value if the interval is not finite), and
      a note that names the omitted estimates; None if there are none.
    """
    by_method: dict[str, dict[str, float | Triple]] = {}
    left_out = []
    for method, metric, (value, low, high) in estimates:
        if not math.isfinite(value):
            left_out.append(f"{metric} ({method})")
            continue
        has_ends = math.isfinite(low) and math.isfinite(high)
        by_method.setdefault(method, {})[metric] = (value, low, high) if has_ends else value
    note = f"not drawn, since it has no finite value: {', '.join(left_out)}"
    return by_method, note if left_out else None


def file_name(text: str) -> str:
    """Replace characters that are not portable in file names.

    >>> file_name("T by adaptive_ece:0.01")
    'T_by_adaptive_ece_0.01'
    """
    return re.sub(r"[^\w.]+", "_", text)


def literal(name: str) -> str:
    """Escape dollar signs, which Matplotlib renders as math, and what no font can draw."""
    return one_line(name).replace("$", r"\$")
