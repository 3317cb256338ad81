"""Metrics in NumPy and in installed libraries, for the benchmark and a test."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.benchmarks import reference
from experiments.benchmarks.reference import BINS

Peer = Callable[[np.ndarray, np.ndarray], Any]  # Of probabilities and labels.
Bootstrap = Callable[[np.ndarray, np.ndarray, int], object]


def _class_by_class(error: Peer) -> Peer:
    """Average a binary error over classes, each against the rest."""
    return lambda p, y: np.mean([error(p[:, k], (y == k).astype(int)) for k in range(p.shape[1])])


def _installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _libraries() -> Iterator[tuple[str, str, Peer]]:
    """Yield the metric, the name and the function of every installed implementation."""
    if _installed("torchmetrics"):
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
    if _installed("netcal"):
        from netcal.metrics import ECE

        yield "ece", "netcal", ECE(bins=BINS).measure
        yield "adaptive_ece", "netcal", ECE(bins=BINS, equal_intervals=False).measure
        yield "classwise_ece", "netcal, class by class", _class_by_class(ECE(bins=BINS).measure)
    if _installed("calibration"):
        from calibration import get_ece, get_ece_em

        name = "uncertainty-calibration"
        yield from [("ece", name, get_ece), ("adaptive_ece", name, get_ece_em)]
        yield "classwise_ece", name, lambda p, y: get_ece(p, y, mode="marginal")
    if _installed("relplot"):
        from relplot import smECE

        yield "smooth_ece", "relplot", lambda p, y: smECE(*map(np.float64, reference.top(p, y)))
    if _installed("sklearn"):
        from sklearn.metrics import brier_score_loss, log_loss

        yield "nll", "scikit-learn", lambda p, y: log_loss(y, p, labels=range(p.shape[1]))
        yield "brier", "scikit-learn", lambda p, y: brier_score_loss(y, p, scale_by_half=False)


def functions(libraries: bool = True) -> dict[str, dict[str, Peer]]:
    """Return functions by metric and by name."""
    tasks: dict[str, dict[str, Peer]] = {
        "ece": {"NumPy": reference.ece},
        "adaptive_ece": {"NumPy": reference.adaptive_ece},
        "classwise_ece": {"NumPy": reference.classwise_ece},
    }
    for task, name, function in _libraries() if libraries else ():
        tasks.setdefault(task, {})[name] = function
    return tasks


def bootstraps() -> dict[str, tuple[Bootstrap, int]]:
    """Return the bootstraps of the ECE that are installed, and how many resamples to time."""
    found: dict[str, tuple[Bootstrap, int]] = {}
    if _installed("torchmetrics"):
        from torch import from_numpy
        from torchmetrics.classification import MulticlassCalibrationError
        from torchmetrics.wrappers import BootStrapper

        def resampled(p: np.ndarray, labels: np.ndarray, number: int) -> object:
            metric = MulticlassCalibrationError(p.shape[1], n_bins=BINS, validate_args=False)
            wrapped = BootStrapper(metric, number, sampling_strategy="multinomial")
            wrapped.update(from_numpy(p), from_numpy(labels))
            return wrapped.compute()

        found["ECE, torchmetrics BootStrapper"] = (resampled, 20)
    if _installed("calibration"):
        from calibration import get_calibration_error_uncertainties as interval

        found["ECE, uncertainty-calibration"] = (  # Its number of resamples is not an option.
            lambda p, y, _: interval(p, y, p=1, mode="top-label"),
            100,
        )
    return found
