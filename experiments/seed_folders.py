"""The folders of several seeds: DIR/seed_1, DIR/seed_2, ..., each with its own run."""

import pathlib
import re
import stat
import tempfile

from ml_collections import ConfigDict

from calib_jax.core import reading

# One of these is in the folder of every run, of several seeds, of a sweep and of evaluated weights.
OURS = (
    "checkpoints",
    "config.json",
    "data.json",
    "metrics.jsonl",
    "seed_*",
    "subwords.txt",
    "runs",
    "predictions_*.npz",
    "report/values.json",
)


def named(workdir: str | None) -> pathlib.Path:
    """Return the path of --workdir; raise an error if it is no folder, or one of other files."""
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
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names and not any(any(folder.glob(pattern)) for pattern in OURS):
        raise ValueError(
            f"--workdir={workdir} holds files that belong to no run, such as {names[0]}: choose a"
            " new or an empty folder."
        )
    return folder


def prepare(folder: pathlib.Path) -> None:
    """Create the folder of a run or a sweep; raise an error if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
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
    """Find the seeds in a folder; the folder of a single run has none."""
    folders = {
        int(match[1]): path
        for path in pathlib.Path(workdir).glob("seed_*")
        if path.is_dir() and (match := re.fullmatch(r"seed_(\d+)", path.name))
    }
    return dict(sorted(folders.items()))
