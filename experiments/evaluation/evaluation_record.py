"""The weights that made the predictions of a run: evaluation.json, beside the predictions.

If a run is trained further after its evaluation, the predictions belong to older weights, and a
comparison would use an outdated training. A killed evaluation may leave predictions of two
checkpoints side by side, and a temperature fitted to one checkpoint would be applied to the other.
So every prediction file names its weights, and readers check that all files name the same weights.
"""

import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from calib_jax import train
from calib_jax.core.files import reading
from calib_jax.train import log
from experiments.evaluation import streamed_scores
from experiments.reports import pages
from experiments.running import environment

FILE = "evaluation.json"
PLACES = ("report", "report_training")  # folders of reports
OF_SWEEP = "result.json"  # marks a run of a sweep as trained and evaluated
_AGAIN = "evaluate the run again"


class Evaluated(NamedTuple):
    """The weights of predictions.

    Attributes:
      checkpoint: the name of the checkpoint, such as latest or best_nll, or the file of given
        weights.
      step: the step after which the checkpoint was saved.
      trained: the last step of the run at that time.
    """

    checkpoint: str
    step: int
    trained: int = 0

    def __str__(self) -> str:
        return f"{self.checkpoint}, step {self.step:,}"

    def is_of(self, other: "Evaluated") -> bool:
        """Check that both records describe the same weights."""
        return (self.checkpoint, self.step) == (other.checkpoint, other.step)


def begin(folder: pathlib.Path, weights: Evaluated) -> None:
    """Remove marks, values and reports of an evaluation of other weights; keep the predictions."""
    if (before := _read_valid(folder)) and before.is_of(weights):
        return
    if {"config", "asked"} <= _mapping(folder / OF_SWEEP).keys():  # a sweep has written this file
        (folder / OF_SWEEP).unlink()
    streamed_scores.remove(folder)
    for place in PLACES:
        pages.remove(folder / place)


def keep(
    folder: pathlib.Path, part: str, predicted: train.Predicted, weights: Evaluated
) -> pathlib.Path:
    """Write the predictions of a part of the data atomically; return the path of the file."""
    path = folder / file_of(part)
    with log.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **predicted.arrays, checkpoint=weights.checkpoint, step=weights.step)
    streamed_scores.remove(folder)
    return path


def write(folder: pathlib.Path, weights: Evaluated, parts: Iterable[str] = ()) -> dict[str, Any]:
    """Write the record of an evaluation, and return it.

    Then remove the listed prediction files that belong to other weights. All other files stay: a
    user may keep predictions_my_ensemble.npz here.
    """
    before, listed = _read_valid(folder), _listed(folder)
    new = set(map(file_of, parts))
    kept = new | listed if before and before.is_of(weights) else new
    record = weights._replace(trained=_trained(folder))._asdict() | {"files": sorted(kept)}
    whole = record | {"provenance": environment.describe()}
    log.replace(folder / FILE, json.dumps(whole, indent=1) + "\n")
    for name in listed - kept:
        (folder / name).unlink(missing_ok=True)
    return whole


def file_of(part: str) -> str:
    """Return the name of the prediction file of a part of the data."""
    return f"predictions_{part}.npz"


def read(folder: pathlib.Path) -> Evaluated | None:
    """Read the record of a run; None if an older version evaluated it."""
    try:
        saved = reading.json_mapping(folder / FILE, "a record", _AGAIN)
    except FileNotFoundError:
        return None
    checkpoint, step, trained = (saved.get(key) for key in Evaluated._fields)
    if not (isinstance(checkpoint, str) and isinstance(step, int) and isinstance(trained, int)):
        raise reading.Unreadable(
            f"{folder / FILE} does not name the weights of the predictions; {_AGAIN}."
        )
    return Evaluated(checkpoint, step, trained)


def stale(folder: pathlib.Path) -> Evaluated | None:
    """Read the record of a run that was trained on after its evaluation; else return None."""
    evaluated = read(folder)
    return evaluated if evaluated and _trained(folder) > evaluated.trained else None


def check(folder: pathlib.Path) -> None:
    """Raise an error unless the record and the predictions of a run name the same weights.

    Files of older versions do not name their weights, and are accepted.
    """
    read_of = {FILE: read(folder)}
    for part in ("validation", "test"):
        read_of[file_of(part)] = _of_predictions(folder / file_of(part))
    known = [(name, weights) for name, weights in read_of.items() if weights is not None]
    for name, weights in known[1:]:
        first, of_first = known[0]
        if not weights.is_of(of_first):
            raise ValueError(
                f"{folder / name} is of other weights ({weights}) than {first} ({of_first}), since"
                f" an evaluation was stopped: {_AGAIN}."
            )


def _of_predictions(path: pathlib.Path) -> Evaluated | None:
    """Read the weights named in a prediction file; None if the file is missing or names none."""
    try:
        with reading.npz(path, "predictions", _AGAIN) as arrays:
            if not {"checkpoint", "step"} <= set(arrays.names):
                return None
            return Evaluated(str(arrays["checkpoint"]), int(arrays["step"]))
    except FileNotFoundError:
        return None


def _read_valid(folder: pathlib.Path) -> Evaluated | None:
    try:
        return read(folder)
    except reading.Unreadable:
        return None


def _listed(folder: pathlib.Path) -> set[str]:
    """Read the file names that the record lists; ignore names of files other than predictions."""
    names = _mapping(folder / FILE).get("files", ())
    return {name for name in names if re.fullmatch(r"predictions_[^/\\]+\.npz", str(name))}


def _mapping(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON mapping; empty if the file is missing or damaged."""
    try:
        return reading.json_mapping(path, "a record")
    except (FileNotFoundError, reading.Unreadable):
        return {}


def _trained(folder: pathlib.Path) -> int:
    """Return the last step of a run by its log and its checkpoints: a cut log has lost rows."""
    rows = log.read_rows(folder / log.ROWS)
    saved = [int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdigit()]
    return max(saved + [int(row["step"]) for row in rows[-1:]], default=0)
