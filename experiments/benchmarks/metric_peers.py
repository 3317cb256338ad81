"""What others compute: NumPy by hand, and the libraries that are installed.

Each task is a mapping of names to functions of (probabilities, labels) in NumPy. They serve the
benchmark as what to be measured against, and a test as what to agree with. Nothing is installed
here; a library that is absent is left out.
"""

import importlib.util
from collections.abc import Callable, Iterator

import numpy as np

Peer = Callable[[np.ndarray, np.ndarray], float]
BINS = 15


def softmax(logits: np.ndarray) -> np.ndarray:
    """Compute probabilities as NumPy users do."""
    spread = np.exp(logits - logits.max(axis=1, keepdims=True))
    spread /= spread.sum(axis=1, keepdims=True)
    return spread


def _top(p: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted = p.argmax(axis=1)
    return p[np.arange(len(p)), predicted], predicted == labels


def _bins(values: np.ndarray) -> np.ndarray:
    """Find bins (lo, hi] of equal width."""
    return np.clip(np.ceil(values * BINS).astype(np.intp) - 1, 0, BINS - 1)


def numpy_ece(p: np.ndarray, labels: np.ndarray) -> float:
    """Compute ECE with one bincount."""
    confidence, hit = _top(p, labels)
    gap = np.bincount(_bins(confidence), confidence - hit, BINS)
    return float(np.abs(gap).sum() / len(p))


def numpy_adaptive_ece(p: np.ndarray, labels: np.ndarray) -> float:
    """Compute the ECE of whole examples in bins of equal count."""
    confidence, hit = _top(p, labels)
    gap = (confidence - hit)[np.argsort(confidence)]
    return float(sum(abs(part.sum()) for part in np.array_split(gap, BINS)) / len(p))


def numpy_classwise_ece(p: np.ndarray, labels: np.ndarray) -> float:
    """Compute the classwise ECE with one bincount over (class, bin)."""
    num_classes = p.shape[1]
    cell = BINS * np.arange(num_classes) + _bins(p)
    gap = np.bincount(cell.ravel(), p.ravel(), BINS * num_classes)
    of_true = BINS * labels + _bins(p[np.arange(len(p)), labels])
    gap -= np.bincount(of_true, minlength=BINS * num_classes)
    return float(np.abs(gap).sum() / p.size)


def numpy_bootstrap(p: np.ndarray, labels: np.ndarray, num_resamples: int) -> np.ndarray:
    """Compute resampled ECEs: softmax and binning once, then indices and one bincount each."""
    confidence, hit = _top(p, labels)
    index, gap = _bins(confidence), confidence - hit
    random = np.random.default_rng(0)
    samples = np.empty(num_resamples)
    for i in range(num_resamples):
        drawn = random.integers(0, len(p), len(p))
        samples[i] = np.abs(np.bincount(index[drawn], gap[drawn], BINS)).sum() / len(p)
    return samples


def _torchmetrics() -> Iterator[tuple[str, str, Peer]]:
    import torch
    from torchmetrics.functional.classification import (
        binary_calibration_error,
        multiclass_calibration_error,
    )

    def ece(p: np.ndarray, labels: np.ndarray) -> float:
        tensors = torch.from_numpy(p), torch.from_numpy(labels)
        return float(multiclass_calibration_error(*tensors, p.shape[1], BINS, validate_args=False))

    def classwise(p: np.ndarray, labels: np.ndarray) -> float:
        tensor, target = torch.from_numpy(p), torch.from_numpy(labels)
        errors = [
            binary_calibration_error(tensor[:, k], (target == k).long(), BINS, validate_args=False)
            for k in range(p.shape[1])
        ]
        return float(np.mean(errors))

    yield "ece", "torchmetrics", ece
    yield "classwise_ece", "torchmetrics, class by class", classwise


def _netcal() -> Iterator[tuple[str, str, Peer]]:
    from netcal.metrics import ECE

    def classwise(p: np.ndarray, labels: np.ndarray) -> float:
        error = ECE(bins=BINS)
        return float(
            np.mean([error.measure(p[:, k], (labels == k).astype(int)) for k in range(p.shape[1])])
        )

    yield "ece", "netcal", lambda p, labels: float(ECE(bins=BINS).measure(p, labels))
    yield (
        "adaptive_ece",
        "netcal",
        lambda p, labels: float(ECE(bins=BINS, equal_intervals=False).measure(p, labels)),
    )
    yield "classwise_ece", "netcal, class by class", classwise


def _calibration() -> Iterator[tuple[str, str, Peer]]:
    import calibration

    yield "ece", "uncertainty-calibration", lambda p, y: float(calibration.get_ece(p, y))
    yield (
        "adaptive_ece",
        "uncertainty-calibration",
        lambda p, y: float(calibration.get_ece_em(p, y)),
    )
    yield (
        "classwise_ece",
        "uncertainty-calibration",
        lambda p, y: float(calibration.get_ece(p, y, mode="marginal")),
    )


def _relplot() -> Iterator[tuple[str, str, Peer]]:
    import relplot

    def binned(p: np.ndarray, labels: np.ndarray) -> float:
        confidence, hit = _top(p, labels)
        return float(relplot.metrics.binnedECE(confidence, hit.astype(float), nbins=BINS))

    def smooth(p: np.ndarray, labels: np.ndarray) -> float:
        confidence, hit = _top(p, labels)
        return float(relplot.smECE(confidence, hit.astype(float)))

    yield "ece", "relplot", binned
    yield "smooth_ece", "relplot", smooth


def _sklearn() -> Iterator[tuple[str, str, Peer]]:
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import brier_score_loss, log_loss

    def ece(p: np.ndarray, labels: np.ndarray) -> float:
        confidence, hit = _top(p, labels)
        accuracy, mean = calibration_curve(hit, confidence, n_bins=BINS)
        count = np.bincount(_bins(confidence), minlength=BINS)
        return float((count[count > 0] * np.abs(accuracy - mean)).sum() / len(p))

    def brier(p: np.ndarray, labels: np.ndarray) -> float:
        return float(brier_score_loss(labels, p, scale_by_half=False))

    yield "ece", "scikit-learn", ece
    yield "nll", "scikit-learn", lambda p, y: float(log_loss(y, p, labels=range(p.shape[1])))
    yield "brier", "scikit-learn", brier


_LIBRARIES = {
    "torchmetrics": _torchmetrics,
    "netcal": _netcal,
    "calibration": _calibration,
    "relplot": _relplot,
    "sklearn": _sklearn,
}


def installed() -> dict[str, dict[str, Peer]]:
    """List what is installed: task -> name of the peer -> function."""
    tasks: dict[str, dict[str, Peer]] = {}
    for library, peers in _LIBRARIES.items():
        if importlib.util.find_spec(library) is not None:
            for task, name, function in peers():
                tasks.setdefault(task, {})[name] = function
    return tasks


# --------------------------------------------------------------------------------------------
# Bootstraps: (probabilities, labels, number of resamples) -> anything. One that has a number of
# its own is timed with that.

Bootstrap = Callable[[np.ndarray, np.ndarray, int], object]


def bootstraps() -> dict[str, tuple[Bootstrap, int | None]]:
    """List the bootstraps of ECE that are installed, and the resamples they insist on."""
    found: dict[str, tuple[Bootstrap, int | None]] = {}
    if importlib.util.find_spec("torchmetrics") is not None:
        found["torchmetrics BootStrapper"] = (_torchmetrics_bootstrap, None)
    if importlib.util.find_spec("calibration") is not None:
        found["uncertainty-calibration"] = (_calibration_bootstrap, 100)
    return found


def _torchmetrics_bootstrap(p: np.ndarray, labels: np.ndarray, num_resamples: int) -> object:
    import torch
    from torchmetrics.classification import MulticlassCalibrationError
    from torchmetrics.wrappers import BootStrapper

    metric = MulticlassCalibrationError(p.shape[1], n_bins=BINS, validate_args=False)
    wrapped = BootStrapper(metric, num_bootstraps=num_resamples, sampling_strategy="multinomial")
    wrapped.update(torch.from_numpy(p), torch.from_numpy(labels))
    return wrapped.compute()


def _calibration_bootstrap(p: np.ndarray, labels: np.ndarray, num_resamples: int) -> object:
    import calibration

    del num_resamples  # it takes 100
    return calibration.get_calibration_error_uncertainties(p, labels, p=1, mode="top-label")
