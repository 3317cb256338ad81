"""Compare folders of runs, or of sweeps, on the same test examples.

The tables are those of `summary.py`, with the folders in place of the losses: values, differences
to the first folder, and their tests. Sweeps are compared loss by loss, over the seeds that all
sweeps share.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import traverse_util

from calib_jax import train
from calib_jax.core import texts
from calib_jax.core.texts import csv_lines, without_nan
from calib_jax.report import calibrate, render
from calib_jax.report.figures import file_name
from experiments.evaluation.finished import ALONE, Shared
from experiments.reports import summary, summary_text
from experiments.reports.summary import Summary
from experiments.running import environment

METRICS = (*summary.CELLS, summary.SQUARED)


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

    @property
    def start(self) -> str:
        """The start of titles: the loss, if there are several losses."""
        return "" if self.loss == ALONE else f"{self.loss}, "


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The tables, and the data of the figures; `folders` has the given paths by short name."""

    folders: dict[str, str]
    parts: list[Part]
    settings: list[Setting]
    notes: list[str]
    about: dict[str, Any]


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
    first = next(iter(shared.folders))
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
    options: dict[str, Any] = {"num_bins": num_bins, "num_resamples": num_resamples, "say": say}
    options |= {"kind": "folder", "criteria": criteria, "about": about}
    # The curves of all losses are drawn in one figure.
    options["epochs"] = summary.epochs_of(run for of in shared.runs.values() for run in of)
    parts = [
        Part(loss, shared.seeds[loss], summary.summarize(runs, baseline=first, **options))
        for loss, runs in shared.runs.items()
    ]
    settings = _settings(shared.configs)
    unknown = [name for name, config in configs.items() if config is None]
    notes = [f"{name} has no config.json: its settings are not known." for name in unknown]
    if not settings and not unknown:
        notes = ["The configs differ in nothing."]
    return Comparison(shared.folders, parts, settings, shared.notes + notes, about)


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


def text(comparison: Comparison) -> str:
    """Format the tables for a terminal."""
    return render.as_text(page(comparison, {}))


def save(comparison: Comparison, folder: pathlib.Path) -> list[str]:
    """Write compare.md, .html, .json, .csv and the figures, and return their names."""
    rows = records(comparison)
    by_loss = {part.loss: part.summary.temperatures for part in comparison.parts}
    whole = {
        "folders": comparison.folders,
        **comparison.about,
        "seeds": {part.loss: part.seeds for part in comparison.parts},
        "temperatures": {loss: next(iter(of.values()), {}) for loss, of in by_loss.items()},
        "temperatures_by_phase": by_loss,
        "metrics": rows,
        "settings": [dataclasses.asdict(item) for item in comparison.settings],
        "notes": _foot(comparison),
        "provenance": environment.describe(),
    }
    files = {
        "compare.json": json.dumps(whole, indent=1) + "\n",
        "compare.csv": csv_lines(map(texts.in_csv, rows), list(rows[0])),
    }
    return render.save(folder, "compare", page(comparison, pictures(comparison)), files)


def page(comparison: Comparison, figures: Mapping[str, Any]) -> render.Page:
    """Collect the contents of the page: tables, notes and figures."""
    about = comparison.about
    seeds = {part.loss: ", ".join(map(str, part.seeds)) for part in comparison.parts}
    return render.Page(
        title=", ".join(comparison.folders),
        head=_head(comparison),
        facts={
            "level of the intervals": f"{100 * about['level']:g}%",
            "test examples (n)": about["examples"],
            "classes": about["classes"],
            "baseline": about["baseline"],
            "seeds": seeds.get(ALONE, seeds),
            "bins": about["num_bins"],
            "resamples": about["resamples"],
            "versions": environment.versions(),
        },
        sections=_sections(comparison),
        notes=_foot(comparison),
        figures=figures,
        metrics=METRICS,
    )


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """List all numbers, one record per metric and folder; None marks a missing number."""
    rows = []
    for part in comparison.parts:
        for cell in part.summary.cells:
            numbers = dataclasses.asdict(cell)
            first = {key: numbers.pop(key) for key in ("phase", "metric")}
            first = {"loss": part.loss, **first, "folder": numbers.pop("loss")}
            note = " ".join(summary_text.exceptions([cell]))
            rows.append(without_nan({**first, "seeds": numbers.pop("n"), **numbers, "note": note}))
    return rows


def pictures(comparison: Comparison) -> dict[str, Any]:
    """Draw intervals, reliability diagrams side by side and, if they were logged, curves."""
    columns = len(comparison.folders)
    phases = comparison.parts[0].summary.reliability
    return summary_text.drawn_of(
        {part.start: part.summary for part in comparison.parts},
        {phase: f"reliability_{file_name(phase)}" for phase in phases},
        summary.SHOWN,
        width=min(0.6 + 3.2 * columns, 12.0),
        bars=11.0,
        columns=columns,
    )


def _head(comparison: Comparison) -> str:
    about = comparison.about
    others = ", ".join([*comparison.folders][1:])
    number = comparison.parts[0].summary.about.get("clusters")
    kind = f"test labels of {number:,} examples" if number else "test examples"
    return (
        f"{others} against {about['baseline']}, on the same {about['examples']:,} {kind} in"
        f" {about['classes']} classes; {100 * about['level']:g}% intervals of"
        f" {about['resamples']:,} resamples, the same for all."
    )


def _sections(comparison: Comparison) -> list[render.Table]:
    sections = []
    for part in comparison.parts:
        seeds = f", seed{'s' * (len(part.seeds) > 1)} {', '.join(map(str, part.seeds))}"
        for title, table in summary_text.sections(part.summary):
            titled = part.start + title + seeds * bool(part.start)
            sections.append(render.Table(titled, table))
    if comparison.settings:
        everywhere = [part.loss for part in comparison.parts]
        table = [["key", *comparison.folders]]
        for item in comparison.settings:
            some = "" if item.losses == everywhere else f" ({', '.join(item.losses)})"
            values = [str(item.values.get(name, "")) for name in comparison.folders]
            table.append([item.key + some, *values])
        sections.append(render.Table("Settings that differ", table))
    return sections


def _foot(comparison: Comparison) -> list[str]:
    return [*comparison.notes, *summary_text.foot([part.summary for part in comparison.parts])]
