"""The folders of several seeds: DIR/seed_1, DIR/seed_2, ..., each of which is a run."""

import pathlib
import re

from ml_collections import ConfigDict


def of_config(workdir: str | pathlib.Path, config: ConfigDict) -> dict[int, pathlib.Path]:
    """Name the folder of every seed of a config: that which is given, if there is only one."""
    folder = pathlib.Path(workdir)
    found = there(folder)
    if config.num_seeds == 1:
        if found:
            raise ValueError(
                f"{folder} holds the seeds {', '.join(map(str, found))}: go on with"
                f" --config.seed={min(found)} --config.num_seeds={max(found) - min(found) + 1}, or"
                " choose another folder."
            )
        return {config.seed: folder}
    if (folder / "checkpoints").exists():
        raise ValueError(
            f"{folder} holds a run of one seed: choose another folder for {config.num_seeds}."
        )
    seeds = range(config.seed, config.seed + config.num_seeds)
    return {seed: folder / f"seed_{seed}" for seed in seeds}


def there(workdir: str | pathlib.Path) -> dict[int, pathlib.Path]:
    """Find the seeds in a folder; none where it is that of one run."""
    found = {
        int(match[1]): path
        for path in pathlib.Path(workdir).glob("seed_*")
        if path.is_dir() and (match := re.fullmatch(r"seed_(\d+)", path.name))
    }
    return dict(sorted(found.items()))
