"""Compare folders of runs, or of sweeps, on the same test examples.

For every metric of a folder the tables contain

    value, low, high  the mean over the seeds, and its interval, as in a sweep's table
    difference        the difference to the same metric of the first folder, the baseline, with an
                      interval from the same resamples, so that examples that are hard for both
                      cancel; for ece and adaptive_ece the interval of `inference.compare_ece`
    p                 the two-sided p-value over the test examples: by the paired bootstrap for
                      regular metrics, by the difference of debiased squared errors for ece and
                      adaptive_ece
    p_holm            p, adjusted for the number of folders compared with the baseline
    p_seeds           the p-value of a paired t-test over the seeds, if there are at least five

as trained, and after one or several temperatures that every run fits on its own validation
predictions. Runs whose logits were not kept have values from streamed statistics, without
intervals. Sweeps are compared loss by loss, over the seeds that all sweeps share.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flax import traverse_util

from calib_jax import plots, train
from calib_jax.core.texts import csv_lines, in_csv, without_nan
from calib_jax.report import calibrate, caveats, html_page, render
from calib_jax.report.figures import drawable, file_name, literal
from experiments.reports import pages, summary, summary_text
from experiments.reports.summary import Summary
from experiments.running import provenance
from experiments.running.finished import ALONE, Folder, Shared

CURVES = ("validation_error", "validation_nll", "validation_ece")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A config key that differs between folders; a folder without the key has no value."""

    key: str
    values: dict[str, Any]
    losses: list[str]


@dataclasses.dataclass(frozen=True)
class Part:
    """One loss in all folders; the summary has the folders in place of the losses."""

    loss: str
    seeds: list[int]
    summary: Summary

    def titled(self, what: str) -> str:
        """Prefix a title with the loss, if there are several losses."""
        return what if self.loss == ALONE else f"{self.loss}, {what}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The tables, and the data of the figures."""

    folders: list[Folder]
    parts: list[Part]
    settings: list[Setting]
    notes: list[str]
    about: dict[str, Any]


# --------------------------------------------------------------------------------------------
# Comparison.


def compare(
    shared: Shared,
    *,
    num_bins: int | None = None,
    num_resamples: int = 1000,
    criteria: Sequence[str] = (calibrate.EXACT,),
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Compare folders with the first folder.

    Args:
      shared: the runs that `finished.read` returns.
      num_bins: the number of bins of every metric that has bins; None uses the number in the first
        folder's config.
      num_resamples: the number of resamples of the bootstrap.
      criteria: the criteria of the temperatures, each as in `report.score`.
      say: called with a line of text before each step that takes seconds.
    """
    first = shared.folders[0].name
    configs = next(iter(shared.configs.values()))
    if num_bins is None:
        num_bins = int((configs[first] or {}).get("num_bins", 15))
    size = next(iter(shared.runs.values()))[0].size
    about = {
        "baseline": first,
        "examples": size.num_labels,
        "classes": size.num_classes,
        "level": summary.LEVEL,
        "resamples": num_resamples,
        "num_bins": num_bins,
    }
    parts = []
    for loss, runs in _on_one_axis(shared.runs).items():
        summarized = summary.summarize(
            runs,
            baseline=first,
            num_bins=num_bins,
            num_resamples=num_resamples,
            criteria=criteria,
            about=about,
            say=say,
        )
        parts.append(Part(loss, shared.seeds[loss], summarized))
    settings = _settings(shared.configs)
    unknown = [name for name, config in configs.items() if config is None]
    notes = [f"{name} has no config.json: its settings are not known." for name in unknown]
    if not settings and not unknown:
        notes = ["The configs differ in nothing."]
    return Comparison(shared.folders, parts, settings, shared.notes + notes, about)


def _on_one_axis(runs: Mapping[str, Sequence[summary.Run]]) -> dict[str, list[summary.Run]]:
    """Interpolate the rows of all runs at the union of their epochs.

    Interpolation is linear, as drawn; before the first and after the last evaluation of a run the
    values are NaN.
    """
    rows = [row for loss_runs in runs.values() for run in loss_runs for row in run.rows]
    epochs = sorted({row["epoch"] for row in rows}) or [math.nan]
    names = [name for name in CURVES if any(name in row for row in rows)]

    def at(run: summary.Run) -> summary.Run:
        columns: dict[str, Any] = {"epoch": epochs}
        for name in names:
            known = [(row["epoch"], row[name]) for row in run.rows if name in row]
            where, values = np.array(known or [(math.nan, math.nan)], float).T
            columns[name] = np.interp(epochs, where, values, left=math.nan, right=math.nan)
        shared = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        return dataclasses.replace(run, rows=shared)

    return {loss: [at(run) for run in loss_runs] for loss, loss_runs in runs.items()}


def _settings(configs: Mapping[str, Mapping[str, dict[str, Any] | None]]) -> list[Setting]:
    """List the config keys that differ between folders; losses with equal values share an entry."""
    settings: list[Setting] = []
    for loss, of in configs.items():
        known = {name: config for name, config in of.items() if config is not None}
        first, *others = known.values() or [{}]
        changed = [line for other in others for line in train.differences(first, other)]
        flat = {name: traverse_util.flatten_dict(entry, sep=".") for name, entry in known.items()}
        for key in sorted({line.partition(": ")[0] for line in changed}):
            values = {name: entry[key] for name, entry in flat.items() if key in entry}
            same = [entry for entry in settings if (entry.key, entry.values) == (key, values)]
            if same:
                same[0].losses.append(loss)
            else:
                settings.append(Setting(key, values, [loss]))
    return settings


# --------------------------------------------------------------------------------------------
# Text, files and figures.


_NUMBERS = (
    *("value", "sd", "low", "high", "interval", "difference", "difference_low", "difference_high"),
    *("difference_interval", "p", "p_holm", "p_seeds"),
)


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """List all numbers, one record per metric and folder; None marks a missing number."""
    rows = []
    for part in comparison.parts:
        for cell in part.summary.cells:
            record = {
                **{"loss": part.loss, "phase": cell.phase, "metric": cell.metric},
                **{"folder": cell.loss, "seeds": cell.n},
                **{name: getattr(cell, name) for name in _NUMBERS},
                "note": " ".join(cell.notes),
            }
            rows.append(without_nan(record))  # such as the deviation of one seed
    return rows


def text(comparison: Comparison) -> str:
    """Format the tables for a terminal."""
    return pages.as_text(_head(comparison), _sections(comparison), _foot(comparison))


def _head(comparison: Comparison) -> str:
    about, folders = comparison.about, comparison.folders
    names = ", ".join(folder.name for folder in folders[1:])
    number = comparison.parts[0].summary.about.get("clusters")
    kind = f"test labels of {number:,} examples" if number else "test examples"
    return (
        f"{names} against {about['baseline']}, on the same {about['examples']:,} {kind} in"
        f" {about['classes']} classes; {100 * about['level']:g}% intervals of"
        f" {about['resamples']:,} resamples, the same for all."
    )


def _sections(comparison: Comparison) -> list[tuple[str, render.Table]]:
    sections = [
        (_title(part, phase), _table(part, phase, comparison.about["resamples"]))
        for part in comparison.parts
        for phase in part.summary.reliability
    ]
    if comparison.settings:
        names = [item.name for item in comparison.folders]
        everywhere = [part.loss for part in comparison.parts]
        table = [["key", *names]]
        for item in comparison.settings:
            key = (
                item.key if item.losses == everywhere else f"{item.key} ({', '.join(item.losses)})"
            )
            table.append([key, *(str(item.values.get(name, "")) for name in names)])
        sections.append(("Settings that differ", table))
    return sections


def _title(part: Part, phase: str) -> str:
    title = part.titled(phase)
    if part.loss != ALONE:
        title += f", seed{'s' * (len(part.seeds) > 1)} {', '.join(map(str, part.seeds))}"
    if phase in part.summary.temperatures:
        fitted = part.summary.temperatures[phase].items()
        temperatures = [
            f"{name} {', '.join(f'{temperature:.3f}' for temperature in of)}"
            + summary_text.ended(part.summary, name, phase)
            for name, of in fitted
        ]
        title += f" (T: {'; '.join(temperatures)})"
    return title


def _table(part: Part, phase: str, num_resamples: int) -> render.Table:
    several = len(part.seeds) > 1
    tested = len(part.seeds) >= summary.SEEDS_FOR_A_TEST
    names = list(dict.fromkeys(cell.loss for cell in part.summary.cells))
    adjusted = len(names) > 2  # the baseline and at least two others
    head = ["metric", "folder", "value", *["sd of seeds"] * several, "difference", "p"]
    table = [head + ["p (Holm)"] * adjusted + ["p of seeds"] * tested]
    cells = {(c.metric, c.loss): c for c in part.summary.cells if c.phase == phase}
    for metric in summary.CELLS:
        for name in names:
            cell = cells[metric, name]
            least = caveats.least_p(metric, num_resamples)
            row = [metric, name, render.with_interval(cell)]
            row += [f"{cell.sd:.4f}"] * several
            row += [render.with_interval(cell.change, sign="+") if cell.change else ""]
            p_values = [caveats.p_of(cell.p, least)]
            p_values += [caveats.holm_of(cell.p, cell.p_holm, least)] * adjusted
            p_values[-1] += caveats.starred(cell.p_holm)
            row += [p.removeprefix("= ") for p in p_values]
            p_seeds = without_nan(cell.p_seeds)
            row += ["" if p_seeds is None else f"{p_seeds:.3f}"] * tested
            table.append(row)
    return table


def _foot(comparison: Comparison) -> list[str]:
    about = comparison.about
    seeds = any(len(part.seeds) >= summary.SEEDS_FOR_A_TEST for part in comparison.parts)
    over = " p of seeds is that of a paired t-test over the seeds." * seeds
    return [
        *comparison.notes,
        f"A difference is the value minus that of {about['baseline']}; a negative one is an"
        " improvement. p is over the test examples, without a correction for several"
        f" comparisons.{over} {caveats.star(about['baseline'], 'folders')}",
        "The temperature is fitted on the run's own validation set. ece and classwise_ece with"
        f" {about['num_bins']} bins of equal width, adaptive_ece of equal mass.",
        *_caveats(comparison),
    ]


def _caveats(comparison: Comparison) -> list[str]:
    cells = [cell for part in comparison.parts for cell in part.summary.cells]
    first = comparison.parts[0].summary
    streamed = dict.fromkeys(name for part in comparison.parts for name in part.summary.streamed)
    return [
        *summary_text.clustered(first),
        *summary_text.on_grids(first),
        *summary_text.without_rows(list(streamed)),
        *summary_text.notes_of(cells),
    ]


def save(comparison: Comparison, folder: pathlib.Path) -> list[str]:
    """Write compare.md, .html, .json, .csv and the figures, and return their names."""
    rows = records(comparison)
    whole = {
        "folders": {item.name: item.given for item in comparison.folders},
        **comparison.about,
        "seeds": {part.loss: part.seeds for part in comparison.parts},
        "temperatures": {
            part.loss: next(iter(part.summary.temperatures.values())) for part in comparison.parts
        },
        "temperatures_by_phase": {
            part.loss: part.summary.temperatures for part in comparison.parts
        },
        "metrics": rows,
        "settings": [dataclasses.asdict(item) for item in comparison.settings],
        "notes": [*comparison.notes, *_caveats(comparison)],
        "provenance": provenance.describe(),
    }
    texts = {
        "compare.json": json.dumps(whole, indent=1) + "\n",
        "compare.csv": csv_lines(map(in_csv, rows), list(rows[0])),
    }
    return pages.save(folder, "compare", page(comparison, pictures(comparison)), texts)


def page(comparison: Comparison, figures: Mapping[str, Any]) -> html_page.Page:
    """Collect the contents of the HTML page: tables and notes of compare.md, and figures."""
    about = comparison.about
    seeds = {part.loss: ", ".join(map(str, part.seeds)) for part in comparison.parts}
    return html_page.Page(
        title=", ".join(folder.name for folder in comparison.folders),
        head=_head(comparison),
        facts={
            "level of the intervals": f"{100 * about['level']:g}%",
            "test examples (n)": about["examples"],
            "classes": about["classes"],
            "baseline": about["baseline"],
            "seeds": seeds.get(ALONE, seeds),
            "bins": about["num_bins"],
            "resamples": about["resamples"],
            "versions": provenance.versions(),
        },
        sections=_sections(comparison),
        notes=_foot(comparison),
        figures=figures,
        metrics=summary.CELLS,
    )


def pictures(comparison: Comparison) -> dict[str, Any]:
    """Draw intervals, reliability diagrams side by side and, if they were logged, curves."""
    columns = len(comparison.folders)
    estimates: list[tuple[str, str, tuple[float, float, float]]] = []
    phases = list(comparison.parts[0].summary.reliability)
    diagrams: dict[str, dict[str, Any]] = {phase: {} for phase in phases}
    captions: dict[str, dict[str, float]] = {phase: {} for phase in phases}
    curves: dict[str, dict[str, Any]] = {}
    for part in comparison.parts:
        for cell in part.summary.cells:
            name = literal(part.titled(cell.loss))
            if cell.metric in summary.SHOWN:
                numbers = (cell.value, cell.low, cell.high)
                estimates.append((name, f"{cell.metric}, {cell.phase}", numbers))
            if cell.metric == "ece":
                captions[cell.phase][name] = cell.value
        for phase, of in part.summary.reliability.items():
            diagrams[phase] |= {literal(part.titled(folder)): table for folder, table in of.items()}
        curves |= {part.titled(metric): curve for metric, curve in part.summary.curves.items()}
    level, n = comparison.about["level"], comparison.about["examples"]
    bars, note = drawable(estimates)
    options = {"columns": len(summary.SHOWN), "note": note, "level": level, "n": n, "width": 11.0}
    drawn = {"intervals": plots.intervals(bars, **options)} if bars else {}
    for phase in phases:
        if not diagrams[phase]:
            continue
        drawn[f"reliability_{file_name(phase)}"] = plots.reliability_grid(
            diagrams[phase],
            ece=captions[phase],
            columns=columns,
            title=f"test set, {phase}",
            level=level,
            width=min(0.6 + 3.2 * columns, 12.0),
        )
    if curves:
        drawn["curves"] = plots.training_curves(
            curves,
            comparison.parts[0].summary.epochs,
            columns=len(comparison.parts[0].summary.curves),
            title="validation set",
            width=11.0,
        )
    return drawn
