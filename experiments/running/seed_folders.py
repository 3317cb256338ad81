"""The folders of several seeds: DIR/seed_1, DIR/seed_2, ..., each with its own run."""

import contextlib
import pathlib
import re
import stat
import tempfile

from ml_collections import ConfigDict

from calib_jax import train


def named(workdir: str | None) -> pathlib.Path:
    """Return the path of --workdir; raise an error for a file or a folder of other programs."""
    if not (workdir or "").strip():
        raise ValueError("--workdir is empty: give --workdir=FOLDER, where the run is kept.")
    folder = pathlib.Path(str(workdir))
    try:
        is_file = not stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        is_file = False
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"--workdir={workdir} cannot be used: {why}.") from error
    if is_file:
        raise NotADirectoryError(f"--workdir={workdir} is a file: choose a folder.")
    train.check_ours(folder)
    return folder


def prepare(folder: pathlib.Path) -> None:
    """Create the folder of a run or a sweep, and mark it; raise an error if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        with contextlib.suppress(train.InUse), train.only_one(folder):  # marks the folder
            pass
    except OSError as error:
        raise ValueError(
            f"--workdir={folder} cannot be written to: {error.strerror}; choose another folder."
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
