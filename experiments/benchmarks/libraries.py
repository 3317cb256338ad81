"""Other implementations of the metrics: NumPy code and installed libraries."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.benchmarks import reference
from experiments.benchmarks.reference import BINS

Peer = Callable[[np.ndarray, np.ndarray], Any]  # Of probabilities and labels.


def _class_by_class(error: Peer) -> Peer:
    """Average a binary error over classes, each against the rest."""
    return lambda p, y: np.mean([error(p[:, k], (y == k).astype(int)) for k in range(p.shape[1])])


def installed(library: str) -> bool:
    """Check whether a library can be imported, without importing it."""
    return importlib.util.find_spec(library) is not None


def _metrics() -> Iterator[tuple[str, str, Peer]]:
    """Yield the metric, the name and the function of every installed implementation."""
    if installed("torchmetrics"):
        from torch import from_numpy
        from torchmetrics.functional import classification as tm

        def binary(p: np.ndarray, y: np.ndarray) -> Any:
            tensors = from_numpy(p), from_numpy(y)
            return tm.binary_calibration_error(*tensors, BINS, validate_args=False)

        def multiclass(p: np.ndarray, y: np.ndarray) -> Any:
            tensors = from_numpy(p), from_numpy(y)
            return tm.multiclass_calibration_error(*tensors, p.shape[1], BINS, validate_args=False)

        yield "ece", "torchmetrics", multiclass
        yield "classwise_ece", "torchmetrics, class by class", _class_by_class(binary)
    if installed("netcal"):
        from netcal.metrics import ECE

        yield "ece", "netcal", ECE(bins=BINS).measure
        yield "adaptive_ece", "netcal", ECE(bins=BINS, equal_intervals=False).measure
        yield "classwise_ece", "netcal, class by class", _class_by_class(ECE(bins=BINS).measure)
    if installed("calibration"):
        from calibration import get_ece, get_ece_em

        name = "uncertainty-calibration"
        yield from [("ece", name, get_ece), ("adaptive_ece", name, get_ece_em)]
        yield "classwise_ece", name, lambda p, y: get_ece(p, y, mode="marginal")
    if installed("relplot"):
        from relplot import smECE

        yield "smooth_ece", "relplot", lambda p, y: smECE(*map(np.float64, reference.top(p, y)))
    if installed("sklearn"):
        from sklearn.metrics import brier_score_loss, log_loss

        yield "nll", "scikit-learn", lambda p, y: log_loss(y, p, labels=range(p.shape[1]))
        yield "brier", "scikit-learn", lambda p, y: brier_score_loss(y, p, scale_by_half=False)


def metrics(peers: bool = True) -> dict[str, dict[str, Peer]]:
    """Return functions by metric and by name."""
    tasks: dict[str, dict[str, Peer]] = {
        "ece": {"NumPy": reference.ece},
        "adaptive_ece": {"NumPy": reference.adaptive_ece},
        "classwise_ece": {"NumPy": reference.classwise_ece},
    }
    for task, name, function in _metrics() if peers else ():
        tasks.setdefault(task, {})[name] = function
    return tasks
