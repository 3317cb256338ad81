"""The figures of a report: reliability diagrams of each model, and the intervals of all metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from calib_jax import plots
from calib_jax.core.texts import one_line
from calib_jax.report.results import Event, Report

if TYPE_CHECKING:
    import matplotlib.figure

Triple = tuple[float, float, float]
_LONGEST = 150  # bytes of a name; a file system takes 255, with prefix, number and ending


def pictures(report: Report) -> dict[str, matplotlib.figure.Figure]:
    """Draw reliability diagrams of each model, and the intervals of all metrics.

    A model with a calibrator is shown before and after it; of two classes, the event is shown, and
    beside it the top label if there is no calibrator. A metric without a finite value is omitted
    and named below the figure.
    """
    figures = {}
    level, models, event = report.settings["level"], report.models, report.event
    of_calibrated = file_names(report.calibrated)
    for number, model in enumerate(models):
        fits = report.calibrated.items()
        after = [name for name, fit in fits if fit.get("predictions") == model]
        for name in after:
            both = _panel(report, model, event), _panel(report, name, event)
            figures[f"reliability_{of_calibrated[name]}"] = _pair(*both, level)
        # Names of models may be any text, so they are not used as file names.
        kind = "" if number == 0 else "_other" if len(models) == 2 else f"_other_{number}"
        if event is not None and (number == 0 or not after):
            both = _panel(report, model, event), _panel(report, model, None)
            figures[f"reliability{kind}"] = _pair(*both, level)
        elif not after:
            table, ece, title, _ = _panel(report, model, None)
            options = {"ece": ece, "title": title if len(models) > 1 else None, "level": level}
            figures[f"reliability{kind}"] = plots.reliability_diagram(table, **options)
    estimates = [
        (literal(row.predictions), report.label(row.metric), (row.value, row.low, row.high))
        for row in report.rows
    ]
    by_model, note = drawable(estimates)
    if by_model:
        how = {"note": note, "level": level, "n": report.settings["examples"]}
        figures["intervals"] = plots.intervals(by_model, **how)
    return figures


def _panel(report: Report, model: str, event: Event | None) -> tuple[Any, ...]:
    """Return the table, the finite ECE, the title and the event of a reading of a model."""
    reading = f", P({literal(event.name)})" if event else ", top label" * bool(report.event)
    row = report.row(event.of("ece") if event else "ece", model)
    ece = row.value if row and math.isfinite(row.value) else None
    table = (event or report).reliability[model]
    return table, ece, f"{literal(model)}{reading}", event and literal(event.name)


def _pair(left: tuple[Any, ...], right: tuple[Any, ...], level: float) -> matplotlib.figure.Figure:
    """Draw two panels beside each other."""
    ece, titles, events = zip(left[1:], right[1:], strict=True)
    return plots.reliability_before_after(
        left[0], right[0], ece=ece, titles=titles, events=events, level=level
    )


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


def file_names(texts: Iterable[str]) -> dict[str, str]:
    """Name the figure of each text; texts may be long or differ in other characters alone.

    >>> file_names(["T by adaptive_ece:0.01", "a/b", "a b"])
    {'T by adaptive_ece:0.01': 'T_by_adaptive_ece_0.01', 'a/b': 'a_b', 'a b': 'a_b_2'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()  # in lower case: some file systems ignore the case
    for text in texts:
        first = file_name(text).encode()[:_LONGEST].decode(errors="ignore")
        chosen, number = first, 1
        while chosen.lower() in taken:
            number += 1
            chosen = f"{first}_{number}"
        taken.add(chosen.lower())
        names[text] = chosen
    return names


def file_name(text: str) -> str:
    """Replace characters that are not portable in file names."""
    return re.sub(r"[^\w.]+", "_", text)


def literal(name: str) -> str:
    """Escape dollar signs, which Matplotlib renders as math, and what no font can draw."""
    return one_line(name).replace("$", r"\$")
