"""Read the runs in the folders of finished trainings, evaluations and sweeps.

A run is a folder with predictions or streamed values written by experiments.evaluate, a folder of
several such seeds, or one loss of a sweep: SWEEP/runs/LOSS. A sweep is a folder that
experiments.sweep has finished. Folders that cannot be compared raise an error of one sentence.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax import report, train
from calib_jax.core.files import reading
from calib_jax.train import log
from experiments.reports import evaluation_record, excluded, streamed_scores, summary
from experiments.reports.short_names import short_names
from experiments.running import resuming, seed_folders

TEST, VALIDATION = "predictions_test.npz", "predictions_validation.npz"
UNKNOWN_SEED = -1
SEED_KEYS = (*resuming.MEASURED, "seed", "num_seeds", "best")  # keys in which seeds may differ
ALONE = ""  # replaces the loss if each folder is one run, because runs may differ in their loss


@dataclasses.dataclass(frozen=True)
class Folder:
    """A given folder: a run, or a sweep.

    Attributes:
      name: a short, unique name.
      given: the path as the user wrote it.
      runs: folders of trained networks, by loss and seed.
      sweep: whether the folder is a sweep.
    """

    name: str
    given: str
    runs: dict[str, dict[int, pathlib.Path]]
    sweep: bool


@dataclasses.dataclass(frozen=True)
class Shared:
    """The runs that all folders share.

    Attributes:
      folders: the folders; the first is the baseline.
      seeds: the shared seeds by loss.
      runs: the runs by loss and folder; in each run the folder's name replaces the loss.
      configs: the configs of the first seed, by loss and folder; None if unknown.
      notes: sentences about the runs that are not compared.
    """

    folders: list[Folder]
    seeds: dict[str, list[int]]
    runs: dict[str, list[summary.Run]]
    configs: dict[str, dict[str, dict[str, Any] | None]]
    notes: list[str]


def folders_of(given: Sequence[str]) -> list[Folder]:
    """Find the runs in the folders, and raise an error for a folder that cannot be compared."""
    if len(given) < 2:
        raise ValueError(
            "give two folders or more, the baseline first: python -m experiments.compare DIR DIR."
        )
    paths = [pathlib.Path(folder).resolve() for folder in given]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise ValueError(f"{given[place]} is given twice: compare it with another folder.")
    folders = [_folder(name, of) for name, of in zip(short_names(given), given, strict=True)]
    kinds = {folder.sweep: folder.given for folder in folders}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[True]} is a sweep and {kinds[False]} a run: compare sweeps with sweeps, and"
            f" runs with runs, such as {kinds[True]}/runs/LOSS/SEED."
        )
    if not all(map(_is_single, folders)):  # otherwise runs of any seeds are compared
        folders = [_with_seed(folder) if _is_single(folder) else folder for folder in folders]
    return folders


def _is_single(folder: Folder) -> bool:
    """Check that a folder is one run."""
    return [*folder.runs.get(ALONE, {}).values()] == [pathlib.Path(folder.given)]


def _with_seed(folder: Folder) -> Folder:
    """Key a single run by the seed of its config."""
    path = pathlib.Path(folder.given)
    seed = (_config(path) or {}).get("seed", UNKNOWN_SEED)
    return dataclasses.replace(folder, runs={ALONE: {seed: path}})


def _folder(name: str, given: str) -> Folder:
    path = pathlib.Path(given)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {given}.")
    if (path / "sweep.json").is_file():
        runs: dict[str, dict[int, pathlib.Path]] = {}
        for through in sorted(
            path.glob("runs/*/*/result.json")
        ):  # each run writes result.json last
            run = through.parent
            runs.setdefault(run.parent.name, {})[int(run.name)] = run
        return Folder(name, given, runs, sweep=True)
    if (path / "runs").is_dir():
        raise FileNotFoundError(
            f"{given} has no sweep.json, because its sweep is not complete: resume it by python -m"
            f" experiments.sweep --workdir={given} with the options of its start."
        )
    alone = seed_folders.there(path) or _of_loss(path) or {0: path}
    for run in alone.values():
        _check_predictions(given, run)
    return Folder(name, given, {ALONE: alone}, sweep=False)


def _of_loss(path: pathlib.Path) -> dict[int, pathlib.Path]:
    """Find the finished seeds of one loss of a sweep, in SWEEP/runs/LOSS."""
    through = (result.parent for result in path.glob("*/result.json"))
    return {int(run.name): run for run in sorted(through) if run.name.isdecimal()}


def _check_predictions(given: str, run: pathlib.Path) -> None:
    """Raise an error if experiments.evaluate has not written results into the folder."""
    if (run / "report" / streamed_scores.VALUES).is_file():
        return
    for file in (TEST, VALIDATION):
        if not (run / file).is_file():
            trained = (run / "config.json").is_file()
            what = "has" if trained else "is neither a run nor a sweep: it has"
            first = "" if trained else "once a network is trained there, "
            raise FileNotFoundError(
                f"{run} {what} no {file}; {first}python -m experiments.evaluate"
                f" --workdir={given} writes it."
            )


def read(given: Sequence[str]) -> Shared:
    """Read the runs that all folders share, and raise an error if they cannot be compared."""
    folders = folders_of(given)
    shared = Shared(folders, _in_common(folders), {}, {}, [])
    first, first_with_rows = None, None
    for loss, seeds in shared.seeds.items():
        shared.runs[loss] = []
        for folder in folders:
            for seed in seeds:
                path = folder.runs[loss][seed]
                run = _read(folder.name, seed, path)
                first = first or (path, run)
                if not run.streamed:
                    first_with_rows = first_with_rows or (path, run)
                for other_path, other in filter(None, (first, first_with_rows)):
                    if difference := _difference(other, run):
                        raise ValueError(
                            f"{other_path} and {path} {difference}: compare runs with the same test"
                            " examples in the same order."
                        )
                shared.runs[loss].append(run)
        shared.configs[loss] = {
            folder.name: _config_of_seeds([folder.runs[loss][seed] for seed in seeds])
            for folder in folders
        }
    shared.notes.extend(_left_out(folders, shared.seeds))
    shared.notes.extend(_checkpoints(folders, shared.seeds))
    return shared


def _in_common(folders: Sequence[Folder]) -> dict[str, list[int]]:
    """List the losses and seeds that all folders share."""
    shared = {
        loss: sorted(set.intersection(*(set(folder.runs.get(loss, {})) for folder in folders)))
        for loss in folders[0].runs
    }
    shared = {loss: seeds for loss, seeds in shared.items() if seeds}
    if not shared and not folders[0].sweep:
        described = ", ".join(f"{folder.given} has {_listed(folder)}" for folder in folders)
        single = " ".join(str(next(iter(folder.runs[ALONE].values()))) for folder in folders)
        raise ValueError(
            f"the runs have no seed in common ({described}): compare single ones, such as {single}."
        )
    if not shared:
        described = ", ".join(
            f"{folder.given} has {' '.join(folder.runs) or 'no loss'}" for folder in folders
        )
        raise ValueError(
            f"the sweeps have no loss and seed in common ({described}): compare losses, such as"
            f" {folders[0].given}/runs/LOSS."
        )
    return shared


def _listed(folder: Folder) -> str:
    """Format the seeds of a folder of runs."""
    seeds = ", ".join(map(str, folder.runs[ALONE]))
    if not _is_single(folder):
        return f"the seeds {seeds}"
    return "one run of " + (
        "unknown seed" if UNKNOWN_SEED in folder.runs[ALONE] else f"seed {seeds}"
    )


def _left_out(folders: Sequence[Folder], shared: Mapping[str, list[int]]) -> list[str]:
    """Describe the losses and seeds that are not compared, because another folder lacks them."""
    notes = []
    for folder in folders:
        alone = {
            loss: sorted(set(runs) - set(shared.get(loss, [])))
            for loss, runs in folder.runs.items()
        }
        described = [
            f"{loss} {', '.join(map(str, seeds))}" for loss, seeds in alone.items() if seeds
        ]
        if described:
            notes.append(
                f"Seeds left out of {folder.name}, which not all have: {'; '.join(described)}."
            )
    return notes


def _checkpoints(folders: Sequence[Folder], shared: Mapping[str, list[int]]) -> list[str]:
    """Name the evaluated weights of every folder, unless all folders used the last weights."""
    named = {}
    for folder in folders:
        paths = [folder.runs[loss][seed] for loss, seeds in shared.items() for seed in seeds]
        records = filter(None, map(evaluation_record.read, paths))
        named[folder.name] = sorted({record.checkpoint for record in records})
    if all(names in ([], ["latest"]) for names in named.values()):
        return []
    described = [f"{name} {', '.join(names) or 'unknown'}" for name, names in named.items()]
    return [f"Checkpoints: {'; '.join(described)}."]


def _read(name: str, seed: int, path: pathlib.Path) -> summary.Run:
    """Read a run; raise an error if it was trained on after its evaluation."""
    if stale := evaluation_record.stale(path):
        raise ValueError(
            f"{path} was trained further after its evaluation at step {stale.trained:,}: evaluate"
            f" it again by python -m experiments.evaluate --workdir={path}."
        )
    return read_run(name, seed, path, _config(path))


def read_run(
    name: str, seed: int, folder: pathlib.Path, config: Mapping[str, Any] | None
) -> summary.Run:
    """Read the predictions or the streamed values of a run, and its log."""
    rows = log.read_rows(folder / log.ROWS)
    if streamed := streamed_scores.read(folder):
        return summary.Run(name, seed, (), (), rows, streamed)
    evaluation_record.check(folder)

    def part(file: str) -> tuple[np.ndarray, ...]:
        logits, *others = report.read_predictions(str(folder / file)).weighted
        return excluded.without(logits, config), *others

    return summary.Run(name, seed, part(VALIDATION), part(TEST), rows)


def _difference(run: summary.Run, other: summary.Run) -> str:
    """Describe how two test sets differ, "" if they do not.

    Streamed values are compared by the numbers of labels and classes alone.
    """
    if run.streamed or other.streamed:
        return "" if run.size == other.size else f"have {run.size} and {other.size}"
    (logits, labels, *weights), (others, other_labels, *other_weights) = run.test, other.test
    if len(labels) != len(other_labels):
        return f"have {len(labels):,} and {len(other_labels):,} test examples"
    if logits.shape[1:] != others.shape[1:]:
        return f"have {logits.shape[-1]} and {others.shape[-1]} classes"
    counts, other_counts = (
        part[0] if part else np.ones(labels.shape) for part in (weights, other_weights)
    )
    if len(unlike := np.argwhere(counts != other_counts)):
        return f"differ in the weights of their test labels, first of example {unlike[0][0]}"
    if len(unlike := np.argwhere((labels != other_labels) & (counts > 0))):
        return f"differ in their test labels, first of example {unlike[0][0]}"
    return ""


def _config_of_seeds(paths: Sequence[pathlib.Path]) -> dict[str, Any] | None:
    """Read the config of several seeds; raise an error if the seeds have different configs."""
    configs = [_config(path) for path in paths]
    for path, config in zip(paths, configs, strict=True):
        if config is None or configs[0] is None:
            continue
        if unlike := train.differences(configs[0], config, free=SEED_KEYS):
            raise ValueError(
                f"{paths[0]} and {path} are seeds of different trainings ({'; '.join(unlike[:3])}):"
                " train them alike, or compare single runs."
            )
    return configs[0]


def _config(path: pathlib.Path) -> dict[str, Any] | None:
    """Read the config of a run without keys that change no result; None if unknown."""
    for name, inside in (("config.json", None), ("result.json", "config")):
        if (path / name).is_file():
            saved = reading.json_mapping(
                path / name, "a config", "the same command writes it again"
            )
            config = saved[inside] if inside else saved
            return {key: value for key, value in config.items() if key != "run"}
    return None  # predictions of given weights have no config
