"""Metrics `(logits, labels, weights=None, *, options) -> value` with mergeable statistics.

    metrics.ece(logits, labels)                      one number
    metrics.values_of({...}, logits, labels)         several, in one pass
    metrics.ece.stat(...) + metrics.ece.stat(...)    statistics merge; ece.value(stat) at the end
    metrics.Stream({...})                            batch by batch
    metrics.catalogue()                              every metric by name

Each file of this subpackage defines one family. To add a metric, declare it beside the functions
of its terms and its value (see `metric`); the catalogue then lists it by name. Resamples and
intervals are in `calib_jax.inference`.
"""

from calib_jax.core import checks as _checks
from calib_jax.core.values import Stated as Stated
from calib_jax.metrics.averages import accuracy as accuracy
from calib_jax.metrics.averages import brier as brier
from calib_jax.metrics.averages import by_correctness as by_correctness
from calib_jax.metrics.averages import error as error
from calib_jax.metrics.averages import mean_confidence as mean_confidence
from calib_jax.metrics.averages import mean_entropy as mean_entropy
from calib_jax.metrics.averages import nll as nll
from calib_jax.metrics.averages import ranked_probability_score as ranked_probability_score
from calib_jax.metrics.averages import sharpness as sharpness
from calib_jax.metrics.averages import signed_gap as signed_gap
from calib_jax.metrics.averages import top_k as top_k
from calib_jax.metrics.bins import (
    adaptive_debiased_rms_calibration_error as adaptive_debiased_rms_calibration_error,
)
from calib_jax.metrics.bins import adaptive_ece as adaptive_ece
from calib_jax.metrics.bins import adaptive_mce as adaptive_mce
from calib_jax.metrics.bins import average_calibration_error as average_calibration_error
from calib_jax.metrics.bins import brier_decomposition as brier_decomposition
from calib_jax.metrics.bins import classwise_ece as classwise_ece
from calib_jax.metrics.bins import debiased_rms_calibration_error as debiased_rms_calibration_error
from calib_jax.metrics.bins import ece as ece
from calib_jax.metrics.bins import mce as mce
from calib_jax.metrics.bins import mmce_script as mmce_script
from calib_jax.metrics.bins import overconfidence as overconfidence
from calib_jax.metrics.bins import per_class_ece as per_class_ece
from calib_jax.metrics.bins import rms_calibration_error as rms_calibration_error
from calib_jax.metrics.bins import sce as sce
from calib_jax.metrics.bins import underconfidence as underconfidence
from calib_jax.metrics.confusion import confusion_counts as confusion_counts
from calib_jax.metrics.confusion import frequency_weighted_iou as frequency_weighted_iou
from calib_jax.metrics.confusion import mean_iou as mean_iou
from calib_jax.metrics.confusion import mean_precision as mean_precision
from calib_jax.metrics.confusion import mean_recall as mean_recall
from calib_jax.metrics.confusion import per_class_iou as per_class_iou
from calib_jax.metrics.confusion import per_class_precision as per_class_precision
from calib_jax.metrics.confusion import per_class_recall as per_class_recall
from calib_jax.metrics.confusion import shot_accuracy as shot_accuracy
from calib_jax.metrics.confusion import shots_of_classes as shots_of_classes
from calib_jax.metrics.contract import ACE as _ACE
from calib_jax.metrics.contract import Metric as Metric
from calib_jax.metrics.contract import Predictions as Predictions
from calib_jax.metrics.contract import catalogue as catalogue
from calib_jax.metrics.contract import metric as metric
from calib_jax.metrics.contract import named as named
from calib_jax.metrics.contract import stats_of as stats_of
from calib_jax.metrics.contract import values_of as values_of
from calib_jax.metrics.contract import values_of_stats as values_of_stats
from calib_jax.metrics.ranking import auroc as auroc
from calib_jax.metrics.ranking import average_precision as average_precision
from calib_jax.metrics.ranking import in_and_out as in_and_out
from calib_jax.metrics.ranking import ood_aupr as ood_aupr
from calib_jax.metrics.ranking import ood_auroc as ood_auroc
from calib_jax.metrics.ranking import ood_fpr95 as ood_fpr95
from calib_jax.metrics.ranking import ood_roc_curve as ood_roc_curve
from calib_jax.metrics.refinement import calibration_brier as calibration_brier
from calib_jax.metrics.refinement import calibration_nll as calibration_nll
from calib_jax.metrics.refinement import refinement_brier as refinement_brier
from calib_jax.metrics.refinement import refinement_nll as refinement_nll
from calib_jax.metrics.reliability import Reliability as Reliability
from calib_jax.metrics.reliability import adaptive_reliability as adaptive_reliability
from calib_jax.metrics.reliability import classwise_reliability as classwise_reliability
from calib_jax.metrics.reliability import reliability as reliability
from calib_jax.metrics.selective import augrc as augrc
from calib_jax.metrics.selective import aurc as aurc
from calib_jax.metrics.selective import confidence_auroc as confidence_auroc
from calib_jax.metrics.selective import confident_set as confident_set
from calib_jax.metrics.selective import coverage_at_risk as coverage_at_risk
from calib_jax.metrics.selective import excess_aurc as excess_aurc
from calib_jax.metrics.selective import expected_cost as expected_cost
from calib_jax.metrics.selective import risk_at_coverage as risk_at_coverage
from calib_jax.metrics.selective import selective_accuracy as selective_accuracy
from calib_jax.metrics.selective import stated_cost as stated_cost
from calib_jax.metrics.stream import Stream as Stream
from calib_jax.metrics.terms import Columns as Columns
from calib_jax.metrics.terms import ratio as ratio
from calib_jax.metrics.without_bins import cutoff_error as cutoff_error
from calib_jax.metrics.without_bins import ecce as ecce
from calib_jax.metrics.without_bins import kde_calibration_error as kde_calibration_error
from calib_jax.metrics.without_bins import ks_error as ks_error
from calib_jax.metrics.without_bins import smooth_ece as smooth_ece

# Public names that `dir` leaves out: aliases, parts, and tools for metrics of your own.
_UNLISTED = {
    *["Columns", "Predictions", "Reliability", "adaptive_reliability", "excess_aurc", "ratio"],
    *["cutoff_error", "sce", "mmce_script", "shots_of_classes", "classwise_reliability"],
    *["frequency_weighted_iou", "mean_precision", "per_class_precision", "per_class_recall"],
    *["adaptive_debiased_rms_calibration_error", "stats_of", "values_of_stats"],
}


def _advice(name: str) -> str:
    """Return the end of the error for a name with two meanings or of `inference`."""
    if name == "ace":
        return f"'ace': {_ACE}"
    from calib_jax import inference  # which imports this subpackage

    found = not name.startswith("_") and name in dir(inference)
    return f"{name!r}, which is in calib_jax.inference." if found else ""


_checks.export(__name__, advice=_advice, unlisted=_UNLISTED)
