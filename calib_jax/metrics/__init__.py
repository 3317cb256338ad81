"""Metrics `(logits, labels, weights=None, *, options) -> value` with mergeable statistics.

    metrics.ece(logits, labels)                      one number
    metrics.values_of({...}, logits, labels)         several, in one pass
    metrics.ece.stat(...) + metrics.ece.stat(...)    statistics merge; ece.value(stat) at the end
    metrics.Stream({...})                            batch by batch
    metrics.bootstrap(metrics.ece, logits, labels, key=key)           resampled values
    metrics.catalogue()                              every metric by name

Each file of this subpackage defines one family. To add a metric, decorate one function with its
terms (see `metric`); the catalogue then lists it by name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from calib_jax.core.inputs.stated import Stated
from calib_jax.core.names import no_attribute
from calib_jax.metrics.averages import accuracy, brier, error, nll, top_k
from calib_jax.metrics.classwise import classwise_ece, per_class_ece, sce
from calib_jax.metrics.confusion import (
    confusion_counts,
    frequency_weighted_iou,
    mean_iou,
    mean_precision,
    mean_recall,
    per_class_iou,
    per_class_precision,
    per_class_recall,
)
from calib_jax.metrics.contract.metric import (
    Metric,
    catalogue,
    metric,
    named,
    ratio,
    register,
    stats_of,
    values_of,
    values_of_stats,
)
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import (
    ClassGaps,
    ClassRanking,
    Columns,
    Kept,
    Ranking,
    Vectors,
)
from calib_jax.metrics.costs import expected_cost, stated_cost
from calib_jax.metrics.cumulative import cutoff_error, ecce, ks_error
from calib_jax.metrics.debiased import (
    adaptive_debiased_rms_calibration_error,
    debiased_rms_calibration_error,
)
from calib_jax.metrics.decomposition import BrierParts, brier_decomposition
from calib_jax.metrics.equal_mass import adaptive_ece, adaptive_mce
from calib_jax.metrics.fixed_bins import (
    ace,
    ece,
    mce,
    overconfidence,
    rms_calibration_error,
    underconfidence,
)
from calib_jax.metrics.kernel import kde_calibration_error
from calib_jax.metrics.one_vs_rest import auroc, average_precision
from calib_jax.metrics.ood import (
    RocCurve,
    in_and_out,
    ood_aupr,
    ood_auroc,
    ood_fpr95,
    ood_roc_curve,
)
from calib_jax.metrics.refinement import (
    calibration_brier,
    calibration_nll,
    refinement_brier,
    refinement_nll,
)
from calib_jax.metrics.released import MmceScript, mmce_script
from calib_jax.metrics.reliability import (
    Reliability,
    adaptive_reliability,
    classwise_reliability,
    reliability,
)
from calib_jax.metrics.selective import (
    ConfidentSet,
    augrc,
    aurc,
    confidence_auroc,
    confident_set,
    coverage_at_risk,
    excess_aurc,
    risk_at_coverage,
    selective_accuracy,
)
from calib_jax.metrics.shots import ShotAccuracy, shot_accuracy, shots_of_classes
from calib_jax.metrics.smooth import smooth_ece
from calib_jax.metrics.stream import Stream
from calib_jax.metrics.summaries import (
    ByCorrectness,
    Group,
    by_correctness,
    mean_confidence,
    mean_entropy,
    sharpness,
    signed_gap,
)

__all__ = [
    "BrierParts",
    "ByCorrectness",
    "ClassGaps",
    "ClassRanking",
    "Columns",
    "ConfidentSet",
    "Group",
    "Kept",
    "Metric",
    "MmceScript",
    "Predictions",
    "Ranking",
    "Reliability",
    "RocCurve",
    "ShotAccuracy",
    "Stated",
    "Stream",
    "Vectors",
    "accuracy",
    "ace",
    "adaptive_debiased_rms_calibration_error",
    "adaptive_ece",
    "adaptive_mce",
    "adaptive_reliability",
    "augrc",
    "aurc",
    "auroc",
    "average_precision",
    "bootstrap",
    "brier",
    "brier_decomposition",
    "by_correctness",
    "calibration_brier",
    "calibration_nll",
    "catalogue",
    "classwise_ece",
    "classwise_reliability",
    "confidence_auroc",
    "confident_set",
    "confusion_counts",
    "coverage_at_risk",
    "cutoff_error",
    "debiased_rms_calibration_error",
    "ecce",
    "ece",
    "error",
    "estimates",
    "excess_aurc",
    "expected_cost",
    "frequency_weighted_iou",
    "in_and_out",
    "interval",
    "kde_calibration_error",
    "ks_error",
    "mce",
    "mean_confidence",
    "mean_entropy",
    "mean_iou",
    "mean_precision",
    "mean_recall",
    "metric",
    "mmce_script",
    "named",
    "nll",
    "ood_aupr",
    "ood_auroc",
    "ood_fpr95",
    "ood_roc_curve",
    "overconfidence",
    "per_class_ece",
    "per_class_iou",
    "per_class_precision",
    "per_class_recall",
    "ratio",
    "refinement_brier",
    "refinement_nll",
    "register",
    "reliability",
    "risk_at_coverage",
    "rms_calibration_error",
    "sce",
    "selective_accuracy",
    "sharpness",
    "shot_accuracy",
    "shots_of_classes",
    "signed_gap",
    "smooth_ece",
    "stated_cost",
    "stats_of",
    "top_k",
    "underconfidence",
    "values_of",
    "values_of_stats",
]

if TYPE_CHECKING:
    from calib_jax.inference import bootstrap, estimates, interval

# Aliases of functions in `inference`, imported late because `inference` imports this subpackage.
_ALIASES = ("bootstrap", "estimates", "interval")


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        if name in _ALIASES:
            return getattr(importlib.import_module("calib_jax.inference"), name)
        raise no_attribute(__name__, name, __all__)
