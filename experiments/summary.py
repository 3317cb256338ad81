"""Many runs in one table: means over seeds, intervals over test examples, tests against one.

For every metric of a loss:

    value      mean over the seeds, and their standard deviation
    low, high  percentiles of the same mean, with the test examples resampled (all runs see the
               same resamples)
    p          two-sided, of the difference to the baseline, over the test examples: the same
               resamples again, so that what is hard for both does not count
    p_seeds    of a paired t-test over the seeds, from five on

each as the network answers, and after a temperature fitted on the validation set.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from calib_jax import calibrators, metrics, plots

CELLS = ("error", "nll", "ece", "adaptive_ece", "classwise_ece", "brier")
SHOWN = ("error", "nll", "ece", "adaptive_ece")
BEFORE, AFTER = "as trained", "after temperature"
SEEDS_FOR_A_TEST = 5
LEVEL = 0.9


@dataclasses.dataclass(frozen=True)
class Run:
    """What one training left: logits and labels of both sets, and its log."""

    loss: str
    seed: int
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    rows: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One metric of one loss, before or after."""

    loss: str
    phase: str
    metric: str
    value: float
    sd: float
    n: int
    low: float
    high: float
    p: float | None
    p_seeds: float | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """The table, and what the pictures need."""

    cells: list[Cell]
    temperatures: dict[str, list[float]]
    reliability: dict[str, dict[str, Any]]
    curves: dict[str, dict[str, np.ndarray]]
    epochs: np.ndarray
    baseline: str
    about: dict[str, Any]


def summarise(
    runs: Sequence[Run],
    *,
    baseline: str,
    num_bins: int = 15,
    num_resamples: int = 1000,
    about: Mapping[str, Any] | None = None,
) -> Summary:
    """Put runs together.

    Args:
      runs: of every loss, all on the same test examples.
      baseline: the loss that the others are tested against.
      num_bins: of every metric that has them.
      num_resamples: of the bootstrap.
      about: what was run, for the files.
    """
    losses = list(dict.fromkeys(run.loss for run in runs))
    chosen = {
        name: metric.with_options(num_bins=num_bins)
        if "num_bins" in (metric := metrics.named(name)).defaults()
        else metric
        for name in CELLS
    }
    labels = runs[0].test[1]
    values: dict[tuple[str, str], list[dict[str, float]]] = {}
    samples: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    temperatures: dict[str, list[float]] = {}
    tables: dict[str, dict[str, Any]] = {BEFORE: {}, AFTER: {}}
    for loss in losses:
        own = [run for run in runs if run.loss == loss]
        fits = [calibrators.temperature.fit(*run.validation) for run in own]
        temperatures[loss] = [float(fit.temperature) for fit in fits]
        phases = {
            BEFORE: [np.asarray(run.test[0]) for run in own],
            AFTER: [
                np.asarray(calibrators.temperature.apply(fit, run.test[0]))
                for run, fit in zip(own, fits, strict=True)
            ],
        }
        for phase, answers in phases.items():
            found = [metrics.values_of(chosen, logits, labels) for logits in answers]
            values[loss, phase] = [{k: float(v) for k, v in one.items()} for one in found]
            drawn = [
                metrics.bootstrap(
                    chosen, logits, labels, key=jax.random.key(0), num_resamples=num_resamples
                )
                for logits in answers
            ]
            samples[loss, phase] = {
                name: np.mean([np.asarray(one[name]) for one in drawn], axis=0) for name in CELLS
            }
            # One diagram of all seeds, whose bands are those of one test set.
            weights = np.full(len(labels) * len(answers), 1 / len(answers), np.float32)
            tables[phase][loss] = metrics.reliability(
                np.concatenate(answers), np.tile(labels, len(answers)), weights, num_bins=num_bins
            )
    cells = [
        _cell(loss, phase, name, values, samples, baseline)
        for phase in (BEFORE, AFTER)
        for loss in losses
        for name in CELLS
    ]
    rows: dict[str, list[list[dict[str, Any]]]] = {loss: [] for loss in losses}
    for run in runs:
        rows[run.loss].append(run.rows)
    # Where patience has ended runs early, curves go on as long as the longest one.
    longest = max((run.rows for run in runs), key=len)
    epochs = np.array([row["epoch"] for row in longest], float)
    curves = {
        name: {
            loss: np.array([_padded(one, f"validation_{name}", len(epochs)) for one in found])
            for loss, found in rows.items()
        }
        for name in ("error", "nll", "ece")
        if longest and f"validation_{name}" in longest[0]
    }
    return Summary(cells, temperatures, tables, curves, epochs, baseline, dict(about or {}))


def _padded(rows: list[dict[str, Any]], key: str, length: int) -> list[float]:
    return [row[key] for row in rows] + [float("nan")] * (length - len(rows))


def _cell(
    loss: str,
    phase: str,
    name: str,
    values: Mapping[tuple[str, str], list[dict[str, float]]],
    samples: Mapping[tuple[str, str], dict[str, np.ndarray]],
    baseline: str,
) -> Cell:
    own = np.array([one[name] for one in values[loss, phase]])
    low, high = metrics.interval(jnp.asarray(samples[loss, phase][name]), LEVEL)
    p = p_seeds = None
    if loss != baseline:
        p = p_value(samples[loss, phase][name] - samples[baseline, phase][name])
        other = np.array([one[name] for one in values[baseline, phase]])
        if len(own) == len(other) >= SEEDS_FOR_A_TEST:
            p_seeds = float(scipy.stats.ttest_rel(own, other).pvalue)
    sd = float(own.std(ddof=1)) if len(own) > 1 else float("nan")
    return Cell(
        loss, phase, name, float(own.mean()), sd, len(own), float(low), float(high), p, p_seeds
    )


def p_value(differences: np.ndarray) -> float:
    """Give the two-sided share of resamples on the other side of 0, never less than it can be.

    >>> p_value(np.array([1.0, 2.0, 3.0])), p_value(np.array([-1.0, 1.0, 2.0]))
    (0.5, 1.0)
    """
    below, above = np.sum(differences <= 0), np.sum(differences >= 0)
    return float(min(1.0, 2 * (min(below, above) + 1) / (len(differences) + 1)))


# --------------------------------------------------------------------------------------------
# As text, files and pictures.


def text(summary: Summary) -> str:
    """Lay the table out in columns."""
    lines = [_head(summary)]
    for phase in (BEFORE, AFTER):
        names = list(summary.temperatures)
        width = max(len(name) for name in names)
        more = "     T " if phase == AFTER else ""
        lines += ["", phase, " " * width + more + "".join(f"  {name:<29s}" for name in SHOWN)]
        for loss in names:
            mean = np.mean(summary.temperatures[loss])
            line = f"{loss:<{width}s}" + (f" {mean:6.2f}" if phase == AFTER else "")
            said = [_said(cell) for cell in _of(summary, loss, phase)]
            lines.append((line + "".join(f"  {one:<29s}" for one in said)).rstrip())
    lines += ["", _foot(summary)]
    return "\n".join(lines)


def markdown(summary: Summary) -> str:
    """Lay the table out for a page, with the pictures."""
    parts = [f"# {summary.about.get('title', 'Sweep')}", _head(summary)]
    for phase in (BEFORE, AFTER):
        more = " T |" if phase == AFTER else ""
        parts.append(f"## {phase.capitalize()}")
        lines = [
            f"| loss |{more} " + " | ".join(SHOWN) + " |",
            "|---|" + "---|" * (len(SHOWN) + bool(more)),
        ]
        for loss, fitted in summary.temperatures.items():
            middle = f" {np.mean(fitted):.2f} |" if more else ""
            cells = " | ".join(_said(cell) for cell in _of(summary, loss, phase))
            lines.append(f"| {loss} |{middle} {cells} |")
        parts.append("\n".join(lines))
    parts.append(_foot(summary))
    parts += [f"![{name}]({name}.png)" for name in ("intervals", "reliability", "curves")]
    return "\n\n".join(parts) + "\n"


def _of(summary: Summary, loss: str, phase: str) -> list[Cell]:
    found = {c.metric: c for c in summary.cells if (c.loss, c.phase) == (loss, phase)}
    return [found[name] for name in SHOWN]


def _said(cell: Cell) -> str:
    mark = "*" if cell.p is not None and cell.p < 0.05 else ""
    sd = "" if np.isnan(cell.sd) else f" ±{cell.sd:.3f}".replace("0.", ".", 1)
    ends = f"[{cell.low:.3f}, {cell.high:.3f}]".replace("0.", ".")
    value = f"{cell.value:.3f}"
    return f"{value.removeprefix('0') if cell.value < 1 else value}{mark}{sd} {ends}"


def _head(summary: Summary) -> str:
    return str(summary.about.get("what", ""))


def _foot(summary: Summary) -> str:
    cell = summary.cells[0]
    bins = summary.about.get("num_bins", 15)
    return (
        f"Mean ± standard deviation over {cell.n} seed{'s' * (cell.n > 1)}; {LEVEL:.0%} interval of"
        f" that mean over the test examples. * p < .05 against {summary.baseline} on the same"
        f" examples. ECE with {bins} bins of equal width, adaptive_ece of equal mass; both are"
        " biased upwards, resampled ones more so: a value may lie below its interval."
    )


def save(summary: Summary, folder: pathlib.Path) -> list[str]:
    """Write sweep.json, sweep.csv, report.md and the pictures; give their names."""
    record = {
        **summary.about,
        "baseline": summary.baseline,
        "temperatures": summary.temperatures,
        "cells": [dataclasses.asdict(cell) for cell in summary.cells],
    }
    (folder / "sweep.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    with (folder / "sweep.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Cell)])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(cell) for cell in summary.cells)
    (folder / "report.md").write_text(markdown(summary), encoding="utf-8")
    for name, figure in pictures(summary).items():
        plots.save(figure, folder / f"{name}.png")
    return ["report.md", "sweep.csv", "sweep.json", *(f"{name}.png" for name in PICTURES)]


PICTURES = ("reliability", "reliability_after", "intervals", "curves")


def pictures(summary: Summary) -> dict[str, Any]:
    """Draw the reliability diagrams of all losses, their intervals, and how they were trained."""
    bars: dict[str, dict[str, tuple[float, float, float]]] = {}
    for cell in summary.cells:
        if cell.metric in ("nll", "ece"):
            bars.setdefault(cell.loss, {})[f"{cell.metric}, {cell.phase}"] = (
                cell.value,
                cell.low,
                cell.high,
            )
    width = min(9.0, 2.0 + 2.8 * len(summary.reliability[BEFORE]))  # one diagram is no poster
    before, after = (
        plots.reliability_grid(
            summary.reliability[phase],
            width=width,
            ece={c.loss: c.value for c in summary.cells if (c.metric, c.phase) == ("ece", phase)},
            title=f"test set, {phase}",
        )
        for phase in (BEFORE, AFTER)
    )
    curves = plots.training_curves(summary.curves, summary.epochs, title="validation set")
    drawn = (before, after, plots.intervals(bars, columns=2, width=9.0), curves)
    return dict(zip(PICTURES, drawn, strict=True))
