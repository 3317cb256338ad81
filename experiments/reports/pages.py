"""Replace the files of a report in a folder, and no file of the user."""

import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Sequence

from calib_jax.core.files import reading
from calib_jax.train import log

WRITTEN = "written.json"  # lists the files of the reports in a folder
_REPORT_FILE = r"(pictures/)?[^/\\]+\.(md|html|json|csv|png|txt)"


def replace(folder: pathlib.Path, save: Callable[[pathlib.Path], Sequence[str]]) -> list[str]:
    """Write a report into a folder in place of the report before; return the names of its files.

    Only files that an earlier report has written are replaced; a file of the user is an error, and
    so is a link in place of the folder or of its folder of figures.

    Args:
      folder: the folder of the report.
      save: writes the files of the report into a given folder, and returns their names.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_no_links(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".report-") as temporary:
        names = list(save(pathlib.Path(temporary)))
        listed = _written(folder)
        for name in names:
            if os.path.lexists(folder / name) and name not in listed:
                raise FileExistsError(
                    f"{folder / name} is a file of yours: move it, and give the command again."
                )
        folder.mkdir(exist_ok=True)
        record = {"files": sorted(listed | set(names))}
        log.replace(folder / WRITTEN, json.dumps(record) + "\n")
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (pathlib.Path(temporary) / name).replace(folder / name)
    return names


def check_no_links(folder: pathlib.Path) -> None:
    """Raise an error for a link in place of the folder of a report, or of its figures."""
    for place in (folder, folder / "pictures"):
        if place.is_symlink():
            raise FileExistsError(f"{place} is a link: replace it by a folder.")


def remove(folder: pathlib.Path) -> None:
    """Remove the files that earlier reports have written into a folder."""
    for name in (*_written(folder), WRITTEN):
        (folder / name).unlink(missing_ok=True)


def _written(folder: pathlib.Path) -> set[str]:
    """Return the names of the files of the reports in a folder."""
    try:
        listed = reading.json_mapping(folder / WRITTEN, "a record").get("files", ())
    except (FileNotFoundError, reading.Unreadable):
        return set()
    return {str(name) for name in listed if re.fullmatch(_REPORT_FILE, str(name))}
