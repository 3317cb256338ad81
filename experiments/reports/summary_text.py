"""The text, files and figures of a summary of runs (`summary.py`)."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import inference, metrics, plots
from calib_jax.core import texts
from calib_jax.core.texts import csv_lines, in_csv, without_nan
from calib_jax.report import calibrate, caveats, html_page, render
from calib_jax.report.figures import drawable, file_name
from experiments.reports import pages
from experiments.reports.seed_intervals import WITH_SEEDS
from experiments.reports.summary import AFTER, BEFORE, LEVEL, SHOWN, Cell, Summary


def text(summary: Summary) -> str:
    """Format the tables for a terminal."""
    return pages.as_text(_head(summary), _sections(summary), _foot(summary))


def _sections(summary: Summary) -> list[tuple[str, render.Table]]:
    """Return titled tables: as trained, after the temperatures side by side, and differences."""
    losses = list(dict.fromkeys(cell.loss for cell in summary.cells))
    before = [["loss", *SHOWN], *([loss, *_written(summary, loss, BEFORE)] for loss in losses)]
    several = len(summary.criteria) > 1
    after = [["loss", *["T by"] * several, "T", *SHOWN]]
    for loss in losses:
        for phase, criterion in summary.criteria.items():
            mean = f"{np.mean(summary.temperatures[phase][loss]):.2f}"
            mean += ended(summary, loss, phase)
            how = [criterion] * several
            after.append([loss, *how, mean, *_written(summary, loss, phase)])
    sections = [(BEFORE, before)]
    if summary.criteria:
        sections.append((AFTER if several else next(iter(summary.criteria)), after))
    if table := _differences(summary):
        sections.append((f"difference to {summary.baseline}", table))
    return sections


def ended(summary: Summary, loss: str, phase: str) -> str:
    """Format how the fits of a temperature ended; empty if all converged."""
    state = summary.unsettled.get((loss, phase), "")
    return f" ({state})" if state else ""


def _written(summary: Summary, loss: str, phase: str) -> list[str]:
    cells = {c.metric: c for c in summary.cells if (c.loss, c.phase) == (loss, phase)}
    return [_with_interval(cells[name]) for name in SHOWN]


def _with_interval(cell: Cell) -> str:
    star = caveats.starred(cell.p_holm)
    mark = texts.mark(cell.value, cell.low, cell.high)
    sd = "" if np.isnan(cell.sd) else f" ±{short_number(cell.sd)}"
    ends = (
        "" if caveats.is_alone(cell) else f" [{short_number(cell.low)}, {short_number(cell.high)}]"
    )
    return f"{short_number(cell.value)}{star}{mark}{sd}{ends}"


def short_number(number: float) -> str:
    """Format a number without the zero before the decimal point.

    >>> short_number(0.5), short_number(-0.5), short_number(10.25)
    ('.500', '-.500', '10.250')
    """
    text = f"{number:.3f}"
    return text.replace("0.", ".", 1) if abs(number) < 1 else text


def _differences(summary: Summary) -> render.Table:
    """Return a table of the differences of calibration errors and of metrics without a p-value."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for cell in summary.cells:
        biased = metrics.named(cell.metric).biased
        if cell.change and (biased or cell.p is None) and cell.metric in SHOWN:
            row = rows.setdefault((cell.loss, cell.phase), {})
            row[cell.metric] = render.with_interval(cell.change, sign="+")
            if cell.p is not None:
                row[cell.metric] += f", p {caveats.p_of(cell.p)}"
    if not rows:
        return []
    columns = [name for name in SHOWN if any(name in row for row in rows.values())]
    return [
        ["loss", "phase", *columns],
        *([*key, *(row.get(name, "") for name in columns)] for key, row in rows.items()),
    ]


def _head(summary: Summary) -> str:
    return str(summary.about.get("what", ""))


def num_seeds(summary: Summary) -> str:
    """Write the number of seeds, and that of each loss with another number, whose runs failed."""
    numbers = {cell.loss: cell.n for cell in summary.cells}
    most = max(numbers.values())
    fewer = ", ".join(f"{loss}: {n}" for loss, n in numbers.items() if n < most)
    return f"{most} seed{'s' * (most > 1)}" + f" ({fewer})" * bool(fewer)


def clustered(summary: Summary) -> list[str]:
    """Describe the intervals if an example has several labels."""
    number = summary.about.get("clusters")
    if not number:
        return []
    return [
        f"The test set has {number:,} examples of several labels: intervals and tests draw whole"
        " examples."
    ]


def _foot(summary: Summary) -> list[str]:
    bins = summary.about.get("num_bins", 15)
    shown = [cell for cell in summary.cells if cell.metric in SHOWN]
    tested = any(cell.p is not None for cell in shown)
    seeds = any((cell.interval or "").endswith(WITH_SEEDS) for cell in shown)
    interval = (
        f"; {LEVEL:.0%} interval of that mean over the {'seeds and the ' * seeds}test examples"
    )
    interval *= not all(map(caveats.is_alone, shown))
    return [
        f"Mean ± standard deviation over {num_seeds(summary)}{interval}. ECE"
        f" with {bins} bins of equal width, adaptive_ece of equal mass.",
        *clustered(summary),
        *[caveats.star(summary.baseline, "losses")] * tested,
        *on_grids(summary),
        *without_rows(summary.streamed),
        *notes_of(shown),
    ]


def without_rows(names: Sequence[str]) -> list[str]:
    """Name the columns whose values have no interval; empty if there are none."""
    if not names:
        return []
    return [
        f"The logits of {', '.join(names)} were not kept: values from streamed statistics, without"
        " intervals, paired p-values and reliability diagrams."
    ]


def on_grids(summary: Summary) -> list[str]:
    """Describe the temperatures that were searched on a grid."""
    grids = [
        f"T by {criterion}: the first minimum of {calibrate.search(criterion)}, on the validation"
        " set."
        for criterion in summary.criteria.values()
        if criterion != calibrate.EXACT
    ]
    return [" ".join(grids)] if grids else []


def notes_of(cells: Sequence[Cell]) -> list[str]:
    """List the caveats for the numbers in these cells, one line each."""
    by_squared_error = any(
        cell.p is not None and cell.metric in inference.BY_SQUARED_ERROR for cell in cells
    )
    unsettled = {f"{cell.loss} {cell.phase}": cell.unsettled for cell in cells if cell.unsettled}
    return [
        *caveats.unsettled(unsettled),
        *caveats.constant(cell.metric for cell in cells if cell.constant),
        *caveats.bootstrapped(cell.metric for cell in cells if cell.raised),
        *[caveats.BY_SQUARED_ERROR] * by_squared_error,
        *caveats.on_intervals((cell.metric, cell.difference_interval or "") for cell in cells),
        *caveats.no_p(cell.metric for cell in cells if cell.untested),
        *texts.reasons(estimate for cell in cells for estimate in cell.estimates),
    ]


def save(summary: Summary, folder: pathlib.Path) -> list[str]:
    """Write sweep.json, sweep.csv, report.md, report.html, the figures; return their names."""
    record = {
        **summary.about,
        "baseline": summary.baseline,
        "streamed": summary.streamed,
        "temperatures": next(iter(summary.temperatures.values()), {}),
        "criteria": summary.criteria,
        "temperatures_by_phase": summary.temperatures,
        "cells": [dataclasses.asdict(cell) for cell in summary.cells],
        "notes": [*without_rows(summary.streamed), *notes_of(summary.cells)],
    }
    names = [field.name for field in dataclasses.fields(Cell)]
    rows = [dataclasses.asdict(cell) | {"note": " ".join(cell.notes)} for cell in summary.cells]
    texts = {
        "sweep.csv": csv_lines(map(in_csv, rows), [*names, "note"]),
        "sweep.json": json.dumps(without_nan(record), indent=1) + "\n",
    }
    return pages.save(folder, "report", page(summary, pictures(summary)), texts)


def page(summary: Summary, figures: Mapping[str, Any]) -> html_page.Page:
    """Collect the contents of report.md and report.html."""
    about = summary.about
    provenance = about.get("provenance", {})
    return html_page.Page(
        title=about.get("title", "Sweep"),
        head=_head(summary),
        facts={
            "level of the intervals": f"{LEVEL:.0%}",
            "test examples (n)": about.get("examples"),
            "seeds of each loss": num_seeds(summary),
            "baseline": summary.baseline,
            "bins": about.get("num_bins", 15),
            "command": provenance.get("command"),
            "versions": provenance.get("versions"),
        },
        sections=[(title[0].upper() + title[1:], table) for title, table in _sections(summary)],
        notes=_foot(summary),
        figures=figures,
        metrics=SHOWN,
    )


def pictures(summary: Summary) -> dict[str, Any]:
    """Draw the reliability diagrams, intervals and training curves of all losses."""
    width = min(9.0, 2.0 + 2.8 * len(summary.reliability[BEFORE]))  # keeps a single diagram small
    several = len(summary.criteria) > 1
    names = {BEFORE: "reliability"} | {
        phase: "reliability_after" + f"_{file_name(criterion)}" * several
        for phase, criterion in summary.criteria.items()
    }
    drawn = {
        name: plots.reliability_grid(
            summary.reliability[phase],
            width=width,
            ece={c.loss: c.value for c in summary.cells if (c.metric, c.phase) == ("ece", phase)},
            title=f"test set, {phase}",
            level=LEVEL,
        )
        for phase, name in names.items()
        if summary.reliability[phase]
    }
    bars, note = drawable(
        (cell.loss, f"{cell.metric}, {cell.phase}", (cell.value, cell.low, cell.high))
        for cell in summary.cells
        if cell.metric in ("nll", "ece")
    )
    if bars:
        n = summary.about.get("examples")
        options: dict[str, Any] = {"columns": 2, "note": note, "level": LEVEL, "n": n, "width": 9.0}
        drawn["intervals"] = plots.intervals(bars, **options)
    if summary.curves:
        drawn["curves"] = plots.training_curves(
            summary.curves, summary.epochs, title="validation set"
        )
    return drawn
