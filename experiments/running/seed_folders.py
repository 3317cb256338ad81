"""The folders of several seeds: DIR/seed_1, DIR/seed_2, ..., each with its own run."""

import contextlib
import pathlib
import re
import stat
import tempfile

from ml_collections import ConfigDict

from calib_jax.core.files import reading
from calib_jax.train.folder import journal, lock

_BEFORE_THE_LOCK = {"subwords.txt"}  # files that a run writes before it locks its folder
_OF_SEVERAL = {"report.md", "report.html", "report", "pictures"}


def named(workdir: str | None) -> pathlib.Path:
    """Return the path of --workdir; raise an error for a file or a folder of other programs."""
    if not (workdir or "").strip():
        raise ValueError("--workdir is empty: give --workdir=FOLDER, where the run is kept.")
    folder = pathlib.Path(str(workdir))
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        return folder
    except (OSError, ValueError) as error:
        raise ValueError(f"--workdir={workdir} cannot be used: {reading.reason(error)}.") from error
    if not is_folder:
        raise NotADirectoryError(f"--workdir={workdir} is a file: choose a folder.")
    if files_of_others := _files_of_others(folder):
        raise ValueError(
            f"--workdir={workdir} holds files that belong to no run, such as"
            f" {min(files_of_others)}: choose a new or an empty folder."
        )
    return folder


def _files_of_others(folder: pathlib.Path) -> set[str]:
    """Name the files in a folder that calib_jax has not written; empty if the folder may be used.

    File names prove nothing: other programs write config.json, checkpoints and runs, too. Every
    folder that calib_jax uses has a lock file. A copy without hidden files has a file whose content
    only calib_jax writes, or holds only runs and their reports.
    """
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if _is_ours(folder) or not any(_has_files(folder / name) for name in names):
        return set()
    runs = {path.name for path in there(folder).values() if _is_ours(path)}
    if any(map(_is_ours, folder.glob("runs/*/*"))):
        runs.add("runs")
    return names - runs - _BEFORE_THE_LOCK - (_OF_SEVERAL if runs else set())


def _is_ours(folder: pathlib.Path) -> bool:
    """Check that calib_jax has written into a folder before."""
    if any(lock.was_locked(folder, name) for name in (lock.TRAINING, lock.EVALUATION)):
        return True
    if journal.format_of(folder)[0]:
        return True
    return _holds(folder / "sweep.json", {"baseline", "temperatures_by_phase", "cells"}) or _holds(
        folder / "evaluation.json", {"checkpoint", "step", "trained"}
    )


def _holds(path: pathlib.Path, keys: set[str]) -> bool:
    """Check that a JSON file has these keys."""
    try:
        return keys <= reading.json_mapping(path, "a file").keys()
    except (FileNotFoundError, reading.Unreadable):
        return False


def _has_files(path: pathlib.Path) -> bool:
    """Check that a path is a file, or a folder with a file at any depth."""
    return not path.is_dir() or any(not inner.is_dir() for inner in path.rglob("*"))


def prepare(folder: pathlib.Path) -> None:
    """Create the folder of a run or a sweep; raise an error if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        with (
            contextlib.suppress(lock.InUse),
            lock.only_one(folder),
        ):  # marks the folder as calib_jax's
            pass
    except OSError as error:
        why = reading.reason(error)
        raise ValueError(
            f"--workdir={folder} cannot be written to: {why}; choose another folder."
        ) from error


def of_config(workdir: str | pathlib.Path, config: ConfigDict) -> dict[int, pathlib.Path]:
    """Return the folder of every seed of a config; a single seed uses `workdir` itself."""
    folder = pathlib.Path(workdir)
    seeds_there = there(folder)
    if (folder / "runs").is_dir():
        raise ValueError(
            f"{folder} holds a sweep: choose another folder, or resume it with experiments.sweep."
        )
    if config.num_seeds == 1:
        if seeds_there:
            first, count = min(seeds_there), max(seeds_there) - min(seeds_there) + 1
            raise ValueError(
                f"{folder} holds the seeds {', '.join(map(str, seeds_there))}: resume them with"
                f" --config.seed={first} --config.num_seeds={count}, or choose another folder."
            )
        return {config.seed: folder}
    if (folder / "checkpoints").exists():
        raise ValueError(
            f"{folder} holds a run of one seed: choose another folder for {config.num_seeds}."
        )
    seeds = range(config.seed, config.seed + config.num_seeds)
    return {seed: folder / f"seed_{seed}" for seed in seeds}


def there(workdir: str | pathlib.Path) -> dict[int, pathlib.Path]:
    """Find the seed folders in a folder; the folder of a single run has none."""
    folders = {
        int(match[1]): path
        for path in pathlib.Path(workdir).glob("seed_*")
        if path.is_dir() and (match := re.fullmatch(r"seed_(\d+)", path.name))
    }
    return dict(sorted(folders.items()))
