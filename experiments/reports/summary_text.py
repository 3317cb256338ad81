"""The text, files and figures of a summary of runs (`summary.py`)."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import metrics, plots
from calib_jax.core import texts
from calib_jax.core.texts import csv_lines, without_nan
from calib_jax.report import calibrate, caveats, render
from calib_jax.report.figures import drawable, file_name, literal
from experiments.reports import pages
from experiments.reports.seed_intervals import WITH_SEEDS
from experiments.reports.summary import (
    AFTER,
    BEFORE,
    LEVEL,
    SHOWN,
    SQUARED,
    Cell,
    Run,
    Summary,
    summarize,
)
from experiments.running import cli

_PLURALS = {"loss": "losses", "folder": "folders"}
_TESTS = (
    "squared_calibration_error: debiased, in bins of equal width; interval and p of"
    " inference.compare_calibration: the test of which network is calibrated better. p of other"
    " metrics: paired bootstrap. A score such as nll or brier is no test of calibration."
)
_BOUNDS = (
    "Interval of a difference of ece or adaptive_ece: it bounds the noise of both errors"
    " (inference.compare_ece), and is wide."
)


def text(summary: Summary) -> str:
    """Format the tables for a terminal."""
    return render.as_text(page(summary, {}))


def tabulate(
    runs: Sequence[Run], folder: pathlib.Path, *, about: Mapping[str, Any], **options: Any
) -> None:
    """Summarise runs, print the tables, and write the pages into a folder.

    Args:
      runs: the runs.
      folder: the folder of the pages.
      about: a description of the runs, with the number of bins.
      options: further options of `summary.summarize`.
    """
    num_bins = about["num_bins"]
    made = summarize(runs, about=about, num_bins=num_bins, say=cli.say_step, **options)
    cli.say("\n" + text(made))
    cli.say_step("drawing the figures")
    names = cli.refusing(pages.replace, folder, functools.partial(save, made))
    cli.say(f"\nwritten to {folder}: {', '.join(names)}")


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
        "notes": notes_of([summary], summary.cells),
    }
    names = [field.name for field in dataclasses.fields(Cell)]
    rows = [
        dataclasses.asdict(cell) | {"note": " ".join(exceptions([cell]))} for cell in summary.cells
    ]
    files = {
        "sweep.csv": csv_lines(map(texts.in_csv, rows), [*names, "note"]),
        "sweep.json": json.dumps(without_nan(record), indent=1) + "\n",
    }
    return render.save(folder, "report", page(summary, pictures(summary)), files)


def page(summary: Summary, figures: Mapping[str, Any]) -> render.Page:
    """Collect the contents of report.md and report.html."""
    about = summary.about
    provenance = about.get("provenance", {})
    return render.Page(
        title=about.get("title", "Sweep"),
        head=str(about.get("what", "")),
        facts={
            "level of the intervals": f"{LEVEL:.0%}",
            "test examples (n)": about.get("examples"),
            "seeds of each loss": num_seeds(summary),
            "baseline": summary.baseline,
            "bins": about.get("num_bins", 15),
            "command": provenance.get("command"),
            "versions": provenance.get("versions"),
        },
        sections=[render.Table(t[0].upper() + t[1:], table) for t, table in sections(summary)],
        notes=foot([summary]),
        figures=figures,
        metrics=SHOWN,
    )


# ------------------------------------------------------------------------------------------------
# Tables.


def sections(summary: Summary) -> list[tuple[str, render.Rows]]:
    """Return titled tables: as trained, after the temperatures side by side, and differences."""
    cells = {(cell.loss, cell.phase, cell.metric): cell for cell in summary.cells}
    losses = list(dict.fromkeys(cell.loss for cell in summary.cells))

    def row(loss: str, phase: str) -> list[str]:
        return [_with_interval(cells[loss, phase, name]) for name in SHOWN]

    head = [summary.kind, *SHOWN]
    titled = [(BEFORE, [head, *([loss, *row(loss, BEFORE)] for loss in losses)])]
    several = len(summary.criteria) > 1
    after = [[summary.kind, *["T by"] * several, "T", *SHOWN]]
    for loss in losses:
        for phase, criterion in summary.criteria.items():
            mean = f"{np.mean(summary.temperatures[phase][loss]):.2f}"
            if state := summary.unsettled.get((loss, phase)):
                mean += f" ({state})"
            after.append([loss, *[criterion] * several, mean, *row(loss, phase)])
    if summary.criteria:
        titled.append((AFTER if several else next(iter(summary.criteria)), after))
    if table := _differences(summary):
        titled.append((f"difference to {summary.baseline}", table))
    return titled


def _with_interval(cell: Cell) -> str:
    mark = texts.mark(cell.value, cell.low, cell.high)
    sd = "" if np.isnan(cell.sd) else f" ±{short_number(cell.sd)}"
    ends = f" [{short_number(cell.low)}, {short_number(cell.high)}]"
    ends *= not caveats.is_alone(cell)
    return f"{short_number(cell.value)}{caveats.starred(cell.p_holm)}{mark}{sd}{ends}"


def short_number(number: float) -> str:
    """Format a number without the zero before the decimal point.

    >>> short_number(0.5), short_number(-1e-9), short_number(10.25)
    ('.500', '.000', '10.250')
    """
    text = f"{number:z.3f}"
    return text.replace("0.", ".", 1) if abs(number) < 1 else text


def _differences(summary: Summary) -> render.Rows:
    """Return a table of the differences to the baseline with their intervals and tests."""
    rows: dict[str, dict[str, str]] = {}
    for cell in summary.cells:
        if cell.change is None or cell.metric not in (SQUARED, *SHOWN):
            continue
        written = caveats.with_interval(cell.change, sign="+")
        if cell.p is not None:
            written += f", p {caveats.p_of(cell.p)}{caveats.starred(cell.p_holm)}"
        if cell.p_seeds is not None:
            written += f", over seeds {caveats.p_of(cell.p_seeds)}"
        rows.setdefault(f"{cell.loss}, {cell.phase}", {})[cell.metric] = written
    columns = [name for name in (SQUARED, *SHOWN) if any(name in row for row in rows.values())]
    table = [[title, *(row.get(name, "") for name in columns)] for title, row in rows.items()]
    return [[summary.kind, *columns], *table] if rows else []


# ------------------------------------------------------------------------------------------------
# Notes.


def num_seeds(summary: Summary) -> str:
    """Write the number of seeds, and that of each loss with another number, whose runs failed."""
    numbers = {cell.loss: cell.n for cell in summary.cells}
    most = max(numbers.values())
    fewer = ", ".join(f"{loss}: {n}" for loss, n in numbers.items() if n < most)
    return f"{most} seed{'s' * (most > 1)}" + f" ({fewer})" * bool(fewer)


def foot(summaries: Sequence[Summary]) -> list[str]:
    """Explain the tables of one or several summaries."""
    summary = summaries[0]
    bins = summary.about.get("num_bins", 15)
    cells = [cell for each in summaries for cell in each.cells]
    shown = [cell for cell in cells if cell.metric in (*SHOWN, SQUARED)]
    tested = any(cell.p is not None for cell in shown)
    seeds = any((cell.interval or "").endswith(WITH_SEEDS) for cell in shown)
    over = "seeds and the " * seeds
    interval = f"; {LEVEL:.0%} interval of that mean over the {over}test examples"
    interval *= not all(map(caveats.is_alone, shown))
    return [
        f"Mean ± standard deviation over {num_seeds(summary)}{interval}. ECE"
        f" with {bins} bins of equal width, adaptive_ece of equal mass.",
        *[caveats.star(summary.baseline, _PLURALS[summary.kind])] * tested,
        *notes_of(summaries, shown),
    ]


def notes_of(summaries: Sequence[Summary], cells: Sequence[Cell]) -> list[str]:
    """List what a reader of these cells must know, one line each."""
    first, notes = summaries[0], []
    if number := first.about.get("clusters"):
        notes.append(
            f"The test set has {number:,} examples of several labels: intervals and tests draw"
            " whole examples."
        )
    for criterion in first.criteria.values():
        if criterion != calibrate.EXACT:
            grid = calibrate.search(criterion)
            notes.append(f"T by {criterion}: the first minimum of {grid}, on the validation set.")
    if streamed := dict.fromkeys(name for each in summaries for name in each.streamed):
        notes.append(
            f"The logits of {', '.join(streamed)} were not kept: values from streamed statistics,"
            " without intervals, paired p-values and reliability diagrams."
        )
    if any(cell.metric == SQUARED and cell.p is not None for cell in cells):
        notes.append(_TESTS)
    if any(cell.difference_interval == caveats.NOISE_BOUND for cell in cells):
        notes.append(_BOUNDS)
    return notes + exceptions(cells)


def exceptions(cells: Iterable[Cell]) -> list[str]:
    """List the cells that lack an interval or a test, or whose interval is too wide, with why."""
    cells = list(cells)
    catalogue = metrics.catalogue()

    def is_raised(cell: Cell) -> bool:
        """Whether noise raises the value and the resamples of its interval."""
        by_bootstrap = (cell.interval or "").startswith(("percentile", "examples"))
        return by_bootstrap and catalogue[cell.metric].biased

    compared = [cell for cell in cells if cell.difference_interval is not None]
    untested = [cell.metric for cell in compared if cell.p is None and not cell.unsettled]
    constant = [cell.metric for cell in cells if cell.interval == caveats.NO_INTERVAL]
    unknown = [c.metric for c in compared if c.difference_interval == caveats.NO_INTERVAL]
    estimates = [(cell.value, cell.low, cell.high) for cell in cells]
    estimates += [cell.change[:3] for cell in compared if cell.change]
    return [
        *caveats.unsettled({f"{c.loss} {c.phase}": c.unsettled for c in cells if c.unsettled}),
        *caveats.note(caveats.CONSTANT, constant),
        *caveats.note(caveats.BOOTSTRAPPED, (cell.metric for cell in cells if is_raised(cell))),
        *caveats.note(caveats.WITHOUT_P, untested),
        *caveats.note(caveats.WITHOUT_INTERVAL, unknown),
        *texts.reasons(estimates),
    ]


# ------------------------------------------------------------------------------------------------
# Figures.


def pictures(summary: Summary) -> dict[str, Any]:
    """Draw the reliability diagrams, intervals and training curves of all losses."""
    several = len(summary.criteria) > 1
    names = {BEFORE: "reliability"} | {
        phase: "reliability_after" + f"_{file_name(criterion)}" * several
        for phase, criterion in summary.criteria.items()
    }
    width = min(9.0, 2.0 + 2.8 * len(summary.reliability[BEFORE]))  # keeps a single diagram small
    return drawn_of({"": summary}, names, ("nll", "ece"), width=width, bars=9.0)


def drawn_of(
    summaries: Mapping[str, Summary],
    names: Mapping[str, str],
    shown: Sequence[str],
    *,
    width: float,
    bars: float,
    columns: int | None = None,
) -> dict[str, Any]:
    """Draw the figures of one summary, or of several by the loss before the names of their runs.

    Args:
      summaries: the summaries, by the start of their titles.
      names: the name of the reliability diagrams of each phase.
      shown: the metrics of the intervals.
      width: the width of the reliability diagrams.
      bars: the width of the intervals and the curves.
      columns: the number of columns of the reliability diagrams.
    """
    first = next(iter(summaries.values()))
    cells = [(literal(start + c.loss), c) for start, of in summaries.items() for c in of.cells]
    drawn: dict[str, Any] = {}
    for phase, name in names.items():
        diagrams = {
            literal(start + loss): table
            for start, of in summaries.items()
            for loss, table in of.reliability[phase].items()
        }
        if diagrams:
            drawn[name] = plots.reliability_grid(
                diagrams,
                ece={of: c.value for of, c in cells if (c.metric, c.phase) == ("ece", phase)},
                title=f"test set, {phase}",
                level=LEVEL,
                width=width,
                **({"columns": columns} if columns else {}),
            )
    by_name, note = drawable(
        (of, f"{c.metric}, {c.phase}", (c.value, c.low, c.high))
        for of, c in cells
        if c.metric in shown
    )
    if by_name:
        drawn["intervals"] = plots.intervals(
            by_name,
            columns=len(shown),
            note=note,
            level=LEVEL,
            n=first.about.get("examples"),
            width=bars,
        )
    curves = {
        start + name: of for start, each in summaries.items() for name, of in each.curves.items()
    }
    if curves:
        beside: dict[str, Any] = {"columns": len(first.curves), "width": bars} if columns else {}
        drawn["curves"] = plots.training_curves(
            curves, first.epochs, title="validation set", **beside
        )
    return drawn
