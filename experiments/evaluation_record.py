"""Which weights the predictions of a run are of: evaluation.json, beside the predictions.

A run can be trained on after its evaluation. Its predictions are then of older weights, and a
comparison with them would be of another training.
"""

import json
import pathlib
from typing import Any, NamedTuple

from calib_jax.core import reading
from calib_jax.train import files, journal
from experiments import provenance

FILE = "evaluation.json"


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


def write(folder: pathlib.Path, checkpoint: str, step: int) -> dict[str, Any]:
    """Write the record into the folder of a run, and return it."""
    record = {"checkpoint": checkpoint, "step": step, "trained": _trained(folder)}
    whole = record | {"provenance": provenance.describe()}
    files.replace(folder / FILE, json.dumps(whole, indent=1) + "\n")
    return whole


def read(folder: pathlib.Path) -> Evaluated | None:
    """Read the record of a run; None if an older version evaluated it."""
    try:
        saved = reading.json_mapping(folder / FILE, "a record", "evaluate the run again")
    except FileNotFoundError:
        return None
    return Evaluated(*(saved[key] for key in Evaluated._fields))


def stale(folder: pathlib.Path) -> Evaluated | None:
    """Read the record of a run that was trained on after its evaluation; else return None."""
    evaluated = read(folder)
    return evaluated if evaluated and _trained(folder) > evaluated.trained else None


def _trained(folder: pathlib.Path) -> int:
    rows = journal.read_rows(folder / journal.ROWS)
    return int(rows[-1]["step"]) if rows else 0
