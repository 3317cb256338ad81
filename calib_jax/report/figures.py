"""The figures of a report: reliability diagrams of each model, and the intervals of all metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from calib_jax import plots
from calib_jax.core.texts import one_line
from calib_jax.report.results import Report

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
    level, models, calibrated = report.settings["level"], report.models, report.calibrated
    of_calibrated = file_names(calibrated)
    label = "" if report.event is None else f", P({literal(report.event.name)})"
    for number, model in enumerate(models):
        after = [name for name, fit in calibrated.items() if fit.get("predictions") == model]
        for name in after:
            both = (_panel(report, each, f"{literal(each)}{label}") for each in (model, name))
            figures[f"reliability_{of_calibrated[name]}"] = _pair(next(both), next(both), level)
        # Names of models may be any text, so they are not used as file names.
        kind = "" if number == 0 else "_other" if len(models) == 2 else f"_other_{number}"
        title = literal(model) if len(models) > 1 else ""
        table, ece = report.reliability[model], _ece(report, "ece", model)
        if report.event is not None and (number == 0 or not after):
            titled = f"{title}, top label" if title else "top label"
            panel = _panel(report, model, f"{title}{label}".removeprefix(", "))
            figures[f"reliability{kind}"] = _pair(panel, (table, ece, titled, None), level)
        elif not after:
            options = {"ece": ece, "title": title or None, "level": level}
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


def _ece(report: Report, metric: str, model: str) -> float | None:
    """Return the finite ECE of the caption, if the report has it."""
    row = report.row(metric, model)
    return row.value if row and math.isfinite(row.value) else None


def _panel(report: Report, model: str, title: str) -> tuple[Any, float | None, str, str | None]:
    """Return the first reading of a model: its table, its ECE, its title and the event."""
    event = report.event
    if event is None:
        return report.reliability[model], _ece(report, "ece", model), title, None
    table = event.reliability[model]
    return table, _ece(report, event.of("ece"), model), title, literal(event.name)


def _pair(left: Any, right: Any, level: float) -> matplotlib.figure.Figure:
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
