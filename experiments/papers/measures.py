"""Further measurements of finished runs, which need the network and the data again.

A measure is a function of a run's folder and of the folder of the data sets. It returns arrays,
small enough to be kept: they are written once beside the record of the run (`records.py`).
"""

import pathlib
from collections.abc import Callable

import numpy as np

Measure = Callable[[pathlib.Path, str | None], dict[str, np.ndarray]]

_MEASURES: dict[str, Measure] = {}


def register(measure: Measure) -> Measure:
    """Register a measure under the name of its function."""
    _MEASURES[measure.__name__] = measure
    return measure


def named(name: str) -> Measure:
    """Return the measure of this name."""
    if name not in _MEASURES:
        raise LookupError(f"there is no measure {name!r}; there are {', '.join(_MEASURES)}.")
    return _MEASURES[name]
