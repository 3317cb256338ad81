"""The figures of a report: reliability diagrams of each model, and the intervals of all metrics."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from calib_jax import plots
from calib_jax.core.texts import one_line
from calib_jax.report.results import Event, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Triple = tuple[float, float, float]
_LONGEST = 150  # bytes of a name; a file system takes 255, with prefix, number and ending


def pictures(report: Report) -> dict[str, Figure]:
    """Draw reliability diagrams of each model, and the intervals of all metrics.

    A model with a calibrator is shown before and after it; of two classes, the event is shown, and
    beside it the top label if there is no calibrator. A metric without a finite value is omitted
    and named below the figure.
    """
    event, after = report.event, dict[str, list[str]]()
    for name, fit in report.calibrated.items():
        after.setdefault(str(fit.get("predictions")), []).append(name)
    names, figures = file_names(report.calibrated), {}
    for number, model in enumerate(report.models):
        for name in after.get(model, []):
            figures[f"reliability_{names[name]}"] = _diagram(report, (model, event), (name, event))
        # Names of models may be any text, so they are not used as file names.
        kind = "" if number == 0 else "_other" if len(report.models) == 2 else f"_other_{number}"
        if model not in after or (event and number == 0):
            readings = [(model, event), (model, None)] if event else [(model, None)]
            figures[f"reliability{kind}"] = _diagram(report, *readings)
    by_model, note = drawable(
        (literal(row.predictions), report.label(row.metric), (row.value, row.low, row.high))
        for row in report.rows
    )
    if by_model:
        how = {"note": note, "level": report.settings["level"], "n": report.settings["examples"]}
        figures["intervals"] = plots.intervals(by_model, **how)
    return figures


def _diagram(report: Report, *panels: tuple[str, Event | None]) -> Figure:
    """Draw one or two panels, each the predictions of an event or, with None, of the top label."""
    tables, eces, titles = [], [], []
    for name, event in panels:
        reading = f", P({literal(event.name)})" if event else ", top label" * bool(report.event)
        row = report.row(event.of("ece") if event else "ece", name)
        tables.append((event or report).reliability[name])
        eces.append(row.value if row and math.isfinite(row.value) else None)
        titles.append(literal(name) + reading)
    how: dict[str, Any] = {"level": report.settings["level"]}
    if len(panels) == 1:
        title = titles[0] if len(report.models) > 1 else None
        return plots.reliability_diagram(*tables, ece=eces[0], title=title, **how)
    how |= {"ece": tuple(eces), "titles": tuple(titles)}
    how["events"] = tuple(event and literal(event.name) for _, event in panels)
    return plots.reliability_before_after(*tables, **how)


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
    for method, metric, triple in estimates:
        if not math.isfinite(triple[0]):
            left_out.append(f"{metric} ({method})")
        else:
            is_whole = all(map(math.isfinite, triple))
            by_method.setdefault(method, {})[metric] = triple if is_whole else triple[0]
    note = f"not drawn, since it has no finite value: {', '.join(left_out)}"
    return by_method, note if left_out else None


def file_names(texts: Iterable[str]) -> dict[str, str]:
    """Name the figure of each text; texts may be long or differ in other characters alone.

    >>> file_names(["T by adaptive_ece:0.01", "a/b", "a b"])
    {'T by adaptive_ece:0.01': 'T_by_adaptive_ece_0.01', 'a/b': 'a_b', 'a b': 'a_b_2'}
    """
    names: dict[str, str] = {}
    for text in texts:
        first = file_name(text).encode()[:_LONGEST].decode(errors="ignore")
        numbered = itertools.chain([first], (f"{first}_{k}" for k in itertools.count(2)))
        taken = {name.lower() for name in names.values()}  # some file systems ignore the case
        names[text] = next(name for name in numbered if name.lower() not in taken)
    return names


def file_name(text: str) -> str:
    """Replace characters that are not portable in file names."""
    return re.sub(r"[^\w.]+", "_", text)


def literal(name: str) -> str:
    """Escape dollar signs, which Matplotlib renders as math, and what no font can draw."""
    return one_line(name).replace("$", r"\$")
