"""Which weights the predictions of a run are of: evaluation.json, beside the predictions.

A run can be trained on after its evaluation. Its predictions are then of older weights, and a
comparison with them would be of another training. An evaluation that is killed must not leave
predictions of two checkpoints side by side, or a temperature that was fitted to one would be
applied to the other.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from calib_jax import train
from calib_jax.core import reading
from calib_jax.train import files, journal
from experiments import provenance, streamed_scores

FILE = "evaluation.json"
OF_SWEEP = "result.json"  # marks a run of a sweep as trained and evaluated
_AGAIN = "evaluate the run again"


class Evaluated(NamedTuple):
    """The weights of predictions.

    Attributes:
      checkpoint: its name, such as latest or best_nll.
      step: the step after which it was saved.
      trained: the last step of the run at that time.
    """

    checkpoint: str
    step: int
    trained: int

    def __str__(self) -> str:
        return f"{self.checkpoint}, step {self.step:,}"


def begin(folder: pathlib.Path, checkpoint: str, step: int) -> None:
    """Remove what an evaluation of other weights left in the folder of a run."""
    try:
        before = read(folder)
    except reading.Unreadable:
        before = None
    if before and (before.checkpoint, before.step) == (checkpoint, step):
        return
    for path in (folder / FILE, folder / OF_SWEEP, *folder.glob("predictions_*.npz")):
        path.unlink(missing_ok=True)
    streamed_scores.remove(folder)


def keep(folder: pathlib.Path, part: str, predicted: train.Predicted) -> pathlib.Path:
    """Write the predictions of a part of the data, whole or not at all; return their file."""
    path = folder / f"predictions_{part}.npz"
    with files.replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **predicted.arrays)
    streamed_scores.remove(folder)
    return path


def write(folder: pathlib.Path, checkpoint: str, step: int) -> dict[str, Any]:
    """Write the record into the folder of a run, and return it."""
    record = {"checkpoint": checkpoint, "step": step, "trained": _trained(folder)}
    whole = record | {"provenance": provenance.describe()}
    files.replace(folder / FILE, json.dumps(whole, indent=1) + "\n")
    return whole


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


def _trained(folder: pathlib.Path) -> int:
    rows = journal.read_rows(folder / journal.ROWS)
    return int(rows[-1]["step"]) if rows else 0
