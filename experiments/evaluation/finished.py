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
from experiments.evaluation import evaluation_record, streamed_scores
from experiments.evaluation.scoring import without_excluded
from experiments.reports import summary
from experiments.running import training

TEST, VALIDATION = "predictions_test.npz", "predictions_validation.npz"
UNKNOWN_SEED = -1
SEED_KEYS = (*training.MEASURED, "seed", "num_seeds", "best")  # keys in which seeds may differ
ALONE = ""  # replaces the loss if each folder is one run, because runs may differ in their loss


@dataclasses.dataclass(frozen=True)
class Folder:
    """A given folder: a run, or a sweep.

    Attributes:
      given: the path as the user wrote it.
      runs: folders of trained networks, by loss and seed.
      sweep: whether the folder is a sweep.
    """

    given: str
    runs: dict[str, dict[int, pathlib.Path]]
    sweep: bool = False

    @property
    def is_single(self) -> bool:
        """Whether the folder is one run."""
        return [*self.runs.get(ALONE, {}).values()] == [pathlib.Path(self.given)]


@dataclasses.dataclass(frozen=True)
class Shared:
    """The runs that all folders share.

    Attributes:
      folders: the given paths, by short and unique names; the first is the baseline.
      seeds: the seeds of the compared runs by loss, where they are known.
      runs: the runs by loss and folder; in each run the folder's name replaces the loss.
      configs: the configs of the first seed, by loss and folder; None if unknown.
      notes: sentences about the runs that are not compared.
    """

    folders: dict[str, str]
    seeds: dict[str, list[int]]
    runs: dict[str, list[summary.Run]]
    configs: dict[str, dict[str, dict[str, Any] | None]]
    notes: list[str]


def read(given: Sequence[str]) -> Shared:
    """Read the runs that all folders share, and raise an error if they cannot be compared."""
    folders = _folders(given)
    seeds_of = _in_common([*folders.values()])
    runs: dict[str, list[summary.Run]] = {loss: [] for loss in seeds_of}
    configs: dict[str, dict[str, dict[str, Any] | None]] = {loss: {} for loss in seeds_of}
    checkpoints: dict[str, set[str]] = {name: set() for name in folders}
    earlier: dict[bool, tuple[pathlib.Path, summary.Run]] = {}  # the first with rows, and without
    for loss, seeds in seeds_of.items():
        for name, folder in folders.items():
            paths = [folder.runs[loss][seed] for seed in seeds]
            for seed, path in zip(seeds, paths, strict=True):
                run = _run(name, seed, path)
                earlier.setdefault(run.streamed is None, (path, run))
                for other_path, other in earlier.values():
                    if difference := _difference(other, run):
                        raise ValueError(
                            f"{other_path} and {path} {difference}: compare runs with the same test"
                            " examples in the same order."
                        )
                runs[loss].append(run)
                if record := evaluation_record.read(path):
                    checkpoints[name].add(record.checkpoint)
            configs[loss][name] = _config_of_seeds(paths)
    notes = _left_out(folders, seeds_of)
    if any(names - {"latest"} for names in checkpoints.values()):
        named = [f"{name} {', '.join(sorted(of)) or 'unknown'}" for name, of in checkpoints.items()]
        notes.append(f"Checkpoints: {'; '.join(named)}.")
    given_of = {name: folder.given for name, folder in folders.items()}
    seeds_of = {  # single runs may have different seeds
        loss: sorted({run.seed for run in of} - {UNKNOWN_SEED}) for loss, of in runs.items()
    }
    return Shared(given_of, seeds_of, runs, configs, notes)


# ------------------------------------------------------------------------------------------------
# Folders.


def short_names(folders: Sequence[str]) -> list[str]:
    """Name each folder by the shortest end of its path that makes all names unique.

    Drop the folder `runs` of a sweep, unless names are unique only with it.

    >>> short_names(["/ours/runs/focal/1", "/theirs/runs/brier/1"])
    ['focal/1', 'brier/1']
    >>> short_names(["/ours/focal", "/ours/runs/focal"])
    ['ours/focal', 'runs/focal']
    """
    paths = [[*pathlib.Path(folder).resolve().parts[1:]] for folder in folders]
    kept = [[part for part in path if part != "runs"] for path in paths]
    for parts_of in (kept, paths):
        for length in range(1, max(map(len, parts_of)) + 1):
            names = ["/".join(parts[-length:]) for parts in parts_of]
            if len({*names}) == len(names):
                return names
    return names


def _folders(given: Sequence[str]) -> dict[str, Folder]:
    """Find the runs in the folders, by short names."""
    if len(given) < 2:
        raise ValueError(
            "give two folders or more, the baseline first: python -m experiments.compare DIR DIR."
        )
    paths = [pathlib.Path(folder).resolve() for folder in given]
    for place, path in enumerate(paths):
        if path in paths[:place]:
            raise ValueError(f"{given[place]} is given twice: compare it with another folder.")
    folders = dict(zip(short_names(given), map(_folder, given), strict=True))
    kinds = {folder.sweep: folder.given for folder in folders.values()}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[True]} is a sweep and {kinds[False]} a run: compare sweeps with sweeps, and"
            f" runs with runs, such as {kinds[True]}/runs/LOSS/SEED."
        )
    if all(folder.is_single for folder in folders.values()):  # of any seeds
        return folders
    for name, folder in folders.items():
        if folder.is_single:
            path = pathlib.Path(folder.given)
            seed = (_config(path) or {}).get("seed", UNKNOWN_SEED)
            folders[name] = dataclasses.replace(folder, runs={ALONE: {seed: path}})
    return folders


def _folder(given: str) -> Folder:
    path = pathlib.Path(given)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder {given}.")
    if (path / "sweep.json").is_file():
        losses = sorted(folder for folder in path.glob("runs/*") if _of_loss(folder))
        return Folder(given, {loss.name: _of_loss(loss) for loss in losses}, sweep=True)
    if (path / "runs").is_dir():
        raise FileNotFoundError(
            f"{given} has no sweep.json, because its sweep is not complete: resume it by python -m"
            f" experiments.sweep --workdir={given} with the options of its start."
        )
    runs = training.there(path) or _of_loss(path) or {UNKNOWN_SEED: path}
    for run in runs.values():
        if (run / "report" / streamed_scores.VALUES).is_file():
            continue
        for file in (TEST, VALIDATION):
            if not (run / file).is_file():
                trained = (run / "config.json").is_file()
                what = "has" if trained else "is neither a run nor a sweep: it has"
                first = "" if trained else "once a network is trained there, "
                raise FileNotFoundError(
                    f"{run} {what} no {file}; {first}python -m experiments.evaluate"
                    f" --workdir={given} writes it."
                )
    return Folder(given, {ALONE: runs})


def _of_loss(path: pathlib.Path) -> dict[int, pathlib.Path]:
    """Find the finished seeds of one loss of a sweep; each writes result.json last."""
    finished = (result.parent for result in path.glob("*/result.json"))
    return {int(run.name): run for run in sorted(finished) if run.name.isdecimal()}


def _in_common(folders: Sequence[Folder]) -> dict[str, list[int]]:
    """List the losses and seeds that all folders share."""
    shared = {
        loss: sorted(set.intersection(*(set(folder.runs.get(loss, {})) for folder in folders)))
        for loss in folders[0].runs
    }
    shared = {loss: seeds for loss, seeds in shared.items() if seeds}
    if shared:
        return shared
    if folders[0].sweep:
        kind, has = "sweeps have no loss and", [" ".join(f.runs) or "no loss" for f in folders]
        example = f"losses, such as {folders[0].given}/runs/LOSS"
    else:
        kind, has = "runs have no", [_listed(folder) for folder in folders]
        single = " ".join(str(next(iter(folder.runs[ALONE].values()))) for folder in folders)
        example = f"single ones, such as {single}"
    described = ", ".join(f"{f.given} has {of}" for f, of in zip(folders, has, strict=True))
    raise ValueError(f"the {kind} seed in common ({described}): compare {example}.")


def _listed(folder: Folder) -> str:
    """Format the seeds of a folder of runs."""
    seeds = ", ".join(map(str, folder.runs[ALONE]))
    if not folder.is_single:
        return f"the seeds {seeds}"
    unknown = UNKNOWN_SEED in folder.runs[ALONE]
    return "one run of " + ("unknown seed" if unknown else f"seed {seeds}")


def _left_out(folders: Mapping[str, Folder], shared: Mapping[str, list[int]]) -> list[str]:
    """Describe the losses and seeds that are not compared, because another folder lacks them."""
    notes = []
    for name, folder in folders.items():
        alone = {
            loss: sorted({*runs} - {*shared.get(loss, [])}) for loss, runs in folder.runs.items()
        }
        described = [
            f"{loss} {', '.join(map(str, seeds))}" for loss, seeds in alone.items() if seeds
        ]
        if described:
            notes.append(f"Seeds left out of {name}, which not all have: {'; '.join(described)}.")
    return notes


# ------------------------------------------------------------------------------------------------
# Runs.


def _run(name: str, seed: int, path: pathlib.Path) -> summary.Run:
    """Read a run; raise an error if it was trained on after its evaluation."""
    if stale := evaluation_record.stale(path):
        raise ValueError(
            f"{path} was trained further after its evaluation at step {stale.trained:,}: evaluate"
            f" it again by python -m experiments.evaluate --workdir={path}."
        )
    config = _config(path)
    return read_run(name, (config or {}).get("seed", seed), path, config)


def read_run(
    name: str, seed: int, folder: pathlib.Path, config: Mapping[str, Any] | None
) -> summary.Run:
    """Read the predictions or the streamed values of a run, and its log."""
    rows = log.read_rows(folder / log.ROWS)
    if streamed := streamed_scores.read(folder):
        return summary.Run(name, seed, (), (), rows, streamed)
    evaluation_record.check(folder)

    def part(file: str) -> tuple[np.ndarray, ...]:
        given = report.read_predictions(str(folder / file))
        logits, weights = given.logits, () if given.weights is None else (given.weights,)
        wrong = np.isnan(logits) | np.isposinf(logits)
        if count := int(wrong.any(axis=-1).sum()):
            raise ValueError(
                f"{count:,} examples of {folder / file} have NaN or infinite logits: compare"
                " another checkpoint of this run."
            )
        return without_excluded(logits, config), given.labels, *weights

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
        if (
            config
            and configs[0]
            and (unlike := train.differences(configs[0], config, free=SEED_KEYS))
        ):
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
