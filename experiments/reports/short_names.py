"""Short names of folders of runs, for tables and figures."""

import pathlib
from collections.abc import Sequence


def short_names(folders: Sequence[str]) -> list[str]:
    """Name each folder by the shortest end of its path that makes all names unique.

    Drop the folder `runs` of a sweep, unless names are unique only with it.

    >>> short_names(["/ours/runs/focal/1", "/theirs/runs/brier/1"])
    ['focal/1', 'brier/1']
    >>> short_names(["/ours/runs/focal/1", "/theirs/runs/focal/1"])
    ['ours/focal/1', 'theirs/focal/1']
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
