"""Agreement with other libraries, where they are installed; nothing is installed for it."""

import numpy as np
import pytest

from calib_jax import metrics
from experiments.benchmarks import libraries, reference

# Which metric of ours each task is, and how near they have to be.
TASKS = {
    "ece": (metrics.ece, 1e-6),
    "adaptive_ece": (metrics.adaptive_ece, 1e-5),
    "classwise_ece": (metrics.classwise_ece, 1e-7),
    "nll": (metrics.nll, 1e-5),
    "brier": (metrics.brier, 1e-5),
    "smooth_ece": (metrics.smooth_ece, 1e-3),
}
# torchmetrics computes in float32 throughout, and its mean over classes rounds.
WIDER = {"torchmetrics, class by class": 1e-6}
PEERS = [
    ("ece", "torchmetrics"),
    ("ece", "netcal"),
    ("ece", "uncertainty-calibration"),
    ("adaptive_ece", "netcal"),
    ("adaptive_ece", "uncertainty-calibration"),
    ("classwise_ece", "torchmetrics, class by class"),
    ("classwise_ece", "netcal, class by class"),
    ("classwise_ece", "uncertainty-calibration"),
    ("smooth_ece", "relplot"),
    ("nll", "scikit-learn"),
    ("brier", "scikit-learn"),
]


def sample(num_rows, num_classes):
    """Return logits and labels; the number of rows is a multiple of the bins."""
    random = np.random.default_rng(0)
    logits = (2 * random.standard_normal((num_rows, num_classes))).astype(np.float32)
    p = reference.softmax(logits / 1.5).astype(np.float64)
    labels = (p.cumsum(axis=1) < random.random((num_rows, 1))).sum(axis=1)
    return logits, np.minimum(labels, num_classes - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "peer"), PEERS)
def test_agreement(task, peer):
    function = libraries.metrics().get(task, {}).get(peer)
    if function is None:
        pytest.skip(f"{peer} is not installed")
    metric, tolerance = TASKS[task]
    for num_rows, num_classes in ((3000, 10), (3000, 100)):
        logits, labels = sample(num_rows, num_classes)
        theirs = function(reference.softmax(logits), labels)
        assert abs(float(metric(logits, labels)) - theirs) < WIDER.get(peer, tolerance)


def test_numpy_forms_that_the_benchmark_measures_against():
    logits, labels = sample(3000, 10)
    p = reference.softmax(logits)
    for name, function in (
        ("ece", reference.ece),
        ("adaptive_ece", reference.adaptive_ece),
        ("classwise_ece", reference.classwise_ece),
    ):
        metric, tolerance = TASKS[name]
        assert abs(float(metric(logits, labels)) - function(p, labels)) < max(tolerance, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_ranking_metrics_of_scikit_learn(num_classes):
    """With ties, with and without weights; scikit-learn is given the probabilities."""
    peers = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(num_classes)
    logits = random.standard_normal((40, num_classes)).astype(np.float32)
    logits, labels = logits[random.integers(0, 40, 300)], random.integers(0, num_classes, 300)
    weights = random.choice([0.5, 1.0, 3.0], 300)
    z = logits.astype(np.float64)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    p = p[:, 1] if num_classes == 2 else p
    for sample_weight in (None, weights):
        wanted = peers.roc_auc_score(labels, p, multi_class="ovr", sample_weight=sample_weight)
        assert metrics.auroc(logits, labels, sample_weight) == pytest.approx(wanted, abs=1e-5)
        wanted = peers.average_precision_score(labels, p, sample_weight=sample_weight)
        actual = metrics.average_precision(logits, labels, sample_weight)
        assert actual == pytest.approx(wanted, abs=1e-5)
