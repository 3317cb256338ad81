"""Folders of runs, or of sweeps, on the same test examples: what differs, and is it chance?

For every metric of a folder:

    value, low, high  mean over the seeds, and its interval over the test examples
    difference        to the same metric of the first folder, the baseline, with its own interval:
                      both see the same resamples, so that what is hard for both does not count
    p                 two-sided, of the paired bootstrap over the test examples
    p_seeds           of a paired t-test over the seeds, from five on

each as trained, and after a temperature that every run fits on its own validation predictions.
Sweeps are compared loss by loss, over the seeds that all of them have.
"""

import csv
import dataclasses
import io
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from calib_jax import calibrators, metrics, plots, train
from calib_jax.report import Change, tables
from calib_jax.train import journal
from experiments import predictions, summary

TEST, VALIDATION = "predictions_test.npz", "predictions_validation.npz"
ALONE = ""  # stands for the loss where a folder is one run: two runs may well differ in it
PHASES = (summary.BEFORE, summary.AFTER)
CURVES = ("validation_error", "validation_nll", "validation_ece")


@dataclasses.dataclass(frozen=True)
class Folder:
    """What was given: a run, or a sweep.

    Attributes:
      name: short, and no other folder's.
      given: what the user calls it.
      runs: folders of trained networks, by loss and seed.
      sweep: whether there are several.
    """

    name: str
    given: str
    runs: dict[str, dict[int, pathlib.Path]]
    sweep: bool


@dataclasses.dataclass(frozen=True)
class Setting:
    """A key of the config that is not the same everywhere; a folder without it has no value."""

    key: str
    values: dict[str, Any]
    losses: list[str]


@dataclasses.dataclass(frozen=True)
class Part:
    """One loss in all folders; `found` has the folders for losses."""

    loss: str
    seeds: list[int]
    found: summary.Summary
    changes: dict[tuple[str, str, str], Change]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The tables, and what the pictures need."""

    folders: list[Folder]
    parts: list[Part]
    settings: list[Setting]
    notes: list[str]
    about: dict[str, Any]


# --------------------------------------------------------------------------------------------
# What lies in the folders.


def look(given: Sequence[str]) -> list[Folder]:
    """Find the runs of the folders; one that cannot be compared is refused."""
    if len(given) < 2:
        raise ValueError(
            "give two folders or more, the baseline first: python -m experiments.compare DIR DIR."
        )
    paths = [pathlib.Path(one).resolve() for one in given]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise ValueError(f"{given[place]} is given twice: compare it with another folder.")
    above = os.path.commonpath([path.parent for path in paths])
    names = [path.relative_to(above).as_posix() for path in paths]
    found = [_look(name, one) for name, one in zip(names, given, strict=True)]
    kinds = {one.sweep: one.given for one in found}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[True]} is a sweep and {kinds[False]} a run: compare sweeps with sweeps, and"
            f" runs with runs, such as {kinds[True]}/runs/LOSS/SEED."
        )
    return found


def _look(name: str, given: str) -> Folder:
    path = pathlib.Path(given)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {given}.")
    if (path / "sweep.json").is_file():
        runs: dict[str, dict[int, pathlib.Path]] = {}
        for through in sorted(path.glob("runs/*/*/result.json")):  # written last, by each run
            run = through.parent
            runs.setdefault(run.parent.name, {})[int(run.name)] = run
        return Folder(name, given, runs, sweep=True)
    if (path / "runs").is_dir():
        raise FileNotFoundError(
            f"{given} has no sweep.json, since its sweep is not through: python -m"
            f" experiments.sweep --workdir={given}, with the options it was begun with, goes on."
        )
    for file in (TEST, VALIDATION):
        if not (path / file).is_file():
            trained = (path / "config.json").is_file()
            what = "has" if trained else "is neither a run nor a sweep: it has"
            first = "" if trained else "after experiments.train, "
            raise FileNotFoundError(
                f"{given} {what} no {file}; {first}python -m experiments.evaluate"
                f" --workdir={given} writes it."
            )
    return Folder(name, given, {ALONE: {0: path}}, sweep=False)


def _common(folders: Sequence[Folder]) -> dict[str, list[int]]:
    """List the losses, and their seeds, that all folders have."""
    found = {
        loss: sorted(set.intersection(*(set(one.runs.get(loss, {})) for one in folders)))
        for loss in folders[0].runs
    }
    found = {loss: seeds for loss, seeds in found.items() if seeds}
    if not found:
        said = ", ".join(f"{one.given} has {' '.join(one.runs) or 'no loss'}" for one in folders)
        raise ValueError(
            f"the sweeps have no loss and seed in common ({said}): compare single runs, such as"
            f" {folders[0].given}/runs/LOSS/SEED."
        )
    return found


def _left_out(folders: Sequence[Folder], common: Mapping[str, list[int]]) -> list[str]:
    """Say what is not compared, since another folder does not have it."""
    notes = []
    for one in folders:
        for loss, runs in one.runs.items():
            alone = sorted(set(runs) - set(common.get(loss, [])))
            if alone:
                seeds = f"seed{'s' * (len(alone) > 1)} {', '.join(map(str, alone))}"
                notes.append(f"{one.name}, {loss}: {seeds} left out, which not all folders have.")
    return notes


def _read(name: str, seed: int, path: pathlib.Path) -> summary.Run:
    """Read what a run left; the name of the folder stands for the loss."""

    def part(file: str) -> tuple[np.ndarray, np.ndarray]:
        found = predictions.read(str(path / file))
        rows = found.logits.reshape(-1, found.logits.shape[-1])
        wrong = int(np.sum(~np.isfinite(rows).all(axis=-1)))
        if wrong:
            raise ValueError(
                f"{path / file} has NaN or infinite logits in {wrong:,} of {len(rows):,} rows:"
                " compare a checkpoint from before the training went wrong."
            )
        return found.logits, found.labels

    return summary.Run(
        name, seed, part(VALIDATION), part(TEST), journal.read_rows(path / journal.ROWS)
    )


def _same_examples(one: pathlib.Path, first: Any, other: pathlib.Path, second: Any) -> None:
    """Refuse predictions that are not of the same test examples."""
    (logits, labels), (others, other_labels) = first, second
    if len(labels) != len(other_labels):
        raise ValueError(
            f"{one} has {len(labels):,} test examples and {other} {len(other_labels):,}: a paired"
            " comparison needs the same ones."
        )
    if logits.shape[1:] != others.shape[1:]:
        raise ValueError(
            f"{one} has {logits.shape[-1]} classes and {other} {others.shape[-1]}: a paired"
            " comparison needs the same ones."
        )
    unlike = np.flatnonzero(labels != other_labels)
    if len(unlike):
        raise ValueError(
            f"{one} and {other} have other test labels, first of example {unlike[0]}: a paired"
            " comparison needs the same examples in the same order."
        )


def _config(path: pathlib.Path) -> dict[str, Any] | None:
    """Read what a run was told, but for what does not change its results; None if nobody knows."""
    for name, inside in (("config.json", None), ("result.json", "config")):
        if (path / name).is_file():
            try:
                found = json.loads((path / name).read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"{path / name} is damaged: {error}.") from error
            config = found[inside] if inside else found
            return {key: value for key, value in config.items() if key != "run"}
    return None  # predictions of weights that no run of ours trained


# --------------------------------------------------------------------------------------------
# What differs.


def read(folders: Sequence[Folder]) -> dict[str, list[summary.Run]]:
    """Read the runs that all folders have, by loss; refuse them if they cannot be compared."""
    found: dict[str, list[summary.Run]] = {}
    first = None
    for loss, seeds in _common(folders).items():
        for one in folders:
            for seed in seeds:
                path = one.runs[loss][seed]
                run = _read(one.name, seed, path)
                first = first or (path, run.test)
                _same_examples(*first, path, run.test)
                found.setdefault(loss, []).append(run)
    return found


def compare(
    folders: Sequence[Folder],
    runs: Mapping[str, Sequence[summary.Run]],
    *,
    num_bins: int | None = None,
    num_resamples: int = 1000,
) -> Comparison:
    """Compare folders with the first of them.

    Args:
      folders: what `look` found.
      runs: what `read` found in them.
      num_bins: of every metric that has bins; what the first folder's config says when None.
      num_resamples: of the bootstrap.
    """
    common = _common(folders)
    configs = {
        loss: {one.name: _config(one.runs[loss][seeds[0]]) for one in folders}
        for loss, seeds in common.items()
    }
    told = configs[next(iter(common))]
    if num_bins is None:
        num_bins = int((told[folders[0].name] or {}).get("num_bins", 15))
    logits, labels = next(iter(runs.values()))[0].test
    about = {
        "baseline": folders[0].name,
        "examples": labels.size,
        "classes": logits.shape[-1],
        "level": summary.LEVEL,
        "resamples": num_resamples,
        "num_bins": num_bins,
    }
    parts = []
    aligned = _on_one_axis(runs)
    for loss, own in aligned.items():
        found = summary.summarise(
            own,
            baseline=folders[0].name,
            num_bins=num_bins,
            num_resamples=num_resamples,
            about=about,
        )
        parts.append(Part(loss, common[loss], found, _changes(own, about)))
    unknown = [name for name, config in told.items() if config is None]
    notes = [f"{name} has no config.json: its settings are not known." for name in unknown]
    return Comparison(
        list(folders), parts, _settings(configs), _left_out(folders, common) + notes, about
    )


def _changes(
    runs: Sequence[summary.Run], about: Mapping[str, Any]
) -> dict[tuple[str, str, str], Change]:
    """Compute the paired differences to the baseline, by folder, phase and metric.

    The mean over the seeds of resampled differences is the resampled difference of the means.
    """
    members = {
        name: one.with_options(num_bins=about["num_bins"])
        if "num_bins" in (one := metrics.named(name)).defaults()
        else one
        for name in summary.CELLS
    }
    answers: dict[tuple[str, str], list[Any]] = {}
    for run in runs:
        fitted = calibrators.temperature.fit(*run.validation)
        scaled = calibrators.temperature.apply(fitted, run.test[0])
        answers.setdefault((run.loss, summary.BEFORE), []).append(run.test[0])
        answers.setdefault((run.loss, summary.AFTER), []).append(scaled)
    first = about["baseline"]
    changes = {}
    for (name, phase), own in answers.items():
        if name == first:
            continue
        pairs = [
            metrics.paired_bootstrap(
                members,
                *pair,
                runs[0].test[1],
                key=jax.random.key(0),
                num_resamples=about["resamples"],
            )
            for pair in zip(answers[first, phase], own, strict=True)
        ]
        for metric in summary.CELLS:
            value = np.mean([float(pair[metric].value) for pair in pairs])
            samples = np.mean([np.asarray(pair[metric].samples) for pair in pairs], axis=0)
            low, high = metrics.interval(jnp.asarray(samples), about["level"])
            numbers = (float(value), float(low), float(high), summary.p_value(samples))
            changes[name, phase, metric] = Change(metric, first, name, *numbers)
    return changes


def _on_one_axis(runs: Mapping[str, Sequence[summary.Run]]) -> dict[str, list[summary.Run]]:
    """Give all runs rows at the same epochs, however often and long they were evaluated.

    Between two of its evaluations a curve is the straight line that is drawn anyway; before the
    first and after the last it is not there.
    """
    rows = [row for own in runs.values() for run in own for row in run.rows]
    epochs = sorted({row["epoch"] for row in rows}) or [math.nan]
    names = [name for name in CURVES if any(name in row for row in rows)]

    def at(run: summary.Run) -> summary.Run:
        own: dict[str, Any] = {"epoch": epochs}
        for name in names:
            known = [(row["epoch"], row[name]) for row in run.rows if name in row]
            where, values = np.array(known or [(math.nan, math.nan)], float).T
            own[name] = np.interp(epochs, where, values, left=math.nan, right=math.nan)
        shared = [dict(zip(own, row, strict=True)) for row in zip(*own.values(), strict=True)]
        return dataclasses.replace(run, rows=shared)

    return {loss: [at(run) for run in own] for loss, own in runs.items()}


def _settings(configs: Mapping[str, Mapping[str, dict[str, Any] | None]]) -> list[Setting]:
    """Find the keys in which the folders' configs differ; losses that do so alike are one entry."""
    found: list[Setting] = []
    for loss, of in configs.items():
        known = {name: config for name, config in of.items() if config is not None}
        first, *others = known.values() or [{}]
        changed = [line for other in others for line in train.differences(first, other)]
        flat = {name: traverse_util.flatten_dict(one, sep=".") for name, one in known.items()}
        for key in sorted({line.partition(": ")[0] for line in changed}):
            values = {name: one[key] for name, one in flat.items() if key in one}
            same = [one for one in found if (one.key, one.values) == (key, values)]
            if same:
                same[0].losses.append(loss)
            else:
                found.append(Setting(key, values, [loss]))
    return found


# --------------------------------------------------------------------------------------------
# As text, files and pictures.


def records(comparison: Comparison) -> list[dict[str, Any]]:
    """List all numbers, a metric of a folder in each record; None is what is not there."""
    found = []
    for part in comparison.parts:
        for cell in part.found.cells:
            change = part.changes.get((cell.loss, cell.phase, cell.metric))
            record = {
                "loss": part.loss,
                "phase": cell.phase,
                "metric": cell.metric,
                "folder": cell.loss,
                "seeds": cell.n,
                "value": cell.value,
                "sd": cell.sd,
                "low": cell.low,
                "high": cell.high,
                "difference": change and change.value,
                "difference_low": change and change.low,
                "difference_high": change and change.high,
                "p": change and change.p_value,
                "p_seeds": cell.p_seeds,
            }
            found.append({key: _known(value) for key, value in record.items()})
    return found


def _known(value: Any) -> Any:
    """Make NaN, which JSON does not have, None: of one seed's deviation, or seeds all alike."""
    return None if isinstance(value, float) and math.isnan(value) else value


def text(comparison: Comparison) -> str:
    """Lay the tables out for a terminal."""
    sections = _sections(comparison)
    shown = [f"{title}\n{tables.aligned(table)}" for title, table in sections]
    return "\n\n".join([_head(comparison), *shown, *_foot(comparison)])


def markdown(comparison: Comparison) -> str:
    """Lay the tables out for a page, with the pictures."""
    title = f"# {', '.join(one.name for one in comparison.folders)}"
    shown = [f"## {title}\n\n{tables.in_markdown(table)}" for title, table in _sections(comparison)]
    seen = [f"![{name}]({name}.png)" for name in pictures(comparison)]
    return "\n\n".join([title, _head(comparison), *shown, *_foot(comparison), *seen]) + "\n"


def _head(comparison: Comparison) -> str:
    said, folders = comparison.about, comparison.folders
    names = ", ".join(one.name for one in folders[1:])
    return (
        f"{names} against {said['baseline']}, on the same {said['examples']:,} test examples in"
        f" {said['classes']} classes; {said['level']:.0%} intervals of {said['resamples']:,}"
        " resamples, the same for all."
    )


def _sections(comparison: Comparison) -> list[tuple[str, tables.Table]]:
    sections = [
        (_title(part, phase), _table(part, phase)) for part in comparison.parts for phase in PHASES
    ]
    if comparison.settings:
        names = [one.name for one in comparison.folders]
        everywhere = [part.loss for part in comparison.parts]
        table = [["key", *names]]
        for one in comparison.settings:
            key = one.key if one.losses == everywhere else f"{one.key} ({', '.join(one.losses)})"
            table.append([key, *(str(one.values.get(name, "")) for name in names)])
        sections.append(("Settings that differ", table))
    return sections


def _title(part: Part, phase: str) -> str:
    title = phase if part.loss == ALONE else f"{part.loss}, {phase}"
    if part.loss != ALONE:
        title += f", seed{'s' * (len(part.seeds) > 1)} {', '.join(map(str, part.seeds))}"
    if phase == summary.AFTER:
        fitted = part.found.temperatures.items()
        said = ("T of " + name + " " + ", ".join(f"{one:.3f}" for one in of) for name, of in fitted)
        title += f" ({'; '.join(said)})"
    return title[0].upper() + title[1:] if part.loss == ALONE else title


def _table(part: Part, phase: str) -> tables.Table:
    several = len(part.seeds) > 1
    tested = len(part.seeds) >= summary.SEEDS_FOR_A_TEST
    head = ["metric", "folder", "value", *["sd of seeds"] * several, "difference", "p"]
    table = [head + ["p of seeds"] * tested]
    cells = {(c.metric, c.loss): c for c in part.found.cells if c.phase == phase}
    for metric in summary.CELLS:
        for name in part.found.temperatures:
            cell, change = cells[metric, name], part.changes.get((name, phase, metric))
            row = [metric, name, tables.with_interval(cell)]
            row += [f"{cell.sd:.4f}"] * several
            row += [_said(change), f"{change.p_value:.3f}"] if change else ["", ""]
            p_seeds = _known(cell.p_seeds)
            row += ["" if p_seeds is None else f"{p_seeds:.3f}"] * tested
            table.append(row)
    return table


def _said(change: Change) -> str:
    return f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}]"


def _foot(comparison: Comparison) -> list[str]:
    said = comparison.about
    seeds = any(len(part.seeds) >= summary.SEEDS_FOR_A_TEST for part in comparison.parts)
    over = "; p of seeds: paired t-test over the seeds" * seeds
    return [
        *comparison.notes,
        f"difference: to {said['baseline']}, and a negative one is the better; p: paired bootstrap"
        f" over the test examples{over}; no p is corrected for how many there are. The temperature"
        " is fitted on the run's own validation set. ece and classwise_ece with"
        f" {said['num_bins']} bins of equal width, adaptive_ece of equal mass: all are biased"
        " upwards, resampled ones more so, and a value may lie below its interval.",
    ]


def save(comparison: Comparison, folder: pathlib.Path) -> list[str]:
    """Write compare.md, .json, .csv and the pictures; give their names."""
    found = records(comparison)
    whole = {
        "folders": {one.name: one.given for one in comparison.folders},
        **comparison.about,
        "seeds": {part.loss: part.seeds for part in comparison.parts},
        "temperatures": {part.loss: part.found.temperatures for part in comparison.parts},
        "metrics": found,
        "settings": [dataclasses.asdict(one) for one in comparison.settings],
        "notes": comparison.notes,
    }
    out = io.StringIO()
    writer = csv.DictWriter(out, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    written = {
        "compare.md": markdown(comparison),
        "compare.json": json.dumps(whole, indent=1) + "\n",
        "compare.csv": out.getvalue(),
    }
    for name, content in written.items():
        (folder / name).write_text(content, encoding="utf-8")
    figures = pictures(comparison)
    for name, figure in figures.items():
        plots.save(figure, folder / f"{name}.png")
    return [*written, *(f"{name}.png" for name in figures)]


def pictures(comparison: Comparison) -> dict[str, Any]:
    """Draw intervals, reliability diagrams side by side and, where they were logged, curves."""
    columns = len(comparison.folders)
    bars: dict[str, dict[str, tuple[float, float, float]]] = {}
    diagrams: dict[str, dict[str, Any]] = {phase: {} for phase in PHASES}
    captions: dict[str, dict[str, float]] = {phase: {} for phase in PHASES}
    curves: dict[str, dict[str, Any]] = {}
    for part in comparison.parts:

        def name(folder: str, loss: str = part.loss) -> str:
            return folder if loss == ALONE else f"{loss}, {folder}"

        for cell in part.found.cells:
            if cell.metric in summary.SHOWN:
                numbers = (cell.value, cell.low, cell.high)
                bars.setdefault(name(cell.loss), {})[f"{cell.metric}, {cell.phase}"] = numbers
            if cell.metric == "ece":
                captions[cell.phase][name(cell.loss)] = cell.value
        for phase, of in part.found.reliability.items():
            diagrams[phase] |= {name(folder): table for folder, table in of.items()}
        for metric, found in part.found.curves.items():
            own = {name(folder): values for folder, values in found.items()}
            curves.setdefault(metric, {}).update(own)
    drawn = {"intervals": plots.intervals(bars, columns=len(summary.SHOWN), width=11.0)}
    for phase in PHASES:
        drawn[f"reliability_{phase.replace(' ', '_')}"] = plots.reliability_grid(
            diagrams[phase],
            ece=captions[phase],
            columns=columns,
            title=f"test set, {phase}",
            width=min(0.6 + 3.2 * columns, 12.0),
        )
    if curves:
        epochs = comparison.parts[0].found.epochs
        drawn["curves"] = plots.training_curves(curves, epochs, title="validation set")
    return drawn
